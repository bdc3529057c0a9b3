"""How a job moves to other nodes: the new ones first, then one change of its round.

A job that lacks nodes where it is goes where more are to be had; one that pays for on-demand nodes goes back to spot.
Nodes that are requested for that are `ahead`: the job does not count them until enough of them are ready.
"""

from __future__ import annotations

from collections.abc import Sequence

from provisioners.base import Offer
from supervisor.market.capacity import pool_of
from supervisor.market.offers import is_allowed
from supervisor.model import IN_FLIGHT_NODE_STATES, EventKind, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import constraints, is_asked, offers_of, request
from supervisor.planner.predicates import PRESENT_NODE_STATES, ahead, counted, left_behind
from supervisor.planner.release import release
from supervisor.planner.sentences import node_count
from supervisor.planner.targets import Target, best_target, may_move, target_of

N = NodeState


def drive_moves(draft: Draft) -> None:
    """Begin a move, go on with it, or give it up."""
    job, coming = draft.job, ahead(draft)
    if job.ended:
        return
    if not job.moving_since:
        if coming:
            _release(draft, coming)  # of a move that was given up: what could not be released at once
        elif _is_settled(draft):
            _begin(draft)
        return
    if left_behind(draft):
        _take_over(draft, coming)
    elif _has_lost_all(draft, coming):
        for node in counted(draft):
            draft.set_node(node, left_behind="the job goes on elsewhere")
        _take_over(draft, coming)
    elif job.pause_requested_at:
        _give_up(draft, coming, "the job pauses")
    elif coming:
        _go_on(draft, coming)
    else:
        _give_up(draft, coming, "none of them stayed")


def _is_settled(draft: Draft) -> bool:
    """Whether nothing has changed for a while, and nothing is about to."""
    present = [node for node in draft.nodes.values() if node.state in PRESENT_NODE_STATES]
    if draft.hold.nodes or any(node.doomed or not _is_in_place(draft, node) for node in present):
        return False
    since = max((node.state_since for node in present), default=draft.now)
    return draft.elapsed_s(max(since, draft.job.state_since)) >= draft.rules.move_after_s


def _is_in_place(draft: Draft, node: NodeRecord) -> bool:
    return node.state is N.MEMBER or node.id in draft.view.spares


def _has_lost_all(draft: Draft, coming: Sequence[NodeRecord]) -> bool:
    """Whether all nodes that trained are gone, and no more are on their way to where they were than are coming."""
    kept = counted(draft)
    return all(node.state in IN_FLIGHT_NODE_STATES for node in kept) and len(coming) >= max(1, len(kept))


def _begin(draft: Draft) -> None:
    target = best_target(draft, offers_of(draft, read=False), constraints(draft))
    if target is not None:
        draft.set_job(moving_since=draft.now)
        _ask(draft, target, [])


def _ask(draft: Draft, target: Target, coming: Sequence[NodeRecord]) -> bool:
    """Request what is missing, for as long as a gang may take to come together. Whether an answer is waited for."""
    for _ in range(len(coming), target.count):
        if draft.full or not _may_ask(draft, target.offer):
            break
        if draft.capacity.is_wary(target.offer, draft.now) and is_asked(draft, target.offer):
            return True
        request(draft, target.offer, None, spare=False, for_move=True)
    return any(node.state is N.REQUESTED for node in ahead(draft))


def _may_ask(draft: Draft, offer: Offer) -> bool:
    limits = constraints(draft, anywhere=True)
    in_time = draft.elapsed_s(draft.job.moving_since) < draft.rules.gang_timeout_s
    lost = any(node not in ahead(draft) for node in _launched(draft))
    return in_time and not lost and is_allowed(offer, draft.capacity, limits, draft.now, spare=False)


def _go_on(draft: Draft, coming: Sequence[NodeRecord]) -> None:
    target = target_of(draft, coming[0].offer, offers_of(draft, read=False), constraints(draft))
    late = draft.elapsed_s(draft.job.moving_since) >= draft.rules.move_limit_s
    if target is None or late:
        _give_up(draft, coming, "they were not ready in time" if late else "it is not worth its pause any more")
        return
    waits = _ask(draft, target, coming)
    coming = ahead(draft)
    if not waits and len(coming) < target.needed:
        draft.capacity = draft.capacity.with_too_few(draft.job.name, target.offer, draft.now)
        _give_up(draft, coming, f"{target.needed} are needed")
        return
    ready = [node for node in coming if node.state is N.READY and node.id in draft.view.members]
    if len(ready) < target.needed or not may_move(draft):
        return
    gathered = draft.elapsed_s(max(node.state_since for node in ready)) >= draft.rules.gather_s
    if len(ready) == len(coming) or gathered:
        _leave(draft, target, coming, ready)


def _leave(draft: Draft, target: Target, coming: Sequence[NodeRecord], ready: Sequence[NodeRecord]) -> None:
    """Leave as many as are replaced, in the same commit in which the others take over, unless they are very many."""
    limits, old = constraints(draft), counted(draft)
    stays = limits.place(old[0].offer) == limits.place(target.offer)
    leaving = target.leaving[: len(ready)] if stays else target.leaving
    why = "the job goes back to spot" if stays else f"the job moves to {limits.place(target.offer)}"
    for node in leaving:
        draft.set_node(node, left_behind=why)
    text = (
        f"{draft.job.name} leaves {node_count(len(leaving))} in {limits.place(old[0].offer)} for {len(ready)} in "
        f"{limits.place(target.offer)} ({target.offer.instance_type}, {target.offer.market})"
    )
    draft.add_event(EventKind.MOVED, text, nodes=len(ready))
    draft.set_job(failed_moves=0, move_retry_at=draft.now + draft.rules.move_rest_s)
    _take_over(draft, coming)


def _take_over(draft: Draft, coming: Sequence[NodeRecord]) -> None:
    """From now on these are the job's nodes."""
    for node in coming:
        if draft.full:
            return
        draft.set_node(node, ahead=False)
    draft.set_job(moving_since=0.0)


def _give_up(draft: Draft, coming: Sequence[NodeRecord], why: str) -> None:
    """Release what was requested. Where machines were launched for it, the next move is tried later each time."""
    rules, launched = draft.rules, _launched(draft)
    draft.set_job(moving_since=0.0)
    if launched:
        failed = draft.job.failed_moves + 1
        wait_s = min(rules.max_move_retry_s, rules.move_retry_s * 2.0 ** min(failed - 1, 30))
        draft.set_job(failed_moves=failed, move_retry_at=draft.now + wait_s)
        pools = ", ".join(sorted({pool_of(node.offer)[1] for node in launched}))
        text = f"{draft.job.name} does not move to {pools}, which had {node_count(len(launched))}: {why}"
        draft.add_event(EventKind.MOVE_GIVEN_UP, text)
    _release(draft, coming)


def _launched(draft: Draft) -> list[NodeRecord]:
    """Nodes of this move that had a machine, those that are lost among them."""
    began = draft.job.moving_since
    return [node for node in draft.nodes.values() if node.ahead and node.instance_id and node.created_at >= began]


def _release(draft: Draft, coming: Sequence[NodeRecord]) -> None:
    for node in coming:
        if not draft.full:
            release(draft, node, "the job does not move")
