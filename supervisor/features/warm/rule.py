"""Warm machines: which of an ended job's wait, which job takes one, and how its record goes from one job to the other.

A machine is cleaned before it waits (CLEANING), waits under the record of the job that had it (WARM), and is taken over
by one commit that ends that record and begins another, guarded by both revisions: it is given away once (P2). Its tag
and its host key stay those of the node that it was launched for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from provisioners.base import InstanceState, Offer
from supervisor.billing import NOTHING_BOOKED, NodeBilling, Purpose, booked
from supervisor.events import EventKind
from supervisor.features.billing.bookings import begun
from supervisor.features.budgets.rule import over_budget
from supervisor.features.limits.rule import reached
from supervisor.features.queue.rule import UNDECIDED, may_add
from supervisor.market.offers import Constraints, OffersView
from supervisor.market.warm import Wish, fits, has_room, is_alike, offered_as
from supervisor.model import (
    COUNTED_NODE_STATES,
    WAITING_NODE_STATES,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    Transition,
    move_node,
)
from supervisor.planner.actions import Bootstrap
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import lacking, placed
from supervisor.planner.world import JobView

N = NodeState


@dataclass(frozen=True, slots=True)
class Waiting:
    """A machine that waits."""

    node: NodeRecord
    revision: int  # of its record
    job: JobRecord  # that had it


# -- what waits -----------------------------------------------------------------------------------------------


def stays_warm(draft: Draft, node: NodeRecord) -> bool:
    """True if the machine of a job that has ended is kept for the next one: it works, and there is room for it."""
    rules, job = draft.rules.warm, draft.job
    if not rules.keep_s or not job.ended or node.state not in {N.READY, N.MEMBER}:
        return False
    if node.doomed or node.unhealthy or node.needs_replacement or _is_doubtful(draft, node):
        return False
    if job.state is JobState.FAILED and draft.view.result is None:
        return False  # it was no program of the job's that failed
    waiting = [other.offer for other in _all_waiting(draft)]
    return not is_in_the_way(draft, node) and has_room(rules, node.offer, waiting)


def keep_warm(draft: Draft, node: NodeRecord) -> None:
    """Keep the machine of a job that has ended."""
    if not any(each.state in WAITING_NODE_STATES for each in draft.billed):
        text = f"{draft.job.name} has ended: its machines wait {draft.rules.warm.keep_s:g} s for the next job"
        draft.add_event(EventKind.KEPT_WARM, text)
    kept = draft.move(replace(node, retry_at=0.0), N.CLEANING, "its job has ended, and what that left is removed")
    draft.hand_overs.kept.append(kept)


def is_over(draft: Draft, node: NodeRecord) -> str:
    """Return why a machine waits no longer; "" while it does. A job that lives keeps none but what it is about to
    use."""
    keep_s = draft.rules.warm.keep_s
    if draft.now - node.state_since >= keep_s:
        return f"no job took it within {keep_s:g} s" if keep_s else "machines wait for no job any more"
    if node.doomed:
        return "its provider takes it" if node.notice else "a user let it go"
    if not draft.job.ended and (not lacking(draft) or not _may_fit(draft, node, draft.job)):
        return "its job does not use it"
    return "its room, or its money, is needed" if is_in_the_way(draft, node) else ""


def is_in_the_way(draft: Draft, node: NodeRecord) -> bool:
    """True if waiting costs somebody else: a job waits for the operator's limits, and cannot take this machine; or the
    money that it draws on is spent."""
    if over_budget(draft.budget_uses or {}, draft.job) is not None:
        return True
    if draft.job.ended and reached(draft.job, draft.nodes.values(), draft.now) is not None:
        return True
    waits = any(admission.place for admission in draft.admissions.values())
    return waits and not any(_would_take(draft, view, node) for view in draft.jobs.values())


def _would_take(draft: Draft, view: JobView, node: NodeRecord) -> bool:
    job, admission = view.record, draft.admissions.get(view.record.name)
    lives = not (job.ended or job.cancel_requested or job.pause.at) and draft.now >= job.starts_at
    lacks = sum(each.state in COUNTED_NODE_STATES and not each.doomed for each in view.billed) < job.desired_nodes
    return lives and lacks and (admission is None or admission.place <= 1) and _may_fit(draft, node, job)


def _is_doubtful(draft: Draft, node: NodeRecord) -> bool:
    """True if its cloud, as last listed, does not show it running, or takes it."""
    found = draft.instance(node)
    if found is None:
        return draft.cloud.region_listed_at(node.offer.region) > node.launched_at
    return found.state is not InstanceState.RUNNING or found.preempt_at is not None


def _all_waiting(draft: Draft) -> Iterator[NodeRecord]:
    """Yield all machines that wait, of all jobs, as decided so far in this plan."""
    for view in draft.jobs.values():
        if view.record.name != draft.job.name:
            yield from (each for each in view.billed if each.state in WAITING_NODE_STATES)
    yield from (each for each in draft.billed if each.state in WAITING_NODE_STATES)
    yield from (each for each in draft.hand_overs.kept if each.job != draft.job.name)


# -- who takes one ----------------------------------------------------------------------------------------------


def take_over(draft: Draft, missing: int, limits: Constraints, lost: list[NodeRecord]) -> int:
    """Give the job machines that wait, at most so many, before any is asked for. Returns how many. `lost`: the nodes
    that they replace, from which those are removed."""
    if draft.lacks_records or missing <= 0:
        return 0
    given = 0
    for each in _chosen(draft, missing, limits):
        if given >= missing or draft.full:
            break
        own = each.job.name == draft.job.name
        if not own and not _may_have_one_more(draft, each, limits):
            continue
        _give(draft, each, lost.pop(0) if lost else None)
        if not own:
            limits = replace(limits, billed=(*limits.billed, each.node.offer))
        given += 1
    return given


def _chosen(draft: Draft, missing: int, limits: Constraints) -> list[Waiting]:
    """Return those that fit, all of one place (P8): the job's own, or the one that has most of them. A place that
    refuses is not begun with unless it has as many as the job needs to train."""
    found = [each for each in _on_offer(draft) if limits.in_place(each.node.offer)]
    if not found:
        return []
    by_place: dict[str, list[Waiting]] = {}
    for each in found:
        by_place.setdefault(limits.place(each.node.offer), []).append(each)
    min_count = min(missing, draft.job.min_nodes)
    usable = {
        name: group
        for name, group in by_place.items()
        if placed(draft) or len(group) >= min_count or _may_grow(draft, group[0].node.offer)
    }
    if not usable:
        return []
    best = max(usable, key=lambda name: (min(len(usable[name]), missing), name))
    return sorted(usable[best], key=lambda each: (each.job.name != draft.job.name, each.node.created_at, each.node.id))


def _may_grow(draft: Draft, offer: Offer) -> bool:
    job = draft.job
    return draft.capacity.refusal(offer, draft.now, spare=False, job=job.name, needed=job.min_nodes) is None


def _on_offer(draft: Draft) -> Iterator[Waiting]:
    """Yield all machines that wait and that this job may take."""
    for view in draft.jobs.values():
        own = view.record.name == draft.job.name
        nodes = draft.nodes if own else view.nodes
        for node in nodes.values():
            if (
                node.state is not N.WARM
                or node.doomed
                or node.id in draft.hand_overs.taken
                or _is_doubtful(draft, node)
            ):
                continue
            if draft.now - node.state_since < draft.rules.warm.keep_s and _fits(draft, view.record, node, draft.job):
                yield Waiting(_as_offered(draft, node), view.revisions.get(node.id, 0), view.record)


def _as_offered(draft: Draft, node: NodeRecord) -> NodeRecord:
    """Return the machine as one of the alternatives of the job that takes it, not of the one that had it."""
    offer = offered_as(node.offer, draft.volatile.offers.get(draft.job.name, OffersView()).offers)
    return node if offer is None else replace(node, offer=replace(node.offer, alternative=offer.alternative))


def _fits(draft: Draft, had: JobRecord, node: NodeRecord, job: JobRecord) -> bool:
    offers = draft.volatile.offers.get(job.name, OffersView()).offers
    return fits(draft.rules.warm, had.owner, had.spec, node.offer, Wish(job.owner, job.spec, offers))


def _may_fit(draft: Draft, node: NodeRecord, job: JobRecord) -> bool:
    """True if a job may take the machine, as far as is known: its offers may not be read yet."""
    known = draft.volatile.offers.get(job.name, OffersView())
    wish = Wish(job.owner, job.spec, known.offers if known.known else (node.offer,))
    return fits(draft.rules.warm, draft.job.owner, draft.job.spec, node.offer, wish)


def _may_have_one_more(draft: Draft, each: Waiting, limits: Constraints) -> bool:
    """True if the limits of the job allow it, and the queue. What the cluster and the user have in use stays the same:
    the machine counted before."""
    admission = draft.admission
    if admission is None:
        return limits.affordable(each.node.offer)
    if admission is UNDECIDED or admission.place > 1:
        return False
    if each.job.owner != draft.job.owner or draft.rules.queue.job.is_set:
        return may_add(draft) > 0 and limits.affordable(each.node.offer)
    return replace(limits, admitted_usd_per_hour=None).affordable(each.node.offer)


# -- how it is given ----------------------------------------------------------------------------------------------


def _give(draft: Draft, waiting: Waiting, lost: NodeRecord | None) -> None:
    node, old = waiting.node, waiting.job
    if old.name == draft.job.name:
        node = draft.move(
            replace(node, replaces=lost.id if lost else ""), N.BOOTING, "its job, submitted again, uses it again"
        )
    else:
        node_id = draft.new_node_id()
        reason = f"{node_id} took its machine over"
        draft.end_record_of_other(closed(node, old, draft.now, reason), waiting.revision)
        node = passed_on(node, draft.job, node_id, draft.now)
        node = replace(node, replaces=lost.id if lost else "")
    draft.hand_overs.taken.add(waiting.node.id)
    hours = max(0.0, draft.now - waiting.node.launched_at) / 3600
    draft.capacity = draft.capacity.with_an_end(node.offer, hours, draft.now, draft.rules.hazard, preempted=False)
    draft.add(node)
    node = draft.move(node, N.BOOTSTRAPPING, "bootstrap starts")
    draft.request_action(Bootstrap(node, draft.job))
    instead = f" in place of {lost.id}" if lost else ""
    text = f"{node.id} takes {node.instance_id} over, which waited since {old.name} ended{instead}"
    draft.add_event(EventKind.TAKEN_OVER, text, node.id)


def closed(node: NodeRecord, job: JobRecord, now: float, reason: str) -> NodeRecord:
    """Return the record of the job that had the machine: it costs that job nothing any more."""
    at = max(now, node.state_since)
    billing = replace(booked(begun(node), node.usd(at), at, job.billing.rounds), purpose=None, in_round=False)
    return replace(move_node(node, N.GONE, at, reason), ended_at=at, billing=billing)


def passed_on(node: NodeRecord, job: JobRecord, node_id: str, now: float, state: NodeState = N.BOOTING) -> NodeRecord:
    """Return the record of the job that has the machine from now on."""
    at = max(now, node.state_since)
    return NodeRecord(
        id=node_id,
        job=job.name,
        token=node.token,
        offer=node.offer,
        created_at=at,
        state=state,
        state_since=node.state_since if state is N.WARM else at,
        billing=NOTHING_BOOKED if state is N.BOOTING else NodeBilling(Purpose.IDLE, booked_to=at),
        max_usd_per_hour=node.max_usd_per_hour,
        launch_attempts=1,
        instance_id=node.instance_id,
        launched_as=node.machine_name,
        launched_at=at,
        ssh_host=node.ssh_host,
        ssh_port=node.ssh_port,
        private_address=node.private_address,
        metadata_url=node.metadata_url,
        history=(Transition(at, "", state, f"its machine was that of {node.id}"),),
    )


@dataclass(frozen=True, slots=True)
class Carried:
    """What becomes of the warm machines of an ended job whose name is used again."""

    old: JobView  # without them
    job: JobRecord  # the new job
    nodes: tuple[NodeRecord, ...]  # its records of them


def carry_over(old: JobView, job: JobRecord, now: float) -> Carried:
    """Carry the machines over. The new job has them from its beginning: records of nodes are kept below a job's name.
    What was another user's, or made for another kind of job, is terminated: nothing says so any more once it is under
    the new job."""
    serves = old.record.owner == job.owner and is_alike(old.record.spec, job.spec)
    ended: dict[str, NodeRecord] = {}
    carried: list[NodeRecord] = []
    for number, node in enumerate(sorted(warm_nodes(old), key=lambda each: each.id), job.next_node):
        node_id = f"{job.task_id}-{number}"
        ended[node.id] = closed(node, old.record, now, f"{node_id} took its machine over")
        carried.append(passed_on(node, job, node_id, now, N.WARM if serves else N.TERMINATING))
    if not carried:
        return Carried(old, job, ())
    job = replace(job, next_node=job.next_node + len(carried))
    return Carried(replace(old, nodes={**old.nodes, **ended}), job, tuple(carried))


def warm_nodes(view: JobView) -> list[NodeRecord]:
    """Return a job's machines that wait."""
    return [node for node in view.billed if node.state is N.WARM]
