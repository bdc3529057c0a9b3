"""Times as people write them."""

from __future__ import annotations

import datetime as dt
import re

from supervisor.errors import UsageError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(seconds: float) -> str:
    """12s, 3m05s, 2h07m."""
    whole = int(max(0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def seconds_of(text: str) -> float:
    """90s, 10m, 1h30m, 2d in seconds. Raises UsageError."""
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        raise UsageError(f"{text!r} is no length of time; write 90s, 10m, 2h or 1d")
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", text))


def next_time(text: str, now: float) -> float:
    """UNIX seconds of a length of time after `now` (8h), of the next time of the day (18:00), or of a time such as
    2026-12-24T22:00; without a zone that of this computer. Raises UsageError."""
    if re.fullmatch(r"[\d.]+[smhd].*", text):
        return now + seconds_of(text)
    try:
        if re.fullmatch(r"\d\d?:\d\d", text):
            here = dt.datetime.fromtimestamp(now)  # noqa: DTZ006 - the clock on the wall
            hour, minute = map(int, text.split(":"))
            at = here.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (at if at > here else at + dt.timedelta(days=1)).timestamp()
        found = dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{text!r} is no time: write 8h, 18:00, or one such as 2026-12-24T18:00") from error
    if found <= now:
        raise UsageError(f"{text} is over: write a time to come")
    return found


def time_of(text: str, now: float) -> float:
    """UNIX seconds of a length of time before `now` (10m), or of a time such as 2026-12-24T22:00Z; without a zone that
    of this computer. Raises UsageError."""
    if re.fullmatch(r"[\d.]+[smhd].*", text):
        return now - seconds_of(text)
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{text!r} is no time: write 10m, 2h, or one such as 2026-12-24T22:00Z") from error
