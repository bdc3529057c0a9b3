"""What a fault is injected into, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.networks import Networks
from tests.chaos.plan import Planned
from tests.chaos.testbed import Testbed
from tests.support.etcd_server import Cable


@dataclass
class Context:
    """A testbed, and what faults need of it."""

    testbed: Testbed
    job: str
    members: int
    # The file that says how far the clock of the last daemon is off.
    clock: Path
    networks: Networks | None = None
    # Through which nodes reach each member of etcd.
    cables: Sequence[Cable] = ()
    # Small file systems of etcd's member 0 and of daemon 0.
    etcd_disk: Path | None = None
    daemon_disk: Path | None = None


@dataclass
class Outcome:
    """The result of one fault."""

    planned: Planned
    at_s: float
    pause_s: float = 0.0
    recovered_s: float | None = None
    # More measurements, and a remark.
    notes: dict[str, float] = field(default_factory=dict)
    remark: str = ""
    # Broken promises, one sentence each.
    broken: list[str] = field(default_factory=list)


Fault = Callable[[Context, Planned, Outcome], AbstractContextManager[None]]
