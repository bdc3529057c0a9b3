"""The hours in which a host may be used, such as "18:00-08:00, weekends". Pure; local times without a zone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import pairwise

NOTICE_S = 600.0
"""How long before the end of a host's hours its node gets a notice."""

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FULL = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NAMED = {"weekdays": range(5), "weekends": range(5, 7)}
_ITEM = re.compile(r"(?P<days>[a-z]+(-[a-z]+)?)? ?(?P<hours>\d\d?:\d\d-\d\d?:\d\d)?")
_LOOK_DAYS = 8  # whatever begins or ends does so within a week


@dataclass(frozen=True, slots=True)
class Window:
    """Hours of some days of the week (Monday is 0). One that ends before it begins ends on the next day."""

    days: frozenset[int]
    begin: time
    end: time

    def on(self, day: datetime) -> tuple[datetime, datetime]:
        """Return when it begins and ends that begins on a day."""
        begin, end = datetime.combine(day, self.begin), datetime.combine(day, self.end)
        return begin, end if end > begin else end + timedelta(days=1)


def parse_hours(text: str) -> tuple[Window, ...]:
    """Read "DAYS HH:MM-HH:MM, …", of which each part may be missing. Raises ValueError."""
    items = [" ".join(item.split()) for item in text.lower().split(",") if item.strip()]
    for day, after in pairwise(items):
        if day in {*DAYS, *_FULL} and after[:1].isalpha() and ":" in after:
            hours = after.split(" ")[-1]
            raise ValueError(f"{text!r} can mean two things: write `{day} {hours}` or `{day} 00:00-24:00`")
    return tuple(map(_window, items))


def available_for(windows: Sequence[Window], now: datetime) -> timedelta | None:
    """Return for how long the hours go on that `now` is in; None outside of any. Without windows, and where they are
    all hours: `timedelta.max`."""
    if not windows:
        return timedelta.max
    days = [datetime.combine(now, time()) + timedelta(days=number) for number in range(-1, _LOOK_DAYS)]
    spans = sorted(each.on(day) for day in days for each in windows if day.weekday() in each.days)
    until = now
    for begin, end in spans:
        if begin <= until < end:
            until = end
    if until == now:
        return None
    return timedelta.max if until >= days[-1] else until - now


def _window(item: str) -> Window:
    found = _ITEM.fullmatch(item)
    if found is None or not any(found.groups()):
        raise ValueError(f"{item!r} is no hours: write `18:00-08:00`, `weekends` or `mon-fri 20:00-07:00`")
    begin, _, end = (found["hours"] or "00:00-00:00").partition("-")
    return Window(_days(found["days"] or ""), _time(begin), _time(end))


def _days(text: str) -> frozenset[int]:
    if not text:
        return frozenset(range(7))
    if text in _NAMED:
        return frozenset(_NAMED[text])
    first, _, last = text.partition("-")
    begin, end = _day(first), _day(last or first)
    return frozenset((begin + number) % 7 for number in range((end - begin) % 7 + 1))


def _day(text: str) -> int:
    if text not in {*DAYS, *_FULL}:
        raise ValueError(f"{text!r} is no day of the week: {', '.join(DAYS)}, weekdays or weekends")
    return DAYS.index(text[:3])


def _time(text: str) -> time:
    hour, _, minute = text.partition(":")
    if hour == "24" and minute == "00":
        return time()
    try:
        return time(int(hour), int(minute))
    except ValueError as error:
        raise ValueError(f"{text} is no time of the day: write `18:00-08:00`") from error
