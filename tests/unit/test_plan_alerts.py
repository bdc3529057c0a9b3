"""Alerts: of checkpoints that fail or take long, of workers that hang, of jobs that wait, of quotas, and of clouds that
deny everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Member, Progress

from provisioners.base import Market
from supervisor.events import EventKind
from supervisor.features.checkpoints.rule import MAX_PROBLEM_CHARACTERS
from supervisor.features.waits.record import WaitsRecord
from supervisor.features.waits.rule import drive_wait_alerts, waits_since
from supervisor.model import HISTORY_LIMIT, JobRecord, JobState, NodeRecord, Transition
from supervisor.planner.actions import MAX_OPERATIONS
from supervisor.planner.world import Denial, Reminder, Rules, VolatileState
from tests.unit.scene import (
    NOW,
    OFFER,
    Decided,
    J,
    N,
    draft_of,
    job,
    launcher,
    member,
    name,
    node,
    offering,
    round_of,
    scene,
)

# -- checkpoints that are not being written ----------------------------------------------------------------

RULES = Rules(leftovers_s=1e9)
QUIET_S = RULES.checkpoints.alert_quiet_s
WITH_PROBLEM: dict[str, Any] = {
    "problem": "disk full",
    "problem_step": 40,
    "problem_at": NOW - QUIET_S,
}


def problem_of(problem: str, checkpoint: int = 40) -> Progress:
    return Progress(1, 50, NOW, NOW - 40, checkpoint_step=checkpoint, checkpoint_problem=problem)


@pytest.mark.parametrize(
    ("before", "problem", "reported"),
    [
        ({}, "disk full", True),
        ({}, "", False),
        ({"problem_at": NOW - QUIET_S + 0.1}, "disk full", False),
        (WITH_PROBLEM, "disk full", False),
        (WITH_PROBLEM, "read only", True),
        (WITH_PROBLEM | {"problem_at": NOW - QUIET_S + 0.1}, "read only", False),
    ],
)
def test_a_new_checkpoint_problem_is_reported_when_the_last_report_is_old(
    before: Any, problem: str, reported: bool
) -> None:
    after = scene(member(1), record=job(1, checkpoints=before), progress=problem_of(problem, 40))
    assert after.event_kinds == ([EventKind.CHECKPOINTS_FAILING] if reported else [])
    if reported:
        noted = after.job.checkpoints
        assert (noted.problem, noted.problem_step, noted.problem_at) == (problem, 40, NOW)
        assert after.events[0].data == {"checkpoint_step": 40}
        text = f"checkpoints of job are not being written (the newest is of step 40): {problem}"
        assert after.events[0].text == text


def test_a_reported_checkpoint_problem_is_one_line_of_bounded_length() -> None:
    after = scene(member(1), record=job(1), progress=problem_of("no\n space " + "x" * 9999, 0))
    assert after.job.checkpoints.problem.startswith("no space xxx")
    assert len(after.job.checkpoints.problem) == MAX_PROBLEM_CHARACTERS == 400
    assert "(there is none yet): no space" in after.events[0].text


@pytest.mark.parametrize(("checkpoint", "over"), [(40, False), (41, True)])
def test_a_checkpoint_problem_ends_with_the_next_checkpoint(checkpoint: int, over: bool) -> None:
    after = scene(member(1), record=job(1, checkpoints=WITH_PROBLEM), progress=problem_of("", checkpoint))
    assert (after.event_kinds == [EventKind.CHECKPOINTS_RESUMED]) is over
    if over:
        assert (after.job.checkpoints.problem, after.job.checkpoints.problem_step) == ("", 0)
        assert after.events[0].data == {"checkpoint_step": 41}
        assert after.events[0].text == "checkpoints of job are written again; the newest is of step 41"


def test_an_ended_job_has_no_checkpoint_problem() -> None:
    after = scene(record=job(1, J.FAILED), hint=None, progress=problem_of("disk full"))
    assert after.events == []


# -- checkpoints that take long ----------------------------------------------------------------------------


def saving(
    checkpoint_s: float,
    step_s: float = 2.0,
    every_s: float = 0.0,
    notice_s: float = 30.0,
    known: Any = None,
) -> Decided:
    """A plan while checkpoints and steps take so long, on a cloud that announces preemptions so long before."""
    progress = Progress(1, 50, NOW, NOW - 40, checkpoint_p95_s=checkpoint_s, step_s=step_s, checkpoint_every_s=every_s)
    rules = Rules(leftovers_s=1e9, notice_s={"local": notice_s} if notice_s else {})
    return scene(member(1), record=job(1, checkpoints=known or {}), progress=progress, rules=rules)


@pytest.mark.parametrize(
    ("checkpoint_s", "step_s", "noted"),
    [
        (20.0, 2.0, False),
        (22.0, 2.0, False),
        (22.1, 2.0, True),
        (17.9, 2.0, True),
        (20.0, 2.5, False),  # short times are noted to half a second
        (20.0, 2.6, True),
        (20.0, 1.4, True),
        (0.0, 9.0, False),  # not known yet
    ],
)
def test_what_a_checkpoint_and_a_step_take_is_noted_where_either_has_changed_by_more_than_a_tenth(
    checkpoint_s: float, step_s: float, noted: bool
) -> None:
    after = saving(checkpoint_s, step_s, known={"save_s": 20.0, "step_s": 2.0}).job
    assert (after.checkpoints.save_s, after.checkpoints.step_s) == ((checkpoint_s, step_s) if noted else (20.0, 2.0))


def test_nothing_is_noted_of_a_job_that_has_ended_or_has_shown_no_progress() -> None:
    progress = Progress(1, 50, NOW, NOW - 40, checkpoint_p95_s=20.0, step_s=2.0)
    rules = Rules(leftovers_s=1e9, notice_s={"local": 9.0})
    ended = scene(record=job(1, J.FAILED), hint=None, progress=progress, rules=rules)
    assert (ended.job.checkpoints.save_s, ended.events) == (0.0, [])
    assert scene(member(1), record=job(1), rules=rules).plan.undecided == {}


@pytest.mark.parametrize(
    ("checkpoint_s", "step_s", "notice_s", "warned_s", "warned"),
    [
        (25.0, 2.0, 30.0, 0.0, False),  # with 3 s for the notice to arrive and for the ranks to agree
        (25.1, 2.0, 30.0, 0.0, True),
        (25.0, 2.1, 30.0, 0.0, True),
        (900.0, 2.0, 0.0, 0.0, False),  # a cloud that announces nothing
        (60.0, 2.0, 30.0, 45.0, False),
        (90.0, 2.0, 30.0, 45.0, False),
        (90.1, 2.0, 30.0, 45.0, True),
    ],
)
def test_people_hear_that_a_notice_is_too_short_for_a_checkpoint_and_again_once_it_takes_twice_as_long(
    checkpoint_s: float, step_s: float, notice_s: float, warned_s: float, warned: bool
) -> None:
    after = saving(checkpoint_s, step_s, notice_s=notice_s, known={"window_warned_s": warned_s})
    assert after.event_kinds == ([EventKind.CHECKPOINTS_TOO_SLOW] if warned else [])
    assert after.job.checkpoints.window_warned_s == (checkpoint_s if warned else warned_s)


@pytest.mark.parametrize(("every_s", "costs"), [(600.0, "up to 600 s of training"), (0.0, "the steps")])
def test_the_alert_says_what_a_preemption_costs_where_the_notice_is_too_short(every_s: float, costs: str) -> None:
    (event,) = saving(45.0, every_s=every_s).events
    assert event.text == (
        "checkpoints of job take 45 s, and a preemption is announced 30 s before: each one costs "
        f"{costs} since the last checkpoint; checkpoint more often, or to faster storage"
    )
    assert event.data == {"checkpoint_p95_s": 45.0, "notice_s": 30.0}


def test_nobody_is_told_of_preemptions_while_no_member_can_be_preempted() -> None:
    progress = Progress(1, 50, NOW, NOW - 40, checkpoint_p95_s=45.0)
    rules = Rules(leftovers_s=1e9, notice_s={"local": 30.0})
    on_demand = replace(OFFER, market=Market.ON_DEMAND)
    for offers, kinds in (
        ([on_demand, on_demand], []),
        ([on_demand, OFFER], [EventKind.CHECKPOINTS_TOO_SLOW]),
    ):
        nodes = [member(number, offer=offer) for number, offer in enumerate(offers, 1)]
        assert scene(*nodes, progress=progress, rules=rules, volatile=offering(*offers)).event_kinds == kinds


# -- workers that hang -------------------------------------------------------------------------------------


def silent(number: int, since: float = NOW - 400, **changes: Any) -> Member:
    return launcher(number, "running", round=1, stalled_since=since, **changes)


def hanging(*launchers: Member, record: JobRecord | None = None, **more: Any) -> Decided:
    return scene(
        member(1),
        member(2),
        record=record or job(2),
        round=round_of(1, 2),
        members={each.node: each for each in launchers},
        **more,
    )


@pytest.mark.parametrize(
    ("launchers", "since"),
    [
        ([silent(1), silent(2, NOW - 500)], NOW - 500),
        ([silent(1), launcher(2, "running", round=1)], 0.0),
        ([silent(1)], 0.0),
        ([silent(1), replace(silent(2), state="waiting")], 0.0),
        ([], 0.0),
    ],
)
def test_steps_hang_when_no_rank_of_any_member_shows_life(launchers: list[Member], since: float) -> None:
    after = hanging(*launchers)
    assert after.job.hang.since == since
    assert [event.kind for event in after.events if event.kind is EventKind.STEPS_HANG] == (
        [EventKind.STEPS_HANG] if since else []
    )
    if since:
        (event,) = [event for event in after.events if event.kind is EventKind.STEPS_HANG]
        assert event.text.startswith("the steps of job hang: no rank has shown life for 500 s, and its machines cost $")
        assert event.text.endswith(
            " an hour: `spotsupctl logs job` has the stacks of all ranks; `spotsupctl pause job` ends the cost"
        )
        assert event.data == {"since": since}


@pytest.mark.parametrize(
    ("launchers", "step_at", "resumed"),
    [
        ([silent(1), silent(2)], NOW, False),
        ([], NOW - 400, False),
        ([], NOW - 399, True),
        ([silent(1)], NOW, True),
    ],
)
def test_a_hang_is_over_with_the_next_step(launchers: list[Member], step_at: float, resumed: bool) -> None:
    progress = Progress(1, 50, step_at, NOW - 1000)
    after = hanging(*launchers, record=job(2, hang={"since": NOW - 400}), progress=progress)
    assert after.job.hang.since == (0.0 if resumed else NOW - 400)
    found = [(event.text, event.data) for event in after.events if event.kind is EventKind.STEPS_RESUMED]
    assert found == ([("job has completed step 50, after its steps hung", {"step": 50})] if resumed else [])
    assert EventKind.STEPS_HANG not in after.event_kinds
    assert ("hang" in after.sentence) is not resumed


def test_a_hang_lasts_while_no_progress_is_known() -> None:
    after = hanging(record=job(2, hang={"since": NOW - 400}))
    assert (after.job.hang.since, after.plan.undecided) == (NOW - 400, {})


def test_workers_of_a_job_that_has_ended_do_not_hang() -> None:
    nodes = [node(number, N.TERMINATING, retry_at=NOW + 9) for number in (1, 2)]
    launchers = {name(1): silent(1, problem="its workers outlive SIGKILL"), name(2): silent(2)}
    after = scene(*nodes, record=job(2, J.FAILED), hint=None, round=round_of(1, 2), members=launchers)
    assert (after.job.hang.since, after.events) == (0.0, [])


def test_what_a_launcher_says_of_its_workers_is_reported_once_in_one_line_of_bounded_length() -> None:
    said = launcher(1, "stopping", round=1, problem="workers\n outlive " + "x" * 999)
    after = hanging(said)
    (event,) = [event for event in after.events if event.kind is EventKind.WORKERS_STUCK]
    assert event.text.startswith(f"{name(1)}: workers outlive xxx")
    assert len(event.text) == len(f"{name(1)}: ") + MAX_PROBLEM_CHARACTERS
    assert event.node == name(1)
    reported = after.node(1).worker_problem
    again = scene(member(1, worker_problem=reported), record=job(1), members={name(1): said}, round=round_of(1))
    assert EventKind.WORKERS_STUCK not in again.event_kinds
    other = scene(member(1, worker_problem="before"), record=job(1), members={name(1): said}, round=round_of(1))
    assert EventKind.WORKERS_STUCK in other.event_kinds
    silent_again = scene(member(1, worker_problem="before"), record=job(1), round=round_of(1))
    assert EventKind.WORKERS_STUCK not in silent_again.event_kinds


def test_the_workers_of_many_nodes_are_reported_in_parts() -> None:
    numbers = range(1, 101)
    said = {name(number): launcher(number, "stopping", round=1, problem="they hang") for number in numbers}
    after = scene(*(member(number) for number in numbers), record=job(100, max_nodes=100), members=said)
    assert 40 <= after.event_kinds.count(EventKind.WORKERS_STUCK) < 100
    assert 1 + len(after.commit.nodes) + len(after.commit.events) <= MAX_OPERATIONS


# -- clouds that deny everything ---------------------------------------------------------------------------

DENIED = Denial("the token has expired", NOW - 60, NOW)


def denied(told: Mapping[str, Reminder] | None = None, *, over: bool = False, **rules: Any) -> Decided:
    volatile = {"denials": {} if over else {"local": DENIED}, "reminders": told or {}}
    return scene(member(1), member(2), volatile=volatile, rules=Rules(leftovers_s=1e9, **rules))


@pytest.mark.parametrize("alerts", [True, False])
def test_a_denial_is_told_once_and_that_it_is_over(alerts: bool) -> None:
    first = denied(alerts=alerts)
    (commit,) = first.plan.commits
    assert (commit.job, [each.kind for each in commit.events]) == ("", [EventKind.ACCESS_DENIED])
    assert list(commit.alerts) == (commit.events if alerts else [])
    again = denied(first.volatile.reminders, alerts=alerts)
    assert (again.events, again.volatile.reminders) == ([], first.volatile.reminders)
    over = denied(first.volatile.reminders, over=True, alerts=alerts)
    assert (over.event_kinds, over.volatile.reminders) == ([EventKind.ACCESS_RESTORED], {})
    assert denied(over=True).events == []


# -- jobs that wait ----------------------------------------------------------------------------------------

WAITED_S = RULES.waits.alert_s


def waiting(since: float, state: JobState = JobState.WAITING, **changes: Any) -> JobRecord:
    """A job that trained until `since`."""
    lost = Transition(since, JobState.DEGRADED, JobState.WAITING, "no offer has capacity")
    return replace(job(2, state), history=(lost,), state_since=since, reason="no offer has capacity", **changes)


def told_of(record: JobRecord) -> tuple[list[EventKind], float]:
    """What people are told of its waiting, and what is remembered of that."""
    draft = draft_of(record=record)
    drive_wait_alerts(draft)
    return [each.kind for each in draft.commit().events], draft.job.waits.reported_at


def test_a_job_that_has_waited_for_hours_is_an_alert_once() -> None:
    assert told_of(waiting(NOW - WAITED_S)) == ([EventKind.WAITS_LONG], NOW)
    assert told_of(waiting(NOW - WAITED_S + 1)) == ([], 0.0)
    assert told_of(waiting(NOW - WAITED_S, waits=WaitsRecord(NOW - 9, 1))) == ([], NOW - 9)
    assert told_of(waiting(NOW - WAITED_S, waits=WaitsRecord(NOW - 3600, 1))) == ([EventKind.WAITS_LONG], NOW)
    assert told_of(waiting(NOW - WAITED_S, waits=WaitsRecord(NOW - 7199, 2))) == ([], NOW - 7199)
    assert told_of(waiting(NOW - WAITED_S, starts_at=NOW - 9)) == ([], 0.0), "it was not to start before"
    draft = draft_of(record=waiting(NOW - WAITED_S))
    drive_wait_alerts(draft)
    (event,) = draft.commit().events
    assert event.text == "job has waited for machines for 2 h 0 min: no offer has capacity"


def test_a_job_that_trains_and_lacks_nodes_for_half_an_hour_is_an_alert_that_says_why() -> None:
    lost = Transition(NOW - RULES.waits.lacks_s, JobState.RUNNING, JobState.DEGRADED, "1 of 2 nodes trains")
    record = replace(job(2, JobState.DEGRADED), history=(lost,), state_since=lost.at)
    refused = replace(node(3, N.REQUESTED), error="zone-a is full\nrequest 1234")
    draft = draft_of(member(1), refused, record=record)
    drive_wait_alerts(draft)
    (event,) = draft.commit().events
    assert event.text == (
        "job has lacked 1 of 2 nodes for 30 min: the last try: zone-a is full. It trains on with 1, and asks again by "
        "itself"
    )
    assert draft.job.waits == WaitsRecord(NOW, 1, lacks=True)
    assert told_of(replace(record, state_since=lost.at + 1)) == ([], 0.0)
    told = WaitsRecord(NOW - 9, 1, lacks=True)
    assert told_of(replace(job(2, JobState.RUNNING), waits=told)) == ([EventKind.WAIT_ENDED], NOW - 9)
    assert told_of(replace(job(2, JobState.WAITING), waits=told)) == ([], NOW - 9), "that is another matter"


def told_of_a_stop(*nodes: NodeRecord, since: float = NOW - RULES.waits.lacks_s) -> list[str]:
    """What people are told of a job that trained on two nodes, and needs both."""
    draft = draft_of(*nodes, record=waiting(since, min_nodes=2), round=round_of(1, 2))
    drive_wait_alerts(draft)
    return [each.text for each in draft.commit().events]


def test_a_job_that_has_stopped_training_for_half_an_hour_is_an_alert_that_says_what_it_costs() -> None:
    refused = node(3, N.REQUESTED, error="zone-a is full")
    assert told_of_a_stop(member(1), refused, since=NOW - RULES.waits.lacks_s + 1) == []
    (text,) = told_of_a_stop(member(1), refused)
    assert text.startswith("job has not trained for 30 min: it has 1 of at least 2 nodes; the last try: zone-a ")
    assert text.endswith(
        "It asks again by itself; `spotsupctl pause job` ends what its machines cost meanwhile, "
        f"${OFFER.usd_per_hour:.2f} an hour"
    )
    (text,) = told_of_a_stop(refused)
    assert text.endswith("It asks again by itself"), "nothing costs"


def test_nodes_that_are_silent_and_kept_are_told_of_by_themselves_and_not_as_lacking() -> None:
    record = replace(job(2, JobState.DEGRADED), state_since=NOW - 1800.0)
    silent = node(2, N.SUSPECT, state_since=NOW - 1800.0, has_joined=True)
    for suspects, kinds in (([silent], []), ([], [EventKind.WAITS_LONG])):
        draft = draft_of(member(1), *suspects, record=record)
        drive_wait_alerts(draft)
        assert [each.kind for each in draft.commit().events] == kinds


def test_one_that_comes_and_goes_is_told_once_an_hour() -> None:
    over = WaitsRecord(NOW - 3599)
    assert told_of(replace(job(2, JobState.RUNNING), waits=over)) == ([], NOW - 3599), "its end is told once"
    assert told_of(waiting(NOW - WAITED_S, waits=over)) == ([], NOW - 3599)
    assert told_of(waiting(NOW - WAITED_S, waits=WaitsRecord(NOW - 3600))) == ([EventKind.WAITS_LONG], NOW)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (JobState.RUNNING, [EventKind.WAIT_ENDED]),
        (JobState.DEGRADED, [EventKind.WAIT_ENDED]),
        (JobState.PAUSED, []),
        (JobState.CANCELLED, []),
    ],
)
def test_people_are_told_that_it_trains_again_and_not_that_it_gave_up(state: JobState, told: list[EventKind]) -> None:
    assert told_of(replace(job(2, state), state_since=NOW, waits=WaitsRecord(NOW - 9, 1))) == (told, NOW - 9)


def test_waiting_lasts_over_starts_and_from_the_submission_on() -> None:
    queued = replace(job(2, JobState.STARTING), submitted_at=5.0)
    assert waits_since(queued) == 5.0
    started = Transition(50.0, JobState.QUEUED, JobState.STARTING, "")
    full = Transition(60.0, JobState.STARTING, JobState.WAITING, "")
    assert waits_since(replace(queued, history=(started, full))) == 5.0
    trained = (Transition(70.0, JobState.WAITING, JobState.RUNNING, ""), Transition(80.0, "running", "waiting", ""))
    assert waits_since(replace(queued, history=(started, full, *trained))) == 80.0
    assert waits_since(replace(queued, history=(full,) * HISTORY_LIMIT)) == 60.0


def test_a_quota_that_is_used_up_is_an_alert_once_an_hour() -> None:
    offer, volatile = replace(OFFER, quota="All G and VT Spot"), VolatileState()
    volatile, is_new = volatile.with_quota(offer, NOW, 3600.0)
    assert is_new
    assert not volatile.with_quota(offer, NOW + 3599.0, 3600.0)[1]
    assert volatile.with_quota(replace(offer, region="region-2"), NOW + 1.0, 3600.0)[1]
    volatile, is_new = volatile.with_quota(offer, NOW + 3600.0, 3600.0)
    assert (is_new, len(volatile.quotas_reported)) == (True, 1)
