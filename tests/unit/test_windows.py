"""How long leaving takes, by what was measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.launcher.run_dir import RunDir
from spotsup_trainer.timing import MAX_YIELD_S, SaveTimes
from spotsup_trainer.wire import Progress
from spotsup_trainer.worker_files import WorkerFiles


@given(st.floats(0, 1e5), st.floats(0, 1e4), st.floats(0, 60))
def test_a_node_leaves_early_enough_for_a_checkpoint_under_way_and_its_own(
    save: float, step: float, margin: float
) -> None:
    times = SaveTimes(save, step)
    assert times.window_s(margin) >= 2 * save + step
    assert times.window_s(margin) >= margin
    assert 120.0 <= times.yield_s <= MAX_YIELD_S
    assert times.yield_s >= min(MAX_YIELD_S, 4 * save)


def test_workers_tell_their_launcher_what_checkpoints_take_and_the_next_round_knows_it(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    assert folder.times() == SaveTimes()
    assert "SPOTSUP_TIMES_FILE" not in folder.worker_env(1, 1)
    WorkerFiles.named_by(folder.worker_env(1, 0)).write_times(SaveTimes(12.5, 0.3))
    folder.begin(2)
    assert folder.times() == SaveTimes(12.5, 0.3)


@pytest.mark.parametrize(
    "raw", ["", "[]", '{"checkpoint_s": "soon", "step_s": 1}', '{"checkpoint_s": NaN, "step_s": 1}']
)
def test_times_that_cannot_be_read_are_not_known(tmp_path: Path, raw: str) -> None:
    (tmp_path / "times.json").write_text(raw)
    assert RunDir(tmp_path).times() == SaveTimes()


def test_times_that_are_absurd_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text(json.dumps({"checkpoint_s": math.inf, "step_s": -3.0}))
    assert RunDir(tmp_path).times() == SaveTimes(MAX_YIELD_S, 0.0)


def test_progress_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    files = WorkerFiles(progress=tmp_path / "progress.json")
    assert files.write_progress(Progress(1, 1, 0.0, 0.0)) == ""
    (tmp_path / "progress.json.tmp").mkdir()
    assert "Is a directory" in files.write_progress(Progress(1, 2, 0.0, 0.0))


def test_a_checkpoint_is_asked_for_once(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    files = WorkerFiles.named_by(folder.worker_env(3, 1))
    assert not files.save_wanted()
    folder.ask_to_save(3)
    assert files.save_wanted()
    files.save_begun()
    files.save_begun()
    assert not files.save_wanted()
    folder.ask_to_save(3)
    folder.begin(4)
    assert not files.save_wanted()
