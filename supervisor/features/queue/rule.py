"""The queue: what each job has and wants, for `market.admission`, and what is done about its decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from provisioners.base import Offer
from supervisor.events import EventKind
from supervisor.features.deadline.rule import deadline_of
from supervisor.features.pause.record import PauseRecord
from supervisor.features.queue.record import QueueRecord
from supervisor.market.admission import Admission, Amount, Claim, admit
from supervisor.market.offers import Constraints, OffersView, is_allowed, ranked, wished
from supervisor.model import COUNTED_NODE_STATES, WAITING_NODE_STATES, JobRecord, JobState, NodeRecord, NodeState
from supervisor.planner.boundary import Boundary
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import counted, done_nodes
from supervisor.planner.world import CloudView, JobView, World
from supervisor.spec import NO_CHECKPOINTS, JobSpec

J, N = JobState, NodeState
PRIORITY = "priority"  # PauseRecord.by of a job that is paused for another
# Of a job about which nothing could be decided, or that has ended.
UNDECIDED = Admission(0, 0.0, needs_price=True, reason="the queue could not be decided: see the daemon's warnings")
NOTHING_KNOWN = OffersView()
TRAINING_STATES = frozenset({J.RUNNING, J.DEGRADED})


def admissions(world: World, within: Boundary, now: float) -> Mapping[str, Admission]:
    """Return what is admitted, by job; empty where the operator has set no limit. What fails requests nothing: a limit
    is kept (P13)."""
    rules = world.rules.queue
    if not rules.limits_anything or world.jobs.keys() <= world.skipped:
        return {}
    found = {
        name: within.within(f"(what {name} claims)", partial(claim_of, world, view, now), None)
        for name, view in world.jobs.items()
    }
    claims = [each for each in found.values() if each is not None]
    live = [each for each in claims if each.wanted or {each.kept, each.moving, each.going} != {Amount()}]
    decided = within.within("(queue)", partial(admit, live, rules, now, world.rules.queue_hold_s), {})
    return dict.fromkeys(world.jobs, UNDECIDED) | decided


def to_pause(decided: Mapping[str, Admission]) -> frozenset[str]:
    """Jobs that have to pause for others."""
    return frozenset(job for job, each in decided.items() if each.pause_for)


def claim_of(world: World, view: JobView, now: float) -> Claim:
    """Return what a job has, and what it wants."""
    job, spec = view.record, view.record.spec
    billed = view.billed
    moving = [node for node in billed if node.ahead or node.left_behind]
    kept = _kept(billed)
    # Whatever bills counts (P13), until its cloud says that it ends: what a node says of itself takes it from its job's
    # count, and gives no room away.
    counts = {node.id for node in (*moving, *kept)}
    clouds = world.volatile.clouds
    rest = [node for node in billed if node.id not in counts]
    going = [node for node in rest if not clouds.get(node.offer.cloud, CloudView()).is_ending(node)]
    usd = sum(node.offer.usd_per_hour or 0.0 for node in billed)
    paused_for_another = job.pause.by == PRIORITY and job.state is J.PAUSED
    wants = not (job.ended or job.cancel_requested or view.result) and (
        (not job.pause.at or paused_for_another) and now >= job.starts_at
    )
    wanted = _wanted(view, len(kept), moving) if wants else 0
    offer, others, can_ask = _next_offers(world, view, billed, kept, now) if len(kept) < wanted else (None, (), True)
    return Claim(
        job=job.name,
        owner=job.owner,
        priority=spec.priority,
        submitted_at=max(job.submitted_at, job.starts_at),
        waiting_since=max(job.state_since, job.starts_at),
        min_nodes=job.min_nodes,
        wanted=wanted,
        kept=Amount(len(kept), _gpus(kept, spec), usd),
        node=node_of(offer, spec),
        others=tuple(node_of(each, spec) for each in others),
        step=spec.nodes.multiple_of,
        kind=spec.resources_of(offer).gpu or (offer.gpu if offer else "") or "GPU",
        reserved=is_reserved(job, len(kept), now - world.rules.gang.timeout_s),
        can_ask=can_ask and now >= job.bootstraps.retry_at,
        pausable=is_pausable(spec) and not 0 <= now - job.queue.displaced_at < world.rules.displaced_again_s,
        leaving=not wants,
        moving=Amount(len(moving), _gpus(moving, spec)),
        going=Amount(len(going), _gpus(going, spec)),
        ahead=_ahead(view, moving) if wants else 0,
        ahead_node=node_of(_offer_to_move_to(world, view, moving, billed, now), spec),
    )


def _kept(billed: Iterable[NodeRecord]) -> list[NodeRecord]:
    """Return nodes that a job has or will have. A machine that waits for the next job counts until it is let go:
    handing it over changes no use."""
    in_use = COUNTED_NODE_STATES | WAITING_NODE_STATES
    return [node for node in billed if node.state in in_use and not (node.doomed or node.ahead)]


def _asks_ahead(view: JobView, moving: list[NodeRecord]) -> bool:
    """True if it moves, and does not leave its nodes yet."""
    return view.record.moves.since > 0 and not any(node.left_behind for node in moving)


def _wanted(view: JobView, kept: int, moving: list[NodeRecord]) -> int:
    """While it asks for nodes elsewhere, it wants no more where it is, except for its `min`."""
    job = view.record
    all_of_them = job.desired_nodes + job.spare_nodes
    gone = done_nodes(view, view.nodes) - {node.id for node in _kept(view.billed)}
    all_of_them = max(0, all_of_them - len(gone))
    return min(all_of_them, max(kept, job.min_nodes)) if _asks_ahead(view, moving) else all_of_them


def _ahead(view: JobView, moving: list[NodeRecord]) -> int:
    """Return how many more nodes it may ask for ahead of a move."""
    return max(0, view.record.desired_nodes - len(moving)) if _asks_ahead(view, moving) else 0


def node_of(offer: Offer | None, spec: JobSpec) -> Amount:
    """Return what one more node of a job takes up."""
    return Amount(1, gpus_of(offer, spec), offer.usd_per_hour if offer else None)


def gpus_of(offer: Offer | None, spec: JobSpec) -> int:
    """Return the GPUs of one node."""
    return (offer.gpus if offer else 0) or spec.resources_of(offer).gpus_per_node


def is_reserved(job: JobRecord, kept: int, since: float) -> bool:
    """True if it trains; or lost nodes, or was given its first ones, after `since`."""
    lost = job.state is J.WAITING and bool(job.history) and job.history[-1].before in TRAINING_STATES
    begins = job.state in {J.STARTING, J.WAITING} and bool(kept)
    return job.state in TRAINING_STATES or ((lost or begins) and job.state_since > since)


def _gpus(nodes: list[NodeRecord], spec: JobSpec) -> int:
    return sum(gpus_of(node.offer, spec) for node in nodes)


def is_pausable(spec: JobSpec) -> bool:
    """True if a pause loses nothing: a command of a data job, and a program without checkpoints, would begin anew."""
    return spec.kind == "training" and spec.checkpoints != NO_CHECKPOINTS


def _offer_to_move_to(
    world: World, view: JobView, moving: list[NodeRecord], billed: Sequence[NodeRecord], now: float
) -> Offer | None:
    """Return the offer of the nodes that are there already, or the one that would be asked for first, wherever it
    is."""
    there = next((node.offer for node in moving if node.ahead), None)
    return there or (_next_offers(world, view, billed, [], now)[0] if view.record.moves.since else None)


def _next_offers(
    world: World, view: JobView, billed: Sequence[NodeRecord], kept: list[NodeRecord], now: float
) -> tuple[Offer | None, tuple[Offer, ...], bool]:
    """Return the one that would be asked for next, the first of each other alternative, and whether they may be: the
    cheapest one where none may be asked for now. A job whose offers are not read yet may ask, as far as is known."""
    spec = view.record.spec
    offers = world.volatile.offers.get(view.record.name, NOTHING_KNOWN).offers
    rules, memory = world.rules, world.volatile.capacity
    due = deadline_of(view.record, view.nodes.values(), view.progress, now)
    if due is not None and not due.needs_on_demand(now):
        offers = wished(offers, spec.dear_markets)
    lost_s = rules.preemption_s + view.record.checkpoints.save_s
    known = ranked(offers, memory, rules.hazard, lost_s, now, spec.preference)
    limits = Constraints(
        spec.placement.spread,
        spec.limits.usd_per_hour,
        needs_price=spec.limits.of_money or world.rules.queue.of_money or world.rules.budgets.any,
        placed=tuple(node.offer for node in kept),
        billed=tuple(node.offer for node in billed),
        job=view.record.name,
        kinds=spec.kinds,
        usd_per_node_hour=spec.limits.usd_per_node_hour,
        needed=view.record.min_nodes,
    )
    allowed = (each for each in known if is_allowed(each, memory, limits, now, spare=False))
    first = next(allowed, None)
    if first is not None:
        of_each = {each.alternative: each for each in reversed(list(allowed))} if limits.kinds and not kept else {}
        others = tuple(each for number, each in sorted(of_each.items()) if number != first.alternative)
        return first, others, True
    priced = [each for each in known if each.usd_per_hour is not None]
    return (kept[0].offer if kept else next(iter(priced or known), None)), (), not offers


# -- a pause for a job of a higher priority -----------------------------------------------------------------


def drive_queue(draft: Draft) -> None:
    """Pause a job for one of a higher priority, and let it go on once there is room for it."""
    job, admission = draft.job, draft.admission
    if job.ended:
        return
    if job.pause.by == PRIORITY and job.state is J.PAUSED:
        if admission is None or admission.nodes >= job.min_nodes:
            draft.set_part(PauseRecord())
            draft.set_part(replace(job.queue, displaced_by=""))
            draft.add_event(EventKind.RESUMED, f"{job.name} goes on: there is room for it again")
    elif admission is not None and admission.pause_for and not job.pause.at:
        draft.set_part(PauseRecord(draft.now, PRIORITY))
        draft.set_part(QueueRecord(admission.pause_for, draft.now))
        text = f"{job.name} checkpoints and pauses: {displaced(admission.pause_for)}"
        draft.add_event(EventKind.DISPLACED, text, job=admission.pause_for)


def displaced(by: str) -> str:
    """Return why a job is paused for another."""
    return f"{by} has a higher priority, and there is too little for both; it goes on by itself"


def may_add(draft: Draft) -> int:
    """Return how many more nodes the operator's limits leave for the job. They were applied to what it had before this
    plan: a node of which it is only known now that it will leave gives no room away until it is gone."""
    job, admission, have = draft.job, draft.admission, len(counted(draft))
    if admission is None:
        return job.desired_nodes + job.spare_nodes - have
    kept = sum(draft.nodes[node.id].state is not N.GONE for node in _kept(draft.view.billed))
    added = sum(node.id not in draft.view.nodes and not node.ahead for node in draft.billed)
    return admission.nodes - max(have, kept + added)


def is_admitted(draft: Draft, offer: Offer) -> bool:
    """True if it has no more GPUs than were counted for one more node."""
    admission = draft.admission
    return (
        admission is None
        or admission.gpus_per_node is None
        or gpus_of(offer, draft.job.spec) <= admission.gpus_per_node
    )


def is_held_back(draft: Draft) -> bool:
    """True if the operator's limits leave it fewer nodes than it needs to train."""
    return draft.admission is not None and draft.admission.nodes < draft.job.min_nodes


def with_admissions(world: World, within: Boundary, now: float) -> World:
    """Return the world with what the operator's limits leave for each job; jobs that have to pause are not skipped."""
    decided = admissions(world, within, now)
    if not decided:
        return world
    return replace(world, admissions=decided, skipped=world.skipped - to_pause(decided))
