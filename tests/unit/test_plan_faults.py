"""What people are told of something that failed and was contained."""

from __future__ import annotations

import re

import pytest

from supervisor.events import EventKind
from supervisor.planner.actions import Fault
from supervisor.planner.boundary import fault, report, unreadable
from tests.unit.scene import NOW


def raised(levels: int, text: str = "odd") -> Exception:
    """An error from so many calls below this one."""
    try:
        raise_below(levels, text)
    except ValueError as error:
        return error
    raise AssertionError


def raise_below(levels: int, text: str) -> None:
    if levels == 0:
        raise ValueError(text)
    raise_below(levels - 1, text)


def test_a_fault_names_the_error_and_its_place_and_its_cause_is_the_same_each_time() -> None:
    lines = raise_below.__code__.co_firstlineno + 2, raise_below.__code__.co_firstlineno + 3
    first = fault("list:local is dropped", "list:local", raised(3, "one"))
    assert first.sentence == (
        f"list:local is dropped (ValueError: one, in test_plan_faults.py:{lines[0]}); please report it with the "
        "daemon's log"
    )
    assert first.cause == f"list:local: ValueError in test_plan_faults.py:{lines[0]} < test_plan_faults.py:{lines[1]}"
    assert fault("again", "list:local", raised(5, "another")).cause == first.cause
    try:
        raise KeyError("x")
    except KeyError as error:
        only = fault("it", "it", error)
    assert re.fullmatch(r"it: KeyError in test_plan_faults\.py:\d+", only.cause), "of one place"


def test_a_fault_is_bounded_and_its_traceback_keeps_the_end() -> None:
    found = fault("it", "it", raised(1, "x" * 30_000 + "the end"))
    assert re.search(r"\(ValueError: x{199}…, in ", found.sentence)
    assert len(found.traceback) == 10_000
    assert found.traceback.endswith("the end\n")


def test_of_many_keys_that_cannot_be_read_the_first_are_named_and_the_rest_counted() -> None:
    found = unreadable({f"key-{number}": "no JSON" for number in range(9)})
    sentences = [f"cannot be read, and is left alone: key-{number}: no JSON" for number in range(9)]
    assert [each.sentence for each in unreadable({f"key-{number}": "no JSON" for number in range(5)})] == sentences[:5]
    assert [each.sentence for each in found] == [
        *sentences[:4],
        f"{sentences[4]} (and 4 more; the log has them)",
    ]
    assert [each.cause for each in found] == [f"key-{number}" for number in range(5)]


@pytest.mark.parametrize("alerts", [True, False])
def test_a_fault_that_is_reported_again_replaces_its_report_and_that_of_no_other(alerts: bool) -> None:
    faults = [Fault("one", "cause 1"), Fault("two", "cause 2")]
    commit = report(EventKind.UNDECIDED, faults, NOW, alerts=alerts)
    ids = [each.id for each in commit.events]
    assert all(re.fullmatch("undecided-[0-9a-f]{16}", each) for each in ids)
    assert len(set(ids)) == 2
    assert [(each.text, each.at, each.job) for each in commit.events] == [("one", NOW, ""), ("two", NOW, "")]
    assert list(commit.alerts) == (commit.events if alerts else [])
    later = report(EventKind.UNDECIDED, [Fault("two, again", "cause 2")], NOW + 9, alerts=alerts)
    assert [each.id for each in later.events] == ids[1:]
