"""Which event goes to which channel, and when: by level, job and quiet hours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from fnmatch import fnmatchcase
from types import MappingProxyType

from supervisor.events import Level
from supervisor.model import Event


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Hours of the day in which only CRITICAL events are sent. `begin` and `end`: minutes since midnight; the hours
    reach over midnight where `end` is not later."""

    begin: int
    end: int
    zone: tzinfo = UTC

    def lasts(self, now: float) -> bool:
        """True if they last at `now` (UNIX seconds)."""
        local = datetime.fromtimestamp(now, self.zone)
        minute = local.hour * 60 + local.minute
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


@dataclass(frozen=True, slots=True)
class Pace:
    """How many messages there may be: `burst` of them, no two within `gap_s`, then one each `refill_s`."""

    burst: float
    refill_s: float
    gap_s: float

    def allows(self, used: Used, now: float, count: float = 1.0) -> bool:
        """True if there may be `count` more now."""
        return now >= used.at + self.gap_s and used.full_at <= now + (self.burst - count) * self.refill_s

    def after(self, used: Used, now: float) -> Used:
        """Return what is used after one more message."""
        return Used(min(max(used.full_at, now) + self.refill_s, now + self.burst * self.refill_s), now)


@dataclass(frozen=True, slots=True)
class Used:
    """How much of a pace is used."""

    full_at: float = 0.0  # when all of `burst` may be sent again
    at: float = 0.0  # when the last message was


UNUSED = Used()
# What a far side takes: a thousand events in a minute are at most 20 messages, and a single one is sent at once. Slack
# takes one message a second per channel: https://docs.slack.dev/apis/web-api/rate-limits
FAST = Pace(burst=8.0, refill_s=6.0, gap_s=1.1)
GATHER_S = 1800.0


def gathering(seconds: float) -> Pace | None:
    """Return what people read: three messages at once, what comes within two minutes of one together, and then, while
    more happens, one each so many seconds. None for 0: whatever happens is sent at once."""
    return Pace(burst=3.0, refill_s=seconds, gap_s=min(120.0, seconds)) if seconds else None


GATHER = gathering(GATHER_S)


@dataclass(frozen=True, slots=True)
class Channel:
    """One place to which alerts go."""

    name: str = "slack"
    level: Level = Level.INFO  # events below it are not sent
    # The same for the jobs whose name matches a pattern; the first that matches counts.
    jobs: Mapping[str, Level] = field(default_factory=lambda: MappingProxyType({}))
    cluster: Level | None = None  # the same for events of no job; None: `level`
    quiet: QuietHours | None = None
    threads: bool = False  # events of a job are sent as replies to one message of that job
    gather: Pace | None = GATHER  # of messages that are not urgent; None: each is sent at once
    pace: Pace = FAST

    def takes(self, event: Event) -> bool:
        """True if this event goes there, sooner or later."""
        return event.kind.level >= self.min_level(event.job)

    def min_level(self, job: str) -> Level:
        """Return the lowest level that a job's events need; "" for those of no job."""
        if not job:
            return self.level if self.cluster is None else self.cluster
        return next((level for pattern, level in self.jobs.items() if fnmatchcase(job, pattern)), self.level)

    def due(self, pending: Sequence[Event], now: float) -> Sequence[Event]:
        """Return the events that may be sent now, in order. In quiet hours these are the critical ones, and what their
        jobs have before them: the order within a job is kept."""
        if self.quiet is None or not self.quiet.lasts(now):
            return pending
        last = {event.job: number for number, event in enumerate(pending) if event.kind.level >= Level.CRITICAL}
        return [event for number, event in enumerate(pending) if number <= last.get(event.job, -1)]


def wanted(channels: Iterable[Channel], events: Iterable[Event]) -> list[Event]:
    """Return the events that a channel takes."""
    return [event for event in events if is_wanted(channels, event)]


def is_wanted(channels: Iterable[Channel], event: Event) -> bool:
    """True if any channel takes it."""
    return any(channel.takes(event) for channel in channels)
