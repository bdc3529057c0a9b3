"""Which failed tests are run once more, which may be in quarantine; and what tests/flaky.toml has is allowed."""

from __future__ import annotations

import tomllib
from datetime import UTC, date, datetime, timedelta

import pytest

from tools.landing.flaky import FlakyTests, Quarantine, Sighting, problems, protected_files, read_flaky, why_no_rerun
from tools.stack import ROOT

TODAY = date(2026, 11, 26)
TEST = "tests/integration/test_tunnel.py::test_a_tunnel_comes_back"


def seen(days_ago: int) -> Sighting:
    return Sighting(TEST, TODAY - timedelta(days=days_ago), "abc1234", "12")


def quarantine(test: str = TEST, *, since: int = 0, until: int = 14) -> Quarantine:
    return Quarantine(test, TODAY + timedelta(days=since), TODAY + timedelta(days=until), "12")


def test_three_failed_tests_are_run_once_more_and_four_are_not() -> None:
    names = [f"{TEST}[{n}]" for n in range(4)]
    assert why_no_rerun(names[:3], FlakyTests(), TODAY) == ""
    assert why_no_rerun(names, FlakyTests(), TODAY) == "4 tests failed; at most 3 are run once more"


@pytest.mark.parametrize("folder", ["unit", "sim"])
def test_a_failure_where_each_run_is_the_same_is_a_fault(folder: str) -> None:
    assert "that is a fault" in why_no_rerun([TEST, f"tests/{folder}/test_x.py::test_y"], FlakyTests(), TODAY)


def test_a_test_that_was_flaky_three_times_in_two_weeks_is_not_run_once_more() -> None:
    often = FlakyTests(seen=(seen(1), seen(7), seen(14)))
    assert "3 times in 14 days" in why_no_rerun([TEST], often, TODAY)
    assert why_no_rerun([TEST], FlakyTests(seen=(seen(1), seen(7), seen(15))), TODAY) == ""


def test_a_quarantine_of_two_weeks_is_allowed_and_no_longer_one() -> None:
    assert problems(FlakyTests(quarantined=(quarantine(),)), (), TODAY) == []
    (problem,) = problems(FlakyTests(quarantined=(quarantine(until=15),)), (), TODAY)
    assert problem.endswith("is longer than 14 days")


def test_a_quarantine_that_has_ended_is_a_failure() -> None:
    assert problems(FlakyTests(quarantined=(quarantine(since=-14, until=0),)), (), TODAY) == []
    (problem,) = problems(FlakyTests(quarantined=(quarantine(since=-14, until=-1),)), (), TODAY)
    assert "ended on 2026-11-25" in problem


def test_at_most_ten_tests_are_in_quarantine() -> None:
    eleven = tuple(quarantine(f"{TEST}[{n}]") for n in range(11))
    assert problems(FlakyTests(quarantined=eleven[:10]), (), TODAY) == []
    assert problems(FlakyTests(quarantined=eleven), (), TODAY) == [
        "11 tests are in quarantine; at most 10 may be: repair some"
    ]


def test_what_holds_a_promise_about_money_or_working_machines_is_never_in_quarantine() -> None:
    protected = protected_files((ROOT / "docs" / "promises.md").read_text())
    assert {"tests/sim/test_sim.py", "tests/e2e/test_demo.py", "tests/integration/test_journal.py"} <= protected
    assert "tests/e2e/test_partition.py" not in protected
    (problem,) = problems(FlakyTests(quarantined=(quarantine("tests/e2e/test_demo.py::test_x"),)), protected, TODAY)
    assert "never put aside" in problem


def test_an_entry_as_it_is_printed_is_one_that_can_be_read() -> None:
    row = Sighting('tests/x.py::test_y[a "quoted" \\ value]', TODAY, "abc1234", "")
    assert tomllib.loads(row.as_toml())["seen"] == [vars(row)]


def test_the_register_of_flaky_tests_breaks_no_rule() -> None:
    flaky = read_flaky(ROOT / "tests" / "flaky.toml")
    protected = protected_files((ROOT / "docs" / "promises.md").read_text())
    assert problems(flaky, protected, datetime.now(UTC).date()) == []
