"""When a job may begin: once, or again and again. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from supervisor.cron import next_run
from supervisor.errors import UsageError

# A time further ahead is a mistake in writing.
MAX_AHEAD_S = 366 * 86400.0
# What datetime can show, in UNIX seconds.
_YEAR_1, _YEAR_10000 = -62_135_596_800.0, 253_402_300_800.0
FORMS = "2026-12-24T22:00Z, or 2026-12-24T22:00+01:00"


def unix_time(text: str) -> float:
    """UNIX seconds of a time with its time zone. Raises ValueError: one sentence."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write one such as {FORMS}") from None
    if found.tzinfo is None:
        raise ValueError(f"{text!r} does not say in which time zone; write {FORMS}")
    return found.timestamp()


def starts_at(start_after: str, schedule: str, now: float) -> float:
    """Before when a job submitted at `now` requests nothing, in UNIX seconds; 0: it may at once.

    With a schedule: its first time from `start_after` on. Raises UsageError.
    """
    at = unix_time(start_after) if start_after else 0.0
    if at - now > MAX_AHEAD_S:
        raise UsageError(f"`start_after` is {moment(at)}, more than a year ahead: write an earlier time")
    if schedule:
        return next_run(schedule, max(at - 1.0, now))
    return at if at > now else 0.0


def moment(at: float) -> str:
    """Return a time as `2026-12-24 22:00:00 UTC`."""
    if not _YEAR_1 <= at < _YEAR_10000:
        return "a time that no calendar has"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
