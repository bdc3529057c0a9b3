"""The decision as a whole: what to do now about all jobs, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from spotsup_trainer.wire import Keys

from supervisor.model import IllegalTransitionError
from supervisor.planner import journal_guard, orphans
from supervisor.planner.actions import Action, AlertDone, Commit, NodeOutcome, Plan, ReadOutcome
from supervisor.planner.alerts import absorb_alert, clear_outbox, drive_checkpoint_alerts, due_alerts
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import drive_fleet
from supervisor.planner.jobs import drive_end, drive_state
from supervisor.planner.predicates import is_settled
from supervisor.planner.quiescence import is_steady
from supervisor.planner.reads import absorb_read, due_listings
from supervisor.planner.records import clamp_future_times, delete_old
from supervisor.planner.rounds import drive_rounds
from supervisor.planner.sentences import sentence
from supervisor.planner.sync import sync_node
from supervisor.planner.world import JobView, VolatileState, World


def plan(
    world: World, outcomes: Mapping[str, Sequence[NodeOutcome]], keys: Keys, now: float
) -> tuple[Plan, VolatileState]:
    """What to do at `now` (UNIX seconds), and what to remember of the outcomes. Same input, same plan.

    `outcomes`: by node id, results of actions that no commit has taken into the journal yet.
    """
    commits: list[Commit] = []
    actions: list[Action] = []
    sentences: dict[str, str] = {}
    illegal: list[str] = []
    steady: list[str] = []
    planned = sorted(world.jobs.keys() - world.skipped)
    volatile = replace(world.volatile, changed_jobs=frozenset())  # all of them are planned now
    for name in planned:
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
    actions += due_listings(world, [world.jobs[name] for name in planned], now)
    actions += orphans.due_leftover_listings(world, now)
    commits += clear_outbox(world, keys)
    actions += due_alerts(world, now)
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
    delete_old(draft)
    if is_settled(draft) and draft.view.hint is not None:
        draft.delete_key(draft.keys.hint(draft.job.name))  # the result stays, for `status`


def absorb(
    volatile: VolatileState, done: ReadOutcome | AlertDone, jobs: Iterable[JobView], now: float
) -> VolatileState:
    """What is remembered after a listing, a list of offers, or the delivery of an alert."""
    if isinstance(done, AlertDone):
        return absorb_alert(volatile, done, now)
    return absorb_read(volatile, done, jobs)
