"""How many processes the kernel has ended for memory, to tell a worker's SIGKILL from others'."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path("/")


def count(root: Path = _ROOT) -> int | None:
    """Return the kernel's count for this process's own cgroup, and those below it; else for the whole machine. None
    where it has neither. `root`: of the file system.

    cgroup-v2 of the kernel's documentation, memory.events; proc_vmstat, since Linux 4.13.
    """
    try:
        # "0::PATH" is the line of version 2, whose file systems are all in one place.
        own = re.search(r"^0::(/.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
        if own:
            return _value(root / "sys/fs/cgroup" / own[1].lstrip("/") / "memory.events")
    except (OSError, ValueError):
        pass
    try:
        return _value(root / "proc/vmstat")
    except (OSError, ValueError):
        return None


def _value(file: Path) -> int:
    found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
    if not found:
        raise ValueError(f"{file} has no oom_kill")
    return int(found[1])
