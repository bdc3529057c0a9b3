"""Programs that ask a GPU's driver, and do not end."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from spotsup_trainer.agent import gpu_watch
from spotsup_trainer.agent.gpu_verdict import Answer
from spotsup_trainer.agent.gpu_watch import Abandoning


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_that_is_slow_is_killed_and_one_that_ends_is_read(tmp_path: Path) -> None:
    run = Abandoning()
    assert run([program(tmp_path / "a", "echo out; echo err >&2; exit 9")], 10.0) == Answer(9, "out\nerr\n")
    assert run([program(tmp_path / "b", "exec sleep 60")], 0.1) is None
    assert run(["/bin/echo", "again"], 10.0) == Answer(0, "again\n")


def test_a_program_that_the_kernel_holds_is_left_behind_and_no_second_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "_KILL_WAIT_S", 0.05)
    killed: list[int] = []
    run = Abandoning(lambda pid, _signal: killed.append(pid))
    held = program(tmp_path / "held", "exec sleep 60")
    assert run([held], 0.05) is None
    assert run([sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')"], 0.05) is None
    assert not (tmp_path / "started").exists()
    os.killpg(killed[0], signal.SIGKILL)
    until = time.monotonic() + 20
    while (answer := run(["/bin/echo", "free"], 10.0)) is None and time.monotonic() < until:
        pass
    assert answer == Answer(0, "free\n")
