"""What workers that seem to hang do: where their threads are, for people.

Stacks come from py-spy where it is installed, else from Python's faulthandler, which warm workers register for a signal
that nothing else uses: its dump needs no GIL. Of a worker that has neither there is only what the kernel says.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from spotsup_trainer.launcher import processes

STACKS_SIGNAL = signal.SIGRTMIN + 12
# They go into the job's log.
MAX_RANKS = 8
MAX_RANK_CHARS = 2500
TIMEOUT_S = 5.0
_SETTLE_S = 0.1  # a dump that has not grown for so long is complete
_POLL_S = 0.01


def register(path: str) -> None:
    """In a worker: write the stacks of all threads to this file at STACKS_SIGNAL."""
    faulthandler.register(STACKS_SIGNAL, file=os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))


def stacks(workers: Mapping[int, int], files: Mapping[int, Path], send: Callable[[int, int], None]) -> str:
    """Return the stacks of workers, by local rank: their pids, and the files that they registered. Takes seconds at
    most.

    `send`: sends a signal to a process.
    """
    chosen = dict(sorted(workers.items())[:MAX_RANKS])
    deadline = time.monotonic() + TIMEOUT_S
    spies = {rank: spy for rank, pid in chosen.items() if (spy := _py_spy(pid))}
    found = {rank: _printed(spy, deadline) for rank, spy in spies.items()}
    # A worker that does not catch the signal would be ended by it; one without the file catches it for itself, as
    # programs in Go do.
    asked = {
        rank: _size(files[rank])
        for rank, pid in chosen.items()
        if not found.get(rank) and files[rank].exists() and _catches(pid)
    }
    for rank in asked:
        send(chosen[rank], STACKS_SIGNAL)
    deadline = time.monotonic() + TIMEOUT_S
    found |= {rank: _dumped(files[rank], start, deadline) for rank, start in asked.items()}
    none = "no stacks: install py-spy on the nodes, or use warm workers"
    texts = [f"{states({rank: pid})}:\n{(found.get(rank) or none)[:MAX_RANK_CHARS]}" for rank, pid in chosen.items()]
    return "\n".join([*texts, *([f"and {len(workers) - MAX_RANKS} more"] if len(workers) > MAX_RANKS else [])])


def states(workers: Mapping[int, int]) -> str:
    """Return what the kernel says of workers, by local rank."""
    return ", ".join(f"local rank {rank}, pid {pid}, {_state(pid)}" for rank, pid in sorted(workers.items()))


def _py_spy(pid: int) -> subprocess.Popen[str] | None:
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return None
    none = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [program, "dump", "--pid", str(pid)], stdin=none, stdout=subprocess.PIPE, stderr=none, text=True
        )
    except OSError:  # it may not be run, or there is no memory for one more process
        return None


def _printed(spy: subprocess.Popen[str], deadline: float) -> str:
    """Return what py-spy printed; nothing where it may not trace, or hangs."""
    try:
        printed, _ = spy.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        spy.kill()
        spy.wait()
        return ""
    return printed.strip() if spy.returncode == 0 else ""


def _dumped(file: Path, start: int, deadline: float) -> str:
    """Return what a worker's handler has written behind `start`. A worker that hangs in the kernel writes nothing."""
    size, grown_at = start, time.monotonic()
    while (now := time.monotonic()) < deadline and (size == start or now < grown_at + _SETTLE_S):
        if (found := _size(file)) != size:
            size, grown_at = found, now
        time.sleep(_POLL_S)
    with file.open("rb") as dump:
        dump.seek(start)
        threads = dump.read().decode(errors="replace").strip().split("\n\n")
    return "\n\n".join(reversed(threads))  # the main thread is dumped last


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _catches(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    except (OSError, StopIteration, ValueError):
        return False
    return bool(caught >> (STACKS_SIGNAL - 1) & 1)


def _state(pid: int) -> str:
    """R, S or D, and where in the kernel it waits."""
    process = processes.of(pid)
    try:
        where = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return "ended"
    return f"state {process.state}{f' in {where}' if where not in ('', '0') else ''}" if process else "ended"
