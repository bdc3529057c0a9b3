"""The vocabulary: what a job and a node are, which states they pass through, and which passages are legal.

Records are frozen data. They are what the journal holds, so a record read back after any crash tells the whole truth.
Times are UNIX seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from provisioners.base import Offer
from supervisor.spec import JobSpec

# One more with each field that is added to a record: an older daemon leaves such records alone (runtime/codec.py).
SCHEMA_VERSION = 3
HISTORY_LIMIT = 40


class NodeState(StrEnum):
    """Where a node is. REQUESTED to GONE in order; SUSPECT, LOST and FAILED where they apply."""

    REQUESTED = "requested"
    PENDING = "pending"
    BOOTING = "booting"
    BOOTSTRAPPING = "bootstrapping"
    READY = "ready"
    MEMBER = "member"
    DRAINING = "draining"
    SUSPECT = "suspect"
    LOST = "lost"
    FAILED = "failed"
    TERMINATING = "terminating"
    GONE = "gone"


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    DEGRADED = "degraded"
    WAITING = "waiting"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


N, J = NodeState, JobState

_NODE_PATH: dict[tuple[NodeState, NodeState], str] = {
    (N.REQUESTED, N.PENDING): "the cloud accepted the request",
    (N.PENDING, N.BOOTING): "the cloud says that it runs",
    (N.BOOTING, N.BOOTSTRAPPING): "its address is known: bootstrap begins",
    (N.BOOTSTRAPPING, N.READY): "its launcher waits at the rendezvous",
    (N.READY, N.MEMBER): "it is in the round",
    (N.MEMBER, N.READY): "the round went on without it",
    (N.MEMBER, N.DRAINING): "it shall leave the round",
    (N.READY, N.DRAINING): "it is not needed any more",
    (N.DRAINING, N.TERMINATING): "it has left the round",
    (N.SUSPECT, N.READY): "its agent is back",
    (N.SUSPECT, N.MEMBER): "its agent is back, and it still trains",
    (N.MEMBER, N.SUSPECT): "its agent is silent while its cloud says that it runs",
    (N.READY, N.SUSPECT): "its agent is silent while its cloud says that it runs",
    (N.FAILED, N.GONE): "nothing was launched",
    (N.REQUESTED, N.GONE): "nothing was launched",
    (N.TERMINATING, N.GONE): "the cloud says that it is gone",
    (N.LOST, N.TERMINATING): "make sure that the cloud is rid of it",
    (N.FAILED, N.TERMINATING): "make sure that the cloud is rid of it",
}
_ALIVE = (N.PENDING, N.BOOTING, N.BOOTSTRAPPING, N.READY, N.MEMBER, N.DRAINING, N.SUSPECT)
_ANY_TIME: dict[NodeState, str] = {
    N.LOST: "its cloud says that it ended, or it was silent for too long",
    N.TERMINATING: "its job does not want it any more",
}
NODE_EDGES: Mapping[tuple[NodeState, NodeState], str] = MappingProxyType(
    _NODE_PATH
    | {(state, end): why for end, why in _ANY_TIME.items() for state in _ALIVE if (state, end) not in _NODE_PATH}
    | {
        (state, N.FAILED): "it could not be launched or bootstrapped"
        for state in (N.REQUESTED, N.PENDING, N.BOOTING, N.BOOTSTRAPPING)
    }
)

_JOB_ENDS = (J.SUCCEEDED, J.FAILED, J.CANCELLED)
_JOB_LIVE = (J.QUEUED, J.STARTING, J.RUNNING, J.DEGRADED, J.WAITING, J.PAUSED)
JOB_EDGES: Mapping[tuple[JobState, JobState], str] = MappingProxyType(
    {
        (J.QUEUED, J.STARTING): "nodes are asked for",
        (J.STARTING, J.RUNNING): "the round has all desired nodes",
        (J.STARTING, J.DEGRADED): "the round has enough nodes, not all",
        (J.STARTING, J.WAITING): "no offer has capacity",
        (J.RUNNING, J.DEGRADED): "the round lost nodes, or more are wanted",
        (J.DEGRADED, J.RUNNING): "the round has all desired nodes",
        (J.RUNNING, J.WAITING): "the round is below its minimum",
        (J.DEGRADED, J.WAITING): "the round is below its minimum",
        (J.WAITING, J.RUNNING): "the round has all desired nodes",
        (J.WAITING, J.DEGRADED): "the round has enough nodes, not all",
        (J.PAUSED, J.STARTING): "a user resumed it",
    }
    | {(state, J.PAUSED): "a user paused it" for state in _JOB_LIVE if state is not J.PAUSED}
    | {
        (state, end): {
            J.SUCCEEDED: "the program ended well",
            J.FAILED: "the program or its set-up failed too often, or a limit was reached",
            J.CANCELLED: "a user cancelled it",
        }[end]
        for state in _JOB_LIVE
        for end in _JOB_ENDS
    }
)

# Machines that may bill. FAILED and LOST wait for their terminate call.
OPEN_NODE_STATES = frozenset(NodeState) - {N.GONE}
ENDED_JOB_STATES = frozenset(_JOB_ENDS)
# States in which a node counts towards what the job wants: its members, and the spares beyond them.
COUNTED_NODE_STATES = frozenset({N.REQUESTED, N.PENDING, N.BOOTING, N.BOOTSTRAPPING, N.READY, N.MEMBER, N.SUSPECT})
IN_FLIGHT_NODE_STATES = frozenset({N.REQUESTED, N.PENDING, N.BOOTING, N.BOOTSTRAPPING})


class IllegalTransitionError(Exception):
    """A passage that the tables do not know. It is refused, and the daemon counts it."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of a node's or job's history."""

    at: float
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True)
class NoticeSeen:
    """A preemption notice as we know it."""

    deadline: float
    seen_at: float
    source: str


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One VM that was asked for, from the intent to its end.

    `token`: the idempotency token, journaled before the cloud is called. `unsure`: the last launch call ended without a
    clear answer, so the machine is looked up before anything else (P2). `drain_asked`: a user wants it to leave once it
    is replaced. `needs_replacement`: its cloud or a user took it from its job, or will. `replaces`: in whose place it
    was asked for. `place_of`: whose place it took in the round, which may be another's.
    """

    id: str
    job: str
    token: str
    offer: Offer
    created_at: float
    state: NodeState = NodeState.REQUESTED
    since: float = 0.0
    replaces: str = ""
    unsure: bool = False
    launch_attempts: int = 0
    retry_at: float = 0.0
    instance_id: str = ""
    launched_at: float = 0.0
    ended_at: float = 0.0
    ssh_host: str = ""
    ssh_port: int = 22
    private_address: str = ""
    metadata_url: str = ""
    bootstrapped: bool = False
    needs_replacement: bool = False
    notice: NoticeSeen | None = None
    drain_asked: bool = False
    joined: bool = False
    place_of: str = ""
    error: str = ""
    history: tuple[Transition, ...] = ()
    schema: int = SCHEMA_VERSION

    @property
    def doomed(self) -> bool:
        """It will leave: its provider said that it will be taken, or a user wants it drained."""
        return self.notice is not None or self.drain_asked

    def usd(self, now: float) -> float:
        """What it has cost so far; 0 where no price is known."""
        if not self.launched_at or self.offer.usd_per_hour is None:
            return 0.0
        return max(0.0, (self.ended_at or now) - self.launched_at) / 3600 * self.offer.usd_per_hour


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job, as users asked for it and as far as it is.

    `uid` makes node ids unique for ever, also when a name is used again. `next_node` and `next_event` are counters, so
    that ids are decided by the journal and not by chance; events before `first_event` are dropped. `spare_nodes`: how
    many more than desired shall wait outside the round; none is asked for before `spare_retry_at`. `trouble`: what
    people were last told of checkpoints that are not being written, at `checkpoint_problem_at`, when the newest was of
    `checkpoint_problem_step`; empty once they were told that all is well again. `pause_at`: when a user paused it, 0
    where nobody did; `paused_s`: for how long it was paused before.
    """

    name: str
    uid: str
    spec: JobSpec
    code_sha256: str
    submitted_at: float
    min_nodes: int
    desired_nodes: int
    max_nodes: int
    spare_nodes: int = 0
    state: JobState = JobState.QUEUED
    since: float = 0.0
    reason: str = ""
    cancel_requested: bool = False
    pause_at: float = 0.0
    paused_s: float = 0.0
    next_node: int = 1
    next_event: int = 1
    first_event: int = 1
    bootstrap_failures: int = 0
    spare_retry_at: float = 0.0
    usd_settled: float = 0.0
    gathering_since: float = 0.0
    round_seen: int = 0
    trouble: str = ""
    checkpoint_problem_step: int = 0
    checkpoint_problem_at: float = 0.0
    ended_at: float = 0.0
    history: tuple[Transition, ...] = ()
    schema: int = SCHEMA_VERSION

    @property
    def ended(self) -> bool:
        """Whether it has reached one of its three ends."""
        return self.state in ENDED_JOB_STATES

    @property
    def task_id(self) -> str:
        """Stable over recoveries: what user code may name checkpoints by."""
        return f"{self.name}-{self.uid}"


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """That this etcd holds a cluster's journal, since when, and by whom it was begun.

    Without it an etcd is new, or has lost its data. `key_mark` tells two cluster keys apart, and nothing else of them.
    """

    born_at: float
    by: str
    key_mark: str = ""


@dataclass(frozen=True, slots=True)
class DaemonPause:
    """A user's word that no daemon of the cluster shall do anything."""

    at: float
    reason: str = ""


class EventKind(StrEnum):
    """What is worth telling. The alert kinds go to Slack."""

    SUBMITTED = "submitted"
    SCALED = "scaled"
    CANCEL_REQUESTED = "cancel-requested"
    PAUSE_REQUESTED = "pause-requested"
    PAUSED = "paused"
    RESUMED = "resumed"
    DRAIN_REQUESTED = "drain-requested"
    ADOPTED = "adopted"
    LAUNCH_REQUESTED = "launch-requested"
    LAUNCH_REFUSED = "launch-refused"
    NOTICE = "notice"
    NODE_LOST = "node-lost"
    NODE_SUSPECT = "node-suspect"
    NODE_FAILED = "node-failed"
    PROTECTED = "protected"
    FOREIGN_HOST = "foreign-host"
    REPLACEMENT_REQUESTED = "replacement-requested"
    REPLACEMENT_JOINED = "replacement-joined"
    ROUND = "round"
    CHECKPOINTS_FAILING = "checkpoints-failing"
    CHECKPOINTS_RESUMED = "checkpoints-resumed"
    JOB_DONE = "job-done"
    JOB_FAILED = "job-failed"
    JOB_CANCELLED = "job-cancelled"
    ORPHAN = "orphan"
    UNKNOWN_CODE = "unknown-code"
    CONSOLE = "console"
    LOG = "log"


ALERT_KINDS = frozenset(
    {
        EventKind.NOTICE,
        EventKind.NODE_LOST,
        EventKind.REPLACEMENT_REQUESTED,
        EventKind.REPLACEMENT_JOINED,
        EventKind.CHECKPOINTS_FAILING,
        EventKind.CHECKPOINTS_RESUMED,
        EventKind.JOB_DONE,
        EventKind.JOB_FAILED,
        EventKind.UNKNOWN_CODE,
        EventKind.PROTECTED,
        EventKind.FOREIGN_HOST,
    }
)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's story. `id` is `<job uid>-<number>`: an alert is sent at least once under one id."""

    id: str
    at: float
    job: str
    kind: EventKind
    text: str
    node: str = ""
    data: Mapping[str, float | int | str] = field(default_factory=dict)


def move_node(node: NodeRecord, after: NodeState, now: float, reason: str) -> NodeRecord:
    """The node in its next state. Raises IllegalTransitionError."""
    if (node.state, after) not in NODE_EDGES:
        raise IllegalTransitionError(f"node {node.id}: {node.state} → {after} ({reason}) is not a legal passage")
    passage = Transition(now, node.state, after, reason)
    return replace(node, state=after, since=now, history=(*node.history, passage)[-HISTORY_LIMIT:])


def move_job(job: JobRecord, after: JobState, now: float, reason: str) -> JobRecord:
    """The job in its next state. Raises IllegalTransitionError."""
    if (job.state, after) not in JOB_EDGES:
        raise IllegalTransitionError(f"job {job.name}: {job.state} → {after} ({reason}) is not a legal passage")
    passage = Transition(now, job.state, after, reason)
    ended_at = now if after in ENDED_JOB_STATES else 0.0
    return replace(
        job,
        state=after,
        since=now,
        reason=reason,
        ended_at=ended_at,
        history=(*job.history, passage)[-HISTORY_LIMIT:],
    )
