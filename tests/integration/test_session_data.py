"""What a Session's loader gives in one process, and what is counted of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from spotsup_trainer.session import Session, SessionError
from spotsup_trainer.session.agreement import Agreement
from spotsup_trainer.session.peers import Peers, Reading
from torch.utils.data import IterableDataset

from tests.integration.sessions import COMPARED, TEN, session


class StreamOfKnownLength(IterableDataset[int]):  # type: ignore[misc]  # torch is untyped here
    """Like some streams of files."""

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))

    def __len__(self) -> int:
        return 2


class BesideOtherBatches(Peers):
    """Ranks of which one other has a batch sampler with a seed of its own."""

    def begin_highest(self, values: Sequence[int]) -> Reading:
        found = [*values[:4], values[4] + 1, *values[5:]] if len(values) == COMPARED else list(values)
        return Reading(0, found, None)


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
    for epochs in (1, 2):
        for _ in one.loader(TEN, global_batch=5, epochs=epochs):
            one.step()
    assert (one.steps_done, one.epoch) == (4, 2)


def test_a_loop_around_a_loader_of_one_epoch_is_refused_and_not_empty(tmp_path: Path) -> None:
    """As it is written with a DataLoader. Without a word it would train for one epoch of three."""
    one = session(tmp_path)
    seen = []

    def epoch_by_epoch() -> None:
        for _ in range(3):
            for batch in one.loader(TEN, global_batch=5):
                seen.append(batch.tolist())
                one.step()

    with pytest.raises(SessionError, match=r"^epoch 0 is complete, .* write `for epoch in loader\.epochs\(\):`"):
        epoch_by_epoch()
    assert len(seen) == 2
    with pytest.raises(SessionError, match=r"^epoch 0 is complete"):  # it is what was trained on here
        one.loader(TEN, global_batch=5)
    one.finish()
    again = session(tmp_path)  # started again after its end, it has nothing to do
    assert list(again.loader(TEN, global_batch=5)) == list(again.loader(TEN, global_batch=5)) == []


def test_a_loop_around_a_loader_of_all_epochs_is_refused_where_nothing_is_left(tmp_path: Path) -> None:
    one = session(tmp_path)
    loader = one.loader(TEN, global_batch=5, epochs=3)
    seen = []

    def epoch_by_epoch(loader: Any, most: int = 10) -> None:
        for _ in range(3):
            for batch, _ in zip(loader, range(most), strict=False):
                seen.append(batch.tolist())
                one.step()

    with pytest.raises(SessionError, match=r"^all 3 epochs are complete, .* write `for epoch in loader\.epochs\(\):`"):
        epoch_by_epoch(loader)
    assert len(seen) == 6
    with pytest.raises(SessionError, match=r"^all 3 epochs are complete"):
        epoch_by_epoch(one.loader(TEN, global_batch=5, epochs=3))
    again = one = session(None)
    epoch_by_epoch(again.loader(TEN, global_batch=5, epochs=3), most=2)  # so many batches at a time
    assert (len(seen), again.epoch) == (12, 3)


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
        _ = one.indices
    assert one.weight == 1.0


def test_options_that_decide_which_samples_come_are_refused() -> None:
    one = session(None)
    for wrong in ({"in_order": False}, {"sampler": [1, 2]}, {"batch_size": 2}):
        with pytest.raises(SessionError, match=rf"session\.loader\(\) takes no {next(iter(wrong))}="):
            one.loader(TEN, global_batch=2, **wrong)
    assert len(list(one.loader(TEN, global_batch=2, in_order=True))) == 5


def test_a_collate_fn_that_leaves_out_samples_is_told_of_once(capfd: pytest.CaptureFixture[str]) -> None:
    one = session(None)
    made: tuple[tuple[Any, int], ...] = (
        (lambda samples: {"x": torch.stack(samples[1:]), "y": torch.stack(samples[1:])}, 1),
        (lambda samples: [torch.zeros(3, 8, 8) for _ in samples], 0),  # images of three channels, one by one
        (lambda samples: torch.stack(samples).unsqueeze(0), 0),  # packed
        (lambda samples: {"tokens": torch.zeros(3), "ends": torch.stack(samples)}, 0),
    )
    for collate, lines in made:
        for _ in one.loader(TEN, global_batch=5, epochs=one.epoch + 1, seed=one.epoch, collate_fn=collate):
            one.step()
        warning = f"a batch of 5 samples has tensors of length {4 if lines else 3}: if collate_fn leaves out samples, "
        assert capfd.readouterr().err.count(warning) == lines


class ByWhom:
    """Ten samples, each the number of the process that made it."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_stay_from_epoch_to_epoch_where_asked(*, persistent: bool) -> None:
    one = session(None)
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": persistent, "multiprocessing_context": "fork"}
    made: list[list[int]] = []
    for epoch in one.loader(ByWhom(), global_batch=2, epochs=3, **options).epochs():
        made.append([])
        for number, batch in enumerate(epoch):
            assert len(one.indices) == 2
            made[-1] += batch.tolist()
            one.step()
            if (epoch.number, number) == (1, 2):
                break
    assert [len(each) for each in made] == [10, 6, 10]
    assert len({each for of_epoch in made for each in of_epoch}) == (1 if persistent else 3)


def test_one_line_says_what_was_arranged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = session(tmp_path, every_steps=5)
    next(iter(one.loader(TEN, global_batch=4, micro_batch=2, epochs=3)))
    one._course.piece = 1
    one.step()
    one.finish()
    one.loader(TEN, global_batch=4, micro_batch=2, epochs=3)  # said once
    again = session(tmp_path, every_steps=5, every_s=60)
    again.loader(TEN, global_batch=7, micro_batch=4, epochs=3)
    session(None).loader(TEN, batch_sampler=[[1]])
    assert [line for line in capfd.readouterr().err.splitlines() if "spotsup: 1 rank, " in line] == [
        f"spotsup: 1 rank, {arranged}"
        for arranged in (
            f"global batch 4 = 1 x 2 x 2, epoch 0 from sample 0 of 3 epochs, checkpoints every 5 steps to {tmp_path}",
            (
                "global batch 7 = 1 x 2 x up to 4, epoch 0 from sample 4 of 3 epochs, checkpoints every 5 steps "
                f"or 60 s to {tmp_path}"
            ),
            "batches of a batch_sampler, epoch 0 from batch 0 of 1 epochs, no checkpoints",
        )
    ]


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
    batches_of_other = iter(other.loader(TEN, batch_sampler=own))
    other._agreement = Agreement(BesideOtherBatches(0, 1, None))
    next(batches_of_other)
    with pytest.raises(SessionError, match="the batch_sampler of rank 0 gives other batches than that of another rank"):
        other.step()
    for wrong in wrongs:
        with pytest.raises(ValueError, match="either a global_batch or a batch_sampler"):
            one.loader(TEN, **wrong)
    with pytest.raises(ValueError, match="micro_batch is 0"):
        one.loader(TEN, global_batch=2, micro_batch=0)
