"""The job as a whole: its end, its state, its pause: one moment at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Ended, Result

from supervisor.events import EventKind
from supervisor.model import JobRecord, JobState, NodeRecord, NodeState
from supervisor.planner.actions import Bootstrap, Find, Launch, Terminate
from supervisor.planner.world import Rules
from tests.unit.scene import (
    FULL,
    NONE_KNOWN,
    NOW,
    OFFER,
    SOON,
    Decided,
    J,
    N,
    hint_of,
    job,
    launcher,
    listing,
    machine,
    member,
    name,
    names,
    node,
    offering,
    round_of,
    scene,
)

ENDED: dict[str, Any] = {"exits": {name(n): Ended(name(n), "success", 0, "", NOW) for n in (1, 2)}}
SILENT: dict[str, Any] = {"agents": {}, "members": {}}


# -- ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "messages", "state", "reason", "kind"),
    [
        (job(2, cancel_requested=True), {}, J.CANCELLED, "a user cancelled it", EventKind.JOB_CANCELLED),
        (
            job(2, cancel_requested=True, cancel_reason="loss 2.1 is number 3 of 3 at step 9"),
            {},
            J.CANCELLED,
            "loss 2.1 is number 3 of 3 at step 9",
            EventKind.JOB_CANCELLED,
        ),
        (job(2), {"result": Result("success", "", 1), **ENDED}, J.SUCCEEDED, "exit code 0", EventKind.JOB_DONE),
        (job(2), {"result": Result("failure", "4 times", 1), **ENDED}, J.FAILED, "4 times", EventKind.JOB_FAILED),
        (
            replace(
                job(2, bootstraps={"failures": 5}),
                rounds=replace(job(2, bootstraps={"failures": 5}).rounds, reported=0),
            ),
            {"round": None},
            J.FAILED,
            "5 nodes in a row could not be bootstrapped",
            EventKind.JOB_FAILED,
        ),
    ],
)
def test_a_job_ends_by_a_user_by_its_program_or_by_failed_bootstraps(
    record: JobRecord, messages: Any, state: JobState, reason: str, kind: EventKind
) -> None:
    after = scene(member(1), member(2), record=record, **messages)
    assert (after.job.state, after.job.reason, after.job.ended_at) == (state, reason, NOW)
    (event,) = after.events
    assert event.kind is kind
    assert event.data == {"usd": round(2 * 1000 / 3600 * 0.5, 4)}
    ended_as = "finished" if state is J.SUCCEEDED else state
    assert event.text == f"job {ended_as}: {reason} (after 1 h 23 min, $0.28)"
    assert len(after.does(Terminate)) == 2
    again = scene(*after.nodes.values(), record=after.job, **messages)
    assert again.events == []
    assert again.job.state is state


@pytest.mark.parametrize(
    ("record", "messages", "released"),
    [
        (job(2), {}, False),
        (job(2, J.FAILED, ended_at=NOW - Rules().last_log_s + 0.1), {}, False),
        (job(2, J.FAILED, ended_at=NOW - Rules().last_log_s), {}, True),
        (job(2), ENDED, True),
        (job(2), SILENT, True),
        (job(2), SILENT | ENDED, True),
        (job(2, cancel_requested=True), {}, True),
    ],
)
def test_machines_of_a_program_that_ended_wait_until_the_end_of_the_log_is_sent(
    record: JobRecord, messages: Any, released: bool
) -> None:
    after = scene(member(1), member(2), record=record, result=Result("failure", "4 times", 1), **messages)
    assert [after.state(n) for n in (1, 2)] == [N.TERMINATING if released else N.MEMBER] * 2
    assert not {EventKind.NODE_LOST, EventKind.NODE_SUSPECT} & set(after.event_kinds)


def test_a_node_with_a_notice_has_no_time_to_send_its_log() -> None:
    after = scene(member(1), member(2, notice=SOON), record=job(2), result=Result("success", "", 1))
    assert (after.state(1), after.state(2)) == (N.MEMBER, N.TERMINATING)


def test_a_users_cancel_counts_more_than_the_programs_result() -> None:
    result = Result("success", "", 1)
    assert scene(member(1), record=job(1, cancel_requested=True), result=result).job.state is J.CANCELLED


def test_failed_bootstraps_end_the_job_with_the_last_error() -> None:
    failed = [node(n, N.GONE, error=f"reason {n}\nmore", state_since=NOW - n) for n in (5, 6)]
    never = job(2, bootstraps={"failures": 5}, rounds={"reported": 0})
    after = scene(*failed, record=never)
    assert after.job.reason == "5 nodes in a row could not be bootstrapped: reason 5"
    assert (
        scene(*failed, record=replace(never, bootstraps=replace(never.bootstraps, failures=4))).job.state
        is not J.FAILED
    )


def test_failed_bootstraps_never_end_a_job_that_has_trained() -> None:
    assert scene(member(1), record=job(2, bootstraps={"failures": 99})).job.state is J.DEGRADED
    assert scene(record=job(2, J.WAITING, bootstraps={"failures": 99})).job.state is J.WAITING, (
        "not even below its minimum"
    )


def test_an_ended_node_costs_no_more_and_one_without_a_price_nothing() -> None:
    nodes = [
        node(1, N.GONE, launched_at=NOW - 7200, ended_at=NOW - 3600),
        member(2, offer=replace(OFFER, instance_type="unpriced", usd_per_hour=None)),
        node(3, N.GONE, instance_id="", launched_at=0.0),
    ]
    after = scene(*nodes, record=job(1, cancel_requested=True))
    assert after.events[0].data == {"usd": 0.5}


# -- states ------------------------------------------------------------------------------------------------


def training(count: int, desired: int, state: JobState, minimum: int = 2, *others: NodeRecord, **more: Any) -> Decided:
    nodes = [member(n) for n in range(1, count + 1)]
    return scene(*nodes, *others, record=job(desired, state, min_nodes=minimum), **more)


@pytest.mark.parametrize("before", [J.STARTING, J.RUNNING, J.DEGRADED, J.WAITING])
@pytest.mark.parametrize(
    ("count", "state", "reason"),
    [
        (3, J.RUNNING, "3 nodes train"),
        (2, J.DEGRADED, "scaling up: 2 of 3 nodes train"),
        (1, J.WAITING, "1 node left, 2 needed"),
    ],
)
def test_a_jobs_state_is_how_many_nodes_train(before: JobState, count: int, state: JobState, reason: str) -> None:
    after = training(count, 3, before)
    if before is J.STARTING and state is J.WAITING:
        assert after.job.state is J.STARTING, "it never trained, and nodes are on their way"
    elif before is state:
        assert after.job.state_since == NOW - 500, "nothing has changed"
    else:
        assert (after.job.state, after.job.reason, after.job.state_since) == (state, reason, NOW)


def test_a_doomed_node_beyond_the_desired_ones_is_no_reason_to_be_degraded() -> None:
    after = scene(member(1), member(2), member(3, notice=SOON, needs_replacement=True), record=job(2, J.DEGRADED))
    assert (after.job.state, after.job.reason) == (J.RUNNING, "3 nodes train")


def test_a_queued_job_starts_with_its_first_request() -> None:
    after = scene(record=job(2, J.QUEUED))
    assert (after.job.state, after.job.reason) == (J.STARTING, "nodes are requested")
    assert scene(record=job(2, J.QUEUED), volatile=NONE_KNOWN).job.state is J.QUEUED


def test_a_queued_job_whose_nodes_train_already_passes_through_its_start() -> None:
    after = scene(member(1), record=job(1, J.QUEUED))
    assert after.job.state is J.RUNNING
    assert [each.after for each in after.job.history] == ["starting", "running"]
    assert after.job.history[0].reason == "it has nodes already"


@pytest.mark.parametrize(
    ("others", "volatile", "state"),
    [
        ([], FULL, J.WAITING),
        ([], FULL | NONE_KNOWN, J.STARTING),  # not known yet
        ([], FULL | offering(known=False, error="away"), J.STARTING),
        ([node(1, N.READY)], FULL, J.STARTING),
        ([member(1)], FULL, J.STARTING),
        ([node(1, N.BOOTSTRAPPING, retry_at=NOW + 9)], FULL, J.STARTING),
        ([node(1, N.TERMINATING, retry_at=NOW + 9)], FULL, J.WAITING),
    ],
)
def test_a_start_without_capacity_waits(others: list[NodeRecord], volatile: Any, state: JobState) -> None:
    listed = listing(*(machine(1) for _ in others))
    record = job(2, J.STARTING, min_nodes=2, state_since=NOW)
    after = scene(*others, record=record, listed=listed, volatile=volatile)
    assert after.job.state is state
    if state is J.WAITING:
        assert after.job.reason == "no offer has capacity"


def test_only_a_start_waits_for_capacity_and_only_a_queued_job_starts() -> None:
    assert scene(record=job(2, J.QUEUED), volatile=FULL).job.state is J.QUEUED
    waits = scene(node(1, N.BOOTSTRAPPING, retry_at=NOW + 9), record=job(2, J.WAITING))
    assert (waits.job.state, waits.plan.undecided) == (J.WAITING, {})


def test_a_resumed_job_starts_again() -> None:
    after = scene(record=job(2, J.PAUSED))
    assert (after.job.state, after.job.reason) == (J.STARTING, "it was resumed")


def test_a_pause_is_reported_once() -> None:
    record = job(2, J.PAUSED, reason="a user paused it", pause={"at": NOW - 900})
    after = scene(record=record, hint=hint_of(hold=True))
    assert (after.job.state, after.events) == (J.PAUSED, [])
    assert after.sentence == "paused: a user paused it"
    now_held = scene(record=replace(record, state=J.RUNNING), hint=hint_of(hold=True))
    assert now_held.event_kinds == [EventKind.PAUSED]
    assert now_held.events[0].text == "job is paused, and its machines are released: a user paused it"


# -- a pause -----------------------------------------------------------------------------------------------

PAUSING = job(2, pause={"at": NOW - 10})
HOLD = hint_of(1, 2, hold=True)


def stopped(number: int, state: str = "waiting", **changes: Any) -> dict[str, Any]:
    """Node 1 has stopped; this is what node 2's launcher publishes."""
    return {name(1): launcher(1, "waiting"), name(2): launcher(number, state, **changes)}


@pytest.mark.parametrize(
    ("members", "released"),
    [
        (stopped(2), True),
        (stopped(2, "done"), True),
        (stopped(2, "running"), False),
        (stopped(2, "leaving"), False),
        (stopped(2, "running", parked=True), True),
        (stopped(2, "waiting", round=0), False),  # it has not read the round yet, and may take it up
        (stopped(2, "waiting", round=0, incarnation="new"), True),  # another launcher, which is in no round
        ({name(1): launcher(1, "waiting")}, False),  # it may train still
    ],
)
def test_a_paused_job_releases_its_machines_once_all_have_stopped(members: Any, released: bool) -> None:
    after = scene(member(1), member(2), record=PAUSING, hint=HOLD, members=members)
    assert (after.released == set(names(1, 2))) is released
    assert not released or after.node(2).history[-1].reason == "its job is paused"
    assert (len(after.does(Terminate)) == 2) is released
    assert (after.job.state is J.PAUSED) is released
    assert (EventKind.PAUSED in after.event_kinds) is released


@pytest.mark.parametrize("state", [N.READY, N.SUSPECT])
def test_a_node_that_may_still_train_delays_a_pause_in_whatever_state(state: NodeState) -> None:
    members = {name(1): launcher(1, "waiting"), name(2): launcher(2, "running")}
    if state is N.SUSPECT:
        del members[name(2)]
    after = scene(
        member(1), node(2, state, state_since=NOW), record=PAUSING, hint=HOLD, members=members, round=round_of(1)
    )
    assert (after.state(2), after.released) == (state, set())


@pytest.mark.parametrize(
    ("error", "launch_unknown", "asks"), [("full", False, []), ("full", True, [Find]), ("", False, [Launch])]
)
def test_while_a_job_pauses_an_open_request_is_only_looked_up(
    error: str, launch_unknown: bool, asks: list[type]
) -> None:
    asked = node(2, N.REQUESTED, error=error, launch_unknown=launch_unknown)
    after = scene(member(1), asked, record=PAUSING, hint=HOLD, members={name(1): launcher(1, "running")})
    assert [type(each) for each in after.actions] == asks


def test_while_a_job_pauses_a_doomed_machine_is_not_bootstrapped() -> None:
    after = scene(member(1), node(2, N.BOOTING, notice=SOON), record=PAUSING, hint=HOLD, members={})
    assert after.does(Bootstrap) == []


@pytest.mark.parametrize(("hint", "released"), [(HOLD, True), (hint_of(1, 2), False), (None, False)])
def test_no_node_is_released_before_the_hold_is_published(hint: Any, released: bool) -> None:
    after = scene(member(1), member(2), record=PAUSING, hint=hint, members=stopped(2))
    assert bool(after.released) is released


@pytest.mark.parametrize(("waited_s", "released"), [(150.0, False), (150.1, True)])
def test_a_pause_waits_for_a_checkpoint_for_a_limited_time(waited_s: float, released: bool) -> None:
    record = job(2, pause={"at": NOW - waited_s})
    after = scene(member(1), member(2), record=record, hint=HOLD, members=stopped(2, "running"))
    assert bool(after.released) is released


def test_a_launcher_that_waits_without_any_round_has_stopped() -> None:
    after = scene(node(1, N.READY), record=job(1, pause={"at": NOW - 10}), hint=replace(HOLD, members=()))
    assert after.released == {name(1)}


def test_a_paused_job_requests_nothing() -> None:
    assert scene(member(1), record=PAUSING, hint=HOLD).new == []
    assert scene(record=job(2, J.PAUSED, pause={"at": NOW - 99}), hint=HOLD).new == []


def test_what_people_should_know_of_a_good_end_is_in_its_reason() -> None:
    after = scene(member(1), record=job(1), result=Result("success", "all ended", 1, "a: local rank 1 was killed"))
    assert (after.job.state, after.job.reason) == (JobState.SUCCEEDED, "exit code 0; a: local rank 1 was killed")
