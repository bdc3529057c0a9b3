"""What the daemon can do, as data, and the outcomes. Times are UNIX seconds.

An action starts only after the commit that carries its intent is in the journal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from provisioners.base import Coverage, Instance, LaunchOutcome, Leftover, Offer, OfferQuery
from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Outgoing, Receipt
from supervisor.budget import BudgetRecord
from supervisor.market.admission import Admission
from supervisor.market.journaled import CapacityRecord
from supervisor.model import ClusterRecord, Event, JobRecord, NodeRecord

# A commit is one transaction; etcd takes so many operations in one, and as many guards (its default --max-txn-ops).
MAX_OPERATIONS = 128
# Of keys and values of one commit; etcd refuses requests of 1.5 MiB (its default --max-request-bytes).
MAX_COMMIT_BYTES = 1024 * 1024
# A node whose workers wrote nothing for longer does not advance. Each rank of a Session writes every 20 s.
ADVANCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Launch:
    """Ask a cloud for the node's machine, under the node's token. `disk_gb`: boot disk; 0: the cloud's setting."""

    node: NodeRecord
    disk_gb: int = 0

    @property
    def key(self) -> str:
        """At most one action with this key runs at a time."""
        return f"node:{self.node.id}"


@dataclass(frozen=True, slots=True)
class Find:
    """Look the machine up by token: a launch call had no clear answer."""

    node: NodeRecord

    @property
    def key(self) -> str:
        """As Launch."""
        return f"node:{self.node.id}"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Prepare the machine over SSH, up to a started agent."""

    node: NodeRecord
    job: JobRecord

    @property
    def key(self) -> str:
        """As Launch."""
        return f"node:{self.node.id}"


@dataclass(frozen=True, slots=True)
class Clean:
    """Remove what the node's job left on its machine over SSH, before the machine waits for another job."""

    node: NodeRecord
    job: JobRecord

    @property
    def key(self) -> str:
        """As Launch."""
        return f"node:{self.node.id}"


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask a cloud to end a machine."""

    cloud: str
    instance_id: str
    node: str  # empty for an orphan
    read_console: bool = False  # read its console first
    read_log_of: NodeRecord | None = None  # read this node's log first
    unmount_first: tuple[NodeRecord, JobRecord] | None = (
        None  # stop this node's agent first, and unmount its job's mounts
    )

    @property
    def key(self) -> str:
        """Not shared with Launch: a machine may be ended while its bootstrap is still under way."""
        return f"end:{self.instance_id}"


@dataclass(frozen=True, slots=True)
class ListInstances:
    """One filtered listing of a cloud."""

    cloud: str

    @property
    def key(self) -> str:
        """Return the key: one listing per cloud at a time."""
        return f"list:{self.cloud}"


@dataclass(frozen=True, slots=True)
class ListLeftovers:
    """One listing of what machines left behind in a cloud."""

    cloud: str

    @property
    def key(self) -> str:
        """Return the key: one listing per cloud at a time."""
        return f"leftovers:{self.cloud}"


@dataclass(frozen=True, slots=True)
class Remove:
    """Ask a cloud to delete something that a machine left behind."""

    cloud: str
    leftover: Leftover

    @property
    def key(self) -> str:
        """Return the key: one removal of each thing at a time."""
        return f"remove:{self.leftover.id}"


@dataclass(frozen=True, slots=True)
class FetchOffers:
    """Read one job's offers, by each query in turn."""

    job: str
    cloud: str
    queries: tuple[OfferQuery, ...]

    @property
    def key(self) -> str:
        """Return the key: one per job at a time."""
        return f"offers:{self.job}"


@dataclass(frozen=True, slots=True)
class AskNode:
    """Ask a silent node over SSH whether its steps advance."""

    node: NodeRecord

    @property
    def key(self) -> str:
        """Return the key: one question per node at a time."""
        return f"ask:{self.node.id}"


@dataclass(frozen=True, slots=True)
class SendAlerts:
    """Deliver events that wait in the outbox to one channel."""

    channel: Channel
    message: Outgoing

    @property
    def key(self) -> str:
        """Return the key: one delivery per channel at a time."""
        return f"alerts:{self.channel.name}"


Action: TypeAlias = (
    Launch
    | Find
    | Bootstrap
    | Clean
    | Terminate
    | ListInstances
    | ListLeftovers
    | Remove
    | FetchOffers
    | AskNode
    | SendAlerts
)


@dataclass(frozen=True, slots=True)
class LaunchDone:
    """What the cloud answered."""

    node: str
    offer: Offer
    outcome: LaunchOutcome


@dataclass(frozen=True, slots=True)
class FindDone:
    """What was found under the token."""

    node: str
    instance: Instance | None
    error: str = ""  # why the cloud could not be asked


@dataclass(frozen=True, slots=True)
class BootstrapDone:
    """How a bootstrap ended."""

    node: str
    error: str = ""  # empty when the agent runs
    unreachable: bool = False  # the connection failed, and nothing else
    unhealthy: bool = False  # the machine itself is at fault: it failed before anything of the job's was tried on it
    # How what the job or its image brings has failed, the same on each machine: no other one would do. "": the machine
    # may be at fault, or the network.
    of_job: str = ""
    foreign: bool = False  # another machine answers at its address; nothing was sent to it


@dataclass(frozen=True, slots=True)
class CleanDone:
    """How the cleaning of a machine ended."""

    node: str
    error: str = ""  # empty when nothing of its job is left
    unreachable: bool = False  # the connection failed, and nothing else


@dataclass(frozen=True, slots=True)
class TerminateDone:
    """How a terminate call ended."""

    node: str
    instance_id: str
    error: str = ""  # empty when the cloud accepted
    console: str = ""  # its last part, where it was requested
    log: str = ""  # its last part, where it was requested


@dataclass(frozen=True, slots=True)
class ListDone:
    """A listing, or why there is none."""

    cloud: str
    asked_at: float  # when the call was made
    instances: tuple[Instance, ...] = ()
    error: str = ""
    denied: bool = False  # for lack of valid credentials
    coverage: Coverage = field(default_factory=Coverage)
    foreign: str = ""  # the account that the journal's machines are in, where this is a listing of another one
    silent: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # by region that it lacks: why


@dataclass(frozen=True, slots=True)
class LeftoversDone:
    """Everything that is left behind in a cloud, or why that is not known."""

    cloud: str
    asked_at: float
    leftovers: tuple[Leftover, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class RemoveDone:
    """How a removal ended."""

    leftover_id: str
    error: str = ""  # empty when it is gone


@dataclass(frozen=True, slots=True)
class OffersDone:
    """The job's offers, cheapest first, or why there are none."""

    job: str
    asked_at: float
    offers: tuple[Offer, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class AskDone:
    """What a silent node answered over SSH, or why it did not."""

    node: str
    asked_at: float  # when the question was sent
    error: str = ""
    agent_runs: bool = False
    written_s_ago: float = math.inf  # when its workers last wrote anything, by its own clock

    @property
    def advances(self) -> bool:
        """True if its steps advance: that is proof of life (P4)."""
        return self.agent_runs and abs(self.written_s_ago) <= ADVANCE_S


@dataclass(frozen=True, slots=True)
class AlertsDone:
    """How a delivery ended."""

    channel: Channel
    message: Outgoing
    receipt: Receipt


Read: TypeAlias = ListInstances | ListLeftovers | FetchOffers | AskNode
NodeOutcome: TypeAlias = LaunchDone | FindDone | BootstrapDone | CleanDone | TerminateDone
ReadOutcome: TypeAlias = ListDone | LeftoversDone | OffersDone | AskDone
Outcome: TypeAlias = NodeOutcome | ReadOutcome | RemoveDone | AlertsDone


@dataclass(frozen=True, slots=True)
class Commit:
    """One job's changes: all of them in one transaction, or none; then `actions` may start."""

    job: str  # empty for what belongs to no job
    guards: Mapping[str, int]  # record key -> the revision it was read at; 0: it must not exist yet
    job_record: JobRecord | None = None
    nodes: Sequence[NodeRecord] = ()
    delete_nodes: Sequence[str] = ()
    # Nodes of other jobs, whose machines this one takes over: their last records, and the revisions they were read at.
    ended_of_others: Sequence[tuple[NodeRecord, int]] = ()
    put_keys: Mapping[str, bytes] = field(default_factory=dict)  # messages for nodes
    delete_keys: Sequence[str] = ()  # one that ends in a slash stands for all below it
    events: Sequence[Event] = ()
    alerts: Sequence[Event] = ()  # those of `events` that go to the outbox
    delete_events: Sequence[str] = ()
    actions: Sequence[Action] = ()
    reminds: bool = False  # `events` are what lasts, and what is over (problems.py): one commit of a plan
    cluster: ClusterRecord | None = None  # begins the journal, or says how far it is believed
    cluster_revision: int = 0  # at which that was read; 0: there was none
    capacity: CapacityRecord | None = None  # what clouds last answered
    budgets: BudgetRecord | None = None  # of what people were warned
    budgets_revision: int = 0  # at which that was read; 0: there was none

    @property
    def empty(self) -> bool:
        """Nothing to write and nothing to do."""
        return not (
            self.job_record
            or self.nodes
            or self.delete_nodes
            or self.put_keys
            or self.delete_keys
            or self.events
            or self.actions
        )

    @property
    def shows_in_mirror(self) -> bool:
        """True if it certainly writes a key that daemons mirror. Deletions may find nothing; events are elsewhere."""
        return bool(
            self.job_record
            or self.nodes
            or self.put_keys
            or self.alerts
            or self.cluster is not None
            or self.capacity
            or self.budgets
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that failed and was contained; one alert per `cause`."""

    sentence: str
    cause: str  # the same each time it happens for the same reason
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and per job one sentence on what and why."""

    commits: tuple[Commit, ...]
    actions: tuple[Action, ...]  # reads and deliveries: they need no intent in the journal
    sentences: Mapping[str, str]  # by job
    # What is left as it is, since deciding about it failed: jobs, and parts of the whole, "(orphans)".
    undecided: Mapping[str, Fault] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # about the cluster, for a person to look at
    # By job, what the operator's limits leave for it; empty without limits.
    admissions: Mapping[str, Admission] = field(default_factory=dict)
    steady_jobs: frozenset[str] = frozenset()  # nothing to decide about them until something changes (quiescence.py)
