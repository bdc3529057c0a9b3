"""The gradients and losses of a Session: those of the mean over the whole batch of a step."""

from __future__ import annotations

import pytest
import torch
from spotsup_trainer.session import Session, SessionError
from torch import nn

from tests.integration.sessions import TEN, session


def test_micro_batches_have_the_weight_of_their_samples_and_one_step_together() -> None:
    one = session(None)
    seen = []
    for batch in one.loader(TEN, global_batch=10, micro_batch=4, shuffle=False):
        seen.append((batch.tolist(), one.weight, one.accumulating))
        assert one.indices == list(range(10))
        if one.accumulating:
            with pytest.raises(
                SessionError, match=r"after micro-batch \d of 3: go on with the next one while session.acc"
            ):
                one.step()
            continue
        one.step()
    assert seen == [([0, 1, 2], 0.3, True), ([3, 4, 5], 0.3, True), ([6, 7, 8, 9], 0.4, False)]
    assert one.steps_done == 1


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("micro_batch", [None, 1, 3])
def test_gradients_are_those_of_the_mean_over_the_batch(micro_batch: int | None, *, counted: bool) -> None:
    model = nn.Linear(1, 1, bias=False)
    one = Session({"model": model}, environ={})
    for batch in one.loader(TEN.float(), global_batch=10, micro_batch=micro_batch, shuffle=False):
        loss = model(batch.unsqueeze(1)).mean()
        one.backward(loss, count=len(batch) if counted else None)
    assert model.weight.grad.item() == pytest.approx(4.5)
    assert float(one.loss) == pytest.approx(4.5 * model.weight.item())


def test_what_was_counted_of_a_step_that_is_left_out_is_forgotten() -> None:
    model = nn.Linear(1, 1, bias=False)
    one = Session({"model": model, "again": nn.ModuleList([model])}, environ={})  # its parameters count once
    batches = iter(one.loader(TEN.float(), global_batch=5, shuffle=False))
    one.backward(model(next(batches).unsqueeze(1)).mean(), count=5)
    model.zero_grad()  # the gradient was not finite, say
    one.backward(model(next(batches).unsqueeze(1)).mean(), count=5)
    assert model.weight.grad.item() == pytest.approx(7.0)
    with pytest.raises(SessionError, match="called again after the step's last micro-batch"):
        one.backward(model(torch.ones(1, 1)).mean(), count=5)
    one.step()
    assert next(batches, None) is None
    model.zero_grad()
    one.backward(model(torch.ones(1, 1)).mean(), count=1)  # of a loader of its own, after ours has ended
    assert model.weight.grad.item() == pytest.approx(1.0)


def test_a_micro_batch_without_an_item_leaves_the_loss_a_number() -> None:
    model = nn.Linear(1, 1, bias=False)
    one = Session({"model": model}, environ={})
    for batch in one.loader(TEN.float(), global_batch=10, micro_batch=5, shuffle=False):
        real = batch[batch >= 5]
        total = model(real.unsqueeze(1)).sum()
        one.backward(total / max(1, len(real)), count=torch.tensor(len(real)))
    assert model.weight.grad.item() == pytest.approx(7.0)
    assert float(one.loss) == pytest.approx(7.0 * model.weight.item())


def test_each_counted_item_has_the_same_weight() -> None:
    model = nn.Linear(1, 1, bias=False)
    one = Session({"model": model}, environ={})
    for batch in one.loader(TEN.float(), global_batch=10, micro_batch=5, shuffle=False):
        real = batch[batch >= 3]  # the others are padding
        one.backward(model(real.unsqueeze(1)).mean(), count=torch.tensor(len(real)))
    assert model.weight.grad.item() == pytest.approx(6.0)  # of 3 to 9
    mixed = iter(one.loader(TEN.float(), global_batch=10, micro_batch=5, epochs=9))
    one.step()
    one.backward(model(next(mixed).unsqueeze(1)).mean())
    with pytest.raises(SessionError, match="for some micro-batches of a step only"):
        one.backward(model(next(mixed).unsqueeze(1)).mean(), count=5)


def test_a_scaler_scales_gradients_and_not_the_loss_that_is_shown() -> None:
    model = nn.Linear(1, 1, bias=False)
    one = Session({"model": model}, environ={})
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for batch in one.loader(TEN.float(), global_batch=10):
        one.backward(model(batch.unsqueeze(1)).mean(), scaler=scaler)
    assert model.weight.grad.item() == pytest.approx(8 * 4.5)
    assert float(one.loss) == pytest.approx(4.5 * model.weight.item())
