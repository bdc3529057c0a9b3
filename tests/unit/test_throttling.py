"""How far apart a cloud's refused requests are repeated, and whose turn it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.model import NodeRecord
from supervisor.planner.throttling import (
    BURST_S,
    FIRST_GAP_S,
    FORGOTTEN_S,
    MAX_GAP_S,
    MIN_GAP_S,
    RequestLimit,
    give_turns,
    granted,
    refused,
)
from tests.unit.scene import NOW, N, name, node

KNOWN = RequestLimit(gap_s=1.0, used_until=NOW - 10.0, answered_at=NOW, apart_at=NOW - 60.0)
CLOUD = node(1, N.REQUESTED).offer.cloud


def waiting(number: int, **more: Any) -> NodeRecord:
    """A node that has repeated its request."""
    return node(number, N.REQUESTED, **{"launch_attempts": 2, "created_at": NOW - 100.0 + number} | more)


def test_many_first_refusals_say_nothing_of_the_gap_and_repeated_ones_once() -> None:
    first = refused(None, waiting(1, launch_attempts=1), NOW)
    assert first.gap_s == FIRST_GAP_S
    assert refused(first, waiting(2, launch_attempts=1), NOW + 5.0).gap_s == FIRST_GAP_S
    once = refused(KNOWN, waiting(1), NOW)
    assert once.gap_s > KNOWN.gap_s
    assert refused(once, waiting(2), NOW).gap_s == once.gap_s
    assert refused(once, waiting(2), NOW + BURST_S).gap_s > once.gap_s
    assert refused(KNOWN, waiting(1), NOW + FORGOTTEN_S + 1.0).gap_s == FIRST_GAP_S


def test_the_gap_has_bounds() -> None:
    closer = apart = KNOWN
    for number in range(1000):
        closer = granted(closer, waiting(1), NOW)
        apart = refused(replace(apart, answered_at=NOW + number * BURST_S), waiting(1), NOW + number * BURST_S)
    assert (closer.gap_s, apart.gap_s) == (MIN_GAP_S, MAX_GAP_S)
    assert granted(KNOWN, waiting(1, launch_attempts=1), NOW).gap_s == KNOWN.gap_s, "a first request says nothing"


@pytest.mark.parametrize(("gap_s", "turns"), [(1.0, 2), (0.5, 4), (30.0, 0), (5.0, 1)])
def test_the_oldest_come_first_and_no_more_than_a_short_while_is_made_up_for(gap_s: float, turns: int) -> None:
    known = {CLOUD: replace(KNOWN, gap_s=gap_s)}
    found, after = give_turns(known, [waiting(number) for number in range(9, 0, -1)], NOW)
    assert found == {name(number) for number in range(1, turns + 1)}
    assert give_turns(after, [waiting(9)], NOW)[0] == frozenset(), "these turns are used"
    assert give_turns(after, [waiting(9)], NOW + gap_s)[0] == {name(9)}


def test_what_is_forgotten_gives_no_turns() -> None:
    assert give_turns({CLOUD: KNOWN}, [waiting(1)], NOW + FORGOTTEN_S + 1.0) == (frozenset(), {})


def test_a_node_that_uses_no_turn_keeps_nobody_from_one() -> None:
    """As one for which its job has no room left."""
    limits, had = {CLOUD: replace(KNOWN, gap_s=BURST_S)}, list[str]()
    for number in range(9):
        turns, limits = give_turns(limits, [waiting(1), waiting(2), waiting(3)], NOW + number * BURST_S)
        had += turns
    assert {each: had.count(each) for each in had} == {name(1): 3, name(2): 3, name(3): 3}


def test_a_clock_that_is_set_back_neither_gives_many_turns_at_once_nor_stops_them() -> None:
    nodes = [waiting(number) for number in range(1, 10)]
    none, after = give_turns({CLOUD: KNOWN}, nodes, NOW - 3600.0)
    assert none == frozenset()
    assert len(give_turns(after, nodes, NOW - 3599.0)[0]) == 1
