"""Counts and measures what happens between two looks at the journal: pauses, notices, answers of pools. On the leader
only.

It watches the journal's mirror after each tick, and decides nothing. What happened before this daemon led is not
counted again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from supervisor.journal.journal import Reading
from supervisor.model import NodeRecord, NodeState
from supervisor.planner.pauses import pauses_of
from supervisor.planner.world import JobView
from supervisor.pool_days import PoolName, seen_of

# Pools with counters of their own; those of all further ones are counted together.
MAX_POOLS = 200
OTHER = PoolName("other", "other", "other", "other", "other")
PAUSE_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300)
START_BUCKETS_S = (1, 5, 10, 20, 30, 60, 90, 120, 180, 300, 600, 1200, 2400)
TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
POOL_LABELS = ("cloud", "zone", "instance_type", "market")

log = structlog.get_logger("spotsupd")


class Leading(Protocol):
    """What it needs to know about leadership."""

    def lease_valid(self) -> bool:
        """True if this daemon leads."""
        ...


class Journal(Protocol):
    """Where it looks."""

    def read(self) -> Reading:
        """Return the journal as the mirror has it now."""
        ...


@dataclass(frozen=True, slots=True)
class _Looked:
    """A job as it was last looked at."""

    view: JobView
    paused_round: int  # of the newest pause that was counted


class Observer:
    """Call `follow` after each tick, from one thread. Any thread may collect `registry`."""

    def __init__(self, journal: Journal, leader: Leading) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._journal = journal
        self._leader = leader
        self._jobs: dict[str, _Looked] = {}  # by name
        self._watching = False
        self._pools: set[PoolName] = set()
        self._ticks = Histogram(
            "spotsup_tick_seconds",
            "What one decision of the loop took.",
            buckets=TICK_BUCKETS_S,
            registry=self.registry,
        )
        self._pauses = Histogram(
            "spotsup_pause_seconds",
            "Pauses of training as nodes measured them, and their parts.",
            ["phase"],
            buckets=PAUSE_BUCKETS_S,
            registry=self.registry,
        )
        self._restored = Counter(
            "spotsup_restored_bytes",
            "What ranks got to restore their state after pauses, by where from: own memory, other ranks, storage.",
            ["source"],
            registry=self.registry,
        )
        self._requests = Histogram(
            "spotsup_notice_to_request_seconds",
            "From a preemption notice to the request of the node's replacement.",
            buckets=REQUEST_BUCKETS_S,
            registry=self.registry,
        )
        self._starts = Histogram(
            "spotsup_node_start_seconds",
            "How long new nodes took: boot, from the request to a machine that can be reached; bootstrap; join.",
            ["phase"],
            buckets=START_BUCKETS_S,
            registry=self.registry,
        )
        self._interruptions = Counter(
            "spotsup_interruptions",
            "Nodes that got a preemption notice, were lost without one, or failed.",
            ["cloud", "kind"],
            registry=self.registry,
        )
        self._answers = Counter(
            "spotsup_pool_answers",
            "What clouds answered to requests of machines: granted or refused.",
            [*POOL_LABELS, "answer"],
            registry=self.registry,
        )

    def ticked(self, took_s: float) -> None:
        """Take note that a decision of the loop took so long."""
        self._ticks.observe(took_s)

    def follow(self) -> None:
        """Count what has changed since the last call. Never raises."""
        try:
            self._follow()
        except Exception:
            log.exception("metrics miss what happened just now")
            self._reset()

    def _reset(self) -> None:
        self._jobs, self._watching = {}, False

    def _follow(self) -> None:
        reading = self._journal.read()
        if not self._leader.lease_valid() or not reading.live or reading.cluster is None:
            self._reset()
            return
        for name, view in reading.jobs.items():
            known = self._jobs.get(name)
            if known is None or known.view.record.uid != view.record.uid:
                known = _Looked(_without_past(view), 0) if self._watching else _Looked(view, _newest_pause(view))
            if known.view is not view:
                self._nodes(known.view.nodes, view.nodes)
                self._measured(known, view)
            self._jobs[name] = _Looked(view, max(known.paused_round, _newest_pause(view)))
        for name in self._jobs.keys() - reading.jobs.keys() - reading.refused.keys():
            del self._jobs[name]
        self._watching = True

    def _measured(self, known: _Looked, view: JobView) -> None:
        for pause in pauses_of(view):
            if pause.round <= known.paused_round:
                continue
            for phase, seconds in {"whole": pause.pause_s, **pause.parts()}.items():
                if seconds is not None:
                    self._pauses.labels(phase).observe(seconds)
            for source, size in pause.sources().items():
                self._restored.labels(source).inc(size or 0)

    def _nodes(self, before: Mapping[str, NodeRecord], nodes: Mapping[str, NodeRecord]) -> None:
        changed = {name: node for name, node in nodes.items() if before.get(name) is not node}
        if not changed:
            return
        for name, node in changed.items():
            old = before.get(name)
            if old is None and (doomed := nodes.get(node.replaces)) is not None and doomed.notice is not None:
                self._requests.observe(max(0.0, node.created_at - doomed.notice.seen_at))
            if node.notice is not None and (old is None or old.notice is None):
                self._interruptions.labels(node.offer.cloud, "notice").inc()
            for state, kind in ((NodeState.LOST, "lost"), (NodeState.FAILED, "failed")):
                if _entered(node, old, state):
                    self._interruptions.labels(node.offer.cloud, kind).inc()
            if node.has_joined and (old is None or not old.has_joined):
                for phase, seconds in start_phases(node).items():
                    self._starts.labels(phase).observe(seconds)
        for pool, seen in seen_of(changed, before).items():
            for answer, count in (("granted", seen.granted), ("refused", seen.refused)):
                if count:
                    self._answers.labels(*_labels(self._counted(pool)), answer).inc(count)

    def _counted(self, pool: PoolName) -> PoolName:
        if pool not in self._pools and len(self._pools) >= MAX_POOLS:
            return OTHER
        self._pools.add(pool)
        return pool


def start_phases(node: NodeRecord) -> dict[str, float]:
    """Return how long each phase of a node's start took, in seconds, of those that its history has."""
    since, found = node.created_at, dict[str, float]()
    ends = {NodeState.BOOTSTRAPPING: "boot", NodeState.READY: "bootstrap", NodeState.MEMBER: "join"}
    for each in node.history:
        phase = ends.get(NodeState(each.after))
        if phase is not None and phase not in found:
            found[phase] = max(0.0, each.at - since)
            since = each.at
    return found


def _labels(pool: PoolName) -> tuple[str, ...]:
    return pool.cloud, pool.zone, pool.instance_type, pool.market


def _newest_pause(view: JobView) -> int:
    return max((pause.round for pause in pauses_of(view)), default=0)


def _without_past(view: JobView) -> JobView:
    """Return a job that was submitted since the last look: all that it has is new."""
    return JobView(view.record, 0, {}, {})


def _entered(node: NodeRecord, old: NodeRecord | None, state: NodeState) -> bool:
    """True if it has been in a state since it was `old`, also if it has left it."""
    known = old.history if old is not None else ()
    return any(each.after == state for each in node.history if each not in known)
