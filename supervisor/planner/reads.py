"""What to read of the clouds and when, and what is remembered of each answer. A read that failed changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

from supervisor.market.offers import OffersView
from supervisor.model import NodeState
from supervisor.planner import orphans
from supervisor.planner.actions import Action, LeftoversDone, ListDone, ListInstances, OffersDone, ReadOutcome
from supervisor.planner.predicates import stands_still
from supervisor.planner.world import CloudView, JobView, VolatileState, World


def due_listings(world: World, planned: Sequence[JobView], now: float) -> list[Action]:
    """One listing per cloud and period; sooner where the cloud may know why a round stands still."""
    found: list[Action] = []
    for cloud in world.clouds:
        view = world.volatile.clouds.get(cloud, CloudView())
        action = ListInstances(cloud)
        period_s = world.rules.unclear_listing_s if _unclear(planned, cloud) else world.rules.listing_s
        if action.key not in world.busy and now - view.attempted_at >= period_s:
            found.append(action)
    return found


def _unclear(planned: Sequence[JobView], cloud: str) -> bool:
    return any(
        job.record.spec.placement.cloud == cloud and not job.record.ended and job.result is None and stands_still(job)
        for job in planned
    )


def absorb_read(volatile: VolatileState, done: ReadOutcome, jobs: Iterable[JobView]) -> VolatileState:
    """What is remembered after a listing, or a list of offers."""
    if isinstance(done, LeftoversDone):
        return orphans.absorb_leftovers(volatile, done)
    if isinstance(done, OffersDone):
        return _absorb_offers(volatile, done, jobs)
    return _absorb_listing(volatile, done, jobs)


def _absorb_offers(volatile: VolatileState, done: OffersDone, jobs: Iterable[JobView]) -> VolatileState:
    before = volatile.offers.get(done.job, OffersView())
    offers = before.offers if done.error else done.offers
    view = OffersView(offers, before.known or not done.error, done.asked_at, done.error)
    live = {job.record.name for job in jobs if not job.record.ended}
    others = {name: known for name, known in volatile.offers.items() if name in live}
    return replace(volatile, offers=MappingProxyType({**others, done.job: view}))


def _absorb_listing(volatile: VolatileState, done: ListDone, jobs: Iterable[JobView]) -> VolatileState:
    old = volatile.clouds.get(done.cloud, CloudView())
    if done.error:
        failed = replace(old, attempted_at=done.asked_at, error=done.error)
        return replace(volatile, clouds=MappingProxyType({**volatile.clouds, done.cloud: failed}))
    # An instance that is unchanged stays the same object: then a listing of thousands shows which few have changed.
    listed = {instance.id: instance for instance in done.instances}
    instances = {key: old.instances[key] if old.instances.get(key) == each else each for key, each in listed.items()}
    nodes = [node for job in jobs for node in job.nodes.values()]
    ours = [node for node in nodes if node.offer.cloud == done.cloud]
    missed = {
        node.id: old.missed_listings.get(node.id, 0) + 1
        for node in ours
        if node.instance_id and node.state is not NodeState.GONE and node.instance_id not in instances
    }
    new = CloudView(MappingProxyType(instances), done.asked_at, done.asked_at, "", MappingProxyType(missed))
    changed = {key for key, each in instances.items() if old.instances.get(key) is not each}
    changed |= old.instances.keys() - instances.keys()
    of_other_clouds = {key: seen for key, seen in volatile.sightings.items() if key not in old.instances}
    states = {node.id: node.state for node in nodes}
    return replace(
        volatile,
        clouds=MappingProxyType({**volatile.clouds, done.cloud: new}),
        sightings=MappingProxyType(of_other_clouds | orphans.sightings(volatile.sightings, new, states)),
        changed_jobs=volatile.changed_jobs
        | {node.job for node in ours if node.instance_id in changed or node.id in missed},
    )
