"""Budgets, one moment at a time: what counts, when people are warned, which jobs pause, and when they go on."""

from __future__ import annotations

import calendar
from dataclasses import replace
from typing import Any

import pytest

from supervisor.api.jobs.changes import limited_job
from supervisor.billing import Booking, NodeBilling, Purpose, Spent
from supervisor.budget import BudgetRecord, Budgets, BudgetUse
from supervisor.events import EventKind
from supervisor.features.budgets.rule import (
    budget_uses,
    current_month,
    drive_budgets,
    month_usd,
    over_budget,
    spent_before,
)
from supervisor.model import JobRecord
from supervisor.planner.actions import Commit
from supervisor.planner.boundary import Boundary
from supervisor.planner.world import Rules
from supervisor.spec_limits import LimitChanges
from tests.unit.scene import NOW, J, hint_of, job, member, scene, spec, view, world_of

MONTH = "1970-01"
NOVEMBER = float(calendar.timegm((2026, 11, 1, 0, 0, 0)))
SPENT = {"dropped": (Booking(MONTH, Purpose.USEFUL, 1.0, 90.0),), "dropped_usd": 90.0}


def rules(**budgets: Any) -> Rules:
    return Rules(budgets=Budgets(**budgets), alerts=True)


def warned(usd: float, record: BudgetRecord | None, limit: float = 100.0) -> tuple[list[EventKind], Commit | None]:
    known = view(job(1, billing={"dropped": (Booking(MONTH, Purpose.USEFUL, 1.0, usd),)}), [])
    world = replace(world_of(known), rules=rules(usd_per_month=limit), budget_record=record, budget_revision=7)
    commits = drive_budgets(world, budget_uses(world, Boundary(), NOW), NOW)
    return [event.kind for each in commits for event in each.alerts], commits[0] if commits else None


# -- what counts -------------------------------------------------------------------------------------------


def test_a_month_has_what_was_booked_in_it_and_what_is_open() -> None:
    node = replace(member(1), launched_at=NOVEMBER - 3600, created_at=NOVEMBER - 3600)
    fresh = replace(node, billing=NodeBilling(Purpose.IDLE, booked_to=NOVEMBER - 3600))
    for billing in (fresh.billing, replace(fresh.billing, booked_to=NOVEMBER + 60, bookings=(
        Booking("2026-10", Purpose.IDLE, 3600.0, 0.5), Booking("2026-11", Purpose.IDLE, 60.0, 0.5 / 60))
    )):  # fmt: skip
        found = month_usd(job(1), [replace(node, billing=billing)], "2026-11", NOVEMBER + 7200)
        assert found == pytest.approx(1.0)


def test_earlier_jobs_of_a_name_still_count_for_whose_they_were() -> None:
    ended = view(job(1, J.SUCCEEDED, owner="ann", billing={"earlier": (Spent("bob", MONTH, 2.0),), **SPENT}), [])
    assert spent_before(ended, NOW) == (Spent("ann", MONTH, 90.0), Spent("bob", MONTH, 2.0))
    assert spent_before(ended, NOVEMBER) == (), "a month that is over counts no more"
    again = view(job(1, J.QUEUED, owner="ann", billing={"earlier": spent_before(ended, NOW)}), [])
    world = replace(world_of(again), rules=rules(usd_per_month=500.0, user_usd_per_month=90.0, users={"bob": 5.0}))
    found = budget_uses(world, Boundary(), NOW)
    assert {scope: (use.usd, use.limit) for scope, use in found.items()} == {
        "cluster": (92.0, 500.0),
        "user ann": (90.0, 90.0),
        "user bob": (2.0, 5.0),
    }
    assert over_budget(found, again.record) == found["user ann"]
    assert over_budget(found, replace(again.record, owner="bob")) is None


def test_without_budgets_nothing_is_added_up() -> None:
    assert budget_uses(world_of(view(job(1), [])), Boundary(), NOW) == {}
    assert scene(member(1), member(2)).job.pause.at == 0.0


def test_a_month_that_has_begun_is_not_over_for_a_clock_that_is_a_little_behind() -> None:
    record = BudgetRecord("2026-11")
    assert current_month(record, NOVEMBER - 60) == "2026-11"
    assert current_month(record, NOVEMBER - 7200) == "2026-10", "a clock that was months ahead is not believed"
    assert current_month(record, NOVEMBER + 40 * 86400) == "2026-12"
    assert current_month(None, NOVEMBER) == "2026-11"


# -- warnings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usd", "before", "kinds"),
    [
        (49.0, (), []),
        (50.0, (), [EventKind.BUDGET_NEAR]),
        (60.0, ("cluster@0.5@100",), []),
        (80.0, ("cluster@0.5@100",), [EventKind.BUDGET_NEAR]),
        (100.0, ("cluster@0.5@100", "cluster@0.8@100"), [EventKind.BUDGET_REACHED]),
        (250.0, (), [EventKind.BUDGET_REACHED]),  # prices jumped: one alert, not three
        (250.0, ("cluster@0.5@100", "cluster@0.8@100", "cluster@1@100"), []),
        (70.0, ("cluster@0.5@100", "cluster@0.8@100", "cluster@1@100"), []),  # a clock was set back
    ],
)
def test_people_are_warned_once_of_each_level(usd: float, before: tuple[str, ...], kinds: list[EventKind]) -> None:
    found, commit = warned(usd, BudgetRecord(MONTH, before))
    assert found == kinds
    if kinds:
        assert commit is not None
        assert commit.budgets is not None
        assert commit.budgets_revision == 7, "written only if no other daemon wrote since"
        again, nothing = warned(usd, commit.budgets)
        assert (again, nothing) == ([], None)
    _, lower = warned(usd, BudgetRecord(MONTH, before), 100.0)
    assert lower is None or lower.budgets is None or set(before) <= set(lower.budgets.warned)


def test_a_raised_budget_warns_anew_only_of_levels_that_it_has_not_passed() -> None:
    all_three = BudgetRecord(MONTH, ("cluster@0.5@100", "cluster@0.8@100", "cluster@1@100"))
    kinds, commit = warned(100.0, all_three, 150.0)
    assert kinds == []
    assert commit is not None
    assert commit.budgets == BudgetRecord(MONTH, ("cluster@0.5@150",))
    assert warned(125.0, commit.budgets, 150.0)[0] == [EventKind.BUDGET_NEAR]


def test_with_the_next_month_warnings_begin_anew() -> None:
    kinds, commit = warned(0.0, BudgetRecord("1969-12", ("cluster@0.5@100",)))
    assert kinds == []
    assert commit is not None
    assert commit.budgets == BudgetRecord(MONTH)


# -- pauses ------------------------------------------------------------------------------------------------


def paused(limit_reached: str, **more: Any) -> JobRecord:
    return job(2, J.PAUSED, reason="spent", pause={"at": NOW - 50, "by": limit_reached}, **more)


HELD: dict[str, Any] = {"hint": hint_of(1, 2, hold=True, reason="the job is paused")}


@pytest.mark.parametrize(
    ("budgets", "name"), [({"usd_per_month": 90.0}, "budget"), ({"users": {"ann": 9.0}}, "user_budget")]
)
def test_a_spent_budget_pauses_the_job_after_a_checkpoint(budgets: Any, name: str) -> None:
    after = scene(member(1), member(2), record=job(2, owner="ann", billing=SPENT), rules=rules(**budgets))
    assert (after.job.state, after.job.pause.by, after.job.pause.at) == (J.RUNNING, name, NOW)
    assert after.hint == hint_of(1, 2, hold=True, reason="the job is paused")
    assert EventKind.PAUSE_REQUESTED in after.event_kinds
    assert EventKind.LIMIT_REACHED not in after.event_kinds, "people are told once of the budget, not of each job"
    done = scene(record=replace(after.job), rules=rules(**budgets), **HELD)
    assert done.job.state is J.PAUSED
    assert "is spent" in done.job.reason


def test_a_paused_job_goes_on_when_its_budget_has_room_and_not_before() -> None:
    for limit, goes_on in ((90.0, False), (91.0, True)):
        after = scene(record=paused("budget", billing=SPENT), rules=rules(usd_per_month=limit), **HELD)
        assert (after.job.pause.at == 0.0) is goes_on
        assert (after.job.state is J.STARTING) is goes_on
    without = scene(record=paused("user_budget", billing=SPENT), rules=Rules(), **HELD)
    assert without.job.state is J.STARTING


def test_a_budget_resumes_no_job_that_a_user_paused() -> None:
    after = scene(record=paused(""), rules=rules(usd_per_month=1e6), **HELD)
    assert after.job.state is J.PAUSED


def test_a_limit_of_its_own_keeps_a_job_paused_and_says_so() -> None:
    record = paused("budget", billing=SPENT, spec=spec(limits={"usd": 50}))
    after = scene(record=record, rules=rules(usd_per_month=1e6), **HELD)
    assert (after.job.state, after.job.pause.by) == (J.PAUSED, "usd")
    assert "limits.usd 50 reached" in after.job.reason


def test_a_limit_per_month_lifts_itself_and_warns_at_half() -> None:
    limited = spec(limits={"usd_per_month": 90})
    after = scene(member(1), member(2), record=job(2, spec=limited, billing=SPENT))
    assert after.job.pause.by == "usd_per_month"
    old = {**SPENT, "dropped": (Booking("1969-12", Purpose.USEFUL, 1.0, 90.0),)}
    assert scene(record=paused("usd_per_month", spec=limited, billing=old), **HELD).job.state is J.STARTING
    half = scene(member(1), member(2), record=job(2, spec=spec(limits={"usd_per_month": 170}), billing=SPENT))
    assert half.event_kinds == [EventKind.LIMIT_NEAR]
    assert half.job.limits.warned == ("usd_per_month@50:1970-01",)


def test_raising_a_limit_resumes_no_job_that_a_budget_pauses() -> None:
    record = paused("budget", spec=spec(limits={"usd": 5}))
    assert limited_job(view(record, []), LimitChanges(usd=500.0), NOW).pause.by == "budget"


def test_what_cannot_be_added_up_pauses_and_resumes_nothing() -> None:
    use = BudgetUse("cluster", MONTH, 5.0, 1.0)
    assert "the budget of the cluster for 1970-01 is spent ($5.00 of $1)" in use.reason()
    assert over_budget({}, job(1)) is None
