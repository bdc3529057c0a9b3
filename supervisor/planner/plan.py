"""The decision as a whole: what to do now about all jobs, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from spotsup_trainer.wire import Keys

from provisioners.base import Instance
from supervisor.features.budgets.rule import budget_uses, drive_budgets, spent_budgets
from supervisor.features.queue.rule import with_admissions
from supervisor.features.silence.rule import hold_of, remember
from supervisor.market.journaled import due_record
from supervisor.model import NodeState, parts_of
from supervisor.planner import journal_guard, orphans
from supervisor.planner.actions import Action, AlertsDone, Commit, NodeOutcome, Plan, Read, ReadOutcome
from supervisor.planner.boundary import Boundary
from supervisor.planner.cloud_problems import cloud_problems
from supervisor.planner.continuity import continuity_problems, keep_continuity
from supervisor.planner.deliveries import (
    absorb_delivery,
    channel_problems,
    clear_outbox,
    due_deliveries,
    failing_channels,
)
from supervisor.planner.draft import Draft, HandOvers
from supervisor.planner.job_problems import job_problems, silent_jobs
from supervisor.planner.phases import plan_job
from supervisor.planner.predicates import is_settled
from supervisor.planner.problems import report
from supervisor.planner.quiescence import is_steady
from supervisor.planner.reads import absorb_read, due_listings, is_unclear
from supervisor.planner.sentences import sentence
from supervisor.planner.throttling import give_turns, limits
from supervisor.planner.world import Hold, JobView, Problem, VolatileState, World


def plan(
    world: World, outcomes: Mapping[str, Sequence[NodeOutcome]], keys: Keys, now: float
) -> tuple[Plan, VolatileState]:
    """Return what to do at `now` (UNIX seconds), and what to remember of the outcomes. Same input, same plan.

    `outcomes`: by node id, results of actions that no commit has taken into the journal yet.
    Whatever is raised while one job, or one part of the whole, is decided leaves that as it is (P11).
    """
    commits: list[Commit] = []
    actions: list[Action] = []
    undecided = Boundary()
    world = with_admissions(
        undecided.within("(turns)", partial(_with_turns, world, outcomes, now), world), undecided, now
    )
    sentences: dict[str, str] = {}
    steady: list[str] = []
    unclear: list[JobView] = []
    planned = undecided.within("(order)", partial(_in_order, world), sorted(world.jobs.keys() - world.skipped))
    of_planned = [world.jobs[name] for name in planned]
    # Without a decision about silence, no silence ends anything.
    everything = Hold(frozenset(node for job in of_planned for node in job.nodes), frozenset(world.clouds))
    hold = undecided.within("(silence)", partial(hold_of, world, of_planned, now), everything)
    uses = undecided.within("(budgets)", partial(budget_uses, world, undecided, now), None)
    world = replace(world, hold=hold, budget_uses=uses)
    decide = partial(_decide, world, outcomes, keys, now, HandOvers())
    volatile = world.volatile
    if volatile.changed_jobs:
        volatile = replace(volatile, changed_jobs=frozenset())  # all of them are planned now
    volatile = undecided.within("(held nodes)", partial(remember, volatile, hold, of_planned, now), volatile)
    for name in planned:
        decided = undecided.within(name, partial(decide, world.jobs[name], volatile), None) or undecided.within(
            f"{name} (without messages)",
            partial(_decide_end, decide, world.jobs[name], volatile),
            None,
        )
        if decided is None:
            sentences[name] = undecided.faults[name].sentence
            continue
        volatile = decided.volatile
        sentences[name] = decided.sentence
        actions += decided.reads
        if decided.commit is not None:
            commits.append(decided.commit)
        if decided.steady:
            steady.append(name)
        if decided.unclear:
            unclear.append(world.jobs[name])
    reaped, volatile, left = undecided.within(
        "(orphans)", lambda: orphans.reap(world, volatile, now), ([], volatile, [])
    )
    commits += reaped
    reaped, volatile = undecided.within(
        "(leftovers)", lambda: orphans.reap_leftovers(world, volatile, now), ([], volatile)
    )
    commits += reaped
    actions += undecided.within("(listings)", lambda: due_listings(world, unclear, now), [])
    actions += undecided.within("(listings of leftovers)", lambda: orphans.due_leftover_listings(world, now), [])
    reports, volatile, problems = undecided.within(
        "(problems)",
        lambda: report(world, volatile, _problems(world, volatile, left, now), now),
        ([], volatile, ()),
    )
    commits += reports
    kept: Mapping[str, Callable[[], list[Commit]]] = {
        "(continuity)": lambda: keep_continuity(world, volatile, now),
        "(capacity)": lambda: _keep_capacity(world, volatile, now),
        "(budget warnings)": lambda: drive_budgets(world, uses or {}, now),
    }
    for part, keep in kept.items():
        commits += undecided.within(part, keep, [])
    decided_world = replace(world, volatile=volatile)
    actions += undecided.within("(alerts)", lambda: due_deliveries(decided_world, undecided, now), [])
    cleared, volatile = undecided.within("(outbox)", lambda: clear_outbox(decided_world, keys, now), ([], volatile))
    commits += cleared
    warnings = undecided.within(
        "(warnings)",
        lambda: (
            *journal_guard.warnings(world, left),
            *problems,
            *silent_jobs(world),
            *spent_budgets(uses or {}),
            *failing_channels(world, now),
        ),
        (),
    )
    parts = tuple(fault.sentence for name, fault in undecided.faults.items() if name not in world.jobs)
    faults = MappingProxyType(undecided.faults)
    decision = Plan(
        commits=tuple(commits),
        actions=tuple(actions),
        sentences=MappingProxyType(sentences),
        undecided=faults,
        warnings=(*warnings, *parts),
        steady_jobs=frozenset(steady),
        admissions=world.admissions,
    )
    return decision, volatile


def _problems(world: World, volatile: VolatileState, left: Sequence[Instance], now: float) -> Iterator[Problem]:
    """Yield all that lasts, and that a person can end."""
    yield from orphans.unjournaled(left, now)
    yield from cloud_problems(world, volatile, now)
    yield from continuity_problems(world, volatile)
    yield from job_problems(world)
    yield from channel_problems(world)
    yield from world.outside


def _keep_capacity(world: World, volatile: VolatileState, now: float) -> list[Commit]:
    record = due_record(volatile.capacity, world.capacity, now)
    return [Commit(job="", guards={}, capacity=record)] if record is not None else []


@dataclass(frozen=True, slots=True)
class _Decided:
    """What was decided about one job."""

    sentence: str
    volatile: VolatileState
    commit: Commit | None = None
    reads: tuple[Read, ...] = ()
    steady: bool = False
    unclear: bool = False  # its cloud may know why its round stands still


def _with_turns(world: World, answered: Collection[str], now: float) -> World:
    """Return the world with the nodes that may ask now clouds that refuse requests as too many. `answered`: nodes whose
    last request has ended just now; it may have brought their machine."""
    if not any(limits(known, now) for known in world.volatile.request_limits.values()):
        return world
    waiting = (
        node
        for job in world.jobs.values()
        for node in job.billed
        if node.state is NodeState.REQUESTED
        and node.retry_at <= now
        and f"node:{node.id}" not in world.busy
        and node.id not in answered
    )
    turns, known = give_turns(world.volatile.request_limits, waiting, now)
    volatile = replace(world.volatile, request_limits=MappingProxyType(known))
    return replace(world, turns=MappingProxyType(turns), volatile=volatile)


def _in_order(world: World) -> list[str]:
    """Return the jobs to decide about: the first in the queue asks first. Of those whose cloud limits requests it is
    whose turn comes first: what comes last is what it refuses, and it would be the same job each time."""
    places: dict[str, int] = {}
    for node, place in world.turns.items():
        job = parts_of(node).job
        places[job] = min(place, places.get(job, place))
    return sorted(
        world.jobs.keys() - world.skipped,
        key=lambda name: (-world.jobs[name].record.spec.priority, places.get(name, len(places)), name),
    )


def _decide(
    world: World,
    outcomes: Mapping[str, Sequence[NodeOutcome]],
    keys: Keys,
    now: float,
    hand_overs: HandOvers,
    view: JobView,
    volatile: VolatileState,
) -> _Decided:
    unclear = is_unclear(view, now - world.rules.silence.suspect_s)
    if unknown := journal_guard.blocked_reason(world, view):
        return _Decided(unknown, volatile, unclear=unclear)
    draft = Draft(world, view, outcomes, keys, now, hand_overs)
    draft.volatile = volatile
    plan_job(draft)
    if is_settled(draft):
        for key in view.passing:  # the result stays, for `status`
            draft.delete_key(key)
    commit = draft.commit()
    steady = commit.empty and not draft.reads and is_steady(draft)
    return _Decided(
        sentence(draft), draft.volatile, None if commit.empty else commit, tuple(draft.reads), steady, unclear
    )


def _decide_end(
    decide: Callable[[JobView, VolatileState], _Decided], view: JobView, volatile: VolatileState
) -> _Decided | None:
    """Return what is decided about a job for which that has failed, where a user has cancelled it or it has ended: it
    ends, whatever its nodes wrote. None for any other: without their messages its nodes would be silent."""
    ends = view.record.ended or view.record.cancel_requested
    return decide(view.without_messages, volatile) if ends else None


def absorb(
    volatile: VolatileState, done: ReadOutcome | AlertsDone, jobs: Iterable[JobView], now: float
) -> VolatileState:
    """Return what is remembered after a listing, a list of offers, or a delivery of alerts."""
    if isinstance(done, AlertsDone):
        return absorb_delivery(volatile, done, now)
    return absorb_read(volatile, done, jobs)
