"""The decision from above: what to do now about everything, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from spotsup_trainer.wire import Keys

from supervisor.model import IllegalTransitionError, NodeState
from supervisor.planner import journal_guard, orphans
from supervisor.planner.actions import (
    MAX_OPERATIONS,
    Action,
    AlertDone,
    Commit,
    LeftoversDone,
    ListInstances,
    NodeOutcome,
    OffersDone,
    Plan,
    ReadOutcome,
    SendAlert,
)
from supervisor.planner.checkpoint_alerts import drive_checkpoint_alerts
from supervisor.planner.clocks import clamp_future_times
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import drive_fleet
from supervisor.planner.jobs import drive_end, drive_state, sentence, settled
from supervisor.planner.quiescence import is_steady, stands_still
from supervisor.planner.retention import forget_old
from supervisor.planner.rounds import drive_rounds
from supervisor.planner.sync import sync_node
from supervisor.planner.world import AlertDelivery, CloudView, JobView, OffersView, VolatileState, World

MAX_ALERTS_AT_ONCE = 4
MAX_ALERT_TRIES = 200
ALERT_TRIES_S = (2.0, 5.0, 15.0, 60.0, 120.0, 300.0)


def plan(
    world: World, outcomes: Mapping[str, Sequence[NodeOutcome]], keys: Keys, now: float
) -> tuple[Plan, VolatileState]:
    """What to do at `now` (UNIX seconds), and what to remember of the outcomes.

    `outcomes`: by node id, results of actions that no commit has taken into the journal yet. Same input, same plan.
    """
    commits: list[Commit] = []
    actions: list[Action] = []
    sentences: dict[str, str] = {}
    illegal: list[str] = []
    steady: list[str] = []
    awake = sorted(world.jobs.keys() - world.skipped)
    volatile = replace(world.volatile, changed_jobs=frozenset())  # whoever was touched is awake
    for name in awake:
        if unknown := journal_guard.blocked_reason(world, world.jobs[name]):
            sentences[name] = unknown
            continue
        draft = Draft(world, world.jobs[name], outcomes, keys, now)
        draft.volatile = volatile
        try:
            _plan_job(draft)
        except IllegalTransitionError as error:
            # One job's records contradict what is observed: that job is left as it is, the others go on.
            sentences[name] = f"refused to act: {error}"
            illegal.append(str(error))
            continue
        volatile = draft.volatile
        sentences[name] = sentence(draft)
        commit = draft.commit()
        actions += draft.reads
        if not commit.empty:
            commits.append(commit)
        elif not draft.reads and is_steady(draft):
            steady.append(name)
    commits += orphans.sweep(world, now)
    swept, volatile = orphans.sweep_leftovers(world, volatile, now)
    commits += swept
    actions += _listings(world, [world.jobs[name] for name in awake], now)
    actions += orphans.ask_for_leftovers(world, now)
    commits += _clear_outbox(world, keys)
    actions += _alerts(world, now)
    warnings = journal_guard.warnings(world)
    decided = Plan(
        tuple(commits), tuple(actions), MappingProxyType(sentences), tuple(illegal), warnings, frozenset(steady)
    )
    return decided, volatile


def _plan_job(draft: Draft) -> None:
    clamp_future_times(draft)
    for node in list(draft.nodes.values()):
        if draft.full:
            break
        sync_node(draft, node)
    drive_end(draft)
    drive_rounds(draft)
    drive_fleet(draft)
    drive_state(draft)
    drive_checkpoint_alerts(draft)
    forget_old(draft)
    if settled(draft) and draft.view.hint is not None:
        draft.delete_key(draft.keys.hint(draft.job.name))  # how the job ended stays, for `status`


def _listings(world: World, awake: Sequence[JobView], now: float) -> list[Action]:
    """One listing per cloud and period; sooner where something is unclear."""
    found: list[Action] = []
    for cloud in world.clouds:
        view = world.volatile.clouds.get(cloud, CloudView())
        action = ListInstances(cloud)
        period_s = world.rules.unclear_listing_s if _unclear(awake, cloud) else world.rules.listing_s
        if action.key not in world.busy and now - view.attempted_at >= period_s:
            found.append(action)
    return found


def _alerts(world: World, now: float) -> list[Action]:
    """Alerts that are due, oldest first. At least once: one whose delivery was not noted is sent again."""
    due: list[Action] = []
    for event_id in world.alerts:
        tried = world.volatile.alert_deliveries.get(event_id)
        action = SendAlert(event_id)
        if action.key not in world.busy and (tried is None or (not tried.over and now >= tried.next_at)):
            due.append(action)
    return due[:MAX_ALERTS_AT_ONCE]


def _clear_outbox(world: World, keys: Keys) -> list[Commit]:
    over = [event_id for event_id in world.alerts if (t := world.volatile.alert_deliveries.get(event_id)) and t.over]
    words = [f"{keys.world}alerts/{event_id}" for event_id in over[:MAX_OPERATIONS]]
    return [Commit(job="", guards={}, delete_keys=words)] if words else []


def _unclear(awake: Sequence[JobView], cloud: str) -> bool:
    """Whether a round of a job there stands still for a reason that its cloud may know."""
    return any(
        job.record.spec.placement.cloud == cloud and not job.record.ended and job.result is None and stands_still(job)
        for job in awake
    )


# -- taking in what reads brought --------------------------------------------------------------------------


def absorb(
    volatile: VolatileState, done: ReadOutcome | AlertDone, jobs: Iterable[JobView], now: float
) -> VolatileState:
    """What is remembered after a listing, a list of offers, an alert. A failed read keeps the last good one."""
    if isinstance(done, AlertDone):
        return _absorb_alert(volatile, done, now)
    if isinstance(done, LeftoversDone):
        return orphans.absorb_leftovers(volatile, done)
    if isinstance(done, OffersDone):
        before = volatile.offers.get(done.job, OffersView())
        offers = before.offers if done.error else done.offers
        view = OffersView(offers, before.known or not done.error, done.asked_at, done.error)
        going = {job.record.name for job in jobs if not job.record.ended}
        others = {name: known for name, known in volatile.offers.items() if name in going}
        return replace(volatile, offers=MappingProxyType({**others, done.job: view}))
    old = volatile.clouds.get(done.cloud, CloudView())
    if done.error:
        failed = replace(old, attempted_at=done.asked_at, error=done.error)
        return replace(volatile, clouds=MappingProxyType({**volatile.clouds, done.cloud: failed}))
    # What is as it was is the same object: then a listing of thousands has told nothing new of nearly all of them.
    listed = {instance.id: instance for instance in done.instances}
    instances = {key: old.instances[key] if old.instances.get(key) == each else each for key, each in listed.items()}
    nodes = [node for job in jobs for node in job.nodes.values() if node.offer.cloud == done.cloud]
    absent = {
        node.id: old.missed_listings.get(node.id, 0) + 1
        for node in nodes
        if node.instance_id and node.state is not NodeState.GONE and node.instance_id not in instances
    }
    new = CloudView(MappingProxyType(instances), done.asked_at, done.asked_at, "", MappingProxyType(absent))
    news = {key for key, each in instances.items() if old.instances.get(key) is not each}
    news |= old.instances.keys() - instances.keys()
    states = {node.id: node.state for job in jobs for node in job.nodes.values()}
    seen = {
        key: sighting
        for key, sighting in volatile.sightings.items()
        if key not in old.instances  # of other clouds
    } | orphans.sightings(volatile.sightings, new, states)
    return replace(
        volatile,
        clouds=MappingProxyType({**volatile.clouds, done.cloud: new}),
        sightings=MappingProxyType(seen),
        changed_jobs=volatile.changed_jobs
        | {node.job for node in nodes if node.instance_id in news or node.id in absent},
    )


def _absorb_alert(volatile: VolatileState, done: AlertDone, now: float) -> VolatileState:
    tries = volatile.alert_deliveries.get(done.event_id, AlertDelivery(0, 0.0, over=False)).tries
    over = not done.error or tries >= len(ALERT_TRIES_S)
    wait_s = ALERT_TRIES_S[min(tries, len(ALERT_TRIES_S) - 1)]
    newest = [*volatile.alert_deliveries.items(), (done.event_id, AlertDelivery(tries + 1, now + wait_s, over))]
    newest = newest[-MAX_ALERT_TRIES:]
    return replace(volatile, alert_deliveries=MappingProxyType(dict(newest)))
