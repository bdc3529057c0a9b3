"""Which faults are injected, in which order: equal for equal seeds and kinds. Pure."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """The kinds of faults."""

    LEADER_KILLED = "leader killed"
    LEADER_FROZEN = "leader frozen"
    STANDBY_KILLED = "standby killed"
    DAEMONS_KILLED = "all daemons killed"
    ETCD_KILLED = "etcd member killed"
    ETCD_FROZEN = "etcd member frozen"
    ETCD_GONE = "all of etcd killed"
    ETCD_CUT_OFF = "etcd member cut off"
    ETCD_NARROW = "etcd's network slow and lossy"
    ETCD_COMPACTED = "etcd compacted"
    ETCD_DISK_FULL = "etcd's disk full"
    ETCD_NO_SPACE = "etcd's alarm NOSPACE"
    DAEMON_DISK_FULL = "daemon's disk full"
    CLOCK_STEPPED = "leader's clock stepped"
    API_FLOOD = "API flooded"
    CLOUD_KILLED = "cloud killed"
    CLOUD_FROZEN = "cloud frozen"
    SSHD_KILLED = "sshd killed"
    AGENT_KILLED = "agent killed"
    AGENT_FROZEN = "agent frozen"
    LAUNCHER_KILLED = "launcher killed"
    LAUNCHER_FROZEN = "launcher frozen"
    FORK_SERVER_KILLED = "fork server killed"
    WORKER_KILLED = "worker killed"
    WORKER_FROZEN = "worker frozen"
    MACHINE_LOST = "machine lost"
    MACHINE_LOST_WITHOUT_ETCD = "machine lost while etcd is down"
    MACHINE_FROZEN = "machine frozen"
    MACHINES_LOST = "all machines lost"
    MACHINE_NOTICE = "machine with notice"
    JOB_SCALED = "job scaled up and down"
    NODES_CUT_OFF = "nodes without etcd for 30 s"
    NODES_CUT_OFF_LONG = "nodes without etcd for 15 min"


# Seconds from injection to repair. The leader and a machine are frozen for longer than their leases, a
# launcher for less than its own.
_HOLD_S: dict[Kind, tuple[float, float]] = {
    Kind.LEADER_FROZEN: (6.0, 12.0),
    Kind.DAEMONS_KILLED: (3.0, 15.0),
    Kind.ETCD_KILLED: (2.0, 12.0),
    Kind.ETCD_FROZEN: (3.0, 12.0),
    Kind.ETCD_GONE: (2.0, 20.0),  # also longer than nodes' leases
    Kind.MACHINE_LOST_WITHOUT_ETCD: (5.0, 12.0),
    Kind.ETCD_CUT_OFF: (5.0, 15.0),
    Kind.ETCD_NARROW: (5.0, 15.0),
    Kind.ETCD_NO_SPACE: (6.0, 12.0),
    Kind.DAEMON_DISK_FULL: (4.0, 8.0),
    Kind.CLOCK_STEPPED: (8.0, 20.0),
    Kind.API_FLOOD: (6.0, 12.0),
    Kind.CLOUD_KILLED: (3.0, 12.0),
    Kind.CLOUD_FROZEN: (3.0, 12.0),
    Kind.AGENT_FROZEN: (2.0, 15.0),
    Kind.LAUNCHER_FROZEN: (1.0, 4.0),
    Kind.WORKER_FROZEN: (1.0, 4.0),
    Kind.MACHINE_FROZEN: (14.0, 20.0),
    Kind.NODES_CUT_OFF: (30.0, 45.0),  # a lease of 12 s and a suspicion of 20 s may run out
    Kind.NODES_CUT_OFF_LONG: (900.0, 900.0),
}
_AT_ONCE = (1.0, 3.0)

# Faults that must not affect training: the same round trains during the fault and after it.
HARMLESS = frozenset(
    {
        *(Kind.LEADER_KILLED, Kind.LEADER_FROZEN, Kind.STANDBY_KILLED, Kind.DAEMONS_KILLED),
        *(Kind.ETCD_KILLED, Kind.ETCD_FROZEN, Kind.ETCD_GONE, Kind.ETCD_CUT_OFF, Kind.ETCD_NARROW),
        *(Kind.ETCD_COMPACTED, Kind.ETCD_DISK_FULL, Kind.ETCD_NO_SPACE),
        *(Kind.DAEMON_DISK_FULL, Kind.CLOCK_STEPPED, Kind.API_FLOOD),
        *(Kind.CLOUD_KILLED, Kind.CLOUD_FROZEN, Kind.SSHD_KILLED, Kind.NODES_CUT_OFF, Kind.NODES_CUT_OFF_LONG),
    }
)
# Faults that end a round in order: no completed step may be lost.
ORDERLY = frozenset({Kind.MACHINE_NOTICE, Kind.JOB_SCALED})


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault."""

    number: int
    kind: Kind
    # From injection to repair.
    hold_s: float
    # Selects the victim, 0 to 1.
    pick: float
    # Before the next fault, once everything has recovered.
    rest_s: float


def schedule(seed: int, kinds: Sequence[Kind]) -> Iterator[Planned]:
    """Endless, if there are kinds: all kinds in random order, then all again in another order, and so on."""
    rng = random.Random(seed)
    number = 0
    while kinds:
        for kind in rng.sample(list(kinds), len(kinds)):
            number += 1
            low, high = _HOLD_S.get(kind, _AT_ONCE)
            yield Planned(number, kind, round(rng.uniform(low, high), 1), rng.random(), round(rng.uniform(1, 4), 1))
