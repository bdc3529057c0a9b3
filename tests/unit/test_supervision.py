"""What a launcher does about its workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.launcher.supervision import (
    AnnounceDone,
    AskToEnd,
    AskToYield,
    CheckpointCount,
    Continue,
    EndUnfinished,
    KeepStacks,
    LeaveEarly,
    Limits,
    Local,
    Stop,
    decide,
)
from spotsup_trainer.rendezvous.membership import Broken, Over, Standing, Stay, Yield
from spotsup_trainer.wire import Progress, Result

LIMITS = Limits(yield_s=20.0, grace_s=2.0, lost_s=5.0, exit_s=100.0, margin_s=1.0, finish_s=10.0, tell_s=50.0)
RESTART = replace(LIMITS, restart_hung=True)
LOST = Broken("b is lost", "lost")
STOPPED = Broken("b has stopped", "stopped")
MOVED = Broken("round 2 was formed meanwhile", "moved")
JOINS = Yield("c joins")
OVER = Over(Result("success", "all done", 1))


def local(**changes: Any) -> Local:
    return replace(Local("running", ranks=2, sessions=2, parked=0), **changes)


HOST_LEAVES = local(workers="succeeded", done_since=0.0, leaving_since=1.0, hosts_store=True)


@pytest.mark.parametrize(
    ("node", "standing", "now", "expected"),
    [
        (local(), Stay(), 0.0, Continue()),
        (local(), OVER, 0.0, Stop("end", "all done", 2.0)),
        # yielding
        (local(), JOINS, 0.0, AskToYield("c joins")),
        (local(leaving_since=0.0), Stay(), 0.0, AskToYield("this node leaves")),
        (local(yielding_since=0.0), JOINS, 19.9, Continue()),
        (local(yielding_since=0.0), Stay(), 19.9, Continue()),
        (local(yielding_since=0.0), JOINS, 20.0, Stop("rejoin", "the workers did not park within 20 s", 2.0)),
        (local(yielding_since=0.0, sessions=1), JOINS, 0.0, AskToEnd("c joins")),
        (local(yielding_since=0.0, sessions=0, leaving_since=0.0), JOINS, 0.0, AskToEnd("this node leaves")),
        (local(yielding_since=0.0, sessions=0), Stay(), 0.0, AskToEnd("this round was to end")),
        (local(yielding_since=0.0, parked=1), JOINS, 1.0, Continue()),
        (local(yielding_since=0.0, parked=2), JOINS, 1.0, Stop("rejoin", "all workers are parked", parked=True)),
        (local(parked=2), Stay(), 1.0, Stop("rejoin", "all workers are parked", parked=True)),
        (local(leaving_since=0.0, parked=2), Stay(), 1.0, Stop("leave", "all workers are parked", parked=True)),
        # broken
        (local(), LOST, 0.0, Stop("rejoin", "b is lost", 2.0)),
        (local(leaving_since=0.0), LOST, 0.0, Stop("leave", "b is lost", 2.0)),
        (local(parked=2), LOST, 0.0, Stop("rejoin", "all workers are parked", parked=True)),
        (local(yielding_since=0.0, broken_since=1.0), LOST, 5.9, Continue()),
        (local(yielding_since=0.0, broken_since=1.0), LOST, 6.0, Stop("rejoin", "b is lost", 2.0)),
        (
            local(yielding_since=0.0, broken_since=1.0),
            STOPPED,
            1.0,
            Stop("rejoin", "b has stopped", 2.0, check_gpus=True),
        ),
        (local(yielding_since=0.0, sessions=0, broken_since=1.0), LOST, 1.0, Stop("rejoin", "b is lost", 2.0)),
        # failing
        (local(workers="failed"), Stay(), 0.0, Stop("rejoin", "a worker failed", 2.0, blame=True, check_gpus=True)),
        (local(workers="failed"), STOPPED, 0.0, Stop("rejoin", "a worker failed", 2.0, blame=True, check_gpus=True)),
        (local(workers="failed"), LOST, 0.0, Stop("rejoin", "a worker failed", 2.0, blame=True)),
        (
            local(workers="failed", yielding_since=0.0),
            JOINS,
            0.0,
            Stop("rejoin", "a worker failed", 2.0, check_gpus=True),
        ),
        (
            local(workers="failed", leaving_since=0.0),
            Stay(),
            0.0,
            Stop("leave", "a worker failed", 2.0, blame=True, check_gpus=True),
        ),
        # done
        (local(workers="succeeded"), Stay(), 0.0, AnnounceDone()),
        (local(workers="succeeded", done_since=0.0), JOINS, 99.0, AnnounceDone()),
        (local(workers="succeeded", done_since=0.0), LOST, 1.0, Stop("rejoin", "b is lost")),
        (local(workers="succeeded", done_since=0.0), OVER, 1.0, Stop("end", "all done", 2.0)),
        (local(workers="succeeded", leaving_since=1.0), Stay(), 1.0, AnnounceDone()),
        (local(workers="succeeded", done_since=0.0, leaving_since=1.0), Stay(), 1.0, Stop("leave", "its part is done")),
        (HOST_LEAVES, Stay(), 20.0, AnnounceDone()),
        (HOST_LEAVES, Stay(), 21.0, Stop("leave", "the other nodes")),
        (local(workers="succeeded", done_since=0.0), Stay(), 159.0, AnnounceDone()),
        (local(workers="succeeded", done_since=0.0), Stay(), 160.0, Stop("leave", "the other nodes")),
        # unfinished: idle, or at work
        (local(finished_since=0.0, idle_since=-50.0), Stay(), 9.9, Continue()),
        (local(finished_since=0.0, idle_since=-50.0), Stay(), 10.0, EndUnfinished("10 s after the first rank ended")),
        (local(finished_since=0.0, idle_since=5.0), Stay(), 14.9, Continue()),
        (local(finished_since=0.0, idle_since=5.0), Stay(), 15.0, EndUnfinished("15 s after the first rank ended")),
        (local(finished_since=0.0, idle_since=0.0), LOST, 10.0, Stop("rejoin", "b is lost", 2.0)),
        (local(finished_since=0.0), Stay(), 49.9, Continue()),
        (local(finished_since=0.0), Stay(), 50.0, KeepStacks("still works 50 s after the first rank ended")),
        (local(finished_since=0.0, stacks_at=50.0), Stay(), 99.9, Continue()),
        (local(finished_since=0.0, stacks_at=50.0), Stay(), 100.0, EndUnfinished("100 s after the first rank ended")),
        # hung
        (local(hung_since=0.0), Stay(), 0.0, KeepStacks("its steps hang", tell=False)),
        (local(hung_since=0.0, stacks_at=0.0), Stay(), 1e5, Continue()),
        # no time
        (local(force=True), Stay(), 0.0, Stop("leave", "no time is left")),
        (local(deadline=10.0), Stay(), 8.9, Continue()),
        (local(deadline=10.0, yielding_since=1.0), JOINS, 9.0, Stop("leave", "no time is left")),
    ],
)
def test_the_next_step(node: Local, standing: Standing, now: float, expected: object) -> None:
    action = decide(node, standing, now, LIMITS)
    if isinstance(expected, Stop) and isinstance(action, Stop):
        assert action.reason.startswith(expected.reason)
        action = replace(action, reason=expected.reason)
    assert action == expected


def plain(**changes: Any) -> Local:
    """Workers without a Session."""
    return local(sessions=0, **changes)


@pytest.mark.parametrize(
    ("node", "standing", "stop_s", "now", "expected"),
    [
        # They have the whole notice, or what the job says of it.
        (plain(deadline=100.0, catches=True), Stay(), None, 0.0, LeaveEarly()),
        (plain(deadline=100.0), Stay(), None, 90.0, Continue()),
        (local(deadline=100.0, catches=True), Stay(), None, 90.0, Continue()),
        (plain(deadline=100.0, catches=True), Stay(), 30.0, 68.9, Continue()),
        (plain(deadline=100.0, catches=True), Stay(), 30.0, 69.0, LeaveEarly()),
        (plain(deadline=100.0, catches=True, leaving_since=0.0), Stay(), None, 0.0, AskToYield("this node leaves")),
        # Peers that ended first, or are gone, break nothing.
        (plain(catches=True, ending_since=0.0), JOINS, None, 19.9, Continue()),
        (plain(catches=True, ending_since=0.0), LOST, None, 19.9, Continue()),
        (plain(catches=True, ending_since=0.0), STOPPED, None, 19.9, Continue()),
        (plain(catches=True, ending_since=0.0), MOVED, None, 1.0, Stop("rejoin", "round 2 was formed")),
        (plain(catches=True, ending_since=0.0), OVER, None, 1.0, Stop("end", "all done", 2.0)),
        (plain(catches=True, ending_since=0.0), LOST, None, 20.0, Stop("rejoin", "the workers had not ended 20 s")),
        (plain(catches=True, ending_since=0.0), JOINS, 30.0, 29.9, Continue()),
        (plain(catches=True, ending_since=0.0), JOINS, 30.0, 30.0, Stop("rejoin", "the workers had not ended 30 s")),
        # Those whose machine is taken have until then.
        (plain(catches=True, ending_since=0.0, deadline=100.0, leaving_since=0.0), LOST, None, 98.9, Continue()),
        (plain(catches=True, ending_since=0.0, deadline=100.0), LOST, None, 99.0, Stop("leave", "no time is left")),
        # Those that do not catch it end at once, unless something hangs in the kernel.
        (plain(ending_since=0.0), JOINS, None, 1.9, Continue()),
        (plain(ending_since=0.0), JOINS, 30.0, 2.0, Stop("rejoin", "the workers had not ended 2 s")),
        # However they ended: it is no failure, and not the program's end.
        (plain(workers="ended", ending_since=0.0), JOINS, None, 1.0, Stop("rejoin", "the workers have ended")),
        (
            plain(workers="ended", catches=True, ending_since=0.0, leaving_since=0.0),
            Stay(),
            None,
            1.0,
            Stop("leave", "the workers have ended", parked=True),
        ),
    ],
)
def test_workers_that_catch_sigterm_have_time_to_save_where_the_round_ends_in_order(
    node: Local, standing: Standing, stop_s: float | None, now: float, expected: object
) -> None:
    action = decide(node, standing, now, replace(LIMITS, stop_s=stop_s))
    if isinstance(expected, Stop) and isinstance(action, Stop):
        assert action.reason.startswith(expected.reason)
        action = replace(action, reason=expected.reason)
    assert action == expected


@pytest.mark.parametrize(
    ("node", "now", "expected"),
    [
        (local(hung_since=0.0), 0.0, KeepStacks("its steps hang", tell=False)),
        (local(hung_since=0.0, stacks_at=0.0), 0.0, AskToYield("its steps hang")),
        (local(hung_since=0.0, stacks_at=0.0, yielding_since=0.0), 19.9, Continue()),
        (local(hung_since=0.0, stacks_at=0.0, yielding_since=0.0), 20.0, Stop("rejoin", "its steps hang", 2.0)),
        (local(hung_since=0.0, stacks_at=0.0, yielding_since=0.0, parked=2), 1.0, Stop("rejoin", "all", parked=True)),
        (local(hung_since=0.0, stacks_at=0.0, may_restart=False), 1e5, Continue()),
    ],
)
def test_a_job_may_ask_for_a_new_round_when_its_steps_hang(node: Local, now: float, expected: object) -> None:
    action = decide(node, Stay(), now, RESTART)
    if isinstance(expected, Stop) and isinstance(action, Stop):
        assert action.reason.startswith(expected.reason)
        action = replace(action, reason=expected.reason)
    assert action == expected


TIMES = st.none() | st.floats(0, 50)
LOCALS = st.builds(
    Local,
    workers=st.sampled_from(["running", "succeeded", "failed"]),
    ranks=st.just(2),
    sessions=st.integers(0, 2),
    parked=st.integers(0, 2),
    yielding_since=TIMES,
    catches=st.booleans(),
    ending_since=TIMES,
    broken_since=TIMES,
    leaving_since=TIMES,
    done_since=TIMES,
    finished_since=TIMES,
    idle_since=TIMES,
    hung_since=TIMES,
    stacks_at=TIMES,
    deadline=TIMES,
    force=st.booleans(),
    hosts_store=st.booleans(),
)
STANDINGS = st.sampled_from([Stay(), JOINS, LOST, STOPPED, OVER])


@given(LOCALS, STANDINGS, st.floats(0, 50))
def test_a_launcher_that_was_asked_to_leave_never_rejoins_and_another_with_time_never_leaves(
    node: Local, standing: Standing, now: float
) -> None:
    action = decide(node, standing, now, LIMITS)
    if isinstance(action, Stop) and node.leaving_since is not None:
        assert action.then != "rejoin"
    if isinstance(action, Stop) and action.then == "leave":
        late = node.deadline is not None and now >= node.deadline - LIMITS.margin_s
        assert node.force or late or node.leaving_since is not None


@given(LOCALS, STANDINGS)
def test_everything_comes_to_an_end(node: Local, standing: Standing) -> None:
    """However long it takes, no launcher waits for ever once something has begun."""
    begun = (node.yielding_since, node.leaving_since, node.done_since if node.workers == "succeeded" else None)
    asked = node.yielding_since is not None or node.workers == "succeeded"
    if asked and any(since is not None for since in begun):
        action = decide(node, standing, 1e6, LIMITS)
        # Saying that one is done begins a wait of its own, which ends in turn.
        began = isinstance(action, AnnounceDone) and node.done_since is None
        # So do what is logged first, and a request to end or to leave; workers that are killed have then ended.
        first = (
            (isinstance(action, KeepStacks) and node.stacks_at is None)
            or (isinstance(action, AskToEnd) and node.ending_since is None)
            or (isinstance(action, LeaveEarly) and node.leaving_since is None)
        )
        assert isinstance(action, Stop | EndUnfinished) or began or first


@given(LOCALS, STANDINGS, st.floats(0, 50))
def test_only_an_unprovoked_failure_may_be_blamed(node: Local, standing: Standing, now: float) -> None:
    action = decide(node, standing, now, LIMITS)
    if isinstance(action, Stop) and action.blame:
        assert node.workers == "failed"
        assert node.yielding_since is None


def test_checkpoints_of_this_round_are_counted_but_not_the_one_that_it_began_with() -> None:
    seen = CheckpointCount()
    assert seen.after(None, 2) == seen
    for number, step, count in ((1, 70, 0), (2, 80, 0), (2, 80, 0), (2, 90, 1), (2, 90, 1), (2, 110, 2), (3, 120, 2)):
        seen = seen.after(Progress(number, 200, 1.0, 1.0, checkpoint_step=step), 2)
        assert seen.count == count
