"""What is mounted where the job wants its file systems, and whether it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootstrap.model import Paths, Setup, shell_path
from bootstrap.templates import fill

PROBE_S = 5
SCRATCH_LABEL = "spotsup-scratch"


@dataclass(frozen=True, slots=True)
class MountFact:
    """What is mounted at one of the wanted places."""

    source: str
    type: str
    """As the kernel calls it."""
    mode: str
    alive: bool
    """Whether it answered the probe."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """The state of the wanted file systems. Empty where none is wanted."""

    found: tuple[tuple[str, MountFact], ...] = ()
    """What is mounted, by mountpoint."""
    nfs: bool = False
    """Whether the client is installed."""
    lustre: bool = False
    """Whether the client is installed."""
    disks: tuple[str, ...] = ()
    """The machine's own local disks with nothing on them."""
    scratch_disks: tuple[str, ...] = ()
    """Local disks that carry our scratch file system already."""
    proof: str = ""
    """What the step has noted after it had written a file to the checkpoints' folder: `mount_key`."""

    def at(self, mountpoint: str) -> MountFact | None:
        """Return what is mounted there."""
        return dict(self.found).get(mountpoint)


def mounts_script(setup: Setup) -> str:
    """Return a script that prints one JSON object; an empty one where nothing is to be mounted."""
    if not setup.mounts:
        return "echo '{}'\n"
    return fill(
        "mounts/facts.sh",
        places=[mount.mountpoint for mount in setup.mounts],
        probe_s=PROBE_S,
        label=SCRATCH_LABEL,
        proof=shell_path(Paths(setup.root, setup.node).proof),
    )


def mounts_facts(value: Any) -> dict[str, Any]:
    """Return the field of Facts that this section fills. Raises ValueError, KeyError, TypeError."""
    found = tuple(
        (str(place), MountFact(str(source), str(kind), str(mode), bool(alive)))
        for place, source, kind, mode, alive in value.get("found", ())
    )
    disks = {name: tuple(map(str, value.get(name, ()))) for name in ("disks", "scratch_disks")}
    return {"mounts": Mounts(**(value | {"found": found} | disks))}
