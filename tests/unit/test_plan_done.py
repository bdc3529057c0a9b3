"""Nodes whose ranks have all ended well while others work on: none takes their place, and they may be released."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Done, Result

from provisioners.base import InstanceState
from supervisor.model import NodeRecord, NodeState
from supervisor.planner.actions import Terminate
from tests.unit.scene import (
    NOW,
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
    node,
    round_of,
    scene,
)

LATELY, LONG_AGO = NOW - 30, NOW - 121


def done(*numbers: int, at: float = LATELY, number: int = 1, incarnation: str = "inc-{}") -> dict[str, Done]:
    return {name(n): Done(name(n), incarnation.format(n), number, at) for n in numbers}


def decided(*nodes: NodeRecord, ended: dict[str, Done] | None = None, **more: Any) -> Decided:
    """Node 1 works and hosts the store; what is said of 2, or of 2 and 3."""
    inside = sorted(int(each.id.rpartition("-")[2]) for each in nodes) if nodes else [2]
    known: dict[str, Any] = {
        "record": job(1 + len(inside), min_nodes=1 + len(inside)),
        "round": round_of(1, *inside),
        "hint": hint_of(1, *inside),
        "members": {name(1): launcher(1, "running")},
        "done": done(*inside) if ended is None else ended,
    }
    return scene(member(1), *nodes, **(known | more))


NOTICED = member(2, notice=SOON, needs_replacement=True)
DRAINED = member(2, drain_requested=True, needs_replacement=True)
GONE = [
    node(2, N.LOST, has_joined=True, needs_replacement=True),
    node(2, N.TERMINATING, has_joined=True, needs_replacement=True),
    node(2, N.GONE, has_joined=True, needs_replacement=True),
    node(2, N.DRAINING, has_joined=True),
]


@pytest.mark.parametrize("second", [NOTICED, DRAINED, *GONE])
def test_no_node_takes_the_place_of_one_that_is_done(second: NodeRecord) -> None:
    after = decided(second)
    assert after.new == []
    assert after.job.state is J.RUNNING
    assert after.state(1) is N.MEMBER
    missed = decided(second, ended={})
    assert len(missed.new) == 1, "this one is"


@pytest.mark.parametrize(
    "ended", [done(2, number=2), done(2, incarnation="another"), done(1), {}], ids=["round", "start", "other", "none"]
)
def test_what_was_done_in_another_round_or_start_is_none_of_it(ended: dict[str, Done]) -> None:
    assert len(decided(GONE[2], ended=ended).new) == 1


def test_the_node_that_hosts_the_store_is_replaced_although_it_is_done() -> None:
    first = member(1, notice=SOON, needs_replacement=True)
    after = scene(first, member(2), round=round_of(1, 2), hint=hint_of(1, 2), done=done(1))
    assert len(after.new) == 1


@pytest.mark.parametrize(
    ("first", "report"),
    [
        (member(1, notice=SOON, needs_replacement=True), launcher(1, "running")),
        (node(1, N.LOST, has_joined=True, needs_replacement=True), None),
        (member(1), launcher(1, "waiting")),
        (member(1), launcher(1, "stopping")),
        (member(1), launcher(1, "running", incarnation="another")),
    ],
    ids=["noticed", "lost", "stopped", "outlives", "restarted"],
)
def test_once_one_that_works_leaves_or_is_lost_all_nodes_are_needed_again(first: NodeRecord, report: Any) -> None:
    reports = {name(1): report} if report else {}
    after = scene(
        first, GONE[2], member(3), round=round_of(1, 2, 3), members=reports, done=done(2, 3, at=LONG_AGO), record=job(3)
    )
    assert after.state(3) is N.MEMBER
    assert after.new != []


def test_a_silent_one_that_works_changes_nothing() -> None:
    silent = node(1, N.SUSPECT, has_joined=True, state_since=NOW - 5)
    after = scene(silent, GONE[2], round=round_of(1, 2), members={}, done=done(2), agents={})
    assert after.new == []


@pytest.mark.parametrize(("at", "state"), [(LATELY, N.MEMBER), (LONG_AGO, N.DRAINING)])
def test_a_done_node_is_released_after_finish_minutes(at: float, state: NodeState) -> None:
    ended = done(2, 3, at=at)
    members = {name(n): launcher(n, "running" if n == 1 else "done") for n in (1, 2, 3)}
    after = decided(member(2), member(3), ended=ended, members=members)
    assert [after.state(n) for n in (1, 2, 3)] == [N.MEMBER, state, state]
    assert after.new == []
    over = decided(member(2), ended=done(2, at=at), result=Result("success", "", 1))
    assert over.state(2) is N.MEMBER, "its agent sends the end of its log"


def test_one_that_leaves_is_terminated_at_once_and_the_job_does_not_miss_it() -> None:
    after = decided(node(2, N.DRAINING, has_joined=True))
    assert after.state(2) is N.TERMINATING
    assert [action.node for action in after.does(Terminate)] == [name(2)]
    noticed = decided(NOTICED)
    assert noticed.state(2) is N.MEMBER, "the hint names it still"
    again = decided(noticed.node(2), hint=noticed.hint)
    assert (again.state(2), again.new) == (N.TERMINATING, [])


def test_a_job_whose_other_nodes_are_done_neither_waits_nor_gives_the_last_one_back() -> None:
    others = [node(n, N.GONE, has_joined=True) for n in (2, 3)]
    after = decided(*others, record=job(3, min_nodes=3, gang={"machines": 1, "since": NOW - 500}))
    assert (after.job.state, after.state(1), after.new) == (J.RUNNING, N.MEMBER, [])
    assert after.job.gang.machines == 0
    assert after.job.limits.training_since
    assert after.sentence == "1 of 3 nodes trains, 2 have ended well (round 1)"


def test_when_fewer_nodes_are_wanted_those_that_are_done_go_first() -> None:
    ended = done(2)
    after = scene(
        *map(member, (1, 2, 3)),
        record=job(2),
        round=round_of(1, 2, 3),
        hint=hint_of(1, 2, 3),
        members={name(n): launcher(n, "done" if n == 2 else "running") for n in (1, 2, 3)},
        done=ended,
    )
    assert [after.state(n) for n in (1, 2, 3)] == [N.MEMBER, N.DRAINING, N.MEMBER]
    gone = decided(GONE[2], record=job(1))
    assert gone.state(1) is N.MEMBER, "never the one that works, for those that are gone"


def test_a_notice_of_a_done_node_holds_no_job() -> None:
    """Without it too few are left for a new round; this one goes on."""
    soon = replace(SOON, deadline=NOW + 1)
    after = decided(member(2, notice=soon, needs_replacement=True))
    assert after.hint is None or not after.hint.hold


def test_a_machine_that_its_cloud_took_is_lost_and_not_missed() -> None:
    preempted = machine(2, InstanceState.TERMINATED)
    after = decided(member(2), volatile={"clouds": {"local": listing(machine(1), preempted)}})
    assert (after.state(2), after.node(2).needs_replacement, after.new) == (N.TERMINATING, True, [])
