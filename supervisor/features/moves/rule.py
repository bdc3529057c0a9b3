"""How a job moves to other nodes: the new ones first, then one change of its round.

A job that lacks nodes where it is goes where more are to be had; one that pays for on-demand nodes goes back to spot.
Nodes that are requested for that are `ahead`: the job does not count them until enough of them are ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from provisioners.base import Offer
from supervisor.events import EventKind
from supervisor.features.moves.destinations import (
    Destination,
    best_destination,
    bought_dear,
    destination_of,
    has_nothing_to_lose,
    may_move,
)
from supervisor.features.queue.rule import is_admitted
from supervisor.market.capacity import pool_of
from supervisor.market.offers import is_allowed
from supervisor.model import IN_FLIGHT_NODE_STATES, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import constraints, has_old_offers, is_asked_enough, offers_of, request
from supervisor.planner.predicates import (
    PRESENT_NODE_STATES,
    TALKING_NODE_STATES,
    ahead,
    counted,
    left_behind,
    machine_room,
)
from supervisor.planner.release import release
from supervisor.planner.sentences import node_count

N = NodeState


def drive_moves(draft: Draft) -> None:
    """Begin a move, go on with it, or give it up."""
    job, coming = draft.job, ahead(draft)
    if job.ended:
        return
    if not job.moves.since:
        if coming:
            _release(draft, coming)  # of a move that was given up: what could not be released at once
        elif _is_settled(draft):
            _begin(draft)
        return
    if left_behind(draft):
        _leave_the_rest(draft, coming)
    elif _goes_at_once(draft, coming):
        _switch(draft, coming, counted(draft), "the job goes on elsewhere")
    elif job.pause.at:
        _give_up(draft, coming, "the job pauses")
    elif coming:
        _go_on(draft, coming)
    elif draft.admission is not None and not _requested(draft):
        _begin_within(draft, draft.admission.ahead)
    else:
        _give_up(draft, coming, "none of them stayed")


def _is_settled(draft: Draft) -> bool:
    """True if nothing has changed for a while, and nothing is about to; or there is no time to wait for that: nodes are
    about to be taken, or those that stay will not train where they are."""
    present = [node for node in draft.billed if node.state in PRESENT_NODE_STATES]
    if draft.hold.nodes and any(node.state in TALKING_NODE_STATES for node in present):
        return False
    if has_nothing_to_lose(draft):
        return True
    staying = [node for node in present if node.notice is None]
    if any(node.doomed or not _is_in_place(draft, node) for node in staying):
        return False
    if len(staying) < len(present):
        return True
    since = max((node.state_since for node in present), default=draft.now)
    return draft.elapsed_s(max(since, draft.job.state_since)) >= draft.rules.moves.after_s


def _is_in_place(draft: Draft, node: NodeRecord) -> bool:
    return node.state is N.MEMBER or node.id in draft.view.spares


def _goes_at_once(draft: Draft, coming: Sequence[NodeRecord]) -> bool:
    """True if no node that stays trains, or could, and more machines are coming than are on their way to where they
    were."""
    kept, granted = counted(draft), [node for node in coming if node.instance_id]
    arrive = all(node.state in IN_FLIGHT_NODE_STATES for node in kept)
    return arrive and len(granted) >= max(draft.job.min_nodes, len(kept) + 1)


def _begin(draft: Draft) -> None:
    destination = best_destination(draft, offers_of(draft, read=False), constraints(draft))
    if destination is None or machine_room(draft) < destination.needed:
        return
    if has_old_offers(draft):
        offers_of(draft)  # a job that has all of its nodes has them read rarely
        return
    draft.set_part(replace(draft.job.moves, since=draft.now))
    if draft.admission is None:
        _ask(draft, destination, [])
    # Else the next plan knows how many more nodes the operator's limits leave for it.


def _begin_within(draft: Draft, admitted: int) -> None:
    """Begin within the operator's limits: they leave so many nodes beside those that it has: enough, or it stays."""
    destination = best_destination(draft, offers_of(draft, read=False), constraints(draft))
    if destination is None:
        draft.set_part(replace(draft.job.moves, since=0.0))
        return
    if admitted >= destination.needed:
        _ask(draft, destination, [])
    if not ahead(draft):
        _give_up(draft, [], _beside(destination, admitted), destination.offer)


def _beside(destination: Destination, admitted: int) -> str:
    return (
        f"{destination.needed} are needed beside the nodes that it has, and the operator's limits leave "
        f"{admitted if admitted < destination.needed else 'less money'}"
    )


def _ask(draft: Draft, destination: Destination, coming: Sequence[NodeRecord]) -> bool:
    """Request what is missing, for as long as a gang may take to come together. Whether an answer is waited for."""
    admitted = destination.count if draft.admission is None else len(coming) + draft.admission.ahead
    for _ in range(len(coming), min(destination.count, admitted, len(coming) + machine_room(draft))):
        if draft.full or not _may_ask(draft, destination.offer):
            break
        if is_asked_enough(draft, destination.offer, for_move=True):
            return True
        request(draft, destination.offer, None, spare=False, for_move=True)
    return any(node.state is N.REQUESTED for node in ahead(draft))


def _may_ask(draft: Draft, offer: Offer) -> bool:
    limits = constraints(draft, anywhere=True)
    if draft.why_no_launch or not is_admitted(draft, offer):
        return False
    lost = any(node not in ahead(draft) for node in _launched(draft))
    return _is_in_time(draft) and not lost and is_allowed(offer, draft.capacity, limits, draft.now, spare=False)


def _is_in_time(draft: Draft) -> bool:
    return draft.elapsed_s(draft.job.moves.since) < draft.rules.gang.timeout_s


def _go_on(draft: Draft, coming: Sequence[NodeRecord]) -> None:
    destination = destination_of(draft, coming[0].offer, offers_of(draft, read=False), constraints(draft))
    rules = draft.rules
    late = draft.elapsed_s(draft.job.moves.since) >= rules.moves.limit_s
    if destination is None or late:
        _give_up(draft, coming, "they were not ready in time" if late else "it is not worth its pause any more")
        return
    # Fewer may be wanted than when they were requested: those that are not ready go first, the newest of them.
    coming = sorted(coming, key=lambda node: (node.state is not N.READY, node.created_at))
    _release(draft, coming[destination.count :])
    waits = _ask(draft, destination, ahead(draft))
    coming = ahead(draft)
    # Machines that are too few wait for others no longer than those of a job that has not begun (P13).
    few = not _is_in_time(draft) and sum(bool(node.instance_id) for node in coming) < destination.needed
    if few or (not waits and len(coming) < destination.needed):
        admitted = destination.needed if draft.admission is None else len(coming) + draft.admission.ahead
        if admitted < destination.needed:
            _give_up(draft, coming, _beside(destination, admitted))
            return
        granted, needed = sum(bool(node.instance_id) for node in coming), destination.needed
        draft.capacity = draft.capacity.with_too_few(draft.job.name, destination.offer, granted, needed, draft.now)
        _give_up(draft, coming, f"{destination.needed} are needed")
        return
    ready = [node for node in coming if node.state is N.READY and node.id in draft.view.members]
    if len(ready) < destination.needed or not may_move(draft):
        return
    gathered = draft.elapsed_s(max(node.state_since for node in ready)) >= rules.gather_s
    if len(ready) == len(coming) or gathered:
        _leave(draft, destination, coming, ready)


def _leave(draft: Draft, destination: Destination, coming: Sequence[NodeRecord], ready: Sequence[NodeRecord]) -> None:
    """Leave as many as are replaced, in the same commit in which the others take over, unless they are very many."""
    job, rules, limits = draft.job, draft.rules, constraints(draft)
    here, there = limits.place(counted(draft)[0].offer), limits.place(destination.offer)
    leaving = _to_leave(draft, coming, len(ready))
    text = (
        f"{job.name} leaves {node_count(len(leaving))} in {here} for {len(ready)} in {there} "
        f"({destination.offer.instance_type}, {destination.offer.market})"
    )
    draft.add_event(EventKind.MOVED, text, nodes=len(ready))
    number = job.moves.in_row + 1 if draft.now - job.moves.retry_at < rules.moves.max_retry_s else 1
    rest_s = min(rules.moves.max_retry_s, rules.moves.rest_s * 2.0 ** min(number - 1, 30))
    draft.set_part(replace(draft.job.moves, failed=0, in_row=number, retry_at=draft.now + rest_s))
    goes = f"goes back to {destination.offer.market}" if here == there else f"moves to {there}"
    _switch(draft, coming, leaving, f"the job {goes}")


def _to_leave(draft: Draft, coming: Sequence[NodeRecord], count: int) -> list[NodeRecord]:
    """Return all that are elsewhere; of those that are where the new ones are, as many that are bought on demand."""
    limits = constraints(draft)
    elsewhere = [node for node in counted(draft) if limits.place(node.offer) != limits.place(coming[0].offer)]
    dear = bought_dear(draft, counted(draft), coming[0].offer)
    return elsewhere or list(dear)[: max(0, count - len(left_behind(draft)))]


def _leave_the_rest(draft: Draft, coming: Sequence[NodeRecord]) -> None:
    """Leave the rest: those that a job leaves were too many for one commit."""
    left = left_behind(draft)
    if coming:
        ready = [node for node in coming if node.state is N.READY]
        _switch(draft, coming, _to_leave(draft, coming, len(ready)), left[0].left_behind)
        return
    for node in left:  # the new ones are lost meanwhile
        if not draft.full:
            draft.set_node(replace(node, left_behind=""))
    if not left_behind(draft):
        _give_up(draft, coming, "none of them stayed")


def _switch(draft: Draft, coming: Sequence[NodeRecord], leaving: Sequence[NodeRecord], why: str) -> None:
    """Switch: from now on those that come are the job's nodes, and these leave."""
    for node in leaving:
        if draft.full:
            return
        draft.set_node(replace(node, left_behind=why))
    for node in coming:
        if draft.full:
            return
        draft.set_node(replace(node, ahead=False))
    draft.set_part(replace(draft.job.moves, since=0.0))


def _give_up(draft: Draft, coming: Sequence[NodeRecord], why: str, offer: Offer | None = None) -> None:
    """Release what was requested. Where machines were launched for it, or the operator's limits left too little for
    this offer, the next move is tried later each time."""
    rules, launched = draft.rules, _launched(draft)
    pools = sorted({pool_of(node.offer)[1] for node in launched} or ({pool_of(offer)[1]} if offer else set()))
    draft.set_part(replace(draft.job.moves, since=0.0))
    if pools:
        failed = draft.job.moves.failed + 1
        wait_s = min(rules.moves.max_retry_s, rules.moves.retry_s * 2.0 ** min(failed - 1, 30))
        draft.set_part(replace(draft.job.moves, failed=failed, retry_at=draft.now + wait_s))
        had = f", which had {node_count(len(launched))}" if launched else ""
        draft.add_event(EventKind.MOVE_GIVEN_UP, f"{draft.job.name} does not move to {', '.join(pools)}{had}: {why}")
    _release(draft, coming)


def _requested(draft: Draft) -> list[NodeRecord]:
    """Return nodes of this move, those that are lost among them."""
    began = draft.job.moves.since
    return [node for node in draft.nodes.values() if node.ahead and node.created_at >= began]


def _launched(draft: Draft) -> list[NodeRecord]:
    """Return nodes of this move that had a machine, those that are lost among them."""
    return [node for node in _requested(draft) if node.instance_id]


def _release(draft: Draft, coming: Sequence[NodeRecord]) -> None:
    for node in coming:
        if not draft.full:
            release(draft, node, "the job does not move")
