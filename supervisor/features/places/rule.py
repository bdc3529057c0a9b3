"""In which of its places a job is. It goes to another one only while it has no machine: so all of its machines are in
one place, and nothing has to be moved but its checkpoint, which each place can read.
"""

from __future__ import annotations

from dataclasses import replace

from supervisor.events import EventKind
from supervisor.features.queue.rule import is_held_back
from supervisor.market.offers import OffersView, is_allowed, obstacle
from supervisor.planner.actions import FetchOffers
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import constraints, offers_of, without_dear
from supervisor.planner.predicates import wanted
from supervisor.planner.sentences import first_line

_LATER = 5.0  # once each place was tried, the job stays so many times as long in each
_MAX_REASON_CHARACTERS = 160


def drive_places(draft: Draft) -> None:
    """Go to the next place where this one has no machine for the job; after the last, to the first again."""
    job, places = draft.job, draft.job.spec.places
    if not places or job.ended:
        return
    if draft.billed:
        if job.places.tried and any(node.instance_id for node in draft.billed):
            draft.set_part(replace(draft.job.places, tried=0))
        return
    if job.pause.at or draft.view.result is not None or not wanted(draft) or is_held_back(draft):
        return
    if draft.full or draft.now < max(job.starts_at, job.bootstraps.retry_at) or not _has_stayed(draft):
        return
    if draft.busy(FetchOffers(job.name, "", ()).key) or draft.reads:  # the answer would be taken for the next place's
        return
    if why := _why_not_here(draft):
        _go_on(draft, why)


def _has_stayed(draft: Draft) -> bool:
    """True if it has been here for long enough. From the first place it goes as soon as that has refused."""
    job, stay_s = draft.job, draft.rules.places.stay_s
    if job.places.tried >= len(job.spec.places):
        stay_s *= _LATER
    return not job.places.since or draft.elapsed_s(job.places.since) >= stay_s


def _why_not_here(draft: Draft) -> str:
    """Return why this place has no machine for the job; "" where it may have one, or nothing is known yet."""
    known = draft.volatile.offers.get(draft.job.name, OffersView())
    cloud = draft.job.spec.placement.cloud
    if not known.known:
        return f"{cloud} lists no offers: {known.error}" if known.error else ""
    offers = without_dear(draft, offers_of(draft, read=False))
    if not offers:
        return f"{cloud} offers nothing that fits"
    limits = constraints(draft)
    if any(is_allowed(offer, draft.capacity, limits, draft.now, spare=False) for offer in offers):
        return ""
    return obstacle(offers, draft.capacity, limits, draft.now, spare=False)


def _go_on(draft: Draft, why: str) -> None:
    job, places = draft.job, draft.job.spec.places
    here = places.index(job.spec.placement)
    there = places[(here + 1) % len(places)]
    tried = job.places.tried + 1
    draft.set_job(
        replace(draft.job, spec=job.spec.at(there), places=replace(draft.job.places, since=draft.now, tried=tried))
    )
    draft.forget_offers()
    if tried <= len(places):  # later it only goes round, which is no news
        text = f"{job.name} goes from {places[here]} to {there}: {first_line(why, _MAX_REASON_CHARACTERS)}"
        draft.add_event(EventKind.PLACE_CHANGED, text)
