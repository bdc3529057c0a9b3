"""What is spent, on what, by whom, against which budget, and what on-demand machines would have cost. Pure."""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from supervisor.api.jobs.report import OnDemand, on_demand_row
from supervisor.billing import Purpose, Spent, by_purpose, month_of
from supervisor.budget import CLUSTER, Budgets
from supervisor.features.billing.bookings import bookings_of
from supervisor.features.budgets.rule import spending
from supervisor.planner.world import JobView

PURPOSES = {
    Purpose.USEFUL: "steps",
    Purpose.PAUSE: "pauses",
    Purpose.BOOT: "boot",
    Purpose.IDLE: "idle",
    Purpose.LOST: "steps made again",
    Purpose.UNKNOWN: "not known",
}


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a bar."""

    kind: str
    label: str
    usd: float
    left: float  # percent
    width: float


@dataclass(frozen=True, slots=True)
class JobCost:
    """One job."""

    name: str
    owner: str
    state: str
    usd: float
    usd_per_hour: float
    shares: tuple[Share, ...]
    goodput: float | None  # of its dollars, the share for steps that were kept
    on_demand_usd: float | None  # of the same machine hours; None where that is not known
    saved: float | None  # share of that


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget of this month."""

    name: str
    usd: float
    limit: float
    forecast: float  # at the end of the month, if all goes on as now

    @property
    def width(self) -> float:
        """Percent that is spent."""
        return round(100 * min(1.0, self.usd / self.limit), 2) if self.limit > 0 else 100.0

    @property
    def kind(self) -> str:
        """Return how near it is."""
        if self.usd >= self.limit:
            return "bad"
        return "near" if self.usd >= 0.8 * self.limit or self.forecast > self.limit else "good"


@dataclass(frozen=True, slots=True)
class Spending:
    """The page of money."""

    month: str
    month_usd: float
    usd_per_hour: float
    forecast_usd: float
    total: float  # of all jobs that are listed
    on_demand_usd: float | None  # of the jobs of which that is known
    saved_usd: float | None
    saved_share: float | None
    unknown_jobs: int  # of which on-demand prices are not known
    shares: tuple[Share, ...]
    jobs: tuple[JobCost, ...]
    users: tuple[tuple[str, float, float], ...]  # name, dollars, percent of the highest
    budgets: tuple[Budget, ...]


def usd_per_hour(view: JobView) -> float:
    """Return what its machines cost now."""
    return sum(node.offer.usd_per_hour or 0.0 for node in view.nodes.values() if node.launched_at and not node.ended_at)


def hours_left(now: float) -> float:
    """Return the hours that are left of this month, in UTC."""
    at = time.gmtime(now)
    days = calendar.monthrange(at.tm_year, at.tm_mon)[1]
    end = calendar.timegm((at.tm_year, at.tm_mon, days, 23, 59, 60, 0, 0, 0))
    return max(0.0, end - now) / 3600


def shares_of(usd: dict[Purpose, float]) -> tuple[Share, ...]:
    """Parts of one bar, in the order of PURPOSES."""
    total, left, found = sum(usd.values()), 0.0, []
    for purpose, label in PURPOSES.items():
        width = 100 * usd.get(purpose, 0.0) / total if total > 0 else 0.0
        if width > 0:
            found.append(Share(str(purpose), label, usd[purpose], round(left, 3), round(width, 3)))
        left += width
    return tuple(found)


def usd_by_purpose(view: JobView, now: float) -> dict[Purpose, float]:
    """Return what a job has cost."""
    return by_purpose(bookings_of(view.record, view.nodes.values(), now))


def job_cost(view: JobView, usd: dict[Purpose, float], on_demand: OnDemand | None, now: float) -> JobCost:
    """Return one job's row. `usd`: by purpose."""
    total = sum(usd.values())
    found = on_demand_row(view, on_demand, now) if on_demand is not None else {"usd": None, "saved": None}
    goodput = usd[Purpose.USEFUL] / total if total > 0 else None
    record = view.record
    return JobCost(
        view.name,
        record.owner,
        str(record.state),
        total,
        usd_per_hour(view),
        shares_of(usd),
        goodput,
        found["usd"],
        found["saved"],
    )


def spending_of(
    views: Sequence[JobView],
    budgets: Budgets,
    usd_of: Callable[[JobView], dict[Purpose, float]],
    on_demand: Callable[[JobView], OnDemand | None],
    now: float,
    deleted: Sequence[Spent] = (),
) -> Spending:
    """Return all jobs together. `usd_of`: a job's dollars by purpose. `deleted`: spent this month by deleted jobs."""
    month, left_h = month_of(now), hours_left(now)
    rate = sum(map(usd_per_hour, views))
    users: dict[str, float] = {}
    for each in (*deleted, *(spent for view in views for spent in spending(view, month, now))):
        users[each.owner] = users.get(each.owner, 0.0) + each.usd
    month_usd, highest_usd = sum(users.values()), max(users.values(), default=0.0)
    sums = dict.fromkeys(Purpose, 0.0)
    jobs, theirs, ours, unknown = [], 0.0, 0.0, 0
    for view in views:
        row = job_cost(view, usd_of(view), on_demand(view), now)
        jobs.append(row)
        for share in row.shares:
            sums[Purpose(share.kind)] += share.usd
        if row.on_demand_usd is None:
            unknown += row.usd > 0
        else:
            theirs, ours = theirs + row.on_demand_usd, ours + row.usd
    return Spending(
        month,
        month_usd,
        rate,
        month_usd + rate * left_h,
        sum(sums.values()),
        theirs or None,
        theirs - ours if theirs else None,
        1 - ours / theirs if theirs else None,
        unknown,
        shares_of(sums),
        tuple(sorted(jobs, key=lambda each: -each.usd)),
        tuple(
            (name, usd, round(100 * usd / highest_usd, 2) if highest_usd else 0.0)
            for name, usd in sorted(users.items(), key=lambda each: -each[1])
            if usd
        ),
        tuple(_budgets(views, budgets, users, left_h)),
    )


def _budgets(views: Iterable[JobView], budgets: Budgets, users: dict[str, float], left_h: float) -> Iterable[Budget]:
    rates: dict[str, float] = {}
    for view in views:
        rates[view.record.owner] = rates.get(view.record.owner, 0.0) + usd_per_hour(view)
    if budgets.usd_per_month is not None:
        spent = sum(users.values())
        yield Budget(CLUSTER, spent, budgets.usd_per_month, spent + sum(rates.values()) * left_h)
    for user in sorted({*users, *rates, *budgets.users}):
        limit = budgets.of_user(user)
        if limit is not None:
            spent = users.get(user, 0.0)
            yield Budget(user or "jobs without a user", spent, limit, spent + rates.get(user, 0.0) * left_h)
