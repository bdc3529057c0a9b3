"""What chaos strikes, and what a fault came to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.plan import Planned
from tests.chaos.rooms import Rooms
from tests.chaos.site import Site


@dataclass
class Ground:
    """Where faults strike. `disks`: the small file systems, of etcd's member 0 and of daemon 0, where there are any;
    `clock`: the file that says how far the clock of the last daemon is off."""

    site: Site
    job: str
    members: int
    clock: Path
    rooms: Rooms | None = None
    etcd_disk: Path | None = None
    daemon_disk: Path | None = None


@dataclass
class Outcome:
    """What one fault came to. Times in seconds; `broken` in words; `notes` are more measurements."""

    planned: Planned
    at_s: float
    pause_s: float = 0.0
    recovered_s: float | None = None
    notes: dict[str, float] = field(default_factory=dict)
    said: str = ""
    broken: list[str] = field(default_factory=list)


Strike = Callable[[Ground, Planned, Outcome], AbstractContextManager[None]]
