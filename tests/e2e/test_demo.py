"""The whole path, as `make demo` plays it, with a kill -9 of the daemon; and Ctrl-C at several moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.demo import CHECKPOINT_EVERY, WRITTEN_MEANWHILE
from scripts.stack import ROOT
from tests.programs import program_env

pytestmark = pytest.mark.e2e


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The demo as its own process, in its own session, its output a pipe."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "scripts.demo", "--folder", str(folder), "--json", f"{folder}.json", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=program_env(),
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=90)
        if process.stdout is not None:
            process.stdout.close()


def survivors(folder: Path) -> list[str]:
    """Processes that have anything to do with the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in said:
            found.append(f"{entry.name} {said[:120]!r}")
    return found


@pytest.mark.timeout(600)
def test_a_job_survives_preemption_end_to_end_and_its_daemon_too(tmp_path: Path) -> None:
    folder = tmp_path / "a demo"
    with demo(folder, "--kill-daemon", "--steps", "900") as process:
        said, _ = process.communicate(timeout=550)
    result = json.loads(Path(f"{folder}.json").read_text())
    assert process.returncode == 0, said
    assert result["ok"], said
    assert [event["kind"] for event in result["events"]] == ["notice", "kill", "scale"]
    notice, kill, scale = result["events"]
    assert notice["request_latency_s"] < 1.0
    assert (notice["steps_lost"], scale["steps_lost"]) == (0, 0)
    assert kill["steps_lost"] <= CHECKPOINT_EVERY + WRITTEN_MEANWHILE
    assert (result["samples_repeated"], result["samples_missed"]) == (0, 0)
    assert (result["nodes_leaked"], result["processes_leaked"]) == (0, 0)
    assert result["loss_last"] < result["loss_first"]
    assert "every promise was kept" in said
    assert survivors(folder) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", ["starting spotsupd", "is pending", "is bootstrapping", "a preemption notice"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    folder = tmp_path / "demo"
    with demo(folder) as process:
        assert process.stdout is not None
        assert any(moment in line for line in process.stdout), f"the demo never came to {moment!r}"
        process.send_signal(signal.SIGINT)
        drain = threading.Thread(target=process.stdout.read)
        drain.start()
        time.sleep(0.2)  # a second Ctrl-C, as people press it, while the first is being obeyed
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
        drain.join()
    assert survivors(folder) == []
    assert json.loads(Path(f"{folder}.json").read_text())["broken"] == ["interrupted"]
