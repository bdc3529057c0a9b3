"""Prices of running machines, and how long they last: refreshed now and then, and what a job has spent follows them."""

from __future__ import annotations

import zlib
from dataclasses import replace

from supervisor.billing import booked, priced
from supervisor.features.billing.bookings import begun
from supervisor.market.capacity import source_of
from supervisor.market.offers import OffersView
from supervisor.model import NodeRecord
from supervisor.planner.actions import FetchOffers
from supervisor.planner.draft import Draft


def drive_prices(draft: Draft) -> None:
    """Take over new prices and ends of the job's machines, and have them read again when that is due."""
    billed = [node for node in draft.billed if node.launched_at]
    if not billed or draft.job.ended:
        return
    spec, known = draft.job.spec, draft.volatile.offers.get(draft.job.name, OffersView())
    offered = {source_of(each): each for each in known.offers}
    for node in billed:
        now_offered = offered.get(source_of(node.offer))
        if now_offered is None or draft.full:
            continue
        if now_offered.ends_at != node.offer.ends_at:  # what is reserved may be prolonged
            draft.set_node(replace(node, offer=replace(node.offer, ends_at=now_offered.ends_at)))
        elif now_offered.usd_per_hour not in {None, node.offer.usd_per_hour}:
            _reprice(draft, node, now_offered.usd_per_hour, now_offered.price_source)
    read_at = max(known.asked_at, draft.timers_paused_until)
    if draft.now - read_at > _period_s(draft):
        draft.request_read(FetchOffers(draft.job.name, spec.placement.cloud, spec.offer_queries))


def _reprice(draft: Draft, node: NodeRecord, usd_per_hour: float | None, source: str) -> None:
    """Take a price that was never known for that of the whole time."""
    offer = replace(node.offer, usd_per_hour=usd_per_hour, price_source=source)
    if node.offer.usd_per_hour is None:
        draft.set_node(replace(node, offer=offer, billing=priced(node.billing, usd_per_hour or 0.0)))
    else:
        usd = node.usd(draft.now)
        billing = booked(begun(node), usd, draft.now, draft.job.billing.rounds)
        draft.set_node(replace(node, offer=offer, usd_before=usd, priced_at=draft.now, billing=billing))


def _period_s(draft: Draft) -> float:
    """Spread over jobs, so that a new leader does not read those of all jobs at once."""
    share = zlib.crc32(draft.job.name.encode()) / 2**32
    return draft.rules.prices_s * (0.5 + 0.5 * share)
