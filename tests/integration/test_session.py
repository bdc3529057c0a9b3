"""Session in one process: what it counts, when it checkpoints, what it reports and what it refuses."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from spotsup_trainer import wire
from spotsup_trainer.session import Session, SessionError
from spotsup_trainer.session.checkpoint_dir import CheckpointError
from spotsup_trainer.session.peers import Peers
from torch import nn
from torch.utils.data import IterableDataset

TEN = torch.arange(10)


class Clock:
    """UNIX seconds, set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class StreamOfKnownLength(IterableDataset[int]):  # type: ignore[misc]  # torch is untyped here
    """Like some streams of files."""

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))

    def __len__(self) -> int:
        return 2


class BesideABusyRank(Peers):
    """Ranks of which one other is still writing the last checkpoint, long after this one has given it up."""

    def highest(self, values: Sequence[int]) -> list[int]:
        return [*values[:3], 1, *values[4:]] if len(values) == 6 else list(values)


class BesideOtherBatches(Peers):
    """Ranks of which one other has a batch sampler with a seed of its own."""

    def highest(self, values: Sequence[int]) -> list[int]:
        return [*values[:4], values[4] + 1, values[5]] if len(values) == 6 else list(values)


def session(root: Path | None, **options: Any) -> Session:
    environ = options.pop("environ", {})
    model = nn.Linear(1, 1)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    return Session(state, checkpoints=root, environ=environ, **options)


def saved_steps(root: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in root.glob("step_*[0-9]"))


def settled(one: Session) -> None:
    assert one._checkpoints is not None
    one._checkpoints.settle()


# -- data --------------------------------------------------------------------------------------------------


def test_what_the_loader_gives_is_what_is_counted(tmp_path: Path) -> None:
    one = session(tmp_path)
    seen = []
    for batch in one.loader(TEN, global_batch=4, epochs=2, seed=5):
        assert batch.tolist() == one.indices
        assert one.weight == 1.0
        seen.append((one.steps_done, one.epoch, len(batch)))
        one.step()
    assert seen == [(0, 0, 4), (1, 0, 4), (2, 0, 2), (3, 1, 4), (4, 1, 4), (5, 1, 2)]
    assert (one.steps_done, one.epoch, one.rank, one.world, one.round) == (6, 2, 0, 1, 0)


def test_a_batch_without_a_step_is_given_again_but_one_that_was_skipped_is_not(tmp_path: Path) -> None:
    one = session(tmp_path)
    batches = iter(one.loader(TEN, global_batch=2, shuffle=False))
    next(batches)
    one.step()
    next(batches)  # skipped, as after a loss that is not a number: the next step counts it as used
    next(batches)
    one.step()
    next(batches)  # interrupted before its step
    one.finish()
    again = session(tmp_path)
    assert again.steps_done == 2
    assert [batch.tolist() for batch in again.loader(TEN, global_batch=2, shuffle=False)] == [[6, 7], [8, 9]]


def test_epochs_are_counted_over_all_calls(tmp_path: Path) -> None:
    one = session(tmp_path)
    for epochs in (1, 2, 2):
        for _ in one.loader(TEN, global_batch=5, epochs=epochs):
            one.step()
    assert (one.steps_done, one.epoch) == (4, 2)


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


def test_other_data_in_the_middle_of_an_epoch_is_refused(tmp_path: Path) -> None:
    one = session(tmp_path)
    next(iter(one.loader(TEN, global_batch=4, seed=5)))
    one.step()
    one.finish()
    again = session(tmp_path)
    for seed, shuffle in ((6, True), (5, False)):
        with pytest.raises(SessionError, match=r"epoch 0 was begun with length, seed, order = \(10, 5, shuffled\)"):
            again.loader(TEN, global_batch=4, seed=seed, shuffle=shuffle)
    with pytest.raises(SessionError, match=r"this loader has \(9, 5, shuffled\)"):
        again.loader(TEN[:9], global_batch=4, seed=5)
    # another batch size is fine: the offset counts samples
    assert sum(len(batch) for batch in again.loader(TEN, global_batch=3, seed=5)) == 6


def test_data_without_length_and_questions_without_a_batch_are_refused() -> None:
    one = session(None)
    for stream in (iter([1, 2]), StreamOfKnownLength()):
        with pytest.raises(TypeError, match=f"{type(stream).__name__} has no length or no index"):
            one.loader(stream, global_batch=1)
    with pytest.raises(SessionError, match="no current batch"):
        _ = one.weight


# -- checkpoints -------------------------------------------------------------------------------------------


def test_checkpoints_by_steps(tmp_path: Path) -> None:
    one = session(tmp_path, every_steps=3, keep=10)
    for _ in range(7):
        one.step()
        settled(one)
    assert saved_steps(tmp_path) == [3, 6]
    one.finish()
    assert saved_steps(tmp_path) == [3, 6, 7]
    again = session(tmp_path, every_steps=3, keep=10)
    again.step()
    again.step()
    settled(again)
    assert saved_steps(tmp_path) == [3, 6, 7]
    again.step()
    settled(again)
    assert saved_steps(tmp_path) == [3, 6, 7, 10]


def test_checkpoints_by_time(tmp_path: Path) -> None:
    clock = Clock()
    one = session(tmp_path, keep=10, clock=clock)
    for passed in (59.0, 1.0, 30.0, 31.0, -500.0, 1.0):
        clock.now += passed
        one.step()
        settled(one)
    # the last but one: a clock that was set back
    assert saved_steps(tmp_path) == [2, 4, 5]


def test_no_checkpoint_is_begun_while_any_rank_still_writes_one(tmp_path: Path) -> None:
    one = session(tmp_path, every_steps=1)
    alone, one._peers = one._peers, BesideABusyRank(0, 1, None)
    for _ in range(3):
        one.step()
        settled(one)
    assert saved_steps(tmp_path) == []
    one._peers = alone
    one.step()
    settled(one)
    assert saved_steps(tmp_path) == [4]


def test_a_checkpoint_point_saves_a_step_only_once(tmp_path: Path) -> None:
    clock = Clock()
    one = session(tmp_path, every_s=10, clock=clock)
    one.step()
    for _ in range(3):
        clock.now += 20
        one.checkpoint_point()
        settled(one)
    assert saved_steps(tmp_path) == [1]


def test_leaving_by_an_exception_makes_no_checkpoint(tmp_path: Path) -> None:
    one = session(tmp_path)
    one.step()
    with pytest.raises(ZeroDivisionError), one:
        raise ZeroDivisionError
    assert saved_steps(tmp_path) == []
    with session(tmp_path) as one:
        one.step()
    assert saved_steps(tmp_path) == [1]


def test_a_last_checkpoint_that_cannot_be_written_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    one = session(tmp_path / "file" / "checkpoints", every_steps=1)
    one.step()  # only a warning: training goes on
    with pytest.raises(CheckpointError, match="the last checkpoint is missing: the checkpoint of step 1 could not be"):
        one.finish()
    assert capfd.readouterr().err.count("spotsup: ") == 1


def drawn_after(root: Path | None, torch_seed: int = 3, python_seed: int = 4, numpy_seed: int = 5) -> list[float]:
    """What a program draws that seeds first and then makes a Session."""
    torch.manual_seed(torch_seed)
    random.seed(python_seed)
    np.random.seed(numpy_seed)
    session(root)
    return [float(torch.rand(1)), random.random(), float(np.random.random())]


def test_each_start_draws_other_random_numbers_but_the_same_ones_from_the_same_step(tmp_path: Path) -> None:
    fresh = drawn_after(tmp_path)
    assert drawn_after(None) == drawn_after(tmp_path) == fresh
    one = session(tmp_path)
    one.step()
    one.finish()
    resumed = drawn_after(tmp_path)
    assert drawn_after(tmp_path) == resumed
    assert all(new != old for new, old in zip(resumed, fresh, strict=True))


def test_random_numbers_come_from_the_seeds_of_the_program() -> None:
    usual = drawn_after(None)
    for at, other in enumerate(({"torch_seed": 9}, {"python_seed": 9}, {"numpy_seed": 9})):
        assert drawn_after(None, **other)[at] != usual[at]


def test_intervals_that_are_none_are_refused() -> None:
    for wrong in ({"every_steps": 0}, {"every_s": -1.0}):
        with pytest.raises(ValueError, match="must be more than 0"):
            session(None, **wrong)


def test_several_processes_without_a_process_group_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"one of 3 processes.*init_process_group"):
        session(None, environ={"WORLD_SIZE": "3"})


def test_a_mesh_without_dimensions_and_dimensions_without_a_mesh_are_refused() -> None:
    for half in ({"mesh": object()}, {"data_dims": ("dp",)}):
        with pytest.raises(SessionError, match="give both or none"):
            session(None, **half)


# -- the launcher ------------------------------------------------------------------------------------------


def job(folder: Path) -> dict[str, str]:
    """The environment of a worker in a spotsup job."""
    names = ("YIELD", "SESSION", "PARKED", "PROGRESS")
    files = {f"SPOTSUP_{name}_FILE": str(folder / name) for name in names}
    return files | {"SPOTSUP_CHECKPOINT_DIR": str(folder / "checkpoints"), "SPOTSUP_ROUND": "4"}


def progress(folder: Path) -> wire.Progress:
    return wire.decode(wire.Progress, (folder / "PROGRESS").read_bytes())


def test_progress_is_written_first_then_not_too_often_then_last(tmp_path: Path) -> None:
    clock = Clock()
    one = session(None, environ=job(tmp_path), every_steps=100, clock=clock)
    assert (tmp_path / "SESSION").exists()
    assert not (tmp_path / "PROGRESS").exists()
    reported = []
    batches = iter(one.loader(TEN, global_batch=4, epochs=9))
    for _ in range(7):
        next(batches)
        clock.now += 0.09
        one.step(loss=torch.tensor(2.5, requires_grad=True))
        reported.append(progress(tmp_path).step)
    assert reported == [1, 1, 1, 4, 4, 4, 7]
    next(batches)
    one.step(loss=1.5)
    one.finish()
    last = progress(tmp_path)
    assert (last.round, last.step, last.epoch, last.samples, last.loss) == (4, 8, 2, 28, 1.5)
    assert last.checkpoint_step == 8
    assert (last.first_step_at, last.at) == pytest.approx((1000.09, 1000.63))


def test_checkpoints_and_steps_are_measured_and_one_is_made_when_the_launcher_asks(tmp_path: Path) -> None:
    environ = job(tmp_path) | {
        "SPOTSUP_TIMES_FILE": str(tmp_path / "TIMES"),
        "SPOTSUP_SAVE_FILE": str(tmp_path / "SAVE"),
    }
    clock = Clock()
    one = session(None, environ=environ, every_steps=100, clock=clock)
    for _ in range(3):
        clock.now += 2.5
        one.step()
    assert progress(tmp_path).checkpoint_step == 0
    (tmp_path / "SAVE").touch()
    one.step()
    assert not (tmp_path / "SAVE").exists()
    one.finish()
    found, times = progress(tmp_path), json.loads((tmp_path / "TIMES").read_text())
    assert 0.0 < found.checkpoint_p50_s <= found.checkpoint_p95_s
    assert (found.step_s, found.checkpoint_every_s) == (2.5, 250.0)
    assert times == {"checkpoint_s": found.checkpoint_p95_s, "step_s": 2.5}


def test_every_rank_shows_now_and_then_that_it_trains(tmp_path: Path) -> None:
    clock = Clock()
    one = session(None, environ=job(tmp_path), every_steps=100, clock=clock)
    signs = []
    for passed in (19.0, 2.0, 18.0, 2.0, 200.0):
        os.utime(tmp_path / "SESSION", (1.0, 1.0))
        clock.now += passed
        one.step()
        signs.append((tmp_path / "SESSION").stat().st_mtime > 1.0)
    assert signs == [True, False, True, False, True]
    assert (tmp_path / "SESSION").read_text() == "400.0"  # after such a silence it would hang
    clock.now += 30.0
    os.utime(tmp_path / "SESSION", (1.0, 1.0))
    assert not one.yielding()
    assert (tmp_path / "SESSION").stat().st_mtime > 1.0
    one.finish()
    clock.now += 30.0
    assert not one.yielding()
    assert (tmp_path / "SESSION").read_text() == ""


def test_a_yield_checkpoints_and_parks_until_the_launcher_had_its_time(tmp_path: Path) -> None:
    one = session(None, environ=job(tmp_path), park_timeout_s=0.01)
    one.step()
    assert not one.yielding()
    (tmp_path / "YIELD").touch()
    assert one.yielding()
    with pytest.raises(SystemExit, match="parked after step 2; the launcher did not end"), one:
        one.step()
    assert json.loads((tmp_path / "PARKED").read_text()) == {"step": 2, "saved": True}
    assert progress(tmp_path).checkpoint_step == 2
    (tmp_path / "YIELD").unlink()
    assert session(None, environ=job(tmp_path)).steps_done == 2


def test_problems_with_checkpoints_are_reported_until_one_is_complete(tmp_path: Path) -> None:
    clock = Clock()
    in_the_way = tmp_path / "checkpoints"
    in_the_way.touch()
    one = session(None, environ=job(tmp_path), every_steps=1, clock=clock)
    reported = []
    for step in (1, 2, 3):
        if step == 3:
            in_the_way.unlink()
        clock.now += 1.0
        one.step()
        settled(one)
        clock.now += 1.0
        one.checkpoint_point()
        reported.append(progress(tmp_path))
    assert [each.checkpoint_step for each in reported] == [0, 0, 3]
    for each in reported[:2]:
        assert each.checkpoint_problem.startswith(
            f"the checkpoint of step {each.step} could not be written to {in_the_way}: "
        )
    assert reported[2].checkpoint_problem == ""


def test_progress_that_cannot_be_written_does_not_stop_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "PROGRESS").mkdir()
    clock = Clock()
    one = session(None, environ=job(tmp_path), clock=clock)
    for _ in range(3):
        clock.now += 1.0
        one.step()
    assert one.steps_done == 3
    assert capfd.readouterr().err.count("progress is no longer reported") == 1


def test_a_yield_that_cannot_be_saved_says_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    one = session(None, environ=job(tmp_path), park_timeout_s=0.01)
    (tmp_path / "YIELD").touch()
    with pytest.raises(SystemExit):
        one.step()
    assert json.loads((tmp_path / "PARKED").read_text()) == {"step": 1, "saved": False}
    assert progress(tmp_path).checkpoint_problem.startswith("the checkpoint of step 1 could not be written")


def test_a_job_without_a_checkpoint_directory_is_warned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    environ = job(tmp_path)
    del environ["SPOTSUP_CHECKPOINT_DIR"]
    one = session(None, environ=environ, park_timeout_s=0.0)
    assert "there is no place for checkpoints" in capfd.readouterr().err
    one.step()
    (tmp_path / "YIELD").touch()
    with pytest.raises(SystemExit):
        one.step()
    assert json.loads((tmp_path / "PARKED").read_text()) == {"step": 2, "saved": False}


# -- epochs, counters, gradients ---------------------------------------------------------------------------


def numbers_of(one: Session, epochs: int, **options: Any) -> list[tuple[int, int, list[Any]]]:
    """Number, length and batches of each epoch, with a step after each batch."""
    found = []
    for epoch in one.loader(TEN, global_batch=4, epochs=epochs, shuffle=False, **options).epochs():
        length, batches = len(epoch), []
        for batch in epoch:
            batches.append(batch.tolist())
            one.step()
        assert len(epoch) == 0
        found.append((epoch.number, length, batches))
    return found


WHOLE = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_epochs_are_loops_of_their_own_and_go_on_where_training_stopped(tmp_path: Path) -> None:
    one = session(tmp_path)
    batches = one.loader(TEN, global_batch=4, epochs=3, shuffle=False)
    assert (len(batches), batches.steps_per_epoch) == (9, 3)
    first = next(batches.epochs())
    next(iter(first))
    one.step()
    assert (len(first), len(batches)) == (2, 8)
    with pytest.raises(SessionError, match="epoch 0 is iterated over twice"):
        iter(first)
    one.finish()
    assert numbers_of(session(tmp_path), 3) == [(0, 2, WHOLE[1:]), (1, 3, WHOLE), (2, 3, WHOLE)]


def test_what_follows_an_epoch_is_done_again_if_it_was_interrupted(tmp_path: Path) -> None:
    one = session(tmp_path)
    for epoch in one.loader(TEN, global_batch=4, epochs=2, shuffle=False).epochs():
        for _ in epoch:
            one.step()
        if epoch.number == 0:
            one.finish()
            break  # as if the machine had gone during the evaluation
    again = session(tmp_path)
    assert numbers_of(again, 2) == [(0, 0, []), (1, 3, WHOLE)]
    again.finish()
    assert numbers_of(session(tmp_path), 2) == []
    assert numbers_of(session(tmp_path), 3) == [(2, 3, WHOLE)]


def test_an_epoch_that_is_left_early_is_over() -> None:
    one = session(None)
    seen = []
    for epoch in one.loader(TEN, global_batch=4, epochs=3, shuffle=False, num_workers=0).epochs():
        for batch in epoch:
            seen.append((epoch.number, batch.tolist()))
            one.step()
            if epoch.number == 1:
                break
    assert [batch for number, batch in seen if number == 1] == WHOLE[:1]
    assert [batch for number, batch in seen if number == 2] == WHOLE
    assert (one.steps_done, one.epoch) == (7, 3)


def test_batches_of_the_programs_own() -> None:
    one = session(None)
    own = [[3, 1], [9, 8, 7], [0]]
    batches = one.loader(TEN, batch_sampler=own, epochs=2)
    assert (len(batches), batches.steps_per_epoch) == (6, 3)
    seen = []
    for batch in batches:
        seen.append(batch.tolist())
        one.step()
    assert seen == own * 2
    once = session(None)
    for _ in once.loader(TEN, batch_sampler=(batch for batch in own), epochs=1):  # is not read for a second epoch
        once.step()
    assert once.steps_done == 3
    wrongs: list[dict[str, Any]] = [{}, {"global_batch": 2, "batch_sampler": own}]
    other = session(None)
    other._peers = BesideOtherBatches(0, 1, None)
    batches_of_other = iter(other.loader(TEN, batch_sampler=own))
    next(batches_of_other)
    with pytest.raises(SessionError, match="the batch_sampler of rank 0 gives other batches than that of another rank"):
        other.step()
    for wrong in wrongs:
        with pytest.raises(ValueError, match="either a global_batch or a batch_sampler"):
            one.loader(TEN, **wrong)
    with pytest.raises(ValueError, match="micro_batch is 0"):
        one.loader(TEN, global_batch=2, micro_batch=0)


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


def test_dicts_are_kept_and_random_numbers_if_asked(tmp_path: Path) -> None:
    best: dict[str, Any] = {"accuracy": 0.0}
    one = Session({"best": best}, checkpoints=tmp_path, environ={})
    best.update(accuracy=0.75, name="first")
    one.step()
    assert one.save()
    best["accuracy"] = 0.8
    assert one.save()  # the same step, and something else
    best["name"] = "second"
    one.finish()
    assert saved_steps(tmp_path) == [1]
    found: dict[str, Any] = {"other": 1}
    torch.manual_seed(3)
    random.seed(3)
    expected = (float(torch.rand(1)), random.random())
    torch.manual_seed(3)
    random.seed(3)
    Session({"best": found}, checkpoints=tmp_path, environ={}, rng="keep")
    assert (float(torch.rand(1)), random.random()) == expected
    assert found == {"accuracy": 0.8, "name": "second"}
    with pytest.raises(ValueError, match="rng is 'mine'"):
        Session({}, environ={}, rng="mine")  # type: ignore[arg-type]  # what a caller may do
    assert not Session({}, environ={}).save()


def test_what_a_program_still_does_before_it_parks_is_bounded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = session(None, environ=job(tmp_path) | {"SPOTSUP_TIMES_FILE": str(tmp_path / "TIMES")}, park_timeout_s=0.01)
    said: list[str] = []
    never = threading.Event()
    one.on_park(lambda: said.append("sent"))
    one.on_park(lambda: 1 / 0)
    one.on_park(never.wait, budget_s=0.05)
    (tmp_path / "YIELD").touch()
    with pytest.raises(SystemExit, match="parked after step 1"):
        one.step()
    never.set()
    assert said == ["sent"]
    printed = capfd.readouterr().err
    assert "ZeroDivisionError" in printed
    assert "on_park() has not ended within 0.05 s" in printed
    assert json.loads((tmp_path / "TIMES").read_text())["step_s"] >= 10.0
