"""Budgets of the cluster and its users: what is spent of them this month, warnings, and which jobs they pause.

What is spent is added up anew for each plan, from the records: a pause that could not be written is decided again. The
journal has only of what people were warned, and what jobs had spent that were deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from supervisor.alerts.routes import wanted
from supervisor.billing import Spent, month_of, month_start
from supervisor.budget import CLUSTER, BudgetRecord, BudgetUse
from supervisor.events import EventKind
from supervisor.features.billing.bookings import bookings_of, bookings_of_node
from supervisor.model import Event, JobRecord, NodeRecord
from supervisor.planner.actions import Commit
from supervisor.planner.boundary import Boundary
from supervisor.planner.world import JobView, World

LEVELS = (0.5, 0.8, 1.0)  # of a budget, at which people are warned
# A month that a leader has seen begin is not over for the next one, whose clock may be behind by so much.
MAX_SKEW_S = 3600.0


def budget_uses(world: World, within: Boundary, now: float) -> Mapping[str, BudgetUse]:
    """Return what is spent of each budget, by scope. Empty without budgets. A job whose spending cannot be added up is
    left out, and reported: the budgets hold for what is known (P11)."""
    budgets = world.rules.budgets
    if not budgets.any:
        return {}
    month, spent = current_month(world.budget_record, now), dict[str, float]()
    for name, view in world.jobs.items():
        for each in within.within(f"(what {name} has spent)", partial(_spending, view, month, now), []):
            for scope in (CLUSTER, f"user {each.owner}"):
                spent[scope] = spent.get(scope, 0.0) + each.usd
    for each in by_deleted(world.budget_record, month):
        for scope in (CLUSTER, f"user {each.owner}"):
            spent[scope] = spent.get(scope, 0.0) + each.usd
    limits = {CLUSTER: budgets.usd_per_month}
    limits |= {scope: budgets.of_user(scope.removeprefix("user ")) for scope in spent if scope != CLUSTER}
    return {
        scope: BudgetUse(scope, month, spent.get(scope, 0.0), limit)
        for scope, limit in limits.items()
        if limit is not None
    }


def current_month(record: BudgetRecord | None, now: float) -> str:
    """Return the month whose budgets count, `2026-11`."""
    month = month_of(now)
    return record.month if record is not None and month < record.month <= month_of(now + MAX_SKEW_S) else month


def over_budget(uses: Mapping[str, BudgetUse], job: JobRecord) -> BudgetUse | None:
    """Return the budget that is spent, of those that the job draws on."""
    found = (uses.get(scope) for scope in (CLUSTER, f"user {job.owner}"))
    return next((use for use in found if use is not None and use.reached), None)


def spent_budgets(uses: Mapping[str, BudgetUse]) -> tuple[str, ...]:
    """Return the spent budgets for the daemon's status."""
    return tuple(use.reason() for use in uses.values() if use.reached)


def _spending(view: JobView, month: str, now: float) -> list[Spent]:
    return [*spending(view, month, now)]


def spending(view: JobView, month: str, now: float) -> Iterable[Spent]:
    """Yield what a job, and the earlier ones of its name, have spent in a month, by whose they were."""
    yield Spent(view.record.owner, month, month_usd(view.record, view.nodes.values(), month, now))
    yield from (each for each in view.record.billing.earlier if each.month == month)


def month_usd(job: JobRecord, nodes: Iterable[NodeRecord], month: str, now: float) -> float:
    """Return what a job has cost in a month."""
    begin = month_start(now) if month == month_of(now) else None
    found = sum(each.usd for each in job.billing.dropped if each.month == month)
    return found + sum(_of_node(job, node, month, begin, now) for node in nodes)


def _of_node(job: JobRecord, node: NodeRecord, month: str, begin: float | None, now: float) -> float:
    billing = node.billing
    if begin is not None and billing.booked_to >= begin:  # what is open is of this month: the usual case, and quick
        others = sum(each.usd for each in billing.bookings if each.month != month)
        return max(0.0, node.usd(now) - others)
    return sum(each.usd for each in bookings_of_node(job, node, now) if each.month == month)


def spent_before(view: JobView, now: float) -> tuple[Spent, ...]:
    """Return what an ended job whose name is used again, and those before it, have spent since this month began: it
    still counts."""
    months = sorted({each.month for each in bookings_of(view.record, view.nodes.values(), now)} | {month_of(now)})
    sums: dict[tuple[str, str], float] = {}
    for each in (spent for month in months if month >= month_of(now) for spent in spending(view, month, now)):
        sums[each.owner, each.month] = sums.get((each.owner, each.month), 0.0) + each.usd
    return tuple(Spent(*key, usd) for key, usd in sorted(sums.items()) if usd)


def by_deleted(record: BudgetRecord | None, month: str) -> tuple[Spent, ...]:
    """Return what jobs have spent in a month that are deleted by now."""
    return tuple(each for each in record.deleted if each.month == month) if record is not None else ()


def with_deleted(known: BudgetRecord | None, view: JobView, now: float) -> BudgetRecord | None:
    """Return the record with what a job, and those before it, have spent since this month began: it still counts once
    the job is deleted. None where that is nothing, and nothing has to be written."""
    if not (spent := spent_before(view, now)):
        return None
    month, sums = current_month(known, now), dict[tuple[str, str], float]()
    for each in (*(known.deleted if known is not None else ()), *spent):
        if each.month >= month_of(now):
            sums[each.owner, each.month] = sums.get((each.owner, each.month), 0.0) + each.usd
    warned = known.warned if known is not None and known.month == month else ()
    return BudgetRecord(month, warned, tuple(Spent(*key, usd) for key, usd in sorted(sums.items())))


def drive_budgets(world: World, uses: Mapping[str, BudgetUse], now: float) -> list[Commit]:
    """Return the commit that warns people, once of each level: guarded by the record's revision, with which it is
    written."""
    if not world.rules.budgets.any:
        return []
    known, month = world.budget_record, current_month(world.budget_record, now)
    before = known.warned if known is not None and known.month == month else ()
    warned, events = [], []
    for scope, use in sorted(uses.items()):
        new = 0.0
        for level in LEVELS:
            entry, prefix = f"{scope}@{level:g}@{use.limit:g}", f"{scope}@{level:g}@"
            said = entry in before or any(each.startswith(prefix) for each in before)
            is_near = use.usd >= level * use.limit
            if is_near and not said:
                new = level
            if is_near or entry in before:  # another limit may be reached anew, the same may not
                warned.append(entry)
        if new:
            events.append(_event(use, new, now))
    deleted = tuple(each for each in known.deleted if each.month >= month) if known is not None else ()
    record = BudgetRecord(month, tuple(warned), deleted)
    if record == known:
        return []
    alerts = wanted(world.rules.channels_used, events)
    return [
        Commit("", {}, events=events, alerts=alerts, budgets=record, budgets_revision=world.budget_revision),
    ]


def _event(use: BudgetUse, level: float, now: float) -> Event:
    kind = EventKind.BUDGET_REACHED if level >= 1 else EventKind.BUDGET_NEAR
    spent = f"${use.usd:.2f} of ${use.limit:g}, the budget of {use.of} for {use.month}, are spent"
    text = f"{spent}: its jobs checkpoint and pause" if level >= 1 else f"{spent} ({use.usd / use.limit:.0%})"
    number = f"{use.scope.replace(' ', '-')}-{use.month}-{level:g}-{int(now)}"
    return Event(f"{kind}-{number}", now, "", kind, text, data={"usd": round(use.usd, 4), "limit": use.limit})
