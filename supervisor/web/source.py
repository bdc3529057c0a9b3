"""What the pages are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.api.jobs.report import OnDemand
from supervisor.api.service import Service
from supervisor.billing import Spent
from supervisor.budget import Budgets
from supervisor.curve import Curve
from supervisor.features.budgets.rule import by_deleted
from supervisor.journal.journal import DayKey, Journal
from supervisor.model import DaemonPause, Event
from supervisor.planner.world import JobView, Rules
from supervisor.pool_days import PoolDay
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Status
from supervisor.web.prices import PriceBook
from supervisor.web.tails import Tails

KEPT_S = 60.0


@dataclass(frozen=True)
class Source:
    """The daemon, as the dashboard sees it: reads only."""

    version: str
    cluster: str
    now: Callable[[], float]  # UNIX seconds
    status: Callable[[], Status]
    other_leader: Callable[[], str]  # "" where this daemon leads
    paused: Callable[[], DaemonPause | None]
    jobs: Callable[[], Sequence[JobView]]  # newest first
    job: Callable[[str], JobView]  # raises NotFoundError
    curve: Callable[[str], tuple[JobView, Curve | None]]
    events: Callable[[str], Sequence[Event]]  # of a job; the oldest first
    # The last so many lines of a job, or of one of its nodes, each with its node. Raises NotFoundError.
    lines: Callable[[str, str, int], Sequence[tuple[str, str]]]
    pool_days: Callable[[], Mapping[DayKey, PoolDay | None]]
    on_demand: Callable[[JobView], OnDemand | None]  # None while it is not known yet
    budgets: Budgets
    deleted: Callable[[str], Sequence[Spent]]  # what jobs have spent in a month that are deleted


def source_of(
    service: Service,
    journal: Journal,
    status: Callable[[], Status],
    prices: PriceBook,
    clock: Clock,
    version: str,
    cluster: str,
    rules: Rules,
) -> Source:
    """Return the source of a running daemon."""
    tails = Tails(service.jobs.logs)

    def lines(name: str, node: str, max_lines: int) -> Sequence[tuple[str, str]]:
        return tails.lines(name, node, service.jobs.one(name).record.task_id, max_lines)

    return Source(
        version=version,
        cluster=cluster,
        now=clock.now,
        status=status,
        other_leader=lambda: service.daemons.other_leader,
        paused=lambda: service.daemons.paused,
        jobs=service.jobs.all,
        job=service.jobs.one,
        curve=service.jobs.curve,
        events=lambda name: service.jobs.events(name, ""),
        lines=lines,
        pool_days=PoolDays(journal.pool_days, clock).read,
        on_demand=prices.of,
        budgets=rules.budgets,
        deleted=lambda month: by_deleted(journal.read().budgets, month),
    )


class PoolDays:
    """What is kept of pools, a minute old at most: it is read from etcd, and is large. For any thread."""

    def __init__(self, read: Callable[[], Mapping[DayKey, PoolDay | None]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._found: tuple[float, Mapping[DayKey, PoolDay | None]] | None = None

    def read(self) -> Mapping[DayKey, PoolDay | None]:
        """Return all of it. Raises JournalUnavailableError."""
        now = self._clock.now()
        if self._found is None or not 0 <= now - self._found[0] < KEPT_S:
            self._found = (now, self._read())
        return self._found[1]
