"""Cron expressions as pure functions of the time passed in. Times are UTC."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

# From a leap year to the next there are at most eight years; who looks further finds nothing, after a second of CPU.
_YEARS_AHEAD = 8
# APScheduler counts weekdays from Monday, cron from Sunday: names are the same for both.
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def next_run(cron: str, after: float) -> float:
    """Return the first time after `after`, both in UNIX seconds. Raises ValueError if `cron` is invalid or never
    matches."""
    begin = datetime.fromtimestamp(math.floor(after), UTC) + timedelta(seconds=1)
    trigger = cron_trigger(cron, f"{begin.year}-{begin.year + _YEARS_AHEAD}")
    found: datetime | None = trigger.get_next_fire_time(None, begin)
    if found is None:
        raise ValueError(f"{cron!r} never matches")
    return found.timestamp()


def cron_trigger(cron: str, years: str = "*") -> Any:
    """Return APScheduler's trigger for "minute hour day month weekday". Raises ValueError if `cron` is invalid."""
    from apscheduler.triggers.combining import OrTrigger
    from apscheduler.triggers.cron import CronTrigger

    fields = cron.split()
    if len(fields) != 5:
        raise ValueError(f"{cron!r} has {len(fields)} fields; cron takes five, such as `0 3 * * *`")
    minute, hour, day, month, weekday = fields
    weekday = _named(weekday)
    time = {"year": years, "minute": minute, "hour": hour, "month": month, "timezone": UTC}
    if "*" in {day, weekday}:
        return CronTrigger(day=day, day_of_week=weekday, **time)
    # With both set, cron runs on days that match either: man 5 crontab
    return OrTrigger([CronTrigger(day=day, **time), CronTrigger(day_of_week=weekday, **time)])


def _named(weekdays: str) -> str:
    """Return a weekday field with names in place of numbers: "1-5" is "mon,tue,wed,thu,fri"."""
    if weekdays == "*":
        return weekdays
    found: set[int] = set()
    for part in weekdays.lower().split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0-6" if span == "*" else span).partition("-")
        begin, end = _number(first), _number(last or first)
        found |= {day % 7 for day in range(begin, end + 1, int(step or 1))}
    if not found:
        raise ValueError(f"no weekday matches {weekdays!r}")
    return ",".join(_WEEKDAYS[day] for day in sorted(found))


def _number(weekday: str) -> int:
    number = _WEEKDAYS.index(weekday) if weekday in _WEEKDAYS else int(weekday)
    if not 0 <= number <= 7:
        raise ValueError(f"{weekday} is not a weekday: 0 to 7, or sun to sat")
    return number
