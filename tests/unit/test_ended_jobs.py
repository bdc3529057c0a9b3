"""Which ended jobs may be deleted, which are to be, and what a deleted one still counts for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from supervisor.billing import Booking, Purpose, Spent
from supervisor.budget import BudgetRecord, Budgets
from supervisor.features.budgets.rule import budget_uses, by_deleted, drive_budgets, with_deleted
from supervisor.features.retention.record import RetentionRules
from supervisor.features.retention.rule import DAY_S, MAX_AT_ONCE, kept_because, sweeps_by_member, to_delete
from supervisor.model import NodeState
from supervisor.new_job import uid_of
from supervisor.planner.boundary import Boundary
from supervisor.planner.world import JobView, Rules
from supervisor.sweep import Member, Result, SweepRecord
from tests.unit.scene import NOW, J, job, member, node, view, world_of

MONTH = "1970-01"
FOREVER = RetentionRules(ended_jobs=0)


def ended(name: str = "job", ended_at: float = NOW, nodes: Any = (), **more: Any) -> JobView:
    return view(replace(job(1, J.SUCCEEDED, **more), name=name, ended_at=ended_at), nodes)


def costly(usd: float, owner: str = "ann", earlier: tuple[Spent, ...] = ()) -> JobView:
    return ended(owner=owner, billing={"dropped": (Booking(MONTH, Purpose.USEFUL, 1.0, usd),), "earlier": earlier})


# -- which may be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (ended(), ""),
        (ended(nodes=[node(1, NodeState.GONE)]), ""),
        (view(job(1), [member(1)]), "job job is running: `spotsupctl cancel job`"),
        (view(job(1, J.PAUSED), []), "job job is paused: `spotsupctl cancel job`"),
        (ended(nodes=[node(1, NodeState.TERMINATING)]), "still releases 1 machine: try again"),
        (ended(nodes=[node(1, NodeState.WARM)]), r"a machine of job job waits .*`spotsupctl drain \S+` lets it go"),
        (replace(ended(), past=True), r"job\.1 is an earlier run of job, .*`spotsupctl delete job`"),
    ],
)
def test_a_job_without_machines_that_has_ended_may_be_deleted(found: JobView, why: str) -> None:
    said = kept_because(found, {})
    assert (said == "") is (why == "")
    assert re.search(why, said)


def test_a_job_that_its_schedule_submits_again_is_kept_until_it_is_cancelled() -> None:
    found = ended()
    scheduled = replace(found.record, spec=found.record.spec.model_copy(update={"schedule": "0 22 * * *"}))
    assert "ends that" in kept_because(replace(found, record=scheduled), {})
    cancelled = replace(scheduled, cancel_requested=True)
    assert kept_because(replace(found, record=cancelled), {}) == ""


def test_a_sweep_that_goes_on_keeps_its_jobs_and_those_alone() -> None:
    members = (Member(1, (), created=True), Member(2, ()))
    sweep = SweepRecord("lr", "u", "ann", {}, "0" * 64, 1.0, 1, members)
    found = ended("lr-1", uid=uid_of(sweep.submission(members[0])))
    assert "the sweep lr goes on and compares job lr-1" in kept_because(found, sweeps_by_member([sweep]))
    assert kept_because(ended("lr-1"), sweeps_by_member([sweep])) == "", "another job with the same name"
    over = replace(sweep, members=tuple(replace(each, result=Result("succeeded", 1, None, 0, 0)) for each in members))
    assert kept_because(found, sweeps_by_member([over])) == ""


# -- which are to be -----------------------------------------------------------------------------------------


def names(views: list[JobView], rules: RetentionRules) -> list[str]:
    return [each.name for each in to_delete(views, {}, rules, NOW)]


def test_by_default_ten_thousand_are_kept_for_ever() -> None:
    assert RetentionRules() == RetentionRules(0.0, 10_000)
    assert names([ended("old", 0.0)], RetentionRules()) == []
    assert names([ended("old", 0.0)], FOREVER) == []


def test_the_oldest_go_first_by_age_and_by_number() -> None:
    views = [ended("c", NOW - DAY_S), ended("a", NOW - 9 * DAY_S), ended("b", NOW - 8 * DAY_S), view(job(1), [])]
    assert names(views, replace(FOREVER, ended_jobs_days=7.0)) == ["a", "b"]
    assert names(views, replace(FOREVER, ended_jobs_days=8.0)) == ["a"], "not at its very age"
    assert names(views, RetentionRules(ended_jobs=2)) == ["a"]
    assert names(views, RetentionRules(0.5, 1)) == ["a", "b", "c"]
    assert names(views, RetentionRules(ended_jobs=5)) == []


def test_a_job_that_may_not_be_deleted_is_passed_over() -> None:
    kept = ended("a", 0.0, nodes=[node(1, NodeState.WARM)])
    assert names([kept, ended("b", 1.0)], replace(FOREVER, ended_jobs_days=1.0 / DAY_S)) == ["b"]


def test_a_clock_that_is_years_ahead_deletes_a_few_at_a_time() -> None:
    views = [ended(f"job-{number}", float(number)) for number in range(200)]
    assert len(names(views, replace(FOREVER, ended_jobs_days=1.0 / DAY_S))) == MAX_AT_ONCE


# -- what it still counts for --------------------------------------------------------------------------------


def test_what_a_deleted_job_has_spent_still_counts_for_the_month() -> None:
    known = BudgetRecord(MONTH, ("cluster@0.5@100",), (Spent("ann", MONTH, 5.0), Spent("bob", "1969-12", 7.0)))
    found = with_deleted(known, costly(30.0, earlier=(Spent("bob", MONTH, 2.0),)), NOW)
    assert found == BudgetRecord(MONTH, known.warned, (Spent("ann", MONTH, 35.0), Spent("bob", MONTH, 2.0)))
    world = replace(world_of(), rules=Rules(budgets=Budgets(100.0, 50.0)), budget_record=found)
    uses = budget_uses(world, Boundary(), NOW)
    assert {scope: use.usd for scope, use in uses.items()} == {"cluster": 37.0, "user ann": 35.0, "user bob": 2.0}


def test_the_sums_are_the_same_before_and_after_a_deletion() -> None:
    rules, other = Rules(budgets=Budgets(100.0, 50.0)), view(replace(job(1, owner="bob"), name="b"), [member(1)])
    before = replace(world_of(other, costly(30.0)), rules=rules)
    after = replace(world_of(other), rules=rules, budget_record=with_deleted(None, costly(30.0), NOW))
    assert budget_uses(before, Boundary(), NOW) == budget_uses(after, Boundary(), NOW)


def test_a_job_that_cost_nothing_this_month_is_deleted_without_a_write() -> None:
    assert with_deleted(None, ended(), NOW) is None
    assert with_deleted(None, costly(30.0), NOW + 40 * DAY_S) is None
    assert by_deleted(None, MONTH) == ()


def test_warnings_keep_the_sums_until_their_month_is_over() -> None:
    known = BudgetRecord(MONTH, (), (Spent("ann", MONTH, 60.0),))
    world = replace(world_of(), rules=Rules(budgets=Budgets(100.0)), budget_record=known)
    (commit,) = drive_budgets(world, budget_uses(world, Boundary(), NOW), NOW)
    assert commit.budgets == BudgetRecord(MONTH, ("cluster@0.5@100",), known.deleted)
    later = NOW + 40 * DAY_S
    (commit,) = drive_budgets(world, budget_uses(world, Boundary(), later), later)
    assert commit.budgets is not None
    assert commit.budgets.deleted == ()
