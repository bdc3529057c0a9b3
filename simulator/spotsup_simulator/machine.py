"""A simulated VM, and what has happened to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from provisioners.base import Instance, InstanceState


class Carries(Protocol):
    """A tunnel, of whichever daemon."""

    def carries(self) -> bool:
        """True if what is sent arrives."""
        ...


@dataclass
class Machine:
    """A simulated VM."""

    instance: Instance
    runs_at: float
    # When the cloud takes it, and whether it does so by stopping it, so that its disks are billed further.
    ends_at: float | None = None
    stops: bool = False
    # How long it lasts, as was said when it was offered; 0: without an end that is known before.
    lasts_s: float = 0.0
    # It runs, and nothing it sends arrives.
    silent: bool = False
    # It runs, and only etcd is out of its reach: it trains with others, and may answer over SSH.
    cut: bool = False
    # The user of its job is missing in etcd, or may not do enough: the same for it, until that is made good.
    barred: bool = False
    # It reaches etcd by a tunnel alone: the one whose session has the port at its sshd, if that carries. Until when
    # that sshd lets nobody else have it.
    by_ssh: bool = False
    port_holder: Carries | None = None
    port_stuck_until: float = 0.0
    # How it answers over SSH while it is cut: "well", not at all ("refuses", "hangs"), or with what it did long ago
    # ("stale").
    ssh: str = "well"
    # Its metadata service does not answer: only the cloud's API says that it will be preempted.
    metadata_away: bool = False
    # How many of the next listings lack it.
    hidden: int = 0
    # The launch succeeded, and no daemon received a reply.
    reply_lost: bool = False
    # When its preemption was announced.
    noticed_at: float | None = None
    # What its request pays at most: once it costs more, it is taken.
    max_usd_per_hour: float | None = None
    ended_at: float | None = None
    history: list[tuple[float, Instance]] = field(default_factory=list)
    # The node that took it over from the one that it was launched for.
    taken_by: str = ""
    account: str = ""  # in which it was launched; "" for one of every account

    @property
    def node(self) -> str:
        """Return the node that it is now."""
        return self.taken_by or self.instance.node

    @property
    def alive(self) -> bool:
        return self.instance.state in {InstanceState.PENDING, InstanceState.RUNNING}

    @property
    def apart(self) -> bool:
        """True if it runs, and etcd is out of its reach, for whatever reason."""
        return self.cut or self.barred or not self.carried

    @property
    def carried(self) -> bool:
        """True if it has a way to etcd, as far as that is a tunnel."""
        return not self.by_ssh or (self.port_holder is not None and self.port_holder.carries())

    @property
    def billed(self) -> bool:
        """True if it costs money; a stopped one does."""
        return self.instance.state is not InstanceState.TERMINATED
