"""Session in one process with the files of a launcher: what it reports, and when it parks."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from spotsup_trainer import wire

from tests.integration.sessions import TEN, Clock, session, settled


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
