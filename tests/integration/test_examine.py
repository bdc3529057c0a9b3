"""What is learned of workers that seem to hang, from real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup_trainer.launcher.examine import MAX_RANK_CHARS, MAX_RANKS, TIMEOUT_S, stacks, states

DEEP = (
    "import faulthandler, sys, time\n"
    """
from spotsup_trainer.launcher.examine import register
register(sys.argv[1])
def deeper(left):
    if left:
        deeper(left - 1)
    print(flush=True)
    time.sleep(600)
deeper(90)
"""
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, str(tmp_path / "stacks")]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_stacks_are_cut_and_a_worker_without_a_handler_gets_no_signal(tmp_path: Path, start: object) -> None:
    assert callable(start)
    deep, bare = start(DEEP), start("import time; print(flush=True); time.sleep(600)")
    assert (deep.stdout.readline(), bare.stdout.readline()) == (b"\n", b"\n")
    files = dict.fromkeys(range(12), tmp_path / "stacks")
    text = stacks({0: deep.pid, 1: bare.pid}, files, os.kill)
    first, second = text.split("\nlocal rank 1, ")
    assert first.startswith(f"local rank 0, pid {deep.pid}, state S")
    assert "in deeper\n" in first
    assert MAX_RANK_CHARS < len(first) < MAX_RANK_CHARS + 100
    assert second.endswith("no stacks: install py-spy on the nodes, or use warm workers")
    assert bare.poll() is None
    many = stacks(dict.fromkeys(range(12), bare.pid), files, os.kill)
    assert many.count("local rank") == MAX_RANKS
    assert many.endswith("and 4 more")
    bare.kill()
    bare.wait()
    assert states({3: bare.pid}) == f"local rank 3, pid {bare.pid}, ended"


def test_a_program_with_a_handler_of_its_own_and_a_py_spy_that_may_not_run_are_no_error(
    tmp_path: Path, start: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As programs in Go do, which catch every signal, without the file that warm workers make."""
    assert callable(start)
    catches = "import signal, time; signal.signal(signal.SIGRTMIN + 12, lambda *_: exit(3)); print(flush=True)"
    other = start(f"{catches}; time.sleep(600)")
    assert other.stdout.readline() == b"\n"
    broken = tmp_path / "py-spy"
    broken.write_text("no program")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = stacks({0: other.pid}, {0: tmp_path / "missing"}, os.kill)
    assert "no stacks: install py-spy on the nodes, or use warm workers" in found
    assert other.poll() is None


def test_a_stopped_worker_is_not_waited_for(tmp_path: Path, start: object) -> None:
    """As one that hangs in the kernel, it does not answer."""
    assert callable(start)
    deep = start(DEEP)
    assert deep.stdout.readline() == b"\n"
    os.kill(deep.pid, signal.SIGSTOP)
    began = time.monotonic()
    text = stacks({0: deep.pid}, {0: tmp_path / "stacks"}, os.kill)
    assert text.startswith(f"local rank 0, pid {deep.pid}, state T")
    assert "no stacks" in text
    assert time.monotonic() - began < TIMEOUT_S + 5.0
