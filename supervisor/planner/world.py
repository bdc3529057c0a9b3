"""What the planner knows: frozen data, gathered by the loop. Times are UNIX seconds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from spotsup_trainer.wire import (
    AgentStatus,
    Done,
    Ended,
    Health,
    Hint,
    Member,
    Notice,
    Pauses,
    Progress,
    RankTimes,
    Result,
    Round,
)

from provisioners.base import Coverage, Instance, InstanceState, Leftover, Offer
from supervisor.alerts.batches import ChannelState
from supervisor.alerts.routes import Channel
from supervisor.alerts.stories import Thread
from supervisor.budget import BudgetRecord, Budgets, BudgetUse
from supervisor.events import EventKind
from supervisor.features.bootstraps.record import BootstrapsRules
from supervisor.features.checkpoints.record import CheckpointsRules
from supervisor.features.gang.record import GangRules
from supervisor.features.moves.record import MovesRules
from supervisor.features.places.record import PlacesRules
from supervisor.features.silence.record import SilenceRules
from supervisor.features.slow.rank_times import Watch
from supervisor.features.slow.record import SlowRules
from supervisor.features.unhealthy.record import UnhealthyRules
from supervisor.features.waits.record import WaitsRules
from supervisor.market.admission import Admission, QueueRules
from supervisor.market.capacity import CapacityMemory
from supervisor.market.hazard import HazardRules
from supervisor.market.journaled import CapacityRecord
from supervisor.market.offers import OffersView
from supervisor.market.warm import WarmRules
from supervisor.model import ClusterRecord, Event, JobRecord, NodeRecord, NodeState, parts_of
from supervisor.planner import throttling
from supervisor.planner.actions import AskDone

MAX_CODES = 200
# The clocks of daemons, nodes and clouds may differ by so much.
CLOCKS_S = 60.0
# The longest notice that is believed of a cloud that is not known.
MAX_NOTICE_S = 900.0


@dataclass(frozen=True, slots=True)
class Rules:
    """All numbers of the planner, in seconds or counts; the configuration sets them. Those of a feature are its own."""

    # Reads: how often.
    listing_s: float = 5.0  # instances of a cloud
    unclear_listing_s: float = 0.5  # the same, while a round stands still for a reason that the cloud may know
    offers_s: float = 300.0  # a job's offers
    prices_s: float = 3600.0  # offers of a job that lacks no nodes, for the prices of its machines
    refused_retry_s: float = 15.0  # a job's offers, after a read that failed
    leftovers_s: float = 300.0  # disks, interfaces, addresses that machines left behind
    # Evidence of loss.
    consistency_s: float = 300.0  # a machine may be missing from listings for so long after its launch
    orphan_grace_s: float = 60.0  # a machine that the journal does not know is ended after
    # Time limits of a node.
    launch_attempts: int = 5  # launch calls
    launch_timeout_s: float = 300.0  # from PENDING to BOOTING
    bootstrap_timeout_s: float = 900.0  # for a machine that cannot be reached
    ready_timeout_s: float = 180.0  # from a started agent to a launcher at the rendezvous
    drain_timeout_s: float = 150.0  # to leave the round, or to stop for a pause
    terminate_retry_s: float = 10.0  # between two terminate calls
    last_log_s: float = 30.0  # after the program's end, for agents to send the end of their logs, or it is lost
    clean_timeout_s: float = 300.0  # a machine of an ended job that is not cleaned by then is terminated
    # Capacity.
    hazard: HazardRules = field(default_factory=HazardRules)
    # What a preemption costs a node: 120 s for another one, a pause, some steps where it is not announced.
    preemption_s: float = 180.0
    # The queue.
    queue: QueueRules = field(default_factory=QueueRules)  # the operator's limits
    queue_hold_s: float = 900.0  # a job that waits for them for so long is not overtaken any more
    displaced_again_s: float = 3600.0  # a job that was paused for another is not paused again for so long
    # Rounds.
    gather_s: float = 20.0  # a round change waits for nodes that are nearly ready
    leave_margin_s: float = 12.0  # beside a checkpoint, a node needs so long to leave before its notice's deadline
    # By cloud: how long before a preemption it announces it.
    notice_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    # By cloud: how long before a preemption it announces it at most. A later deadline is not believed.
    max_notice_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    # Reports.
    denied_alert_s: float = 60.0  # a cloud has denied all calls for so long: people are alerted
    alerts: bool = False  # whether events of ALERT_KINDS are sent
    channels: tuple[Channel, ...] = (Channel(),)  # where to
    quota_quiet_s: float = 86400.0  # between two alerts of the same quota
    # Housekeeping.
    steady_s: float = 30.0  # a steady job is looked at again after
    # A round's last step is noted so often, and with whatever else is written; what one did since that ends unseen is
    # unknown.
    note_s: float = 600.0
    gone_kept: int = 100  # records of nodes that are gone, per job
    events_kept: int = 1000  # per job
    # Money.
    budgets: Budgets = field(default_factory=Budgets)
    # Of features.
    silence: SilenceRules = field(default_factory=SilenceRules)
    gang: GangRules = field(default_factory=GangRules)
    moves: MovesRules = field(default_factory=MovesRules)
    places: PlacesRules = field(default_factory=PlacesRules)
    warm: WarmRules = field(default_factory=WarmRules)
    bootstraps: BootstrapsRules = field(default_factory=BootstrapsRules)
    unhealthy: UnhealthyRules = field(default_factory=UnhealthyRules)
    slow: SlowRules = field(default_factory=SlowRules)
    waits: WaitsRules = field(default_factory=WaitsRules)
    checkpoints: CheckpointsRules = field(default_factory=CheckpointsRules)

    @property
    def channels_used(self) -> tuple[Channel, ...]:
        """Return where alerts go; nowhere if they are off."""
        return self.channels if self.alerts else ()


@dataclass(frozen=True, slots=True)
class SilentRegion:
    """A region that the last listing of its cloud lacks."""

    listed_at: float  # when it was last listed; 0: never
    error: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A node whose machine listings lack."""

    since: float  # when the first of them was made
    asked_at: tuple[float, ...]  # when the last ones in a row were, two at most
    doubted: bool = False  # it was heard long after it was first missing: it is there


@dataclass(frozen=True)
class CloudView:
    """A cloud's last listing."""

    instances: Mapping[str, Instance] = field(default_factory=lambda: MappingProxyType({}))  # by the cloud's id
    listed_at: float = 0.0  # when the call of this listing was made
    attempted_at: float = 0.0  # when the last call was made, also one that failed
    error: str = ""  # why the last call failed
    missing: Mapping[str, Missing] = field(default_factory=lambda: MappingProxyType({}))  # by node id
    coverage: Coverage = field(default_factory=Coverage)
    silent: Mapping[str, SilentRegion] = field(default_factory=lambda: MappingProxyType({}))  # by region
    foreign: str = ""  # the account of the journal's machines, since the last answer was of another one (continuity.py)

    def of_node(self, node: NodeRecord) -> Instance | None:
        """Return the machine of a node: by provider id once that is known, by our tag before."""
        if node.instance_id:
            return self.instances.get(node.instance_id)
        return self._by_tag.get(node.id)

    @cached_property
    def doubted(self) -> frozenset[str]:
        """Return the ids of nodes that it lacks and that are there all the same."""
        return frozenset(node for node, each in self.missing.items() if each.doubted)

    def region_listed_at(self, region: str) -> float:
        """Return when the last listing was made that has a region; 0 if none has."""
        return self.silent[region].listed_at if region in self.silent else self.listed_at

    @property
    def is_known(self) -> bool:
        """True once every region was listed."""
        return self.listed_at > 0.0 and all(each.listed_at for each in self.silent.values())

    def leaves_out(self, node: NodeRecord) -> bool:
        """True if it cannot list a node's machine: it is in a region that is not configured any more."""
        return self.omits(node.offer.region)

    def omits(self, region: str) -> bool:
        """True if its listing does not cover a region."""
        return bool(self.coverage.regions) and region not in self.coverage.regions

    @property
    def tags(self) -> Collection[str]:
        """Return the nodes that its machines were launched for."""
        return self._by_tag.keys()

    def is_ending(self, node: NodeRecord) -> bool:
        """True if the cloud itself says that a node's machine ends or has ended, so that it bills no more."""
        instance = self.of_node(node)
        return instance is not None and instance.state in {InstanceState.STOPPING, InstanceState.TERMINATED}

    @cached_property
    def _by_tag(self) -> Mapping[str, Instance]:
        """Return the machines by node id. Cached: a thousand nodes may be requested while the cloud lists ten thousand
        machines."""
        found: dict[str, Instance] = {}
        for each in self.instances.values():
            found.setdefault(each.node, each)
        return found


@dataclass(frozen=True, slots=True)
class Sighting:
    """How often a cloud has listed something with our tag that the journal does not know."""

    first_at: float
    listings: int  # since it was first seen, or its end was last asked for
    unlisted_at: float = 0.0  # when its cloud was last listed without it; 0: never
    cloud: str = ""
    seen_at: float = 0.0  # when it was last listed
    ended_at: float = 0.0  # when its end was first asked for; 0: never
    asked_at: float = 0.0  # when it was last


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person can end."""

    kind: EventKind
    cause: str  # what it is about: one problem for each kind and cause
    since: float
    text: str  # what is wrong, where, what to do; the same while nothing changes
    after_s: float = 0.0  # people are told once it has lasted so long
    members: frozenset[str] = frozenset()  # what it has, such as machines: it grows by more of them
    over: str = ""  # what is said once it has ended; "" for nothing
    over_kind: EventKind = EventKind.SOLVED
    data: Mapping[str, float | str] = field(default_factory=lambda: MappingProxyType({}))
    job: str = ""  # whose channels hear of it; "" for those of the cluster
    in_headline: bool = True  # the daemon's status names it while it lasts
    is_reminder: bool = False  # people were told when it began: the headline has it at once, too

    @property
    def key(self) -> str:
        """Return what it is remembered by."""
        return f"{self.kind}-{self.cause}"


@dataclass(frozen=True, slots=True)
class Reminder:
    """What people were told of a problem (problems.py)."""

    kind: EventKind
    at: float  # when they were last
    times: int  # how often
    members: frozenset[str]  # what the problem had so far
    over: str  # what is said once it has ended
    over_kind: EventKind
    job: str = ""  # whose channels hear of it


@dataclass(frozen=True, slots=True)
class LeftoversView:
    """What machines left behind in a cloud, as last listed."""

    leftovers: Mapping[str, Leftover] = field(default_factory=lambda: MappingProxyType({}))  # by the cloud's id
    sightings: Mapping[str, Sighting] = field(default_factory=lambda: MappingProxyType({}))  # by the cloud's id
    attempted_at: float = 0.0  # when the last call was made, also one that failed
    failing_since: float = 0.0  # 0: it did not fail
    error: str = ""  # why it failed


@dataclass(frozen=True, slots=True)
class Denial:
    """A cloud accepts nothing with our credentials."""

    message: str
    since: float
    until: float  # a launch was denied: a listing that works proves nothing before


@dataclass(frozen=True, slots=True)
class VolatileState:
    """What the daemon remembers outside the journal. All of it may be lost: it only makes decisions better."""

    clouds: Mapping[str, CloudView] = field(default_factory=lambda: MappingProxyType({}))  # by cloud
    offers: Mapping[str, OffersView] = field(default_factory=lambda: MappingProxyType({}))  # by job
    capacity: CapacityMemory = field(default_factory=CapacityMemory)
    unknown_codes: tuple[tuple[str, str], ...] = ()  # (cloud, error code) that no table has, oldest first
    sightings: Mapping[str, Sighting] = field(default_factory=lambda: MappingProxyType({}))  # by instance id
    reminders: Mapping[str, Reminder] = field(default_factory=lambda: MappingProxyType({}))  # by problem
    leftovers: Mapping[str, LeftoversView] = field(default_factory=lambda: MappingProxyType({}))  # by cloud
    alert_channels: Mapping[str, ChannelState] = field(default_factory=lambda: MappingProxyType({}))  # by name
    # When people were last told of a quota, by (cloud, region, quota).
    quotas_reported: Mapping[tuple[str, str, str], float] = field(default_factory=lambda: MappingProxyType({}))
    # By cloud.
    request_limits: Mapping[str, throttling.RequestLimit] = field(default_factory=lambda: MappingProxyType({}))
    denials: Mapping[str, Denial] = field(default_factory=lambda: MappingProxyType({}))  # by cloud
    # Of silent nodes, by id: what they answered over SSH, and when they were last held (silence.py).
    answers: Mapping[str, AskDone] = field(default_factory=lambda: MappingProxyType({}))
    held_at: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    watches: Mapping[str, Watch] = field(default_factory=lambda: MappingProxyType({}))  # of ranks' times, by task id
    changed_jobs: frozenset[str] = frozenset()  # jobs whose instances a listing showed to have changed since their plan

    def cloud(self, name: str) -> CloudView:
        """Return what is known of a cloud: nothing yet, of one that has never answered."""
        return self.clouds.get(name) or CloudView()

    def with_unknown_code(self, cloud: str, code: str) -> tuple[VolatileState, bool]:
        """Return the state with an error code that no table has; and whether it is new."""
        if (cloud, code) in self.unknown_codes:
            return self, False
        return replace(self, unknown_codes=(*self.unknown_codes, (cloud, code))[-MAX_CODES:]), True

    def with_quota(self, offer: Offer, now: float, quiet_s: float) -> tuple[VolatileState, bool]:
        """Return the state with a quota that refuses a request now; and whether people have not been told of it for
        `quiet_s`."""
        which = (offer.cloud, offer.region, offer.quota)
        if now - self.quotas_reported.get(which, -math.inf) < quiet_s:
            return self, False
        kept = {each: at for each, at in self.quotas_reported.items() if now - at < quiet_s}
        return replace(self, quotas_reported=MappingProxyType({**kept, which: now})), True

    def with_throttled(self, node: NodeRecord, now: float) -> VolatileState:
        """After a cloud has refused a node's launch as one too many."""
        cloud = node.offer.cloud
        limit = throttling.refused(self.request_limits.get(cloud, throttling.RequestLimit()), now)
        return replace(self, request_limits=MappingProxyType({**self.request_limits, cloud: limit}))

    def with_grant(self, node: NodeRecord, now: float) -> VolatileState:
        """After a cloud has granted a node's launch."""
        cloud = node.offer.cloud
        limit = throttling.granted(self.request_limits.get(cloud, throttling.RequestLimit()), now)
        return replace(self, request_limits=MappingProxyType({**self.request_limits, cloud: limit}))

    def with_denial(self, cloud: str, message: str, now: float, proof_s: float = 0.0) -> VolatileState:
        """After a cloud has denied a call. `proof_s`: for how long a listing that works does not prove the opposite."""
        before = self.denials.get(cloud, Denial(message, now, now))
        denial = replace(before, message=message, until=max(before.until, now + proof_s))
        return replace(self, denials=MappingProxyType({**self.denials, cloud: denial}))

    def without_denial(self, cloud: str, listed_at: float = math.inf) -> VolatileState:
        """After a cloud has accepted a call: a launch, or the listing of a time."""
        before = self.denials.get(cloud)
        if before is None or listed_at < before.until:
            return self
        others = {name: denial for name, denial in self.denials.items() if name != cloud}
        return replace(self, denials=MappingProxyType(others))


@dataclass(frozen=True)
class JobView:
    """One job: its records with their revisions, and the messages of its nodes."""

    record: JobRecord
    revision: int  # of `record` in etcd
    nodes: Mapping[str, NodeRecord]  # by node id
    revisions: Mapping[str, int]  # of the node records, by node id
    hint: Hint | None = None
    round: Round | None = None
    result: Result | None = None
    progress: Progress | None = None
    pauses: Pauses | None = None  # the last ones, as the node with rank 0 measured them
    rank_times: RankTimes | None = None  # how long ranks work in a step, as the node with rank 0 last wrote
    members: Mapping[str, Member] = field(default_factory=dict)  # what launchers publish, by node id
    agents: Mapping[str, AgentStatus] = field(default_factory=dict)  # what agents publish, by node id
    notices: Mapping[str, Notice] = field(default_factory=dict)  # by node id
    healths: Mapping[str, Health] = field(default_factory=dict)  # of nodes' GPUs, by node id
    done: Mapping[str, Done] = field(default_factory=dict)  # in which round nodes' ranks ended well, by node id
    exits: Mapping[str, Ended] = field(default_factory=dict)  # how launchers ended, by node id
    tombstones: frozenset[str] = frozenset()  # ids of the nodes that have one
    passing: tuple[str, ...] = ()  # keys, readable or not, of what counts only while it has nodes: its hint, etcd's CA
    leftover_messages: tuple[str, ...] = ()  # keys of messages, readable or not, of nodes that are gone or unknown
    floods: bool = False  # its nodes write more than is read of it (features/flood)
    floods_output: bool = False  # they keep more output in etcd than a job may have
    past: bool = False  # an earlier job, whose name was used again

    @property
    def name(self) -> str:
        """Return what users call it."""
        return f"{self.record.name}.{self.record.run}" if self.past else self.record.name

    @cached_property
    def billed(self) -> tuple[NodeRecord, ...]:
        """Return its nodes that are not gone: their machines may still bill. Of the others a job keeps a hundred."""
        return tuple(node for node in self.nodes.values() if node.state is not NodeState.GONE)

    @cached_property
    def terminating(self) -> tuple[NodeRecord, ...]:
        """Return its nodes whose machines a cloud is to end."""
        return tuple(node for node in self.billed if node.state is NodeState.TERMINATING)

    @cached_property
    def clouds(self) -> frozenset[str]:
        """Return where its machines are."""
        return frozenset(node.offer.cloud for node in self.billed)

    @cached_property
    def regions(self) -> frozenset[tuple[str, str]]:
        """Return the same as (cloud, region)."""
        return frozenset((node.offer.cloud, node.offer.region) for node in self.billed)

    @property
    def without_messages(self) -> JobView:
        """Return the same with nothing that its nodes have written."""
        of_all = dict.fromkeys(("round", "result", "progress", "pauses", "rank_times"))
        of_each: dict[str, Mapping[str, object]] = {
            name: {} for name in ("members", "agents", "notices", "healths", "done", "exits")
        }
        return replace(self, **of_all, **of_each)  # type: ignore[arg-type]  # by their names

    @property
    def spares(self) -> tuple[str, ...]:
        """Return nodes that wait outside the round because the hint says so, the first one to step in first."""
        inside = self.round.nodes() if self.round else ()
        ready = {node.id for node in self.billed if node.state is NodeState.READY}
        named = self.hint.spares if self.hint else ()
        return tuple(node for node in named if node in ready and node not in inside)


@dataclass(frozen=True, slots=True)
class Hold:
    """Nodes of which so many fell silent together that it is the network's silence: none of them is given up (P4)."""

    nodes: frozenset[str] = frozenset()
    clouds: frozenset[str] = frozenset()  # where they are


@dataclass(frozen=True)
class World:
    """Everything that a plan is made from."""

    jobs: Mapping[str, JobView]  # by name
    volatile: VolatileState
    rules: Rules
    clouds: tuple[str, ...]  # the clouds that are configured
    alerts: tuple[Event, ...] = ()  # the events in the outbox, in the order in which they were written
    # By channel: ids of the events in the outbox that it has; and its threads, by task id.
    alerted: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    threads: Mapping[str, Mapping[str, Thread]] = field(default_factory=lambda: MappingProxyType({}))
    # Nodes that may ask for their machine now, where a cloud limits requests, and their place: throttling.py.
    turns: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    busy: frozenset[str] = frozenset()  # keys of the actions that are under way (Action.key)
    # Jobs with records that cannot be read -> why.
    unreadable_jobs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    unjournaled: frozenset[str] = frozenset()  # ids of nodes that publish messages and have no record
    # No timeout counts time before this: etcd was away, so that no node could be heard or could leave; our clock
    # jumped; or another daemon led, whose clock may have been wrong.
    timers_paused_until: float = 0.0
    cluster: ClusterRecord | None = None  # what the journal says of itself, and its revision
    cluster_revision: int = 0
    skipped: frozenset[str] = frozenset()  # jobs about which nothing is decided this time (quiescence.py)
    hold: Hold = field(default_factory=Hold)  # as of this plan
    capacity: CapacityRecord | None = None  # what the journal has of the capacity memory
    admissions: Mapping[str, Admission] = field(default_factory=lambda: MappingProxyType({}))  # by job, as of this plan
    budget_record: BudgetRecord | None = None  # what it has of budgets
    budget_revision: int = 0  # its revision; 0 without one
    # What is spent of each budget, by scope, as of this plan; None: that could not be found out.
    budget_uses: Mapping[str, BudgetUse] | None = None
    outside: tuple[Problem, ...] = ()  # what the daemon's other parts cannot do

    def is_protected(self, node: str) -> bool:
        """True if a machine with this tag may work for a job although no readable record says so (P4). Its tag may be
        that of an earlier job, where machines are handed over."""
        if self.doubted or node in self.unjournaled or parts_of(node).job in self.unreadable_jobs:
            return True
        return bool(self.unreadable_jobs) and self._hands_over

    @property
    def doubted(self) -> bool:
        """True while the journal may be older than the machines (continuity.py)."""
        return self.cluster is not None and self.cluster.doubted_at > 0.0

    @cached_property
    def lost_nodes(self) -> frozenset[str]:
        """Return nodes that publish messages, have no record, and may be real: a cloud lists a machine of theirs that
        has not ended and is no other node's by now, or not all clouds have been listed yet. A message alone may be
        forged by any program of the job."""
        if not self.unjournaled:
            return frozenset()
        views = [self.volatile.cloud(each) for each in self.clouds]
        if not all(view.is_known for view in views):
            return self.unjournaled
        tagged = [each for view in views for each in view.instances.values() if each.node in self.unjournaled]
        if not (runs := {each.node for each in tagged if each.state is not InstanceState.TERMINATED}):
            return frozenset()
        return frozenset(runs - {node.machine_name for job in self.jobs.values() for node in job.billed})

    @property
    def _hands_over(self) -> bool:
        taken_over = any(node.launched_as for job in self.jobs.values() for node in job.nodes.values())
        return bool(self.rules.warm.keep_s) or taken_over
