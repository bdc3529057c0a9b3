"""Session in one process: what it counts, when it checkpoints, what it tells and what it refuses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from spotsup_trainer import wire
from spotsup_trainer.checkpoint_dir import CheckpointError
from spotsup_trainer.session import MicroBatch, Session, SessionError
from torch import nn

TEN = torch.arange(10)


class Clock:
    """UNIX seconds, as told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def session(root: Path | None, **options: Any) -> Session:
    environ = options.pop("environ", {})
    model = nn.Linear(1, 1)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    return Session(state, checkpoint_dir=root, environ=environ, **options)


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
    batches = one.loader(TEN, global_batch=2, shuffle=False)
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


def test_micro_batches() -> None:
    one = session(None)
    pieces: list[MicroBatch] = next(one.loader(TEN, global_batch=10, micro_batch=4, shuffle=False))
    assert [piece.data.tolist() for piece in pieces] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [piece.weight for piece in pieces] == [0.4, 0.4, 0.2]
    assert [piece.last for piece in pieces] == [False, False, True]


def test_other_data_in_the_middle_of_an_epoch_is_refused(tmp_path: Path) -> None:
    one = session(tmp_path)
    next(one.loader(TEN, global_batch=4, seed=5))
    one.step()
    one.finish()
    again = session(tmp_path)
    for seed, shuffle in ((6, True), (5, False)):
        with pytest.raises(SessionError, match=r"epoch 0 is under way with length, seed, shuffle = \(10, 5, True\)"):
            again.loader(TEN, global_batch=4, seed=seed, shuffle=shuffle)
    with pytest.raises(SessionError, match=r"this loader has \(9, 5, True\)"):
        again.loader(TEN[:9], global_batch=4, seed=5)
    # another batch size is fine: the offset counts samples
    assert sum(len(batch) for batch in again.loader(TEN, global_batch=3, seed=5)) == 6


def test_data_without_length_and_questions_without_a_batch_are_refused() -> None:
    one = session(None)
    with pytest.raises(TypeError, match="list_iterator has no length"):
        one.loader(iter([1, 2]), global_batch=1)
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
    with pytest.raises(CheckpointError, match="the last checkpoint, of step 1, could not be written"):
        one.finish()
    assert "cannot be written to" in capfd.readouterr().err


def test_a_resumed_round_draws_new_random_numbers_but_always_the_same(tmp_path: Path) -> None:
    torch.manual_seed(3)
    one = session(tmp_path)
    fresh = (torch.rand(3).tolist(), random.random())
    one.step()
    one.finish()
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        random.seed(0)
        session(tmp_path)
        drawn.append((torch.rand(3).tolist(), random.random()))
    assert drawn[0] == drawn[1]
    assert drawn[0] != fresh


def test_intervals_that_are_none_are_refused() -> None:
    for wrong in ({"every_steps": 0}, {"every_s": -1.0}):
        with pytest.raises(ValueError, match="must be more than 0"):
            session(None, **wrong)


def test_several_processes_without_a_process_group_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"one of 3 processes.*init_process_group"):
        session(None, environ={"WORLD_SIZE": "3"})


# -- the launcher ------------------------------------------------------------------------------------------


def job(folder: Path) -> dict[str, str]:
    """The environment of a worker in a spotsup job."""
    names = ("YIELD", "SESSION", "PARKED", "PROGRESS")
    files = {f"SPOTSUP_{name}_FILE": str(folder / name) for name in names}
    return files | {"SPOTSUP_CHECKPOINT_DIR": str(folder / "checkpoints"), "SPOTSUP_ROUND": "4"}


def progress(folder: Path) -> wire.Progress:
    return wire.decode(wire.Progress, (folder / "PROGRESS").read_bytes())


def test_progress_is_told_first_then_not_too_often_then_last(tmp_path: Path) -> None:
    clock = Clock()
    one = session(None, environ=job(tmp_path), every_steps=100, clock=clock)
    assert (tmp_path / "SESSION").exists()
    assert not (tmp_path / "PROGRESS").exists()
    told = []
    batches = one.loader(TEN, global_batch=4, epochs=9)
    for _ in range(7):
        next(batches)
        clock.now += 0.09
        one.step(loss=torch.tensor(2.5, requires_grad=True))
        told.append(progress(tmp_path).step)
    assert told == [1, 1, 1, 4, 4, 4, 7]
    next(batches)
    one.step(loss=1.5)
    one.finish()
    last = progress(tmp_path)
    assert (last.round, last.step, last.epoch, last.samples, last.loss) == (4, 8, 2, 28, 1.5)
    assert last.checkpoint_step == 8
    assert (last.first_step_at, last.at) == pytest.approx((1000.09, 1000.63))


def test_a_yield_checkpoints_and_parks_until_the_launcher_had_its_time(tmp_path: Path) -> None:
    one = session(None, environ=job(tmp_path), park_timeout_s=0.01)
    one.step()
    assert not one.yielding()
    (tmp_path / "YIELD").touch()
    assert one.yielding()
    with pytest.raises(SystemExit, match="parked after step 2, but nobody ended"), one:
        one.step()
    assert json.loads((tmp_path / "PARKED").read_text()) == {"step": 2, "saved": True}
    assert progress(tmp_path).checkpoint_step == 2
    (tmp_path / "YIELD").unlink()
    assert session(None, environ=job(tmp_path)).steps_done == 2


def test_a_job_without_a_checkpoint_directory_is_warned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    environ = job(tmp_path)
    del environ["SPOTSUP_CHECKPOINT_DIR"]
    one = session(None, environ=environ, park_timeout_s=0.0)
    assert "no checkpoint directory is set" in capfd.readouterr().err
    one.step()
    (tmp_path / "YIELD").touch()
    with pytest.raises(SystemExit):
        one.step()
    assert json.loads((tmp_path / "PARKED").read_text()) == {"step": 2, "saved": False}
