"""The processes of this machine, as the kernel lists them in /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """What /proc/PID/stat says of a process."""

    # R, S, D, Z (has ended, and was not waited for), …
    state: str
    parent: int
    group: int
    processor_s: float
    threads: int

    @property
    def alive(self) -> bool:
        """True while some thread runs: one whose first thread has ended is shown as Z, with all that it has open."""
        return self.state != "X" and (self.state != "Z" or self.threads > 1)


def snapshot() -> dict[int, Process]:
    """Return all processes by pid. Those that end meanwhile are left out."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - twice as fast, and it is called while workers end
        if name.isdigit() and (process := of(int(name))) is not None:
            found[int(name)] = process
    return found


def of(pid: int) -> Process | None:
    """Return one process, None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()  # the name before it may have spaces
        processor_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return Process(fields[0], int(fields[1]), int(fields[2]), processor_s, int(fields[17]))
    except (OSError, IndexError, ValueError):
        return None


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal. False where there is no such process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(found and int(found[1], 16) >> (number - 1) & 1)


def children(pid: int) -> list[int]:
    """Return the pids of a process's children; one that has just begun, or ends, may be missing."""
    try:
        texts = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN, or no such process
        return [child for child, process in snapshot().items() if process.parent == pid]
    return [int(child) for text in texts for child in text.split()]


def descendants(pid: int, found: Mapping[int, Process]) -> list[int]:
    """Return the pids of all processes below one."""
    children: dict[int, list[int]] = {}
    for each, process in found.items():
        children.setdefault(process.parent, []).append(each)
    below = list(children.get(pid, ()))
    for each in below:  # it grows
        below += children.get(each, ())
    return below
