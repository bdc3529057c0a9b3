"""Housekeeping: what runs when, what a failure leads to, which members of etcd are defragmented. All pure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from spotsup_trainer.etcd import EtcdUnavailableError

from supervisor.journal.maintenance import MIN_SIZE_BYTES, Member, members_to_defragment, reason_not_to_defragment
from supervisor.runtime.housekeeping import Housekeeping, Task

MEMBERS = [
    Member("http://a", "1", leads=True, version=(3, 5, 9), size_bytes=2 * MIN_SIZE_BYTES, used_bytes=MIN_SIZE_BYTES),
    Member("http://b", "2", leads=False, version=(3, 5, 9), size_bytes=2 * MIN_SIZE_BYTES, used_bytes=MIN_SIZE_BYTES),
    Member("http://c", "3", leads=False, version=(3, 5, 9), size_bytes=2 * MIN_SIZE_BYTES, used_bytes=MIN_SIZE_BYTES),
]


def task(run: Callable[[], str], limit_s: float = 10.0) -> Task:
    return Task("test", "* * * * *", run, limit_s)


def fails() -> str:
    raise EtcdUnavailableError("etcd does not answer")


def breaks() -> str:
    raise ZeroDivisionError


def test_a_task_that_ran_is_counted() -> None:
    housekeeping = Housekeeping([], lambda: True)
    housekeeping.run(task(lambda: "done"))
    housekeeping.run(task(lambda: ""))
    assert housekeeping.counters == {"housekeeping_test": 2}


@pytest.mark.parametrize("run", [fails, breaks])
def test_a_task_that_fails_is_counted_and_runs_again(run: Callable[[], str]) -> None:
    housekeeping = Housekeeping([], lambda: True)
    housekeeping.run(task(run))
    housekeeping.run(task(run))
    housekeeping.run(task(lambda: ""))
    assert housekeeping.counters == {"housekeeping_test_failed": 2, "housekeeping_test": 1}


def test_people_are_told_of_a_task_that_fails_for_an_hour_and_that_it_works_again() -> None:
    leading = [True]
    housekeeping = Housekeeping([], lambda: leading[0])
    housekeeping.start()
    for at in (1000.0, 5000.0):
        housekeeping.follow(at)
        housekeeping.run(task(fails))
    (one,) = housekeeping.problems()
    assert (one.since, one.after_s, one.over) == (1000.0, 3600.0, "housekeeping works again (test)")
    assert one.text.endswith("(test): etcd does not answer")
    housekeeping.run(task(lambda: ""))
    assert housekeeping.problems() == ()
    housekeeping.run(task(fails))
    leading[0] = False
    housekeeping.follow(6000.0)
    assert housekeeping.problems() == (), "another daemon does it"
    housekeeping.stop()


def test_a_task_that_hangs_is_given_up_after_its_limit() -> None:
    over = threading.Event()
    housekeeping = Housekeeping([], lambda: True)
    housekeeping.run(task(lambda: str(over.wait(30.0)), limit_s=0.05))
    over.set()
    assert housekeeping.counters == {"housekeeping_test_failed": 1}


def test_the_end_of_a_task_that_was_given_up_is_not_the_next_ones() -> None:
    given_up_may_end, next_runs, next_may_end = threading.Event(), threading.Event(), threading.Event()
    housekeeping = Housekeeping([], lambda: True)

    def hangs() -> str:
        given_up_may_end.wait(30.0)
        return ""

    def runs() -> str:
        next_runs.set()
        next_may_end.wait(30.0)
        return ""

    housekeeping.run(Task("given_up", "* * * * *", hangs, limit_s=0.05))
    (given_up,) = (each for each in threading.enumerate() if each.name == "housekeeping-given_up")
    running = threading.Thread(target=housekeeping.run, args=(task(runs, limit_s=30.0),))
    running.start()
    assert next_runs.wait(30.0)
    given_up_may_end.set()
    given_up.join(30.0)
    running.join(0.2)  # time for it to be wrong
    next_may_end.set()
    running.join(30.0)
    assert housekeeping.counters == {"housekeeping_given_up_failed": 1, "housekeeping_test": 1}


def test_nothing_runs_on_a_daemon_that_does_not_lead() -> None:
    housekeeping = Housekeeping([], lambda: False)
    housekeeping.run(task(breaks))
    assert housekeeping.counters == {}


def test_the_scheduler_runs_while_this_daemon_leads_and_stops_at_once_when_asked() -> None:
    leading, over = [False], threading.Event()
    housekeeping = Housekeeping([task(lambda: str(over.wait(30.0)))], lambda: leading[0])
    scheduler = housekeeping._scheduler
    housekeeping.start()
    try:
        states = [scheduler.state]
        for leads in (False, True, True, False, True):
            leading[0] = leads
            housekeeping.follow(0.0)
            states.append(scheduler.state)
        paused, running = 2, 1
        assert states == [paused, paused, running, running, paused, running]
    finally:
        housekeeping.stop()
        over.set()


def test_a_clock_that_went_back_gives_all_tasks_new_times() -> None:
    housekeeping = Housekeeping([Task("test", "0 3 * * *", lambda: "")], lambda: False)
    scheduler = housekeeping._scheduler
    housekeeping.start()
    try:
        (before,) = (job.next_run_time for job in scheduler.get_jobs())
        scheduler.modify_job("test", next_run_time=before.replace(year=before.year + 1))
        housekeeping.follow(1000.0)
        assert scheduler.get_job("test").next_run_time > before, "the clock did not go back"
        housekeeping.follow(900.0)
        assert scheduler.get_job("test").next_run_time == before
    finally:
        housekeeping.stop()


# -- defragmentation ---------------------------------------------------------------------------------------


def test_all_members_with_much_free_space_are_defragmented_the_leader_last() -> None:
    assert [member.endpoint for member in members_to_defragment(MEMBERS)] == ["http://b", "http://c", "http://a"]


@pytest.mark.parametrize(
    "member",
    [
        replace(MEMBERS[2], size_bytes=MIN_SIZE_BYTES - 1, used_bytes=0),
        replace(MEMBERS[2], used_bytes=int(1.2 * MIN_SIZE_BYTES)),
        replace(MEMBERS[2], size_bytes=0, used_bytes=0),
    ],
)
def test_a_member_that_gains_little_is_left_out(member: Member) -> None:
    order = members_to_defragment([*MEMBERS[:2], member])
    assert [each.endpoint for each in order] == ["http://b", "http://a"]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (MEMBERS, ""),
        (MEMBERS[:2], "1 of its 3 members did not answer"),
        ([MEMBERS[0]] * 3, "2 of its 3 members did not answer"),
        ([*MEMBERS[:2], replace(MEMBERS[2], problems=("alarm:NOSPACE",))], "http://c reports alarm:NOSPACE"),
        ([*MEMBERS[:2], replace(MEMBERS[2], version=(3, 4, 30))], "http://c is older than version 3.5"),
    ],
)
def test_no_member_is_defragmented_unless_all_are_healthy(members: list[Member], reason: str) -> None:
    assert reason_not_to_defragment(members, 3) == reason
