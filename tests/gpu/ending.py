"""Runs a command within a limit, and leaves nothing of it behind. Standard library only.

A check starts launchers in sessions of their own, and these start fork servers and workers in theirs: to end its
process group would miss them all. On a GPU that is lent for minutes they would go on into the next command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02
_END_S = 10.0  # a process that outlives SIGKILL for longer hangs in the kernel


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    # Its exit code; None: it was ended here.
    status: int | None
    seconds: float
    # Processes that have outlived SIGKILL.
    left: tuple[int, ...]


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends: none can get out of sight."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def run(
    command: Sequence[str], environ: Mapping[str, str], output: Path, limit_s: float, stopped: Callable[[], bool]
) -> Ended:
    """Run a command, and end all that it has started: when it ends, after `limit_s`, and once `stopped` is true.

    Call `adopt_orphans` before. This process must have no other children.
    """
    began = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(
            list(command), env=dict(environ), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    status = None
    while not stopped() and (status := process.poll()) is None and time.monotonic() < began + limit_s:
        time.sleep(_POLL_S)
    process.kill()
    process.wait()
    return Ended(status, round(time.monotonic() - began, 1), tuple(end_below(os.getpid())))


def end_below(root: int, timeout_s: float = _END_S) -> list[int]:
    """Kill all processes below `root`, which is this one. Return those that have not ended within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        _reap()
        found = below(root)
        if not found or time.monotonic() > deadline:
            return found
        for pid in found:  # again and again: a process may have been started since the listing
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def below(root: int) -> list[int]:
    """Return the children of `root`, theirs, and so on, without zombies."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                # state, parent, … behind the name, which may have spaces
                state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(folder.name))
    found, queue = [], [root]
    while queue:
        new = children.get(queue.pop(), [])
        found += new
        queue += new
    return found


def _reap() -> None:
    """Take the exit codes of all children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
