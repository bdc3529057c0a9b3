"""The decision from above: what to do now about everything, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from spotsup_trainer.wire import Keys

from supervisor.model import NodeState
from supervisor.planner import orphans
from supervisor.planner.actions import (
    Action,
    Commit,
    ListDone,
    ListInstances,
    NodeOutcome,
    OffersDone,
    Plan,
    SendAlert,
)
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import drive_fleet
from supervisor.planner.jobs import drive_end, drive_state, sentence, settled
from supervisor.planner.rounds import drive_rounds
from supervisor.planner.sync import sync_node
from supervisor.planner.world import CloudView, JobView, OffersView, Soft, World

MOST_ALERTS_AT_ONCE = 4


def plan(world: World, outcomes: Mapping[str, Sequence[NodeOutcome]], keys: Keys, now: float) -> tuple[Plan, Soft]:
    """What to do at `now` (UNIX seconds), and what to remember of the outcomes.

    `outcomes`: by node id, results of actions that no commit has taken into the journal yet. Same input, same plan.
    """
    commits: list[Commit] = []
    actions: list[Action] = []
    sentences: dict[str, str] = {}
    soft = world.soft
    for name in sorted(world.jobs):
        draft = Draft(replace(world, soft=soft), world.jobs[name], outcomes, keys, now)
        _plan_job(draft)
        soft = draft.soft
        sentences[name] = sentence(draft)
        commit = draft.commit()
        actions += draft.reads
        if not commit.empty:
            commits.append(commit)
    commits += orphans.sweep(world, now)
    actions += _listings(world, now)
    actions += [action for action in map(SendAlert, world.alerts[:MOST_ALERTS_AT_ONCE]) if action.key not in world.busy]
    return Plan(tuple(commits), tuple(actions), MappingProxyType(sentences)), soft


def _plan_job(draft: Draft) -> None:
    for node in list(draft.nodes.values()):
        sync_node(draft, node)
    drive_end(draft)
    drive_rounds(draft)
    drive_fleet(draft)
    drive_state(draft)
    if settled(draft) and (draft.view.hint is not None or draft.view.tombstones):
        # The words of a job that is over: only how it ended stays, for `status`.
        for word in (draft.keys.hint(draft.job.name), f"{draft.keys.run(draft.job.name)}gone/"):
            draft.unsay(word)


def _listings(world: World, now: float) -> list[Action]:
    """One listing per cloud and period; sooner where something is unclear."""
    found: list[Action] = []
    for cloud in world.clouds:
        view = world.soft.clouds.get(cloud, CloudView())
        action = ListInstances(cloud)
        if action.key not in world.busy and now - view.tried_at >= world.rules.listing_s:
            found.append(action)
    return found


# -- taking in what reads brought --------------------------------------------------------------------------


def absorb(soft: Soft, done: ListDone | OffersDone, jobs: Iterable[JobView]) -> Soft:
    """What is remembered after a listing or a list of offers. A failed read keeps the last good one."""
    if isinstance(done, OffersDone):
        before = soft.offers.get(done.job, OffersView())
        offers = before.offers if done.error else done.offers
        view = OffersView(offers, before.known or not done.error, done.asked_at, done.error)
        return replace(soft, offers=MappingProxyType({**soft.offers, done.job: view}))
    old = soft.clouds.get(done.cloud, CloudView())
    if done.error:
        failed = replace(old, tried_at=done.asked_at, error=done.error)
        return replace(soft, clouds=MappingProxyType({**soft.clouds, done.cloud: failed}))
    instances = MappingProxyType({instance.id: instance for instance in done.instances})
    nodes = [node for job in jobs for node in job.nodes.values() if node.offer.cloud == done.cloud]
    absent = {
        node.id: old.absent.get(node.id, 0) + 1
        for node in nodes
        if node.instance_id and node.state is not NodeState.GONE and node.instance_id not in instances
    }
    new = CloudView(instances, done.asked_at, done.asked_at, "", MappingProxyType(absent))
    states = {node.id: node.state for job in jobs for node in job.nodes.values()}
    seen = {
        key: sighting
        for key, sighting in soft.sightings.items()
        if key not in old.instances  # of other clouds
    } | orphans.sightings(soft.sightings, new, states)
    return replace(
        soft,
        clouds=MappingProxyType({**soft.clouds, done.cloud: new}),
        sightings=MappingProxyType(seen),
    )
