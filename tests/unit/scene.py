"""One moment for the planner: a job, its nodes, and what is known of them. Pure: no loop, no etcd, no simulated world.

What a test does not set is in order: machines run, agents publish their status, the hint names the members, offers are
known. Nodes have numbers: node 3 is `job-u-3` on machine `i-3`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from spotsup_trainer.wire import AgentStatus, Hint, Keys, Member, Round, RoundMember, decode

from provisioners.base import Instance, InstanceState, Market, Offer, Owner, Scope
from supervisor.billing import Booking, NodeBilling, Purpose, RoundTimes
from supervisor.events import EventKind
from supervisor.features.billing.bookings import BOOTING_NODE_STATES
from supervisor.features.billing.record import BillingRecord
from supervisor.features.rounds.record import RoundsRecord
from supervisor.market.capacity import CapacityMemory, CapacityRefusal
from supervisor.market.offers import OffersView
from supervisor.model import Event, JobRecord, JobState, NodeRecord, NodeState, NoticeRecord
from supervisor.planner.actions import Action, AskDone, Commit, NodeOutcome, Plan
from supervisor.planner.draft import Draft
from supervisor.planner.plan import plan
from supervisor.planner.world import CloudView, JobView, Missing, Rules, VolatileState, World
from supervisor.spec import JobSpec, parse_spec

NOW = 100_000.0
MISSED = (NOW - 11, NOW - 1)  # when two listings in a row were asked, the last a second ago
KEYS = Keys("c")
OWNER = Owner("c", "0011223344556677")
OFFER = Offer("local", "region-1", "zone-a", "small", Market.SPOT, 0.5)
N, J = NodeState, JobState
NONE_KNOWN: dict[str, Any] = {"offers": {}}
FULL = {"capacity": CapacityMemory((CapacityRefusal(OFFER, Scope.GLOBAL, NOW + 60, "all is full"),))}
SOON = NoticeRecord(NOW + 56, NOW - 5, "metadata")
WITHOUT_MACHINE = (N.REQUESTED,)
PUBLISHING = (N.READY, N.MEMBER, N.DRAINING)
IN_ROUND = (N.MEMBER, N.SUSPECT, N.DRAINING)


def name(number: int) -> str:
    """A node's id."""
    return f"job-u-{number}"


def names(*numbers: int) -> tuple[str, ...]:
    """Nodes' ids."""
    return tuple(name(number) for number in numbers)


def spec(**more: Any) -> JobSpec:
    """A job file's content."""
    more["placement"] = {"cloud": "local", **more.get("placement", {})}
    return parse_spec({"name": "job", "nodes": {"min": 1, "desired": 2, "max": 4}, "run": "train.py", **more})


def job(desired: int = 2, state: JobState = J.RUNNING, **changes: Any) -> JobRecord:
    """A job that was submitted 5,000 s ago."""
    found = JobRecord(
        "job", "u", spec(), "", NOW - 5000, 1, desired, 4, state=state, state_since=NOW - 500, next_node=50
    )
    found = replace(found, billing=BillingRecord(rounds=RoundTimes(since=NOW - 500)), rounds=RoundsRecord(reported=1))
    return replace(found, **{name: _part(found, name, value) for name, value in changes.items()})


def _part(record: JobRecord, name: str, value: Any) -> Any:
    """What a feature keeps of a job may be given as a dictionary of what is not as usual."""
    before = getattr(record, name)
    return replace(before, **value) if isinstance(value, dict) else value


def node(number: int, state: NodeState, **changes: Any) -> NodeRecord:
    """A node that was asked for long ago; the higher its number, the later."""
    record = NodeRecord(
        name(number), "job", name(number), OFFER, NOW - 2000 + number, state, state_since=NOW - 100, launch_attempts=1
    )
    if state not in WITHOUT_MACHINE:
        billing = NodeBilling(Purpose.BOOT if state in BOOTING_NODE_STATES else Purpose.IDLE, booked_to=NOW - 400)
        record = replace(record, instance_id=f"i-{number}", launched_at=NOW - 1000, billing=billing)
    if state in {N.MEMBER, N.DRAINING}:
        record = replace(record, has_joined=True)
    return replace(record, **changes)


def member(number: int, **changes: Any) -> NodeRecord:
    """A node that trains."""
    return node(number, N.MEMBER, **changes)


def machine(number: int, state: InstanceState = InstanceState.RUNNING, **changes: Any) -> Instance:
    """A node's machine, as a cloud lists it."""
    known = Instance(
        f"i-{number}", OWNER, name(number), name(number), "region-1", "zone-a", "small", state, NOW - 1000, "10.0.0.1"
    )
    return replace(known, **changes)


def launcher(number: int, state: Any = "waiting", **changes: Any) -> Member:
    """What a node's launcher publishes."""
    return replace(Member(name(number), f"inc-{number}", "10.0.0.1", 4000, state, 1), **changes)


def round_of(*numbers: int, number: int = 1, **changes: Any) -> Round:
    """The round of these nodes."""
    inside = tuple(RoundMember(name(each), f"inc-{each}", "10.0.0.1", 4000) for each in numbers)
    return Round(number, inside, NOW - 50, **changes)


def hint_of(*numbers: int, spares: Sequence[int] = (), low: int = 1, high: int = 4, **changes: Any) -> Hint:
    """The daemon's hint that these are to train."""
    return Hint(names(*numbers), low, high, spares=names(*spares), **({"app_failures": 3} | changes))


def view(record: JobRecord, nodes: Sequence[NodeRecord], **messages: Any) -> JobView:
    """A job that is in order, except for `messages`."""
    inside = [int(each.id.rpartition("-")[2]) for each in nodes if each.state in {N.MEMBER, N.DRAINING}]
    publishing = [int(each.id.rpartition("-")[2]) for each in nodes if each.state in PUBLISHING]
    known: dict[str, Any] = {
        "round": round_of(*inside) if inside else None,
        "hint": hint_of(*inside),
        "members": {name(n): launcher(n, "running" if n in inside else "waiting") for n in publishing},
        "agents": {name(n): AgentStatus(name(n), "boot", 1, 0.0, "1") for n in publishing},
    }
    known |= messages
    nodes = [_booked(each, known["round"]) for each in nodes]
    nodes_by_id = {each.id: each for each in nodes}
    known["record"] = _in_training(record, nodes, known["round"])
    return JobView(revision=7, nodes=nodes_by_id, revisions=dict.fromkeys(nodes_by_id, 3), **known)


def _booked(record: NodeRecord, current: Round | None) -> NodeRecord:
    """The record as the planner left it a moment ago: its cost is booked by whether it is in the round."""
    inside = record.state in IN_ROUND and current is not None and record.id in current.nodes()
    billing = record.billing
    if billing.bookings or billing.in_round is inside or not record.launched_at:
        return record
    purpose = Purpose.UNKNOWN if inside else Purpose.IDLE
    return replace(record, billing=replace(billing, purpose=purpose, in_round=inside))


def _in_training(record: JobRecord, nodes: Sequence[NodeRecord], current: Round | None) -> JobRecord:
    """The record as the planner left it a moment ago: it has noted since when the job trains."""
    inside = [each for each in nodes if current is not None and each.id in current.nodes() and each.state in IN_ROUND]
    if record.limits.trained_s or record.limits.training_since or record.ended or len(inside) < record.min_nodes:
        return record
    return replace(record, limits=replace(record.limits, training_since=NOW - 500))


def listing(*machines: Instance, **changes: Any) -> CloudView:
    """The cloud's listing of a second ago. `missed_at`: by node, when listings in a row were asked that lack it."""
    missed_at: Mapping[str, tuple[float, ...]] = changes.pop("missed_at", {})
    missing = {each: Missing(times[0], times) for each, times in missed_at.items() if times}
    found = CloudView({each.id: each for each in machines}, NOW - 1, NOW - 1, missing=missing)
    return replace(found, **changes)


def machines_of(nodes: Sequence[NodeRecord]) -> list[Instance]:
    """Those that should be there."""
    return [machine(int(each.id.rpartition("-")[2])) for each in nodes if each.instance_id and each.state is not N.GONE]


def offering(*offers: Offer, **changes: Any) -> dict[str, Any]:
    """The volatile state with these offers of the job; `changes`: fields of their view."""
    return {"offers": {"job": replace(OffersView(offers, known=True, asked_at=NOW - 1), **changes)}}


def world_of(
    *views: JobView, rules: Rules | None = None, volatile: Mapping[str, Any] | None = None, **more: Any
) -> World:
    """These jobs on one cloud, whose listing and offers are fresh."""
    machines = [each for job_view in views for each in machines_of(list(job_view.nodes.values()))]
    offers = {job_view.record.name: offering(OFFER)["offers"]["job"] for job_view in views}
    # A silent node was asked over SSH just now, and did not answer.
    suspects = [each.id for job_view in views for each in job_view.nodes.values() if each.state is N.SUSPECT]
    answers = {each: AskDone(each, NOW - 0.5, "connection refused") for each in suspects}
    known: dict[str, Any] = {"clouds": {"local": listing(*machines)}, "offers": offers, "answers": answers}
    jobs = {job_view.record.name: job_view for job_view in views}
    # Leftovers are a matter of their own: their period has not come yet.
    rules = rules or Rules(leftovers_s=1e9)
    return World(
        jobs, replace(VolatileState(), **(known | dict(volatile or {}))), rules, more.pop("clouds", ("local",)), **more
    )


@dataclass(frozen=True)
class Decided:
    """What came of one plan. `nodes` and `job`: as they are afterwards."""

    plan: Plan
    volatile: VolatileState
    job: JobRecord
    nodes: Mapping[str, NodeRecord]
    commit: Commit

    def state(self, number: int) -> NodeState:
        """Where a node is now."""
        return self.nodes[name(number)].state

    def node(self, number: int) -> NodeRecord:
        """A node as it is now."""
        return self.nodes[name(number)]

    @property
    def new(self) -> list[NodeRecord]:
        """Nodes that were asked for just now."""
        return [each for each in self.nodes.values() if each.created_at == NOW]

    @property
    def released(self) -> set[str]:
        """Nodes that were released."""
        return {each.id for each in self.nodes.values() if each.state in {N.DRAINING, N.TERMINATING, N.GONE}}

    @property
    def actions(self) -> list[Action]:
        """All that was decided, with or without an intent."""
        return [*(each for commit in self.plan.commits for each in commit.actions), *self.plan.actions]

    def does(self, kind: type[Any]) -> list[Any]:
        """The actions of one kind."""
        return [each for each in self.actions if isinstance(each, kind)]

    @property
    def events(self) -> list[Event]:
        """What was reported."""
        return [each for commit in self.plan.commits for each in commit.events]

    @property
    def event_kinds(self) -> list[EventKind]:
        """The kinds of the events."""
        return [each.kind for each in self.events]

    @property
    def hint(self) -> Hint | None:
        """The hint that was written, None where it stays as it is."""
        raw = self.commit.put_keys.get(KEYS.hint("job"))
        return None if raw is None else decode(Hint, raw)

    @property
    def sentence(self) -> str:
        """The job's sentence."""
        return self.plan.sentences["job"]


def decide(world: World, *outcomes: NodeOutcome, now: float = NOW) -> Decided:
    """One plan."""
    by_node: dict[str, list[NodeOutcome]] = {}
    for each in outcomes:
        by_node.setdefault(each.node, []).append(each)
    decided, volatile = plan(world, by_node, KEYS, now)
    known = world.jobs["job"]
    commit = next((each for each in decided.commits if each.job == "job"), Commit("job", {}))
    nodes = {**known.nodes, **{each.id: each for each in commit.nodes}}
    nodes = {key: each for key, each in nodes.items() if key not in commit.delete_nodes}
    return Decided(decided, volatile, commit.job_record or known.record, nodes, commit)


_OF_A_WORLD = {field.name for field in fields(World)} - {"jobs"}


def scene(
    *nodes: NodeRecord,
    record: JobRecord | None = None,
    outcomes: Collection[NodeOutcome] = (),
    listed: CloudView | None = None,
    **more: Any,
) -> Decided:
    """One plan for one job. `listed`: the cloud's listing; `more`: fields of its JobView, or of the World."""
    ours = {key: more.pop(key) for key in list(more) if key in _OF_A_WORLD}
    if listed:
        ours["volatile"] = {"clouds": {"local": listed}, **ours.get("volatile", {})}
    return decide(world_of(view(record or job(), nodes, **more), **ours), *outcomes)


def draft_of(*nodes: NodeRecord, record: JobRecord | None = None, rules: Rules | None = None, **messages: Any) -> Draft:
    """The draft before anything is decided."""
    world = world_of(view(record or job(), nodes, **messages), rules=rules)
    return Draft(world, world.jobs["job"], {}, KEYS, NOW)


def as_job(value: Any, called: str) -> Any:
    """The same, of a job with another name."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return called if value == "job" else f"{called}{value[3:]}" if value.startswith("job-u-") else value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: as_job(getattr(value, each.name), called) for each in fields(value)})
    if isinstance(value, dict | MappingProxyType):
        return {as_job(key, called): as_job(each, called) for key, each in value.items()}
    if isinstance(value, Booking):  # names no job
        return value
    if isinstance(value, tuple | frozenset | list):
        return type(value)(as_job(each, called) for each in value)
    if hasattr(value, "model_copy") and getattr(value, "name", "") == "job":
        return value.model_copy(update={"name": called})
    return value
