"""Keeps in etcd what jobs held of each pool and were refused there (`supervisor.pool_days`), beside the loop: on the
leader only.

It watches the journal's mirror after each tick. Whatever fails here, the loop and the jobs do not notice: at worst a
day has a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog

from supervisor.errors import JournalUnavailableError
from supervisor.journal.journal import DayKey, Journal, Reading
from supervisor.planner.world import JobView
from supervisor.pool_days import (
    DAY_MINUTES,
    MAX_DAYS,
    MAX_POOLS,
    PoolDay,
    PoolName,
    Seen,
    extended,
    fits,
    interrupted,
    seen_of,
)
from supervisor.runtime.background import in_background
from supervisor.runtime.clock import Clock
from supervisor.runtime.curves import Leading

# Between two writes of one pool: what is newer is lost with the daemon.
WRITE_S = 300.0
# The same, where machines are held and nothing else is new: for so long back a successor does not know.
WATCHED_S = 600.0
RETRY_S = 30.0
# After a longer time without a tick, or where the clock went back, all is read again: what happened meanwhile is a gap.
MAX_GAP_S = 120.0

log = structlog.get_logger("spotsupd")


@dataclass(slots=True)
class _Followed:
    """A pool on one day."""

    record: PoolDay
    held: int = 0  # as it was last seen
    written: PoolDay | None = None  # what etcd has
    due_at: float = 0.0  # of the next write


class PoolKeeper:
    """Call `follow` after each tick: it returns at once. One call of etcd at a time runs on a thread of its own."""

    def __init__(
        self,
        journal: Journal,
        leader: Leading,
        clock: Clock,
        start: Callable[[Callable[[], Any], str], Future[Any]] = in_background,
    ) -> None:
        """`start`: starts a call on a thread."""
        self._journal = journal
        self._leader = leader
        self._clock = clock
        self._start = start
        self._outages = 0
        # The call under way, and what to do with its result.
        self._call: tuple[Future[Any], Callable[[Any], None]] | None = None
        self._retry_at = 0.0
        self._reset()

    def _reset(self) -> None:
        self._loaded_day = ""  # of which day `_days` has what etcd has
        self._looked_at = 0.0
        self._days: dict[DayKey, _Followed] = {}
        self._views: dict[str, tuple[JobView, Mapping[PoolName, Seen]]] = {}  # by job: as last looked at
        self._left_alone: set[DayKey] = set()  # records that cannot be read
        self._old: list[DayKey] = []  # keys that are to be deleted
        self._generation = object()  # of calls: a result of an earlier one is dropped

    def follow(self) -> None:
        """Take up what has changed since the last call, and read or write one record. Never raises."""
        try:
            self._follow()
        except Exception:
            log.exception("what pools granted is not recorded just now")
            self._reset()

    def _follow(self) -> None:
        reading, now = self._journal.read(), self._clock.now()
        leads = self._leader.lease_valid() and reading.live and reading.cluster is not None and reading.pause is None
        missed = self._looked_at and not 0 <= now - self._looked_at <= MAX_GAP_S
        if not leads or missed or reading.outages != self._outages:
            # Another daemon may write the records now, and machines may come and go unseen.
            self._reset()
            self._outages = reading.outages
        self._collect()
        if not leads:
            return
        day, minute = _day_of(now)
        if self._loaded_day:
            self._look(reading, day, minute)
            self._looked_at = now
        if self._call is None and not self._retry_at - RETRY_S <= now < self._retry_at:
            self._start_call(day, now)

    # -- looking -------------------------------------------------------------------------------------------

    def _look(self, reading: Reading, day: str, minute: int) -> None:
        seen = self._seen(reading)
        for known in [each for (name, _), each in self._days.items() if name != day]:
            _end_day(known)
        for key, known in list(self._days.items()):
            if key[0] == day:
                self._extend(known, minute, seen.pop(known.record.pool, Seen()))
            elif known.written == known.record:
                del self._days[key]
        for pool, found in seen.items():
            key = (day, pool.key)
            if key in self._left_alone or not fits(pool) or sum(name == day for name, _ in self._days) >= MAX_POOLS:
                continue
            before = self._held_yesterday(day, pool, found)
            self._days[key] = _Followed(PoolDay(pool), before)
            self._extend(self._days[key], minute, found)

    def _extend(self, known: _Followed, minute: int, seen: Seen) -> None:
        known.record = extended(known.record, minute, known.held, seen)
        known.held = seen.held

    def _held_yesterday(self, day: str, pool: PoolName, found: Seen) -> int:
        """Return how many were held before a pool's first row of a day: as many as now, where only the day has
        changed."""
        held = [each.held for (name, key), each in self._days.items() if name != day and key == pool.key]
        return max(held, default=0 if found.granted else found.held)

    def _seen(self, reading: Reading) -> dict[PoolName, Seen]:
        """Return all pools with machines or answers. Only jobs of which a record has changed are looked at."""
        first = not self._looked_at
        total: dict[PoolName, Seen] = {}
        for name, view in reading.jobs.items():
            before = self._views.get(name)
            if before is not None and (before[0] is view or before[0].revisions == view.revisions):
                counts = before[1]
            else:
                counts = seen_of(view.nodes, None if first else before[0].nodes if before is not None else {})
            # What was counted once is not counted again.
            self._views[name] = view, {pool: replace(each, granted=0, refused=0) for pool, each in counts.items()}
            for pool, each in counts.items():
                total[pool] = total.get(pool, Seen()).plus(each)
        for name in self._views.keys() - reading.jobs.keys() - reading.refused.keys():
            del self._views[name]
        return total

    # -- etcd ----------------------------------------------------------------------------------------------

    def _start_call(self, day: str, now: float) -> None:
        if not self._loaded_day:
            self._begin(self._journal.pool_days, partial(self._loaded, day, now))
            return
        if self._loaded_day != day:
            self._begin(self._journal.pool_days, partial(self._day_began, day))
            return
        if self._old:
            old, guard = tuple(self._old), self._leader.guard()
            self._old = []
            self._begin(lambda: self._journal.delete_pool_days(old, guard), lambda _: None)
            return
        for (name, key), known in sorted(self._days.items(), key=lambda each: each[1].due_at):
            record = known.record
            if _is_due(known, now, ended=name != day):
                known.due_at = now + WRITE_S
                self._begin(self._write_of((name, key), record), partial(self._written, known, record))
                return

    def _write_of(self, key: DayKey, record: PoolDay) -> Callable[[], bool]:
        guard = self._leader.guard()
        return lambda: self._journal.put_pool_day(key, record, guard)

    def _begin(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        generation = self._generation

        def unless_reset(result: Any) -> None:
            if generation is self._generation:
                then(result)

        self._call = self._start(call, "pools"), unless_reset

    def _collect(self) -> None:
        if self._call is None or not self._call[0].done():
            return
        (call, then), self._call = self._call, None
        try:
            then(call.result(0))
        except (JournalUnavailableError, TimeoutError):
            self._retry_at = self._clock.now() + RETRY_S
        except Exception as error:  # noqa: BLE001 - nothing else notices
            log.warning("what pools granted is not recorded just now", error=str(error))
            self._retry_at = self._clock.now() + RETRY_S

    def _loaded(self, day: str, asked_at: float, found: Mapping[DayKey, PoolDay | None]) -> None:
        """Go on with what earlier leaders wrote of this day. Nobody may have watched since."""
        today, minute = _day_of(self._clock.now())
        if today != day or not 0 <= self._clock.now() - asked_at <= MAX_GAP_S:
            return  # it is read again
        for key, record in found.items():
            if key[0] == day and record is not None:
                held = sum(seen_of(view.nodes, None).get(record.pool, Seen()).held for view in self._jobs())
                self._days[key] = _Followed(interrupted(record, minute), held, record)
        self._day_began(day, found)

    def _day_began(self, day: str, found: Mapping[DayKey, PoolDay | None]) -> None:
        self._loaded_day = day
        self._left_alone = {key for key, record in found.items() if record is None and key[0] == day}
        kept = _days_before(day)
        self._old = [key for key in found if key[0] not in kept]

    def _jobs(self) -> list[JobView]:
        return list(self._journal.read().jobs.values())

    def _written(self, known: _Followed, record: PoolDay, done: bool) -> None:
        if done:
            known.written = record


def _is_due(known: _Followed, now: float, *, ended: bool) -> bool:
    record, written = known.record, known.written
    if record == written or not record.rows:
        return False
    if written is not None and record.rows == written.rows and not ended:
        return (record.until - written.until) * 60 >= WATCHED_S
    return not known.due_at - WRITE_S <= now < known.due_at


def _end_day(known: _Followed) -> None:
    """End the day of a pool."""
    if known.record.rows and known.record.rows[-1].held and known.record.until < DAY_MINUTES:
        known.record = replace(known.record, until=DAY_MINUTES)


def _day_of(now: float) -> tuple[str, int]:
    """Return the day of a time (UTC), and its minute."""
    at = datetime.fromtimestamp(now, UTC)
    return at.strftime("%Y-%m-%d"), at.hour * 60 + at.minute


def _days_before(day: str) -> set[str]:
    """Return the days that are kept on a day. One more: the clock of another daemon may be a little ahead."""
    first = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
    return {(first - timedelta(days=back)).strftime("%Y-%m-%d") for back in range(-1, MAX_DAYS)}
