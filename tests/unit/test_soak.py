"""What `make soak-training` draws and computes: plans, costs, growth; and the gaps of `make chaos`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotsup_trainer.session.audit import Report, RoundChange, RoundSpan
from spotsup_trainer.wire import Round, RoundMember

from tests.soak import plan, verdict
from tests.soak.fleet import Done
from tests.soak.nodes import Usage
from tests.soak.plan import Change, Cluster, Kind
from tests.support.console import largest_gap_s, percentile

pytestmark = pytest.mark.long

SEEDS = st.integers(0, 10**6)


# -- plans -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_the_same_seed_draws_the_same_plan(seed: int) -> None:
    assert plan.draw(seed, 40) == plan.draw(seed, 40)
    assert plan.draw(seed, 40)[:20] == plan.draw(seed, 20)


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_a_plan_has_all_kinds_and_keeps_within_its_bounds(seed: int) -> None:
    changes = plan.draw(seed, 200)
    assert len(changes) == 200
    assert min(Counter(change.kind for change in changes)[kind] for kind in Kind) >= 4
    for change in changes:
        assert 2 <= len(change.after.members) <= plan.MAX_MEMBERS
        assert len(change.after.unhinted) <= 1
        assert len(change.after.spares) <= 1


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_every_victim_exists_and_no_node_is_lost_twice(seed: int) -> None:
    there, names = plan.start(), set(plan.start().members)
    for change in plan.draw(seed, 100):
        known = {*there.members, *there.spares, *there.unhinted, *change.fresh}
        assert not names & set(change.fresh)
        assert set(change.victims) | set(change.spares) | set(change.joined) <= known
        all_nodes = [*change.after.members, *change.after.spares, *change.after.unhinted]
        assert len(all_nodes) == len(set(all_nodes))
        assert set(all_nodes) <= known
        there, names = change.after, names | set(change.fresh)


def test_steady_rounds_use_the_same_three_launchers() -> None:
    changes = plan.steady(9)
    assert len(changes) == 9
    assert {change.kind for change in changes} == {Kind.WORKER, Kind.UNHINTED, Kind.JOINS}
    assert all(not change.fresh for change in changes)
    assert [len(change.after.members) for change in changes[:5]] == [3, 2, 2, 3, 3]


# -- verdicts --------------------------------------------------------------------------------------------------


def done(number: int, kind: Kind, began_at: float) -> Done:
    change = Change(
        number, kind, 1, ("a",), (), (), (), delay_s=0.0, tombstoned=True, silent=False, after=Cluster(("b",))
    )
    return Done(change, began_at, began_at + 1.0, number, number + 1)


def report(*changes: RoundChange, missed: int = 0) -> Report:
    spans = tuple(RoundSpan(c.after, 2, 1, 2, 10.0 * c.after, 10.0 * c.after + 5.0) for c in changes)
    return Report(spans, changes, 10, 100, 0, missed, 1.0, 0.5)


def formed(number: int, *nodes: str, app_failures: int = 0) -> Round:
    """`a1` is node a in its first incarnation."""
    members = tuple(RoundMember(each[0], each, "127.0.0.1", 1) for each in nodes)
    return Round(number, members, 0.0, app_failures=app_failures)


def test_a_change_costs_all_rounds_until_the_next_one_begins() -> None:
    found = verdict.costs(
        [done(1, Kind.LOST, 19.0), done(2, Kind.JOINS, 39.0)],
        report(
            *(RoundChange(1, 2, 3, 0.5), RoundChange(2, 3, 2, 0.25), RoundChange(3, 4, 0, 1.0)),
            RoundChange(4, 5, 7, 9.0),
        ),
        until=49.0,
    )
    assert [(cost.rounds, cost.pause_s, cost.steps_lost) for cost in found] == [(2, 0.75, 5), (1, 1.0, 0)]


@pytest.mark.parametrize(
    ("kind", "lost", "missed", "blamed", "text"),
    [
        (Kind.LOST, 9, 0, 0, ""),
        (Kind.LOST, 11, 0, 0, "change 1, a node is lost: 11 steps were lost; at most 10 may be"),
        (Kind.LEAVES, 1, 0, 0, "1 steps were lost; at most 0 may be"),
        (Kind.LOST, 0, 1, 0, "0 samples were repeated, 1 missed"),
        (Kind.LOST, 0, 0, 1, "the program was blamed 1 times; 0 workers were killed"),
        (Kind.WORKER, 0, 0, 1, ""),
        (Kind.JOIN_AND_WORKER, 0, 0, 0, ""),
        (Kind.JOIN_AND_WORKER, 0, 0, 1, ""),
        (Kind.JOIN_AND_WORKER, 0, 0, 2, "the program was blamed 2 times; 0 workers were killed, and 1 while"),
        (Kind.WORKER, 0, 0, 0, "the program was blamed 0 times; 1 workers were killed"),
    ],
)
def test_broken_promises_are_reported(kind: Kind, lost: int, missed: int, blamed: int, text: str) -> None:
    what = report(RoundChange(1, 2, lost, 0.5), missed=missed)
    rounds = {1: formed(1, "a1", "b1"), 2: formed(2, "b1", app_failures=blamed)}
    broken = verdict.broken_promises(verdict.costs([done(1, kind, 19.0)], what, math.inf), what, rounds, 10)
    assert len(broken) == (1 if text else 0)
    assert text in "".join(broken)


def test_survivors_that_change_their_order_are_reported() -> None:
    what = report(RoundChange(1, 2, 0, 0.5))
    costs = verdict.costs([done(1, Kind.LOST, 19.0)], what, math.inf)
    ordered = {1: formed(1, "a1", "b1", "c1"), 3: formed(3, "a1", "c1", "d1"), 4: formed(4, "c1", "d1", "a2")}
    assert verdict.broken_promises(costs, what, ordered, 10) == []
    (broken,) = verdict.broken_promises(costs, what, ordered | {5: formed(5, "d1", "c1")}, 10)
    assert "round 5 has its survivors in another order" in broken


def usage(number: int, **more: Any) -> Usage:
    return replace(Usage(number, True, 200_000, 150_000, 10, 4, 1, 5), **more)


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ({}, ""),
        ({"rss_kib": 208_000}, ""),
        ({"rss_kib": 209_000}, "n1's launcher grew from 200000 to 209000 KiB over rounds 20 to 200"),
        ({"server_kib": 160_000}, "n1's fork server grew"),
        ({"files": 13}, "10 files open and then 13"),
        ({"threads": 6}, "4 threads and then 6"),
        ({"run_dir": 8}, "5 files in its run folder and then 8"),
        ({"listening": 2, "trains": False}, ""),
        ({"listening": 2}, "listened on up to 2 ports at once in rounds 200"),
    ],
)
def test_what_a_launcher_accumulates_is_reported(last: dict[str, int], text: str) -> None:
    broken = verdict.growth("n1", [usage(1, rss_kib=1), usage(20), usage(100), usage(200, **last)], warm=1)
    assert len(broken) == (1 if text else 0)
    assert text in "".join(broken)


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert percentile([1.0, 2.0], 0.5) == 1.0


# -- gaps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "gap_s"),
    [
        ([9.0, 11.0, 12.0, 19.5, 21.0], 7.5),
        ([5.0, 14.0, 15.0, 16.0, 21.0], 4.0),
        ([11.0, 12.0, 13.0], 7.0),
        ([1.0, 2.0], 10.0),
        ([], 10.0),
    ],
)
def test_the_largest_gap_is_that_of_the_outage(times: list[float], gap_s: float) -> None:
    """From 10 to 20: what came before does not count, and steps that never came again do."""
    assert largest_gap_s(times, 10.0, 20.0) == gap_s
