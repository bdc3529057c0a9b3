"""What the planner knows: frozen data, gathered by the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from spotsup_trainer.wire import AgentStatus, Ended, Hint, Member, Notice, Progress, Result, Round

from provisioners.base import Instance, Leftover, NoCapacity, Offer, Quota, Scope
from supervisor.model import JobRecord, NodeRecord, NodeState

MAX_REFUSALS = 1000
MAX_CODES = 200


@dataclass(frozen=True, slots=True)
class Rules:
    """All numbers of the planner, in seconds or counts; the configuration sets them."""

    listing_s: float = 5.0
    unclear_listing_s: float = 0.5
    offers_s: float = 300.0
    suspect_s: float = 20.0
    consistency_s: float = 300.0
    orphan_grace_s: float = 60.0
    leftovers_s: float = 300.0
    gather_s: float = 20.0
    leave_margin_s: float = 12.0
    launch_timeout_s: float = 300.0
    bootstrap_timeout_s: float = 900.0
    ready_timeout_s: float = 180.0
    drain_timeout_s: float = 150.0
    terminate_retry_s: float = 10.0
    refused_retry_s: float = 15.0
    spare_retry_s: float = 600.0
    checkpoint_alert_quiet_s: float = 600.0
    steady_s: float = 30.0
    launch_attempts: int = 5
    bootstrap_failures: int = 5
    max_unhealthy_streak: int = 3
    unhealthy_memory_s: float = 3600.0
    alerts: bool = False
    gone_kept: int = 100
    events_kept: int = 1000


@dataclass(frozen=True, slots=True)
class CloudView:
    """A cloud's last complete listing. `listed_at`: when that call was made; `attempted_at`: when the last one was.

    `missed_listings`: by node id, how many listings in a row did not have the node's machine.
    """

    instances: Mapping[str, Instance] = field(default_factory=lambda: MappingProxyType({}))
    listed_at: float = 0.0
    attempted_at: float = 0.0
    error: str = ""
    missed_listings: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def of_node(self, node: NodeRecord) -> Instance | None:
        """The machine of a node: by provider id once that is known, by our tag before."""
        if node.instance_id:
            return self.instances.get(node.instance_id)
        return next((found for found in self.instances.values() if found.node == node.id), None)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an offer last answered, and until when it is believed. `spare`: it was asked for no more than a spare."""

    offer: Offer
    scope: Scope
    until: float
    message: str
    spare: bool = False

    def covers(self, offer: Offer) -> bool:
        """Whether `offer` lies within what was refused."""
        mine = self.offer
        if mine.cloud != offer.cloud or mine.market != offer.market:
            return False
        match self.scope:
            case Scope.TYPE_IN_ZONE:
                return (mine.zone, mine.instance_type) == (offer.zone, offer.instance_type)
            case Scope.ZONE:
                return mine.zone == offer.zone
            case Scope.REGION:
                return mine.region == offer.region
            case Scope.GLOBAL:
                return True


@dataclass(frozen=True, slots=True)
class OffersView:
    """What a job could ask for, cheapest first."""

    offers: tuple[Offer, ...] = ()
    known: bool = False
    asked_at: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Something with our tag that the journal does not know."""

    first_at: float
    listings: int


@dataclass(frozen=True, slots=True)
class LeftoversView:
    """What machines left behind in a cloud, and how often each was seen. `attempted_at`: when the last listing was
    made."""

    leftovers: Mapping[str, Leftover] = field(default_factory=lambda: MappingProxyType({}))
    sightings: Mapping[str, Sighting] = field(default_factory=lambda: MappingProxyType({}))
    attempted_at: float = 0.0


@dataclass(frozen=True, slots=True)
class AlertDelivery:
    """How often an alert was tried. `over`: it was delivered, or given up; its outbox entry can go."""

    tries: int
    next_at: float
    over: bool


@dataclass(frozen=True, slots=True)
class VolatileState:
    """What the daemon remembers outside the journal. All of it may be lost: it only makes decisions better.

    `unhealthy_streaks`: by cloud and instance type, how many machines in a row were at fault themselves.
    `changed_jobs`: jobs of which a listing told something new since they were last decided about.
    """

    clouds: Mapping[str, CloudView] = field(default_factory=lambda: MappingProxyType({}))
    offers: Mapping[str, OffersView] = field(default_factory=lambda: MappingProxyType({}))
    refusals: tuple[Refusal, ...] = ()
    unknown_codes: tuple[tuple[str, str], ...] = ()
    sightings: Mapping[str, Sighting] = field(default_factory=lambda: MappingProxyType({}))
    leftovers: Mapping[str, LeftoversView] = field(default_factory=lambda: MappingProxyType({}))
    alert_deliveries: Mapping[str, AlertDelivery] = field(default_factory=lambda: MappingProxyType({}))
    unhealthy_streaks: Mapping[tuple[str, str], int] = field(default_factory=lambda: MappingProxyType({}))
    changed_jobs: frozenset[str] = frozenset()

    def refused(self, offer: Offer, now: float, *, spare: bool) -> Refusal | None:
        """The refusal that speaks against an offer now. What a spare was refused holds up nothing but spares."""
        believed = (r for r in self.refusals if r.until > now and (spare or not r.spare))
        return next((r for r in believed if r.covers(offer)), None)

    def with_unknown_code(self, cloud: str, code: str) -> tuple[VolatileState, bool]:
        """With a code of a cloud that no table has; and whether it is new. At most 200 are kept."""
        if (cloud, code) in self.unknown_codes:
            return self, False
        return replace(self, unknown_codes=(*self.unknown_codes, (cloud, code))[-MAX_CODES:]), True

    def with_unhealthy_streak(self, offer: Offer, in_a_row: int) -> VolatileState:
        """With so many unhealthy machines in a row of this cloud and type; 0 once one of them works."""
        others = {
            kind: count for kind, count in self.unhealthy_streaks.items() if kind != (offer.cloud, offer.instance_type)
        }
        now_unhealthy = {(offer.cloud, offer.instance_type): in_a_row} if in_a_row else {}
        return replace(self, unhealthy_streaks=MappingProxyType(others | now_unhealthy))

    def remember(self, offer: Offer, outcome: NoCapacity | Quota, now: float, *, spare: bool) -> VolatileState:
        """With one more refusal; the ended ones are forgotten, at most 1,000 are kept."""
        kept = tuple(r for r in self.refusals if r.until > now)[-MAX_REFUSALS + 1 :]
        refusal = Refusal(offer, outcome.scope, now + outcome.memory_s, outcome.message, spare)
        return replace(self, refusals=(*kept, refusal))


@dataclass(frozen=True, slots=True)
class JobView:
    """One job: its records with their revisions, and the words of its nodes."""

    record: JobRecord
    revision: int
    nodes: Mapping[str, NodeRecord]
    revisions: Mapping[str, int]
    hint: Hint | None = None
    round: Round | None = None
    result: Result | None = None
    progress: Progress | None = None
    members: Mapping[str, Member] = field(default_factory=dict)
    agents: Mapping[str, AgentStatus] = field(default_factory=dict)
    notices: Mapping[str, Notice] = field(default_factory=dict)
    exits: Mapping[str, Ended] = field(default_factory=dict)
    tombstones: frozenset[str] = frozenset()

    @property
    def spares(self) -> tuple[str, ...]:
        """Nodes that wait outside the round because the hint says so, the first one to step in first."""
        inside = self.round.nodes() if self.round else ()
        ready = {node.id for node in self.nodes.values() if node.state is NodeState.READY}
        named = self.hint.spares if self.hint else ()
        return tuple(node for node in named if node in ready and node not in inside)


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a plan is made from. `busy`: keys of actions that are under way (see actions.Action.key).

    `unreadable_jobs`: jobs whose records cannot be read, and why. `unjournaled`: nodes that speak and have no record.
    `skipped`: jobs about which nothing is to be decided this time (see attention.py). `timers_paused_until`: until when
    nothing counts as waited for: etcd was away, so that nobody could be heard or leave; our clock jumped; or another
    daemon led, whose clock may have been wrong.
    """

    jobs: Mapping[str, JobView]
    volatile: VolatileState
    rules: Rules
    clouds: tuple[str, ...]
    alerts: tuple[str, ...] = ()
    busy: frozenset[str] = frozenset()
    unreadable_jobs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    unjournaled: frozenset[str] = frozenset()
    timers_paused_until: float = 0.0
    skipped: frozenset[str] = frozenset()

    def is_protected(self, node: str) -> bool:
        """Whether it may well be somebody's, although no record that can be read says so (P4)."""
        return node in self.unjournaled or any(node.startswith(f"{job}-") for job in self.unreadable_jobs)
