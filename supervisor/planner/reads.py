"""What to read of the clouds and when, and what is remembered of each answer. A read that failed changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

from supervisor.market.offers import OffersView
from supervisor.model import NodeRecord, NodeState
from supervisor.planner import orphans
from supervisor.planner.actions import Action, AskDone, LeftoversDone, ListDone, ListInstances, OffersDone, ReadOutcome
from supervisor.planner.predicates import is_talking, stands_still
from supervisor.planner.world import CloudView, JobView, Missing, SilentRegion, VolatileState, World

# A machine that has ended is heard no longer than a lease lasts: one that is, so long after, is there.
HEARD_S = 30.0


def due_listings(world: World, unclear: Sequence[JobView], now: float) -> list[Action]:
    """Return one listing per cloud and period; sooner where the cloud may know why a round stands still.

    `unclear`: the jobs for which `is_unclear` holds.
    """
    hurried = {job.record.spec.placement.cloud for job in unclear}
    found: list[Action] = []
    for cloud in world.clouds:
        view = world.volatile.cloud(cloud)
        action = ListInstances(cloud)
        period_s = world.rules.unclear_listing_s if cloud in hurried else world.rules.listing_s
        if action.key not in world.busy and now - view.attempted_at >= period_s:
            found.append(action)
    return found


def is_unclear(job: JobView, silent_since: float) -> bool:
    """True if a job's round stands still for a reason that its cloud may know (`silent_since`: as in stands_still)."""
    return not job.record.ended and job.result is None and stands_still(job, silent_since)


def absorb_read(volatile: VolatileState, done: ReadOutcome, jobs: Iterable[JobView]) -> VolatileState:
    """Return what is remembered after a listing, or a list of offers."""
    if isinstance(done, LeftoversDone):
        return orphans.absorb_leftovers(volatile, done)
    if isinstance(done, OffersDone):
        return _absorb_offers(volatile, done, jobs)
    if isinstance(done, AskDone):
        return replace(volatile, answers=MappingProxyType({**volatile.answers, done.node: done}))
    return _absorb_listing(volatile, done, jobs)


def _absorb_offers(volatile: VolatileState, done: OffersDone, jobs: Iterable[JobView]) -> VolatileState:
    before = volatile.offers.get(done.job, OffersView())
    offers = before.offers if done.error else done.offers
    view = OffersView(offers, before.known or not done.error, done.asked_at, done.error)
    live = {job.record.name for job in jobs if not job.record.ended}
    others = {name: known for name, known in volatile.offers.items() if name in live}
    changed = volatile.changed_jobs | {done.job}
    return replace(volatile, offers=MappingProxyType({**others, done.job: view}), changed_jobs=changed)


def _absorb_listing(volatile: VolatileState, done: ListDone, jobs: Iterable[JobView]) -> VolatileState:
    old = volatile.cloud(done.cloud)
    if done.error:
        volatile = volatile.with_denial(done.cloud, done.error, done.asked_at) if done.denied else volatile
        failed = replace(old, attempted_at=done.asked_at, error=done.error)
        return replace(volatile, clouds=MappingProxyType({**volatile.clouds, done.cloud: failed}))
    if done.foreign:
        other = replace(old, attempted_at=done.asked_at, error="", foreign=done.foreign, coverage=done.coverage)
        return replace(volatile, clouds=MappingProxyType({**volatile.clouds, done.cloud: other}))
    volatile = volatile.without_denial(done.cloud, done.asked_at)
    # An instance that is unchanged stays the same object: then a listing of thousands shows which few have changed.
    # A machine without even an id may be any of those that are missing: their absence proves nothing (P4).
    incomplete = any(not each.id for each in done.instances)
    instances = {key: each for key, each in old.instances.items() if incomplete or each.region in done.silent}
    for each in done.instances:
        if each.id:
            before = old.instances.get(each.id, each)
            instances[each.id] = before if before == each else each
    changed = {key for key, each in instances.items() if old.instances.get(key) is not each}
    changed |= old.instances.keys() - instances.keys()
    open_nodes: set[str] = set()
    missing: dict[str, Missing] = {}
    changed_jobs: set[str] = set()
    # Once over all nodes, with little to do for each: with thousands this is most of the cost of a listing.
    for job in jobs:
        for node in job.nodes.values():
            is_open = node.state is not NodeState.GONE
            if is_open:
                open_nodes.add(node.machine_name)
            if node.offer.cloud != done.cloud or not node.instance_id:
                continue
            if is_open and node.instance_id not in instances:
                if (found := _still_missing(old.missing.get(node.id), done, job, node)) is not None:
                    missing[node.id] = found
                changed_jobs.add(node.job)
            elif node.instance_id in changed:
                changed_jobs.add(node.job)
    at, by_id, lacks = done.asked_at, MappingProxyType(instances), MappingProxyType(missing)
    silent = {region: SilentRegion(old.region_listed_at(region), why) for region, why in done.silent.items()}
    new = CloudView(by_id, at, at, "", lacks, done.coverage, MappingProxyType(silent))
    sightings = orphans.sightings(volatile.sightings, done.cloud, old, new, open_nodes)
    return replace(
        volatile,
        clouds=MappingProxyType({**volatile.clouds, done.cloud: new}),
        sightings=MappingProxyType(sightings),
        changed_jobs=volatile.changed_jobs | changed_jobs,
    )


def _still_missing(before: Missing | None, done: ListDone, job: JobView, node: NodeRecord) -> Missing | None:
    """Return since when a node's machine is missing, after a listing that lacks it; as before where it lacks its whole
    region."""
    if node.offer.region in done.silent:
        return before
    if before is None:
        return Missing(done.asked_at, (done.asked_at,))
    is_heard = done.asked_at - before.since >= HEARD_S and is_talking(job, node.id)
    return Missing(before.since, (before.asked_at[-1], done.asked_at), before.doubted or is_heard)
