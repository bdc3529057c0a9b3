"""The file systems that a job asks for. Pure data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

MAX_MOUNTS = 8  # each may take seconds to answer while facts are gathered

# Nothing here needs quoting, in sh or in /proc/mounts.
_MOUNTPOINT = re.compile(r"(/[A-Za-z0-9._-]+)+")
_SOURCES = {
    "nfs": re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9a-fA-F:]+\]):/[A-Za-z0-9._/-]*"),
    "lustre": re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*@(tcp|o2ib|efa)[0-9]*:/[A-Za-z0-9._/-]+"),
}
_RESERVED = re.compile(
    r"/(bin|boot|dev|etc|lib|lib32|lib64|proc|run|sbin|sys|usr)(/.*)?"
    r"|/home(/[^/]+)?|/opt|/root|/snap|/srv|/tmp|/var|/var/(lib|log|tmp)"
)


MountKind: TypeAlias = Literal["nfs", "efs", "filestore", "azure-files", "lustre", "scratch"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system of the job. Raises ValueError."""

    kind: MountKind
    """scratch is the machine's own local disk, a cache that ends with the machine."""
    source: str
    """"server:/path"; "address@tcp:/name" for lustre; "" for scratch."""
    mountpoint: str
    mode: Literal["ro", "rw"] = "rw"

    def __post_init__(self) -> None:
        place = self.mountpoint
        if not _MOUNTPOINT.fullmatch(place) or {".", ".."} & set(place.split("/")):
            raise ValueError(f"{place!r} is not a mountpoint; use an absolute path of letters, digits and . _ - /")
        if _RESERVED.fullmatch(place):
            raise ValueError(f"{place} is reserved for the machine itself; mount below /mnt, for instance")
        if self.kind == "scratch":
            if self.source or self.mode != "rw":
                raise ValueError(f"{place}: scratch is the machine's own disk: it has no source, and its mode is rw")
        elif not _SOURCES["lustre" if self.kind == "lustre" else "nfs"].fullmatch(self.source):
            right = "fs-0a1b2c3d.fsx.us-east-1.amazonaws.com@tcp:/name" if self.kind == "lustre" else "server:/path"
            raise ValueError(f"{self.source!r} cannot be mounted at {place}; write it as {right}")

    def __str__(self) -> str:
        return f"{self.source or 'scratch'} at {self.mountpoint}"


def check_mounts(mounts: Sequence[Mount]) -> None:
    """Raise ValueError unless these can be mounted together."""
    places = [mount.mountpoint for mount in mounts]
    if len(set(places)) < len(places):
        raise ValueError("two file systems cannot have the same mountpoint")
    if len(places) > MAX_MOUNTS:
        raise ValueError(f"{len(places)} file systems are more than the {MAX_MOUNTS} that one job may have")
    if sum(mount.kind == "scratch" for mount in mounts) > 1:
        raise ValueError("a machine has one scratch disk; mount it once")
