"""What the journal holds: jobs, nodes and events as frozen records, their states, and the legal transitions.

The daemon keeps nothing else that it must not lose. Times are UNIX seconds; 0 stands for "never".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from spotsup_trainer.decoding import printable
from spotsup_trainer.wire import Progress

from provisioners.base import Offer
from supervisor import checkpoints
from supervisor.billing import NOTHING_BOOKED, NodeBilling
from supervisor.events import EventKind
from supervisor.features.billing.record import BillingRecord
from supervisor.features.bootstraps.record import BootstrapsRecord
from supervisor.features.checkpoints.record import CheckpointsRecord
from supervisor.features.deadline.record import DeadlineRecord
from supervisor.features.gang.record import GangRecord
from supervisor.features.hang.record import HangRecord
from supervisor.features.limits.record import LimitsRecord
from supervisor.features.moves.record import MovesRecord
from supervisor.features.pause.record import PauseRecord
from supervisor.features.places.record import PlacesRecord
from supervisor.features.queue.record import QueueRecord
from supervisor.features.rounds.record import RoundsRecord
from supervisor.features.silence.record import SilenceRecord
from supervisor.features.slow.record import SlowNode, SlowRecord
from supervisor.features.waits.record import WaitsRecord
from supervisor.spec import JobSpec

# Raised whenever a field of a record is added, renamed or removed. A daemon refuses all other versions
# (journal/codec.py).
SCHEMA_VERSION = 11
HISTORY_LIMIT = 40
# Texts are cut where they enter a record, and control characters replaced: they come from programs, machines, clouds.
MAX_REASON_CHARACTERS = 300  # of one line of a history
MAX_TEXT_CHARACTERS = 2000  # of an event, a node's error, a job's reason


class NodeState(StrEnum):
    """Where a node is. REQUESTED to GONE in order; SUSPECT, LOST, FAILED, CLEANING and WARM where they apply."""

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
    CLEANING = "cleaning"
    WARM = "warm"
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
    (N.PENDING, N.BOOTING): "the cloud reports it running",
    (N.BOOTING, N.BOOTSTRAPPING): "its address is known, bootstrap starts",
    (N.BOOTSTRAPPING, N.READY): "its launcher waits at the rendezvous",
    (N.READY, N.MEMBER): "it is in the round",
    (N.MEMBER, N.READY): "a round formed without it",
    (N.MEMBER, N.DRAINING): "it has to leave the round",
    (N.READY, N.DRAINING): "it is not needed any more",
    (N.DRAINING, N.TERMINATING): "it has left the round",
    (N.SUSPECT, N.READY): "its agent responds again",
    (N.SUSPECT, N.MEMBER): "its agent responds again, and it still trains",
    (N.MEMBER, N.SUSPECT): "its agent is silent, and its cloud has not said that it ended",
    (N.READY, N.SUSPECT): "its agent is silent, and its cloud has not said that it ended",
    (N.MEMBER, N.CLEANING): "its job has ended, and what that left is removed",
    (N.READY, N.CLEANING): "its job has ended, and what that left is removed",
    (N.CLEANING, N.WARM): "nothing of its job is left",
    (N.WARM, N.BOOTING): "its job, submitted again, uses it again",
    (N.WARM, N.GONE): "another job took its machine over",
    (N.FAILED, N.GONE): "nothing was launched",
    (N.REQUESTED, N.GONE): "nothing was launched",
    (N.TERMINATING, N.GONE): "its cloud confirmed the termination",
    (N.LOST, N.TERMINATING): "terminated in case it still exists",
    (N.FAILED, N.TERMINATING): "terminated in case it still exists",
}
_ALIVE = (
    N.PENDING,
    N.BOOTING,
    N.BOOTSTRAPPING,
    N.READY,
    N.MEMBER,
    N.DRAINING,
    N.SUSPECT,
    N.CLEANING,
    N.WARM,
)
_ANY_TIME: dict[NodeState, str] = {
    N.LOST: "its cloud reports that it ended, or it was silent for too long",
    N.TERMINATING: "its job does not need it any more",
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
_PAUSED_BECAUSE = "a user paused it, a limit was reached, or a job of a higher priority needs its room"
_JOB_LIVE = (J.QUEUED, J.STARTING, J.RUNNING, J.DEGRADED, J.WAITING, J.PAUSED)
JOB_EDGES: Mapping[tuple[JobState, JobState], str] = MappingProxyType(
    {
        (J.QUEUED, J.STARTING): "nodes are requested",
        (J.STARTING, J.RUNNING): "the round has all desired nodes",
        (J.STARTING, J.DEGRADED): "the round has enough nodes, but not all",
        (J.STARTING, J.WAITING): "no offer has capacity",
        (J.RUNNING, J.DEGRADED): "the round lost nodes, or the job was scaled up",
        (J.DEGRADED, J.RUNNING): "the round has all desired nodes",
        (J.RUNNING, J.WAITING): "the round is below its minimum",
        (J.DEGRADED, J.WAITING): "the round is below its minimum",
        (J.WAITING, J.RUNNING): "the round has all desired nodes",
        (J.WAITING, J.DEGRADED): "the round has enough nodes, but not all",
        (J.PAUSED, J.STARTING): "a user resumed it or raised its limit, or there is room for it",
    }
    | {(state, J.PAUSED): _PAUSED_BECAUSE for state in _JOB_LIVE if state is not J.PAUSED}
    | {
        (state, end): {
            J.SUCCEEDED: "the program exited with code 0",
            J.FAILED: "the program or its set-up failed too often",
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
# Machines of ended jobs, which wait for the next job.
WAITING_NODE_STATES = frozenset({N.CLEANING, N.WARM})
IN_FLIGHT_NODE_STATES = frozenset({N.REQUESTED, N.PENDING, N.BOOTING, N.BOOTSTRAPPING})


class IllegalTransitionError(Exception):
    """A transition that the tables do not have. It is refused, and the daemon counts it."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of a node's or job's history."""

    at: float
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True)
class NoticeRecord:
    """A preemption notice as the journal holds it."""

    deadline: float  # when the provider takes the machine
    seen_at: float  # when the agent, or the cloud's listing, first had it
    source: str  # where it was read: a metadata service, or a cloud's API
    confirmed: bool = False  # its cloud says so, too: it counts for what all jobs know of the pool


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One VM as a job has it: from the intent, or from where the job took a machine over, to its end."""

    id: str  # `<job>-<job uid>-<number>`, unique for ever
    job: str  # name of its job
    token: str  # idempotency token, journaled before the cloud is called
    offer: Offer  # what was requested
    created_at: float  # when it was requested
    state: NodeState = NodeState.REQUESTED
    state_since: float = 0.0
    replaces: str = ""  # the node it was requested in place of; empty for an additional one
    max_usd_per_hour: float | None = None  # what its request pays at most; None: the market's price
    launch_unknown: bool = False  # the last launch call had no clear answer: look the machine up first (P2)
    launch_attempts: int = 0
    retry_at: float = 0.0  # when its next launch, bootstrap or terminate call may start
    ready_by: float = 0.0  # when its launcher must have reached the rendezvous; set once it is bootstrapped
    instance_id: str = ""  # the cloud's id; empty until the cloud has accepted the launch
    launched_as: str = ""  # the node of an earlier job that its machine was launched for; empty: this one
    launched_at: float = 0.0  # from when it bills; of a machine that was taken over, from when it bills for this job
    usd_before: float = 0.0  # what it had cost when its price changed last
    priced_at: float = 0.0  # when that was; 0 while it has its first price
    ended_at: float = 0.0  # until when it bills
    ssh_host: str = ""
    ssh_port: int = 22
    private_address: str = ""
    metadata_url: str = ""
    bootstrapped: bool = False  # its agent was started
    needs_replacement: bool = False  # its cloud or a user took it from its job, or will
    notice: NoticeRecord | None = None
    drain_requested: bool = False  # a user wants it to leave once it is replaced
    ahead: bool = False  # requested for a move: none of the job's nodes until those that it is to replace leave
    left_behind: str = ""  # why its job has moved to others; empty while it has not
    unhealthy: str = ""  # why its GPUs cannot train, as last reported; empty while they can
    unhealthy_at: float = 0.0  # since when it is to leave for that; 0 also while too many are unhealthy at once
    slow: SlowNode = SlowNode()
    has_joined: bool = False  # it is or was in a round
    took_over_from: str = ""  # the node whose place it took in the round; may differ from `replaces`
    error: str = ""  # the last thing that went wrong
    worker_problem: str = ""  # what its launcher said of its workers, as last reported
    billing: NodeBilling = NOTHING_BOOKED  # what its cost was for
    history: tuple[Transition, ...] = ()  # the last HISTORY_LIMIT transitions
    schema: int = SCHEMA_VERSION

    @property
    def doomed(self) -> bool:
        """True if it will leave: its provider announced that it takes it, a user wants it drained, its GPUs are
        unhealthy, all others wait for it, or its job has moved."""
        found = self.unhealthy_at or self.slow.leaves_at or self.left_behind
        return self.notice is not None or self.drain_requested or bool(found)

    @property
    def machine_name(self) -> str:
        """Return the node that its machine was launched for: its tag, its host key and the machine itself have that
        name."""
        return self.launched_as or self.id

    def usd(self, now: float) -> float:
        """Return what it has cost so far, at the prices of the time; 0 where none is known."""
        if not self.launched_at or self.offer.usd_per_hour is None:
            return self.usd_before
        since = max(self.launched_at, self.priced_at)
        return self.usd_before + max(0.0, (self.ended_at or now) - since) / 3600 * self.offer.usd_per_hour


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job: what its user asked for, and how far it is."""

    name: str
    uid: str  # makes node ids unique for ever, also when a name is used again
    spec: JobSpec
    code_sha256: str
    submitted_at: float
    min_nodes: int
    desired_nodes: int
    max_nodes: int
    owner: str = ""  # the user who submitted it; empty where that is not known
    starts_at: float = 0.0  # no node is requested before; 0: at once
    resume_from: tuple[str, ...] = ()  # `checkpoint_path` of earlier jobs, the newest first
    run: int = 1  # of how many jobs of this name it is the last; an earlier one is kept as `<name>.<run>`
    spare_nodes: int = 0  # nodes beyond `desired_nodes` that wait outside the round
    state: JobState = JobState.QUEUED
    state_since: float = 0.0
    reason: str = ""  # why it is in its state
    cancel_requested: bool = False
    cancel_reason: str = ""  # why, if it was not a user who cancelled it
    next_node: int = 1  # counter: ids are decided by the journal, not by chance
    next_event: int = 1  # counter, as above
    first_event: int = 1  # events before this one are deleted
    ended_at: float = 0.0
    # One slot for each of its features.
    pause: PauseRecord = PauseRecord()
    limits: LimitsRecord = LimitsRecord()
    deadline: DeadlineRecord = DeadlineRecord()
    queue: QueueRecord = QueueRecord()
    bootstraps: BootstrapsRecord = BootstrapsRecord()
    gang: GangRecord = GangRecord()
    moves: MovesRecord = MovesRecord()
    places: PlacesRecord = PlacesRecord()
    rounds: RoundsRecord = RoundsRecord()
    silence: SilenceRecord = SilenceRecord()
    checkpoints: CheckpointsRecord = CheckpointsRecord()
    hang: HangRecord = HangRecord()
    slow: SlowRecord = SlowRecord()
    waits: WaitsRecord = WaitsRecord()
    billing: BillingRecord = BillingRecord()
    history: tuple[Transition, ...] = ()  # the last HISTORY_LIMIT transitions
    schema: int = SCHEMA_VERSION

    @property
    def ended(self) -> bool:
        """True if it has reached one of its three ends."""
        return self.state in ENDED_JOB_STATES

    @property
    def is_renewed(self) -> bool:
        """True if its schedule submits it again once it has ended."""
        return bool(self.spec.schedule) and not self.cancel_requested and self.state is not JobState.CANCELLED

    @property
    def task_id(self) -> str:
        """Stable over recoveries: what user code may name checkpoints by."""
        return f"{self.name}-{self.uid}"

    @property
    def checkpoint_path(self) -> str:
        """Return where this run's checkpoints go, "" if nowhere: see checkpoints.path_of."""
        return checkpoints.path_of(self.spec, self.task_id)


# What a feature keeps of a job.
JobPart: TypeAlias = (
    PauseRecord
    | LimitsRecord
    | DeadlineRecord
    | QueueRecord
    | BootstrapsRecord
    | GangRecord
    | MovesRecord
    | PlacesRecord
    | RoundsRecord
    | SilenceRecord
    | CheckpointsRecord
    | HangRecord
    | SlowRecord
    | WaitsRecord
    | BillingRecord
)
_SLOTS: Mapping[type, str] = MappingProxyType(
    {type(each.default): each.name for each in fields(JobRecord) if isinstance(each.default, JobPart)}
)


def with_part(job: JobRecord, part: JobPart) -> JobRecord:
    """Return the job with what one feature keeps of it changed; the same job if nothing is."""
    name = _SLOTS[type(part)]
    slot: dict[str, Any] = {name: part}
    return job if getattr(job, name) == part else replace(job, **slot)


@dataclass(frozen=True, slots=True)
class PastRun:
    """A job that had ended when its name was used again. Its events stay where they are, under its `task_id`."""

    job: JobRecord
    nodes: tuple[NodeRecord, ...]  # the last KEPT_NODES, without their histories
    progress: Progress | None  # as last reported
    schema: int = SCHEMA_VERSION


class NodeName(NamedTuple):
    """What a node's id is made of: `job-uid-number`."""

    job: str
    uid: str  # of the job; "" where the id is none of ours, as `number`
    number: str


def parts_of(node: str) -> NodeName:
    """Return the parts of a node's id, or of what stands in its place in a machine's tag or a key."""
    return NodeName(*(*node.rsplit("-", 2), "", "")[:3])


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Marks that this etcd holds a cluster's journal. Without it an etcd is new, or has lost its data."""

    created_at: float
    created_by: str  # the daemon that began the journal
    key_mark: str = ""  # fingerprint of the cluster key
    # By cloud, in which account, project or subscription its machines are.
    accounts: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0  # how often it was found to be older than its machines, or than what was known of it
    # Counted up every few minutes, by daemons alone: etcd's revisions grow by what nodes write, too.
    beat: int = 0
    beat_at: float = 0.0
    doubted_at: float = 0.0  # when it was, until an operator has looked; else 0
    doubt: str = ""  # why


@dataclass(frozen=True, slots=True)
class DaemonPause:
    """A user's request that no daemon of the cluster does anything."""

    at: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's events."""

    id: str  # `<job>-<job uid>-<number>`; an alert is sent at least once under one id
    at: float
    job: str  # empty for an event of the cluster
    kind: EventKind
    text: str
    node: str = ""
    data: Mapping[str, float | int | str] = field(default_factory=dict)


def move_node(node: NodeRecord, after: NodeState, now: float, reason: str) -> NodeRecord:
    """Return the node in its next state. Raises IllegalTransitionError."""
    if (node.state, after) not in NODE_EDGES:
        raise IllegalTransitionError(f"node {node.id}: {node.state} → {after} ({reason}) is not a legal transition")
    transition = Transition(now, node.state, after, printable(reason, MAX_REASON_CHARACTERS))
    return replace(node, state=after, state_since=now, history=(*node.history, transition)[-HISTORY_LIMIT:])


def move_job(job: JobRecord, after: JobState, now: float, reason: str) -> JobRecord:
    """Return the job in its next state. Raises IllegalTransitionError."""
    if (job.state, after) not in JOB_EDGES:
        raise IllegalTransitionError(f"job {job.name}: {job.state} → {after} ({reason}) is not a legal transition")
    transition = Transition(now, job.state, after, printable(reason, MAX_REASON_CHARACTERS))
    ended_at = now if after in ENDED_JOB_STATES else 0.0
    return replace(
        job,
        state=after,
        state_since=now,
        reason=printable(reason, MAX_TEXT_CHARACTERS),
        ended_at=ended_at,
        history=(*job.history, transition)[-HISTORY_LIMIT:],
    )
