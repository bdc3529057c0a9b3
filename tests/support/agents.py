"""What stands for the job's code and the trainer where bootstrap is tested: it only starts an agent, and stops it."""

from __future__ import annotations

import io
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spotsup.archive import Archive

from bootstrap.model import Setup

TIMEOUT_S = 30.0

# Stands for the agent: it reports how it was started, and ends on SIGTERM unless it is stubborn.
AGENT = b"""
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
def end(*_):
    child.kill()
    sys.exit()
signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("STUBBORN") else end)
print("started", *sys.argv[1:], os.environ.get("LR"), flush=True)
time.sleep(600)
"""


def packed(files: Mapping[str, bytes]) -> Archive:
    """An archive of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return Archive.of(buffer.getvalue())


def trainer_of(main: bytes) -> Archive:
    """A trainer whose agent does as `main` says."""
    return packed({"spotsup_trainer/__init__.py": b"", "spotsup_trainer/agent.py": main})


TRAINER = trainer_of(AGENT)
CODE = packed({"train.py": b"print('hello')"})


def a_setup(**changes: Any) -> Setup:
    """A node with that code, that trainer, and this interpreter."""
    whole: dict[str, Any] = {
        "node": "n1",
        "agent_config": b"{}",
        "code": CODE,
        "trainer": TRAINER,
        "python": sys.executable,
    }
    return Setup(**(whole | changes))


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds, or this fails."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """A zombie is not: who reaps it in the end is not ours to say."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    """Its children's pids."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
