"""Processes by their identity: find all that belong to a machine, and stop or kill them all.

A machine's processes are the descendants of its init (a subreaper: daemons stay below it), and all that carry the
machine's id in their environment: what is left when init itself was killed.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provisioners.localcloud.machine.spec import MARKER_VARIABLE

_STOP_ROUNDS = 20
_PAUSE_S = 0.001
_CLOUD_PREFIX = re.compile(r"(local|own)-[0-9a-f]{8}-")
_MACHINE_ID = re.compile(_CLOUD_PREFIX.pattern + r"[0-9]{4,}")


@dataclass(frozen=True)
class Identity:
    """One process for ever: the kernel reuses pids, never with the same start time (clock ticks since boot)."""

    pid: int
    started: int


@dataclass(frozen=True)
class Process:
    """A live process; zombies are none."""

    identity: Identity
    parent: int


@dataclass(frozen=True)
class Target:
    """A machine whose processes are to be found. `init` is None where it is not known. ValueError where the id is no
    machine's."""

    machine: str
    init: Identity | None

    def __post_init__(self) -> None:
        # An id such as "" would be the marker of every process that has none.
        if not is_machine_id(self.machine):
            raise ValueError(f"{self.machine!r} is not the id of a machine, such as local-0123abcd-0001")


def is_machine_id(text: str) -> bool:
    """True for what can be the id of a machine."""
    return _MACHINE_ID.fullmatch(text) is not None


def look(pid: int) -> Process | None:
    """Return the process with this pid; None where there is none, or only a zombie."""
    try:
        state, parent, *rest = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # One whose first thread has ended is shown as a zombie while others end, or live, with all that it has open.
    if state == "X" or (state == "Z" and int(rest[15]) <= 1):
        return None
    return Process(Identity(pid, int(rest[17])), int(parent))


def identity_of(pid: int) -> Identity:
    """Return the identity of a child that was not reaped yet, alive or not. Raises OSError for any that is not
    there."""
    return Identity(pid, int(_stat(pid)[19]))


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on (proc_pid_stat(5)); the name before it may hold anything, brackets too."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()


def is_alive(identity: Identity) -> bool:
    """True if this very process runs still."""
    found = look(identity.pid)
    return found is not None and found.identity == identity


def snapshot() -> dict[int, Process]:
    """Return all live processes, as far as they stand still while we look."""
    found = (look(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return {process.identity.pid: process for process in found if process is not None}


def send(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to this very process; False when it is gone, or another user's."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        # The pid may be somebody else's by now; once the handle is open it cannot change under us.
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def marker_of(pid: int) -> str:
    """Return the machine id that a process carries, "" for none (or another user's)."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    key = f"{MARKER_VARIABLE}=".encode()
    values = (entry[len(key) :] for entry in environ.split(b"\0") if entry.startswith(key))
    return next(values, b"").decode(errors="replace")


def below(processes: Mapping[int, Process], roots: Iterable[int]) -> set[int]:
    """Return the pids of all descendants of `roots`, without these."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found: set[int] = set()
    stack = list(roots)
    while stack:
        fresh = [pid for pid in children.get(stack.pop(), []) if pid not in found]
        found.update(fresh)
        stack.extend(fresh)
    return found


def find(roots: Sequence[Identity], carries: Callable[[str], bool]) -> set[Identity]:
    """Return all processes below `roots` (not these), all whose marker is ours, and all below those; never this
    process.

    A process without a marker belongs to no machine: `carries` is not asked about it.
    """
    processes = snapshot()
    anchors = {root.pid for root in roots if root.pid in processes and processes[root.pid].identity == root}
    marked = {pid for pid in processes if (marker := marker_of(pid)) and carries(marker)}
    pids = marked | below(processes, anchors | marked)
    return {processes[pid].identity for pid in pids - anchors - {os.getpid()}}


def kill(targets: Sequence[Target], timeout_s: float) -> set[Identity]:
    """Kill every process of these machines; returns those that are left after `timeout_s` (uninterruptible ones).

    First all are stopped, so that none sees another die; then all are killed; each init goes last, stopped, so that
    what its descendants leave behind has nowhere else to go than below it.
    """
    deadline = time.monotonic() + timeout_s
    inits, carries = _of(targets)
    for identity in _stop(inits, carries):
        send(identity, signal.SIGKILL)
    left = _kill_until_none(lambda: find(inits, carries), deadline)
    for init in inits:
        send(init, signal.SIGKILL)
    return left | _kill_until_none(lambda: {init for init in inits if is_alive(init)} | find([], carries), deadline)


def freeze(target: Target) -> None:
    """Stop every process of a machine. Clients get no answer, and no connection is closed."""
    _stop(*_of([target]))


def thaw(target: Target) -> None:
    """Continue every process of a machine, also one that something else has stopped."""
    inits, carries = _of([target])
    for identity in {*inits, *find(inits, carries)}:
        send(identity, signal.SIGCONT)


def _of(targets: Sequence[Target]) -> tuple[list[Identity], Callable[[str], bool]]:
    """Return the inits of these machines that live, and whether a marker is one of theirs."""
    names = {target.machine for target in targets}
    inits = [target.init for target in targets if target.init is not None and is_alive(target.init)]
    return inits, names.__contains__


def _stop(inits: Sequence[Identity], carries: Callable[[str], bool]) -> set[Identity]:
    """Stop the inits and all that `find` finds of them, which is returned. Until one is stopped it may have children:
    hence the few rounds.
    """
    for init in inits:
        send(init, signal.SIGSTOP)
    stopped: set[Identity] = set()
    for _ in range(_STOP_ROUNDS):
        fresh = find(inits, carries) - stopped
        if not fresh:
            break
        for identity in fresh:
            send(identity, signal.SIGSTOP)
        stopped |= fresh
    return stopped


def kill_children(parent: int, spared: Collection[int], timeout_s: float) -> set[Identity]:
    """Kill the children of `parent` but the spared, with all below them; returns those left after `timeout_s`."""

    def children() -> set[Identity]:
        processes = snapshot()
        tops = {pid for pid, process in processes.items() if process.parent == parent and pid not in spared}
        return {processes[pid].identity for pid in tops | below(processes, tops)}

    return _kill_until_none(children, time.monotonic() + timeout_s)


def kill_marked(prefix: str, timeout_s: float) -> set[Identity]:
    """Kill all processes whose marker begins with a cloud's `prefix`; returns those left after `timeout_s`."""
    if not _CLOUD_PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} is not how a cloud's machines begin, such as local-0123abcd-")
    return _kill_until_none(lambda: find([], lambda marker: marker.startswith(prefix)), time.monotonic() + timeout_s)


def _kill_until_none(find_left: Callable[[], set[Identity]], deadline: float) -> set[Identity]:
    """Two looks in a row must find nothing: one may miss the child of a process that ends while we read /proc."""
    clean = 0
    left: set[Identity] = set()
    while clean < 2:
        left = find_left()
        clean = 0 if left else clean + 1
        for identity in left:
            send(identity, signal.SIGKILL)
        if left and time.monotonic() > deadline:
            return left
        if left:
            time.sleep(_PAUSE_S)
    return left
