"""Where a job that trains would be better off, and whether that is worth its pause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from provisioners.base import Market, Offer
from supervisor.features.deadline.rule import may_go_back
from supervisor.market.hazard import HOUR_S
from supervisor.market.offers import Constraints, expected_usd, is_allowed, wished
from supervisor.model import IN_FLIGHT_NODE_STATES, JobState, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import counted, done, left_behind, members
from supervisor.spec import NO_CHECKPOINTS


@dataclass(frozen=True, slots=True)
class Destination:
    """Nodes that would take the place of others."""

    offer: Offer  # what they are
    leaving: tuple[NodeRecord, ...]  # what they replace, those that leave first first
    needed: int  # fewer are not worth the pause
    count: int  # so many are asked for


def may_move(draft: Draft) -> bool:
    """True if it trains, has checkpoints for other nodes to restore, and has not just tried; or has nothing to lose.
    Moves that were given up are tried again later in any case. A node that is silent may work, and hands nothing over
    (P4)."""
    job, progress = draft.job, draft.view.progress
    if any(node.state is NodeState.SUSPECT for node in counted(draft)):
        return False
    if has_nothing_to_lose(draft):
        return not job.moves.failed or draft.now >= job.moves.retry_at
    trains = job.state in {JobState.RUNNING, JobState.DEGRADED} and len(members(draft)) >= job.min_nodes
    if not trains or job.pause.at or draft.view.result is not None or left_behind(draft) or done(draft):
        return False
    if job.spec.kind != "training" or job.spec.checkpoints == NO_CHECKPOINTS:
        return False
    saves = not (job.checkpoints.problem or (progress is not None and progress.checkpoint_problem) or job.hang.since)
    return saves and draft.now >= job.moves.retry_at


def has_nothing_to_lose(draft: Draft) -> bool:
    """True if the nodes that will stay are too few to train, or only arrive, and no more of them are asked for now."""
    job, kept = draft.job, counted(draft)
    if job.spec.kind != "training" or job.pause.at or draft.view.result is not None or left_behind(draft):
        return False
    if not kept or any(node.state is NodeState.REQUESTED for node in kept):
        return False
    few = len(kept) < job.min_nodes and job.spec.checkpoints != NO_CHECKPOINTS
    return few or all(node.state in IN_FLIGHT_NODE_STATES for node in kept)


def best_destination(draft: Draft, offers: Sequence[Offer], limits: Constraints) -> Destination | None:
    """Return the first offer, in the order of `offers`, that would do and may be asked for now: of a market that the
    job would rather have, where its nodes are, else another place."""
    kept = counted(draft)
    if not (offers and kept and may_move(draft)):
        return None
    # What the operator's limits leave for both sets is asked for once the move has begun.
    anywhere = replace(limits, placed=(), admitted_usd_per_hour=None)
    here = limits.place(kept[0].offer)
    for offer in sorted(wished(offers, draft.job.spec.dear_markets), key=lambda each: limits.place(each) != here):
        if not is_allowed(offer, draft.capacity, anywhere, draft.now, spare=False):
            continue
        if draft.capacity.is_wary(offer, draft.now, 0.0 if has_nothing_to_lose(draft) else draft.rules.moves.probe_s):
            continue
        destination = destination_of(draft, offer, offers, limits)
        if destination is None:
            continue
        billed = (*limits.billed, *[offer] * (destination.needed - 1))
        all_of_them = replace(anywhere, billed=billed, needed=destination.needed)
        if is_allowed(offer, draft.capacity, all_of_them, draft.now, spare=False):
            return destination
    return None


def destination_of(draft: Draft, offer: Offer, offers: Sequence[Offer], limits: Constraints) -> Destination | None:
    """Return what nodes of this offer would replace; None where that is worth nothing."""
    # One that is only asked for is none yet: a request that is about to be refused must not end a move to machines.
    kept = [node for node in counted(draft) if node.instance_id] or counted(draft)
    if not kept:
        return None
    if limits.place(kept[0].offer) == limits.place(offer):
        dearer = bought_dear(draft, kept, offer)
        saves = any(_usd(draft, each.offer) > _usd(draft, offer) for each in dearer)
        return Destination(offer, dearer, 1, len(dearer)) if saves else None
    refused_here = all(
        draft.capacity.is_wary(each, draft.now) or not is_allowed(each, draft.capacity, limits, draft.now, spare=False)
        for each in offers
        if each.market is offer.market
    )
    # Those that train and will leave, when they are replaced, count too: with fewer, the round would not change. Those
    # that are taken do not. Spares are left, and requested anew afterwards.
    staying = [node for node in members(draft) if node.notice is None]
    min_count = max(_useful(draft, kept), len(staying), draft.job.min_nodes)
    counts = range(min_count, draft.job.desired_nodes + 1)
    of_use = (count for count in counts if count % draft.job.spec.nodes.multiple_of == 0)
    rank = draft.job.spec.preference.rank
    if rank(offer) < rank(kept[0].offer):  # what the job would rather have, whatever it costs
        # A move that has begun goes on under another daemon, which counts all times anew.
        needed = next(of_use, None) if draft.job.moves.since or _has_stayed(draft, kept) else None
    elif rank(offer) > rank(kept[0].offer) and not bought_dear(draft, kept, offer):
        return None  # while it trains it keeps what it would rather have
    else:
        needed = next((count for count in of_use if is_worth(draft, kept, offer, count, lacks=refused_here)), None)
    return None if needed is None else Destination(offer, tuple(kept), needed, draft.job.desired_nodes)


def _has_stayed(draft: Draft, kept: Sequence[NodeRecord]) -> bool:
    """True if the job has had its alternative for a while. Nodes that were replaced meanwhile do not begin it anew."""
    return draft.elapsed_s(min(node.created_at for node in kept)) >= draft.rules.moves.back_to_listed_s


def is_worth(draft: Draft, kept: Sequence[NodeRecord], offer: Offer, count: int, *, lacks: bool) -> bool:
    """True if so many nodes of an offer are worth paying twice while they start, and the pause. `lacks`: more nodes are
    a gain, as there are none to be had where the job is."""
    rules, before = draft.rules, _price_now(draft, kept)
    price = _usd(draft, offer)
    cheaper = (before - price) / before if before and math.isfinite(price) else 0.0
    useful = _useful(draft, kept)
    speed = draft.job.spec.preference.speed
    more = count * speed(offer) / speed(kept[0].offer) - useful  # in node-hours of the nodes that it has
    gain = len(kept) * cheaper + (more if lacks else 0)
    cost = (count * rules.moves.arrival_s + useful * (rules.moves.pause_s + draft.job.checkpoints.save_s)) / HOUR_S
    return gain * rules.moves.horizon_s / HOUR_S > rules.moves.gain * cost


def _useful(draft: Draft, kept: Sequence[NodeRecord]) -> int:
    """Return how many of its nodes are no spares."""
    return min(len(kept), draft.job.desired_nodes)


def _price_now(draft: Draft, kept: Sequence[NodeRecord]) -> float:
    """Return what a useful node-hour costs now, on average; 0 where that is not known. Nodes of a dear market are
    taken for spot until spot may be asked for again."""
    dear = draft.job.spec.dear_markets
    young = {node.id for node in kept if node.offer.market in dear} - {node.id for node in bought_dear(draft, kept)}
    prices = [_usd(draft, node.offer) for node in kept if node.id not in young]
    known = [price for price in prices if math.isfinite(price)]
    return sum(known) / len(known) if known else 0.0


def bought_dear(draft: Draft, kept: Sequence[NodeRecord], instead: Offer | None = None) -> tuple[NodeRecord, ...]:
    """Nodes of markets that the job wishes less than that of `instead`, or than spot, once the last one has been there
    for a while."""
    rank = draft.job.spec.preference.market_rank
    rather = rank(instead.market if instead is not None else Market.SPOT)
    found = [node for node in kept if rank(node.offer.market) > rather]
    if not found or not may_go_back(draft):
        return ()
    long = draft.elapsed_s(max(node.created_at for node in found)) >= draft.rules.moves.back_to_spot_s
    return tuple(sorted(found, key=lambda node: (node.created_at, node.id), reverse=True)) if long else ()


def _usd(draft: Draft, offer: Offer) -> float:
    rules, preference = draft.rules, draft.job.spec.preference
    lost_s = rules.preemption_s + draft.job.checkpoints.save_s
    return expected_usd(offer, draft.capacity, rules.hazard, lost_s, draft.now, preference)
