"""Which machines to request and to bootstrap, and how many.

Never more than desired, the spares, and what is being replaced, of which no more than `desired` beyond `max` (P3).
Spares are requested like all others, and the first nodes that are ready train: whatever a cloud does not grant is
missing among the spares.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from provisioners.base import Market, Offer
from supervisor.events import EventKind
from supervisor.features.deadline.rule import may_pay
from supervisor.features.moves.destinations import best_destination
from supervisor.features.queue.rule import is_admitted, is_held_back, may_add
from supervisor.features.warm.rule import take_over
from supervisor.market.capacity import pool_of
from supervisor.market.offers import Constraints, OffersView, is_allowed, ranked, wished
from supervisor.model import IN_FLIGHT_NODE_STATES, WAITING_NODE_STATES, JobState, NodeRecord, NodeState
from supervisor.planner.actions import Bootstrap, FetchOffers, Find, Launch
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import (
    PRESENT_NODE_STATES,
    ahead,
    counted,
    has_trained,
    lacking,
    left_behind,
    machine_room,
    may_have_machine,
    placed,
    spared,
    unreplaced,
    wanted,
)
from supervisor.planner.release import (
    LEAVING_NODE_STATES,
    drive_leaving,
    drive_waiting,
    release,
    release_all,
    release_done,
    release_strays,
    release_surplus,
)

N = NodeState
# After so many bootstraps that failed in a row, machines are tried one at a time.
MIN_FAILURES_TO_PROBE = 2


COUNTED_S = 60.0
"""For so long offers are believed of which the number of machines is known."""


def drive_fleet(draft: Draft) -> None:
    """Move every node one step on, then more or fewer of them."""
    room = machine_room(draft)
    for node in draft.open_nodes():
        if draft.full:
            return
        if node.state in LEAVING_NODE_STATES:
            drive_leaving(draft, node)
        elif node.state in WAITING_NODE_STATES:
            continue
        elif not draft.busy(f"node:{node.id}"):
            room -= _drive_arriving(draft, node, may_launch=room > 0)
    if draft.job.ended or draft.job.pause.at:
        release_all(draft)
        drive_waiting(draft)
        return
    if left_behind(draft) and ahead(draft):
        return  # a move whose nodes are too many for one commit
    release_strays(draft)
    release_done(draft)
    surplus = len(counted(draft)) - wanted(draft)
    if surplus > 0:
        release_surplus(draft, surplus)
    elif (missing := lacking(draft)) and not _has_just_moved(draft):
        _request_nodes(draft, missing)
    drive_waiting(draft)
    _give_up_too_few(draft)


# -- one node ----------------------------------------------------------------------------------------------


def _drive_arriving(draft: Draft, node: NodeRecord, *, may_launch: bool) -> bool:
    """Return whether what is begun may bring one more machine. `may_launch`: one more may come."""
    match node.state:
        case N.REQUESTED if draft.now >= node.retry_at and not _is_refused_and_unwanted(draft, node):
            return _drive_request(draft, node, may_launch=may_launch)
        case N.BOOTING if not (draft.job.ended or node.doomed):
            node = draft.move(node, N.BOOTSTRAPPING, "bootstrap starts")
            draft.request_action(Bootstrap(node, draft.job))
        case N.BOOTSTRAPPING if not node.bootstrapped and draft.now >= node.retry_at:
            draft.request_action(Bootstrap(node, draft.job))
        case _:
            pass
    return False


def _is_refused_and_unwanted(draft: Draft, node: NodeRecord) -> bool:
    """True if the cloud's last answer was no, and the job does not want the node any more. Without an answer the
    request is repeated once, under the same token, which finds a machine that came of it."""
    return not wanted(draft) and bool(node.error) and not node.launch_unknown


def _drive_request(draft: Draft, node: NodeRecord, *, may_launch: bool) -> bool:
    counts = may_have_machine(draft, node)
    if draft.why_no_launch:
        return False
    if node.launch_unknown:
        draft.request_action(Find(node))
    elif (counts or may_launch) and draft.in_turn(node):
        node = draft.set_node(replace(node, launch_attempts=node.launch_attempts + 1))
        draft.request_action(Launch(node, draft.job.spec.disk_gb))
        return not counts
    return False


def _has_just_moved(draft: Draft) -> bool:
    """True if this plan changes what the job counts as its own: the operator's limits were applied before."""
    return bool(draft.view.record.moves.since) and not draft.job.moves.since


# -- more nodes --------------------------------------------------------------------------------------------


def _request_nodes(draft: Draft, missing: int) -> None:
    offers = tuple(offer for offer in without_dear(draft, offers_of(draft)) if is_admitted(draft, offer))
    if draft.why_no_launch:
        return
    lost = unreplaced(draft)
    missing = max(0, min(missing, machine_room(draft)))
    missing -= take_over(draft, min(missing, _max_requests(draft)), constraints(draft), lost)
    members = draft.job.desired_nodes - len(counted(draft)) - spared(draft)
    for number in range(min(missing, may_add(draft), _max_requests(draft))):
        spare = number >= members
        limits = constraints(draft)
        offer = next((o for o in offers if is_allowed(o, draft.capacity, limits, draft.now, spare=spare)), None)
        if offer is None or draft.full or (spare and draft.now < draft.job.bootstraps.spare_retry_at):
            return
        if is_asked_enough(draft, offer):
            return
        request(draft, offer, lost.pop(0) if lost else None, spare=spare)


def without_dear(draft: Draft, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Without those that the job wishes less than spot, while it has another place to go to that has not refused spot,
    or a deadline for which it can wait."""
    rather = wished(offers, draft.job.spec.dear_markets)
    if len(rather) == len(offers):
        return offers
    if not may_pay(draft) or not (placed(draft) or is_last_place(draft)):
        return rather
    if not placed(draft):
        return offers
    if draft.job.state in {JobState.RUNNING, JobState.DEGRADED}:
        goes = draft.job.moves.since or best_destination(draft, offers, constraints(draft)) is not None
    else:
        limits = constraints(draft, anywhere=True)
        goes = any(is_allowed(offer, draft.capacity, limits, draft.now, spare=False) for offer in rather)
    return rather if goes else offers


def is_last_place(draft: Draft) -> bool:
    """True if each other place of the job had no machine for it: only then on-demand ones are asked for."""
    return draft.job.places.tried >= len(draft.job.spec.places) - 1


def is_asked_enough(draft: Draft, offer: Offer, *, for_move: bool = False) -> bool:
    """True if as many requests of the offer's pool wait for an answer as may. One that refused is asked for one machine
    first, and so is one that takes machines of this job, and has granted none since it began to. Where spot is tight,
    as another pool refused, and for a move, as many again are asked for as were granted there: what is not to be had
    costs few requests."""
    asked = sum(node.offer.zone == offer.zone for node in draft.in_states(N.REQUESTED))
    if not asked:
        return False
    if draft.capacity.is_wary(offer, draft.now):
        return True
    if offer.market is not Market.SPOT:
        return False
    known = draft.volatile.offers.get(draft.job.name, OffersView()).offers
    pool = pool_of(offer)
    here = [node for node in draft.billed if pool_of(node.offer) == pool and node.state in PRESENT_NODE_STATES]
    taken = min((node.notice.seen_at for node in here if node.notice), default=0.0)
    granted = sum(bool(node.instance_id) and node.notice is None and node.created_at >= taken for node in here)
    tight = (
        for_move
        or bool(taken)
        or any(draft.capacity.is_wary(each, draft.now) for each in known if each.market is Market.SPOT)
    )
    return tight and asked >= max(1, granted)


def _give_up_too_few(draft: Draft) -> None:
    """Release machines that were too few to train for too long, while none can be added to them (P13): elsewhere there
    may be enough, and to boot them again costs no more than they do meanwhile. Their place is asked again later; what
    it grants then is given back at once, where that is too few once more. While bootstraps fail, none is added to them
    before the next try, and the one that is tried is not released."""
    limits, limit_s = constraints(draft), draft.rules.gang.timeout_s
    held = [node for node in counted(draft) if node.instance_id]
    few = len(held) if len(held) + spared(draft) < draft.job.min_nodes else 0
    if few != draft.job.gang.machines:
        draft.set_part(replace(draft.job.gang, machines=few, since=draft.now))
    # While it trains on nodes that it leaves, those that it has moved to may be too few, too.
    trains = draft.job.state in {JobState.RUNNING, JobState.DEGRADED} and not left_behind(draft)
    if not few or trains or draft.in_states(N.REQUESTED):
        return
    offers = without_dear(draft, offers_of(draft))
    held_back = is_held_back(draft)
    tried = draft.in_states(*IN_FLIGHT_NODE_STATES) if tries_one(draft) else []
    must_wait = bool(tried) or draft.now < draft.job.bootstraps.retry_at
    may_add = not must_wait and any(
        is_allowed(offer, draft.capacity, limits, draft.now, spare=False) for offer in offers
    )
    unread = not draft.volatile.offers.get(draft.job.name, OffersView()).known
    if not held_back and ((unread and not must_wait) or may_add):
        return
    released = [node for node in held if node not in tried]
    if not released:
        return
    again = all(
        node.state in IN_FLIGHT_NODE_STATES and draft.capacity.had_too_few(draft.job.name, node.offer, draft.now)
        for node in held
    )
    if not again and draft.elapsed_s(max(draft.job.gang.since, draft.job.state_since)) < limit_s:
        return
    for_long = "again" if again else f"for {limit_s:g} s"
    here = limits.place(held[0].offer)
    text = f"{here} had {len(held)} of at least {draft.job.min_nodes} nodes {for_long}: they are released"
    draft.add_event(EventKind.TOO_FEW_NODES, text)
    if not (may_add or must_wait):
        granted = Counter(pool_of(node.offer) for node in held)
        for pool, offer in {pool_of(node.offer): node.offer for node in held}.items():
            draft.capacity = draft.capacity.with_too_few(
                draft.job.name, offer, granted[pool], draft.job.min_nodes, draft.now
            )
    for node in released:
        if not draft.full:
            release(draft, node, "too few nodes to train")


def _max_requests(draft: Draft) -> int:
    """Return how many nodes may be requested now. While bootstraps keep failing, one machine is tried at a time."""
    if draft.now < draft.job.bootstraps.retry_at:
        return 0
    if not tries_one(draft):
        return wanted(draft)
    return 0 if draft.in_states(*IN_FLIGHT_NODE_STATES) else 1


def tries_one(draft: Draft) -> bool:
    """True if bootstraps keep failing, so that one machine is tried at a time; a failure that only has to be the same
    on another machine needs one."""
    own = draft.job.bootstraps.own_failures > 0 and not has_trained(draft)
    return own or draft.job.bootstraps.failures >= MIN_FAILURES_TO_PROBE


def request(draft: Draft, offer: Offer, lost: NodeRecord | None, *, spare: bool, for_move: bool = False) -> None:
    """Request one more node, in place of a lost one, as a spare, or ahead of a move."""
    node_id = draft.new_node_id()
    node = NodeRecord(
        id=node_id,
        job=draft.job.name,
        token=node_id,
        offer=offer,
        created_at=draft.now,
        state_since=draft.now,
        replaces=lost.id if lost else "",
        max_usd_per_hour=draft.job.spec.limits.usd_per_node_hour,
        ahead=for_move,
    )
    asks = draft.in_turn(node)
    draft.add(replace(node, launch_attempts=1) if asks else node)
    if asks:
        draft.request_action(Launch(draft.nodes[node.id], draft.job.spec.disk_gb))
    place: dict[str, float | str] = {"zone": offer.zone, "instance_type": offer.instance_type}
    if lost is None:
        purpose = ", a spare" if spare else ", ahead of a move" if for_move else ""
        price = ", price unknown" if offer.usd_per_hour is None else ""
        text = f"requested {node_id} in {offer.zone} ({offer.instance_type}{purpose}{price})"
        draft.add_event(EventKind.LAUNCH_REQUESTED, text, node_id, **place)
        return
    again = any(each.replaces == lost.id and each.id != node_id for each in draft.nodes.values())
    noticed = {"seen_at": lost.notice.seen_at} if lost.notice else {}
    text = f"requested {node_id} in {offer.zone} in place of {lost.id}"
    # Of a request after one that was refused nobody is told: that the node is still missing, features/waits says.
    kind = EventKind.LAUNCH_REQUESTED if again else EventKind.REPLACEMENT_REQUESTED
    draft.add_event(kind, text, node_id, replaces=lost.id, **place, **noticed)


def has_old_offers(draft: Draft) -> bool:
    """True if the job's offers are unknown, or were read so long ago that their prices may be others now."""
    known = draft.volatile.offers.get(draft.job.name, OffersView())
    counted = any(offer.room for offer in known.offers)  # of machines that one has, which people close and open
    kept_s = min(COUNTED_S, draft.rules.offers_s) if counted else draft.rules.offers_s
    return not known.known or draft.now - known.asked_at > kept_s


def offers_of(draft: Draft, *, read: bool = True) -> tuple[Offer, ...]:
    """Return the job's offers, the best first. Requests a read where they are unknown or old."""
    spec = draft.job.spec
    known = draft.volatile.offers.get(draft.job.name, OffersView())
    if read and has_old_offers(draft) and draft.now - known.asked_at > draft.rules.refused_retry_s:
        draft.request_read(FetchOffers(draft.job.name, spec.placement.cloud, spec.offer_queries))
    hazard = draft.rules.hazard
    return ranked(known.offers, draft.capacity, hazard, preemption_s(draft), draft.now, spec.preference)


def preemption_s(draft: Draft) -> float:
    """Return what a preemption costs a node of this job."""
    return draft.rules.preemption_s + draft.job.checkpoints.save_s


def constraints(draft: Draft, *, anywhere: bool = False) -> Constraints:
    """Return what the job's file and its machines require of one more machine; `anywhere`: wherever its others are."""
    admission = draft.admission
    return Constraints(
        spread=draft.job.spec.placement.spread,
        usd_per_hour=draft.job.spec.limits.usd_per_hour,
        needs_price=draft.needs_prices or (admission is not None and admission.needs_price),
        placed=() if anywhere else tuple(node.offer for node in placed(draft)),
        billed=tuple(node.offer for node in draft.billed),
        job=draft.job.name,
        admitted_usd_per_hour=admission.usd_per_hour if admission else None,
        kinds=draft.job.spec.kinds,
        usd_per_node_hour=draft.job.spec.limits.usd_per_node_hour,
        needed=draft.job.min_nodes,
    )
