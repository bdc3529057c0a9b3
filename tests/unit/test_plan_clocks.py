"""Times that a clock has written which was far ahead, and has been set back since."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import InstanceState
from supervisor.planner.clocks import AHEAD_S
from supervisor.planner.world import Rules
from tests.unit.scene import NOW, J, N, job, listing, machine, member, node, scene

DAY_S = 86_400.0
RULES = Rules()
ENDING = node(3, N.TERMINATING, since=NOW - 5, retry_at=NOW + 5)
LATEST = NOW + RULES.ready_timeout_s


@pytest.mark.parametrize(
    ("ahead", "right"),
    [
        ({"since": NOW + DAY_S}, {"since": NOW}),
        ({"launched_at": NOW + DAY_S}, {"launched_at": NOW}),
        ({"retry_at": NOW + DAY_S}, {"retry_at": LATEST}),
        ({"since": NOW + AHEAD_S + 1, "retry_at": NOW + 1}, {"since": NOW, "retry_at": NOW + 1}),
    ],
)
def test_what_was_written_of_a_node_by_a_clock_that_was_ahead_is_put_right(
    ahead: dict[str, Any], right: dict[str, Any]
) -> None:
    known = replace(ENDING, **ahead)
    assert scene(member(1), member(2), known).node(3) == replace(known, **right)


def test_a_machine_that_was_ended_by_a_clock_that_was_ahead_is_let_go_of_when_it_is_gone() -> None:
    found = scene(member(1), member(2), replace(ENDING, since=NOW + DAY_S, launched_at=NOW + DAY_S)).node(3)
    gone = listing(machine(1), machine(2), machine(3, InstanceState.TERMINATED), taken_at=NOW + 1)
    assert scene(member(1), member(2), found, soft={"clouds": {"local": gone}}).state(3) is N.GONE


@pytest.mark.parametrize("ahead_s", [AHEAD_S, 9.0])
def test_what_was_written_by_a_clock_that_is_a_little_ahead_is_left(ahead_s: float) -> None:
    known = replace(ENDING, since=NOW + ahead_s, launched_at=NOW + ahead_s, retry_at=LATEST + ahead_s)
    record = job(2, J.RUNNING, spare_retry_at=NOW + RULES.spare_retry_s + ahead_s)
    after = scene(member(1), member(2), known, record=record)
    assert not after.commit.nodes
    assert after.job == record


def test_a_spare_and_the_end_of_a_pause_wait_for_no_day_that_only_a_clock_has_seen() -> None:
    ahead = job(2, spare_nodes=1, spare_retry_at=NOW + DAY_S)
    assert scene(member(1), member(2), record=ahead).job.spare_retry_at == NOW + RULES.spare_retry_s
    paused = job(2, pause_at=NOW + DAY_S)
    assert scene(member(1), member(2), record=paused).job.pause_at == NOW
    running = scene(member(1), member(2), record=ahead).job
    assert running.pause_at == 0.0
