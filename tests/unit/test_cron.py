"""When a cron expression runs next, from the time that is passed in alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from apscheduler.triggers.cron import CronTrigger

from supervisor.cron import next_run

WEDNESDAY = "2026-07-29 12:34:56"


def run_after(cron: str, after: str = WEDNESDAY) -> str:
    at = datetime.fromisoformat(after).replace(tzinfo=UTC).timestamp()
    return datetime.fromtimestamp(next_run(cron, at), UTC).strftime("%a %Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("* * * * *", "Wed 2026-07-29 12:35"),
        ("*/5 * * * *", "Wed 2026-07-29 12:35"),
        ("0 3 * * *", "Thu 2026-07-30 03:00"),
        ("30 12 * * *", "Thu 2026-07-30 12:30"),
        ("0 2 1 * *", "Sat 2026-08-01 02:00"),
        ("0 0 29 2 *", "Tue 2028-02-29 00:00"),
    ],
)
def test_the_next_run_is_the_first_match(cron: str, expected: str) -> None:
    assert run_after(cron) == expected


@pytest.mark.parametrize(
    ("weekday", "expected"),
    [
        ("0", "Sun"),
        ("7", "Sun"),
        ("1", "Mon"),
        ("sat", "Sat"),
        ("1-5", "Thu"),
        ("5-7", "Fri"),
        ("0,6", "Sat"),
        ("*/3", "Sat"),
        ("*", "Thu"),
    ],
)
def test_weekdays_are_counted_from_sunday_as_cron_does(weekday: str, expected: str) -> None:
    assert run_after(f"0 3 * * {weekday}").split()[0] == expected


def test_with_a_day_and_a_weekday_either_may_match_as_in_cron() -> None:
    assert run_after("0 0 1 * 5") == "Fri 2026-07-31 00:00"
    assert run_after("0 0 1 * 5", "2026-07-31 12:00:00") == "Sat 2026-08-01 00:00"


def test_a_day_that_comes_only_in_leap_years_is_found() -> None:
    assert run_after("0 0 29 2 *", "2096-03-01 00:00:00") == "Fri 2104-02-29 00:00", "2100 is none"


def test_a_day_that_never_comes_is_refused_without_looking_through_all_years(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, increment = 0, CronTrigger._increment_field_value

    def count(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return increment(*args)

    monkeypatch.setattr(CronTrigger, "_increment_field_value", count)
    with pytest.raises(ValueError, match="never matches"):
        next_run("0 0 31 2,4,6,9,11 *", 0.0)
    assert 0 < looks < 1_000


def test_the_next_run_is_never_the_time_itself() -> None:
    assert run_after("0 3 * * *", "2026-07-29 03:00:00") == "Thu 2026-07-30 03:00"
    assert run_after("0 3 * * *", "2026-07-29 02:59:59.5") == "Wed 2026-07-29 03:00"


@pytest.mark.parametrize(
    "cron", ["", "0 3 * *", "0 3 * * * *", "61 * * * *", "0 0 * * 8", "0 0 * * noday", "0 0 * * 5-1", "0 0 30 2 *"]
)
def test_what_is_no_cron_expression_is_refused(cron: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        next_run(cron, 0.0)
