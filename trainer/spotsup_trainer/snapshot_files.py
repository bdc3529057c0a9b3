"""Memory for snapshots of the training state that outlives the workers which fill it, but not their launcher.

Anonymous files (memfd_create): nothing has to be removed when a job ends, however it ends, for the kernel frees the
memory with the last process that has it open. A container's limit of /dev/shm, 64 MB by default, does not apply.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SPOTSUP_SNAPSHOT_FILES"
# Where `--nproc-per-node` is not a number, but "gpu" or the like. A file costs nothing until something is written.
_RANKS = 16
# Two snapshots, so that a worker that is killed while it writes one leaves the other; and what training began from.
_FILES = 3
# Linux 6.3; where the administrator asks for it, files without it are refused.
_MFD_NOEXEC_SEAL = 0x8
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class SnapshotFiles:
    """Descriptors of one local rank's files."""

    slots: tuple[int, int]
    lineage: int


def create(ranks: str | int) -> str:
    """Files for each of the local ranks: the value of VARIABLE, for processes that inherit them. "": not possible here.

    To be called before the processes are forked that start workers.
    """
    if not hasattr(os, "memfd_create"):
        return ""
    count = int(ranks) if str(ranks).isdigit() else _RANKS
    try:
        made = [_memory_file() for _ in range(count * _FILES)]
    except OSError:
        return ""
    return ";".join(",".join(map(str, made[at : at + _FILES])) for at in range(0, len(made), _FILES))


def _memory_file() -> int:
    try:
        return os.memfd_create("spotsup-snapshot", os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError:
        return os.memfd_create("spotsup-snapshot", os.MFD_CLOEXEC)


def named_by(environ: Mapping[str, str]) -> list[SnapshotFiles]:
    """Return the files of this node's local ranks, in their order. None of them where the launcher made none, or where
    this process was started in a way that closed them."""
    found = []
    try:
        for group in filter(None, environ.get(VARIABLE, "").split(";")):
            first, second, lineage = map(int, group.split(","))
            for descriptor in (first, second, lineage):
                if not str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("/memfd:spotsup-snapshot"):
                    return []
            found.append(SnapshotFiles((first, second), lineage))
    except (ValueError, OSError):
        return []
    return found


def set_inheritable(environ: Mapping[str, str], *, inheritable: bool) -> None:
    """Set whether a program that this process executes gets the files."""
    for files in named_by(environ):
        for descriptor in (*files.slots, files.lineage):
            os.set_inheritable(descriptor, inheritable)


def available_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")
) -> int:
    """Return how much memory this machine, or the container, can give before it has none left; 0 where that is not
    known.

    Memory of our own files that is in use counts as gone; cached files that the kernel would drop do not.
    """
    free = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = 1024 * int(line.split()[1])
    unified, legacy = _own_cgroups(own)
    for folder in _with_ancestors(cgroup, unified):
        free = min(free, _left(folder, "memory.max", "memory.current", "inactive_file", free))
    for folder in (cgroup, *_with_ancestors(cgroup / "memory", legacy)):
        free = min(free, _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", free))
    return free


def _left(folder: Path, limit: str, used: str, cached: str, otherwise: int) -> int:
    """Return what one cgroup can still give; `otherwise` where it has no limit."""
    try:
        left = int((folder / limit).read_text()) - int((folder / used).read_text())
    except (OSError, ValueError):  # "max": no limit
        return otherwise
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == cached:
                left += int(value)
    return max(0, left)


def _own_cgroups(own: Path) -> tuple[str, str]:
    """Return where this process is in the unified hierarchy, and in the older one of memory."""
    unified = legacy = ""
    with contextlib.suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                unified = path.lstrip("/")
            elif "memory" in controllers.split(","):
                legacy = path.lstrip("/")
    return unified, legacy


def _with_ancestors(root: Path, path: str) -> list[Path]:
    """Return the path and those above it. Each limits what is below it. In a container the path may be the host's, of
    which only the root is there."""
    folder = root / path
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]
