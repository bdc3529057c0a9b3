"""What machines, pauses and checkpoints cost in a replay; the same for the daemon, the baselines and the oracle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, and dollars per machine and hour."""

    boot_s: float = 100.0  # from a request that is granted to a machine that runs
    bootstrap_s: float = 20.0  # from there to a node that waits at the rendezvous
    pause_s: float = 5.0  # all nodes stand still for so long when they change
    checkpoint_every_s: float = 300.0
    checkpoint_s: float = 2.0
    notice_s: float = 120.0  # before a machine is taken
    refused_s: float = 180.0  # for so long a cloud says that asking again is pointless
    spot_usd_per_hour: float | None = None  # where the recording has no prices
    on_demand_usd_per_hour: float | None = None  # None: no such machines

    @property
    def arrival_s(self) -> float:
        """Return the time from a request that is granted to a node that can train."""
        return self.boot_s + self.bootstrap_s

    @property
    def useful_share(self) -> float:
        """Return what checkpoints leave of the time that nodes train."""
        return self.checkpoint_every_s / (self.checkpoint_every_s + self.checkpoint_s)
