"""Session in one process: when it checkpoints, what it keeps, and what it refuses."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from spotsup_trainer.session import Session, SessionError
from spotsup_trainer.session.agreement import Agreement
from spotsup_trainer.session.checkpoint_dir import CheckpointError
from spotsup_trainer.session.peers import Peers, Reading

from tests.integration.sessions import COMPARED, Clock, saved_steps, session, settled

# Its last checkpoint has begun as the program ends, and the disk is slow.
ENDS_EARLY = """
import sys, time, torch
from spotsup_trainer.session import Session, snapshot

def slow_write(*arguments, write=snapshot.write):
    time.sleep(2.0)
    write(*arguments)

snapshot.write = slow_write
session = Session({"model": torch.nn.Linear(4, 4)}, checkpoints=sys.argv[1], every_steps=5)
for _ in session.loader(torch.randn(4000, 4), global_batch=8, epochs=9):
    session.step()
    if session.steps_done == 5:
        break
"""


class BesideABusyRank(Peers):
    """Ranks of which one other is still writing the last checkpoint, long after this one has given it up."""

    def begin_highest(self, values: Sequence[int]) -> Reading:
        found = [*values[:3], 1, *values[4:]] if len(values) == COMPARED else list(values)
        return Reading(0, found, None)


def test_a_program_that_ends_without_finish_loses_no_checkpoint_that_was_being_written(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", ENDS_EARLY, tmp_path], check=True, timeout=120)
    assert saved_steps(tmp_path) == [5]


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


def test_the_default_interval_follows_from_what_a_copy_takes(tmp_path: Path) -> None:
    clock = Clock()

    class Slow:
        """Its state takes three seconds to copy."""

        def state_dict(self) -> dict[str, int]:
            clock.now += 3.0
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None:
            pass

    one = session(tmp_path, more={"slow": Slow()}, keep=10, clock=clock)
    for passed in (60.0, 60.0, 60.0, 31.0):
        clock.now += passed
        one.step()
        settled(one)
    assert saved_steps(tmp_path) == [1, 4]


def test_no_checkpoint_is_begun_while_any_rank_still_writes_one(tmp_path: Path) -> None:
    one = session(tmp_path, every_steps=1)
    alone, one._agreement = one._agreement, Agreement(BesideABusyRank(0, 1, None))
    for _ in range(3):
        one.step()
        settled(one)
    assert saved_steps(tmp_path) == []
    one._agreement = alone
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
