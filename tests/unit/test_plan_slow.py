"""Nodes that all others wait for: what a report of ranks' times says, and what is decided about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.wire import RankTimes

from supervisor.events import EventKind
from supervisor.features.slow.rank_times import Watch, factors, watched
from supervisor.features.slow.record import SlowNode
from supervisor.model import JobRecord
from supervisor.planner.world import Rules
from tests.unit.scene import NOW, SOON, Decided, J, N, job, member, name, names, node, scene, spec

RULES = Rules()
KINDS = dict.fromkeys(("a", "b", "c", "d"), "small")


def times_of(*step_s: float, sample_s: Sequence[float] | None = None, **changes: Any) -> RankTimes:
    return replace(RankTimes(1, NOW, step_s, step_s if sample_s is None else tuple(sample_s)), **changes)


def follow(*reports: tuple[float, RankTimes], kinds: dict[str, str] = KINDS) -> Watch:
    """What was seen after reports at these times."""
    watch = None
    for at, times in reports:
        watch = watched(watch, replace(times, at=at), kinds, RULES.slow.factor, RULES.slow.lasts_s, at)
    assert watch is not None
    return watch


# -- what a report says ------------------------------------------------------------------------------------


def test_a_node_is_as_slow_as_its_slowest_rank_and_is_compared_with_the_median() -> None:
    found = factors(times_of(1.0, 1.1, 1.0, 2.0, 1.0, 0.9, 1.0, 1.0), KINDS)
    assert found == pytest.approx({"a": 1.1 / 1.05, "b": 2.0 / 1.05, "c": 1.0 / 1.05, "d": 1.0 / 1.05})


def test_a_part_that_is_larger_by_a_sample_makes_no_node_slow() -> None:
    """Of ten samples over four ranks two have three each: half as long again, and as fast for each sample."""
    assert max(factors(times_of(3.0, 3.0, 2.0, 2.0, sample_s=[1.0] * 4), KINDS).values()) == 1.0
    constant = factors(times_of(2.0, 2.0, 2.0, 2.0, sample_s=[0.67, 0.67, 1.0, 1.0]), KINDS)
    assert max(constant.values()) == 1.0, "what does not depend on the number of samples"
    assert factors(times_of(2.0, 1.0, 1.0, 1.0, sample_s=[0.0] * 4), KINDS)["a"] == 2.0, "their number is not known"


@pytest.mark.parametrize("step_s", [(), (1.0,) * 3, (1.0,) * 5, (0.0,) * 4, (-1.0,) * 4])
def test_a_report_that_does_not_fit_says_nothing(step_s: tuple[float, ...]) -> None:
    assert factors(times_of(*step_s), KINDS) == {}
    assert factors(times_of(*step_s), {}) == {}


def test_a_node_that_is_not_known_as_a_whole_is_not_compared() -> None:
    assert factors(times_of(0.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), KINDS).keys() == {"b", "c", "d"}
    assert factors(times_of(1.0, 1.0, sample_s=[1.0]), {"a": "", "b": ""}) == {}


def test_nodes_of_different_machines_are_not_compared() -> None:
    assert factors(times_of(1.0, 1.0, 3.0, 3.0), {"a": "h100", "b": "h100", "c": "a10", "d": "a10"})["c"] == 1.0
    assert "d" not in factors(times_of(1.0, 1.0, 1.0, 3.0), {**KINDS, "d": "another"})


@given(st.lists(st.floats(0.001, 1000.0), min_size=4, max_size=4))
def test_no_more_than_half_of_all_are_ever_slow(step_s: list[float]) -> None:
    assert sum(factor >= RULES.slow.factor for factor in factors(times_of(*step_s), KINDS).values()) <= 2


def test_reports_have_to_say_so_but_for_single_ones() -> None:
    slow, well = times_of(1.0, 1.0, 1.0, 1.31), times_of(1.0, 1.0, 1.0, 1.29)
    steadily = follow((0.0, slow), (300.0, slow), (600.0, slow))
    assert (steadily.verdicts["d"].slow, steadily.lasted_s("d")) == (True, 600.0)
    single = follow((0.0, slow), (300.0, well), (600.0, slow))
    assert (single.verdicts["d"].slow, single.verdicts["d"].doubted, single.lasted_s("d")) == (True, False, 600.0)
    assert follow((0.0, slow), (600.0, well)).verdicts["d"].doubted
    assert follow((0.0, slow), (200.0, well), (400.0, well), (600.0, slow), (800.0, slow)).lasted_s("d") == 0.0
    assert not follow((0.0, well), (200.0, slow), (400.0, well), (600.0, slow)).verdicts["d"].slow
    assert follow((0.0, slow), (601.0, slow)).lasted_s("d") == 0.0, "nothing is known of the time between"
    assert steadily.lasted_s("d", paused_until=500.0) == 100.0, "etcd was away"


def test_the_same_report_is_no_further_one() -> None:
    seen = watched(None, times_of(1.0, 1.0, 1.0, 2.0), KINDS, 1.3, 600.0, NOW)
    assert watched(seen, times_of(1.0, 1.0, 1.0, 2.0), KINDS, 1.3, 600.0, NOW + 900.0) is seen


# -- what is decided ---------------------------------------------------------------------------------------

SLOW = times_of(1.0, 1.0, 1.0, 2.0)
ALIKE = dict.fromkeys(names(1, 2, 3, 4), "small")
LONG_SLOW = {"watches": {"job-u": follow((NOW - 630.0, SLOW), (NOW - 30.0, SLOW), kinds=ALIKE)}}
FOUR = tuple(member(n, state_since=NOW - 4000.0) for n in (1, 2, 3, 4))


def of(does: str, **more: Any) -> JobRecord:
    limits = {"slow": does}
    return job(4, **{"spec": spec(limits=limits, nodes=4), **more})


def decided(record: JobRecord, *nodes: Any, **more: Any) -> Decided:
    volatile = {**LONG_SLOW, **more.pop("volatile", {})}
    return scene(*(nodes or FOUR), record=record, rank_times=replace(SLOW, at=NOW), volatile=volatile, **more)


def test_people_are_told_once_and_nothing_else_is_done() -> None:
    after = decided(of("tell"))
    (event,) = [each for each in after.events if each.kind is EventKind.NODE_SLOW]
    assert (event.node, event.data) == (name(4), {"factor": 2.0})
    assert (after.node(4).slow.at, after.node(4).doomed, after.new) == (NOW, False, [])
    again = decided(of("tell"), *FOUR[:3], after.node(4))
    assert EventKind.NODE_SLOW not in again.event_kinds


def test_where_the_job_says_so_it_is_replaced_as_one_that_is_drained() -> None:
    after = decided(of("replace"))
    found = after.node(4)
    assert (found.state, found.doomed, found.needs_replacement) == (N.MEMBER, True, True)
    assert [each.replaces for each in after.new] == [name(4)]
    assert after.job.slow.replaced_at == (NOW,)


@pytest.mark.parametrize(
    "changes",
    [
        {"slow": {"replaced_at": (NOW - 3599.0,)}},
        {"slow": {"replaced_at": (NOW - 80_000.0, NOW - 40_000.0, NOW - 4000.0)}},
        {"state": J.DEGRADED},
        {"moves": {"since": NOW - 5.0}},
        {"hang": {"since": NOW - 5.0}},
        {"checkpoints": {"problem": "disk full"}},
        {"spec": spec(limits={"slow": "replace", "usd_per_hour": 2.0}, nodes=4)},
        {"spec": spec(limits={"slow": "replace"}, nodes=4, checkpoints="none")},
    ],
)
def test_when_none_is_replaced(changes: Any) -> None:
    after = decided(of("replace", **changes))
    assert not after.node(4).slow.leaves_at
    assert not any(each.replaces for each in after.new)
    assert EventKind.NODE_SLOW in after.event_kinds, "people are told"


def test_none_is_replaced_while_another_leaves_or_whose_predecessor_was_slow_or_beside_another_slow_one() -> None:
    noticed = replace(FOUR[0], notice=SOON, needs_replacement=True)
    assert not decided(of("replace"), noticed, *FOUR[1:]).node(4).slow.leaves_at
    before = node(5, N.GONE, has_joined=True, needs_replacement=True, slow=SlowNode(leaves_at=NOW - 9000.0))
    successor = replace(FOUR[3], took_over_from=name(5))
    assert not decided(of("replace"), *FOUR[:3], successor, before).node(4).slow.leaves_at
    two = times_of(1.0, 1.0, 2.0, 2.0)
    seen = {"watches": {"job-u": follow((NOW - 630.0, two), (NOW - 30.0, two), kinds=ALIKE)}}
    after = scene(*FOUR, record=of("replace"), rank_times=replace(two, at=NOW), volatile=seen)
    assert after.event_kinds.count(EventKind.NODE_SLOW) == 2
    assert not any(each.doomed for each in after.nodes.values())


def test_one_that_is_not_replaced_in_time_stays() -> None:
    late = replace(FOUR[3], slow=SlowNode(NOW - 3000.0, 2.0, NOW - 1800.0), needs_replacement=True)
    begun = of("replace", slow={"replaced_at": (NOW - 1800.0,)})
    found = decided(begun, *FOUR[:3], late).node(4)
    assert (found.slow.leaves_at, found.needs_replacement, found.doomed) == (0.0, False, False)
    drained = decided(begun, *FOUR[:3], replace(late, drain_requested=True)).node(4)
    assert drained.needs_replacement


def test_one_that_is_as_fast_as_others_again_for_as_long_is_said_to_be() -> None:
    well = times_of(1.0, 1.0, 1.0, 1.0)
    seen = {"watches": {"job-u": follow((NOW - 630.0, well), (NOW - 30.0, well), kinds=ALIKE)}}
    was = replace(FOUR[3], slow=SlowNode(NOW - 5000.0, 2.0))
    after = scene(*FOUR[:3], was, record=of("tell"), rank_times=replace(well, at=NOW), volatile=seen)
    assert EventKind.SLOW_ENDED in after.event_kinds
    assert after.node(4).slow == SlowNode()


def test_a_report_of_another_round_says_nothing() -> None:
    after = scene(*FOUR, record=of("tell"), rank_times=replace(SLOW, at=NOW, round=9), volatile={})
    assert after.volatile.watches == {}


def test_what_was_seen_of_a_job_that_has_ended_is_forgotten() -> None:
    after = decided(of("tell", state=J.SUCCEEDED, ended_at=NOW - 5.0))
    assert after.volatile.watches == {}
