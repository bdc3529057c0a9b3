"""The file systems that a job asks for. Pure data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

MAX_MOUNTS = 8  # each is given some seconds to answer while facts are gathered

# Nothing here needs quoting, in sh or in /proc/mounts.
_PLACE = re.compile(r"(/[A-Za-z0-9._-]+)+")
_SOURCES = {
    "nfs": re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9a-fA-F:]+\]):/[A-Za-z0-9._/-]*"),
    "lustre": re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*@(tcp|o2ib|efa)[0-9]*:/[A-Za-z0-9._/-]+"),
}
_TAKEN = re.compile(
    r"/(bin|boot|dev|etc|lib|lib32|lib64|proc|run|sbin|sys|usr)(/.*)?"
    r"|/home(/[^/]+)?|/opt|/root|/snap|/srv|/tmp|/var|/var/(lib|log|tmp)"
)


MountKind: TypeAlias = Literal["nfs", "efs", "filestore", "azure-files", "lustre", "scratch"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system that the job finds at `mountpoint`. Raises ValueError.

    `source`: "server:/path"; for lustre "address@tcp:/name"; "" for scratch, the machine's own local disk, which is a
    cache: it ends with the machine. `mode`: "ro" or "rw".
    """

    kind: MountKind
    source: str
    mountpoint: str
    mode: Literal["ro", "rw"] = "rw"

    def __post_init__(self) -> None:
        place = self.mountpoint
        if not _PLACE.fullmatch(place) or place.endswith("/") or "//" in place or {".", ".."} & set(place.split("/")):
            raise ValueError(f"{place!r} is no place to mount at; use an absolute path of letters, digits and . _ - /")
        if _TAKEN.fullmatch(place):
            raise ValueError(f"{place} is the machine's own; mount below /mnt, for instance")
        if self.kind == "scratch":
            if self.source or self.mode != "rw":
                raise ValueError(f"{place}: scratch is the machine's own disk; it has no source, and is written to")
        elif not _SOURCES["lustre" if self.kind == "lustre" else "nfs"].fullmatch(self.source):
            right = "fs-1.fsx.us-east-1.amazonaws.com@tcp:/name" if self.kind == "lustre" else "server:/path"
            raise ValueError(f"{self.source!r} is nothing to mount at {place}; write it as {right}")

    def __str__(self) -> str:
        return f"{self.source or 'scratch'} at {self.mountpoint}"


def check_mounts(mounts: Sequence[Mount]) -> None:
    """Raises ValueError unless these can be mounted beside each other."""
    places = [mount.mountpoint for mount in mounts]
    if len(set(places)) < len(places):
        raise ValueError("two file systems cannot be mounted at one place")
    if len(places) > MAX_MOUNTS:
        raise ValueError(f"{len(places)} file systems are more than the {MAX_MOUNTS} that one job may have")
    if sum(mount.kind == "scratch" for mount in mounts) > 1:
        raise ValueError("a machine has one scratch; ask for it once")
