"""What the daemon can do to the world, as data; and what came of it.

An action is started only after the commit that carries its intent is in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from provisioners.base import Instance, LaunchOutcome, Leftover, Offer, OfferQuery
from supervisor.model import ClusterRecord, Event, JobRecord, NodeRecord

# A commit is one transaction, and that is how many operations etcd takes in one: its default --max-txn-ops.
MAX_OPERATIONS = 128


@dataclass(frozen=True, slots=True)
class Launch:
    """Ask a cloud for the node's machine, under the node's token."""

    node: NodeRecord

    @property
    def key(self) -> str:
        """At most one action with this key runs at a time."""
        return f"node:{self.node.id}"


@dataclass(frozen=True, slots=True)
class Find:
    """Look the machine up by token: a launch call ended without a clear answer."""

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
class Terminate:
    """Ask a cloud to end a machine. `node` is empty for an orphan. `read_console`: read its console first.

    `read_log_of`: this node's log, too. `unmount_first`: stop this node's agent first, and unmount what its job had
    mounted.
    """

    cloud: str
    instance_id: str
    node: str
    read_console: bool = False
    read_log_of: NodeRecord | None = None
    unmount_first: tuple[NodeRecord, JobRecord] | None = None

    @property
    def key(self) -> str:
        """Of its own: a machine may be ended while its bootstrap is still under way."""
        return f"end:{self.instance_id}"


@dataclass(frozen=True, slots=True)
class ListInstances:
    """One filtered listing of a cloud."""

    cloud: str

    @property
    def key(self) -> str:
        """One listing per cloud at a time."""
        return f"list:{self.cloud}"


@dataclass(frozen=True, slots=True)
class ListLeftovers:
    """What machines have left behind in a cloud."""

    cloud: str

    @property
    def key(self) -> str:
        """One listing per cloud at a time."""
        return f"leftovers:{self.cloud}"


@dataclass(frozen=True, slots=True)
class Remove:
    """Ask a cloud to delete something that a machine left behind."""

    cloud: str
    leftover: Leftover

    @property
    def key(self) -> str:
        """One removal of each thing at a time."""
        return f"remove:{self.leftover.id}"


@dataclass(frozen=True, slots=True)
class FetchOffers:
    """What could be asked for, for one job: by each query in turn."""

    job: str
    cloud: str
    queries: tuple[OfferQuery, ...]

    @property
    def key(self) -> str:
        """One per job at a time."""
        return f"offers:{self.job}"


@dataclass(frozen=True, slots=True)
class SendAlert:
    """Tell people about an event whose id waits in the outbox."""

    event_id: str

    @property
    def key(self) -> str:
        """One attempt per alert at a time."""
        return f"alert:{self.event_id}"


Action: TypeAlias = (
    Launch | Find | Bootstrap | Terminate | ListInstances | ListLeftovers | Remove | FetchOffers | SendAlert
)


@dataclass(frozen=True, slots=True)
class LaunchDone:
    """What the cloud said."""

    node: str
    offer: Offer
    outcome: LaunchOutcome


@dataclass(frozen=True, slots=True)
class FindDone:
    """What was found under the token; `error` when the cloud could not be asked."""

    node: str
    instance: Instance | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class BootstrapDone:
    """`error` is empty when the agent runs. `unreachable`: nothing was wrong but the connection.

    `unhealthy`: it was the machine's own fault, before anything of the job's was tried on it. `foreign`: another
    machine answers at its address; nothing was sent to it.
    """

    node: str
    error: str = ""
    unreachable: bool = False
    unhealthy: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class TerminateDone:
    """`error` is empty when the cloud accepted. `console`, `log`: last words, where they were asked for."""

    node: str
    instance_id: str
    error: str = ""
    console: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True)
class ListDone:
    """A complete listing, or why there is none. `asked_at`: UNIX seconds at which the call was made."""

    cloud: str
    asked_at: float
    instances: tuple[Instance, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class LeftoversDone:
    """All that is left behind in a cloud, or why that is not known."""

    cloud: str
    asked_at: float
    leftovers: tuple[Leftover, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class RemoveDone:
    """`error` is empty when it is gone."""

    leftover_id: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class OffersDone:
    """The job's offers, cheapest first, or why there are none."""

    job: str
    asked_at: float
    offers: tuple[Offer, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class AlertDone:
    """`error` is empty when people were told."""

    event_id: str
    error: str = ""


Read: TypeAlias = ListInstances | ListLeftovers | FetchOffers
NodeOutcome: TypeAlias = LaunchDone | FindDone | BootstrapDone | TerminateDone
ReadOutcome: TypeAlias = ListDone | LeftoversDone | OffersDone
Outcome: TypeAlias = NodeOutcome | ReadOutcome | RemoveDone | AlertDone


@dataclass(frozen=True, slots=True)
class Commit:
    """One job's changes: all of them in one transaction, or none; then `actions` may start.

    `guards`: record key → the revision it was read at (0: must not exist yet). `cluster`: begins the journal.
    """

    job: str
    guards: Mapping[str, int]
    job_record: JobRecord | None = None
    nodes: Sequence[NodeRecord] = ()
    delete_nodes: Sequence[str] = ()
    put_keys: Mapping[str, bytes] = field(default_factory=dict)
    delete_keys: Sequence[str] = ()
    events: Sequence[Event] = ()
    alerts: Sequence[Event] = ()
    delete_events: Sequence[str] = ()
    actions: Sequence[Action] = ()
    cluster: ClusterRecord | None = None

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


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and per job one sentence on what and why.

    `illegal_transitions`: those transitions that were not made. `warnings`: what of the whole cluster needs a person.
    `steady_jobs`: jobs of which nothing has to be decided until something new is known of them (see attention.py).
    """

    commits: tuple[Commit, ...]
    actions: tuple[Action, ...]
    sentences: Mapping[str, str]
    illegal_transitions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    steady_jobs: frozenset[str] = frozenset()
