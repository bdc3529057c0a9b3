"""How far apart a cloud's refused requests are repeated, and whose turn it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import Launched
from supervisor.model import NodeRecord
from supervisor.planner.actions import Launch, LaunchDone
from supervisor.planner.throttling import (
    BURST_S,
    FIRST_GAP_S,
    FORGOTTEN_S,
    MAX_GAP_S,
    MIN_GAP_S,
    RequestLimit,
    give_turns,
    granted,
    limits,
    refused,
)
from tests.unit.scene import NOW, OFFER, Decided, J, N, as_job, decide, job, machine, name, node, view, world_of

KNOWN = RequestLimit(gap_s=1.0, used_until=NOW - 10.0, answered_at=NOW, apart_at=NOW - 60.0)
CLOUD = node(1, N.REQUESTED).offer.cloud


def waiting(number: int, **more: Any) -> NodeRecord:
    """A node that has repeated its request."""
    return node(number, N.REQUESTED, **{"launch_attempts": 2, "created_at": NOW - 100.0 + number} | more)


def test_nothing_takes_turns_before_a_cloud_refuses_and_long_after() -> None:
    assert not limits(None, NOW)
    assert not limits(granted(RequestLimit(), NOW), NOW)
    once = refused(RequestLimit(), NOW)
    assert once.gap_s == FIRST_GAP_S
    assert limits(once, NOW + FORGOTTEN_S)
    assert not limits(once, NOW + FORGOTTEN_S + 1.0)


def test_requests_are_as_far_apart_as_what_was_granted_lately() -> None:
    fast = slow = RequestLimit()
    for number in range(100):
        fast = granted(fast, NOW + number * 0.05)
    assert refused(fast, NOW + 5.0).gap_s == pytest.approx(0.05, rel=0.05)
    for number in range(10):
        slow = granted(slow, NOW + number * 4.0)
    assert refused(slow, NOW + 40.0).gap_s == pytest.approx(4.0)
    assert refused(granted(RequestLimit(), NOW - FORGOTTEN_S - 1.0), NOW).gap_s == FIRST_GAP_S


def test_many_refusals_at_once_say_it_once_and_a_grant_brings_them_closer() -> None:
    once = refused(KNOWN, NOW)
    assert once.gap_s > KNOWN.gap_s
    assert refused(once, NOW).gap_s == once.gap_s
    assert refused(once, NOW + BURST_S).gap_s > once.gap_s
    assert granted(once, NOW).gap_s < once.gap_s


def test_the_gap_has_bounds() -> None:
    closer = apart = KNOWN
    for number in range(1000):
        closer = granted(closer, NOW)
        apart = refused(replace(apart, answered_at=NOW + number * BURST_S), NOW + number * BURST_S)
    assert (closer.gap_s, apart.gap_s) == (MIN_GAP_S, MAX_GAP_S)


def test_a_node_stands_behind_no_more_of_another_job_than_of_its_own() -> None:
    many = [waiting(number) for number in range(1, 9)]
    one = replace(waiting(9), id="other-u-1", job="other", created_at=NOW)
    turns, _ = give_turns({CLOUD: KNOWN}, [*many, one], NOW)
    assert turns == {name(1): 0, "other-u-1": 1}


@pytest.mark.parametrize(("gap_s", "turns"), [(1.0, 2), (0.5, 4), (30.0, 0), (5.0, 1)])
def test_the_oldest_come_first_and_no_more_than_a_short_while_is_made_up_for(gap_s: float, turns: int) -> None:
    known = {CLOUD: replace(KNOWN, gap_s=gap_s)}
    found, after = give_turns(known, [waiting(number) for number in range(9, 0, -1)], NOW)
    assert found == {name(number): number - 1 for number in range(1, turns + 1)}
    assert give_turns(after, [waiting(9)], NOW)[0] == {}, "these turns are used"
    assert give_turns(after, [waiting(9)], NOW + gap_s)[0] == {name(9): 0}


def of_two_jobs(gap_s: float, *outcomes: Any, mine_at: float) -> Decided:
    """A plan about a node of each, which wait at a cloud that limits requests; the other job's since 50 s."""
    mine = waiting(1, created_at=mine_at, error="too many")
    others = [replace(as_job(waiting(1), "other"), created_at=NOW - 50.0, error="too many")]
    jobs = view(job(1, J.STARTING), [mine]), view(as_job(job(1, J.STARTING), "other"), others)
    return decide(world_of(*jobs, volatile={"request_limits": {CLOUD: replace(KNOWN, gap_s=gap_s)}}), *outcomes)


def test_a_node_whose_request_has_just_been_granted_takes_no_turn_from_another() -> None:
    asked = [each.node.job for each in of_two_jobs(BURST_S, mine_at=NOW - 90.0).does(Launch)]
    assert asked == ["job"]
    granted_now = LaunchDone(name(1), OFFER, Launched(machine(1)))
    asked = [each.node.job for each in of_two_jobs(BURST_S, granted_now, mine_at=NOW - 90.0).does(Launch)]
    assert asked == ["other"]


@pytest.mark.parametrize(("mine_at", "order"), [(NOW - 90.0, ["job", "other"]), (NOW - 10.0, ["other", "job"])])
def test_who_has_waited_longest_asks_first_and_not_always_the_same_job_last(mine_at: float, order: list[str]) -> None:
    after = of_two_jobs(BURST_S / 2, mine_at=mine_at)
    assert [each.job for each in after.plan.commits if each.actions] == order


def test_what_is_forgotten_gives_no_turns() -> None:
    known = {CLOUD: KNOWN}
    assert give_turns(known, [waiting(1)], NOW + FORGOTTEN_S + 1.0) == ({}, known)


def test_a_node_that_uses_no_turn_keeps_nobody_from_one() -> None:
    """As one for which its job has no room left."""
    known, had = {CLOUD: replace(KNOWN, gap_s=BURST_S)}, list[str]()
    for number in range(9):
        turns, known = give_turns(known, [waiting(1), waiting(2), waiting(3)], NOW + number * BURST_S)
        had += turns
    assert {each: had.count(each) for each in had} == {name(1): 3, name(2): 3, name(3): 3}


def test_a_clock_that_is_set_back_neither_gives_many_turns_at_once_nor_stops_them() -> None:
    nodes = [waiting(number) for number in range(1, 10)]
    none, after = give_turns({CLOUD: KNOWN}, nodes, NOW - 3600.0)
    assert none == {}
    assert len(give_turns(after, nodes, NOW - 3599.0)[0]) == 1
