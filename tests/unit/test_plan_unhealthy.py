"""Nodes whose GPUs cannot train: which are replaced, and how many at once are believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import Health, Result

from supervisor.events import EventKind
from supervisor.features.unhealthy.reports import too_many_unhealthy
from supervisor.model import NodeRecord, NodeState
from tests.unit.scene import NOW, OFFER, J, N, as_job, decide, job, member, name, node, round_of, scene, view, world_of


def ill(*numbers: int, **changes: Any) -> dict[str, Health]:
    return {name(n): replace(Health(name(n), False, NOW, "Xid 48", 48), **changes) for n in numbers}


def test_a_node_with_unhealthy_gpus_is_replaced_first_and_reported_once() -> None:
    after = scene(member(1), member(2), healths=ill(2))
    found = after.node(2)
    assert (found.state, found.doomed, found.needs_replacement) == (N.MEMBER, True, True)
    assert [each.replaces for each in after.new] == [name(2)]
    (event,) = [each for each in after.events if each.kind is EventKind.NODE_UNHEALTHY]
    assert (event.node, event.data) == (name(2), {"xid": 48})
    assert (found.unhealthy, event.text) == ("Xid 48", f"{name(2)} has unhealthy GPUs and is replaced: Xid 48")
    again = scene(member(1), found, healths=ill(2))
    assert EventKind.NODE_UNHEALTHY not in again.event_kinds


@pytest.mark.parametrize("state", [N.READY, N.MEMBER, N.SUSPECT])
def test_gpus_count_wherever_the_node_may_train(state: NodeState) -> None:
    after = scene(member(1), node(2, state, state_since=NOW - 5), round=round_of(1, 2), healths=ill(2))
    assert after.node(2).unhealthy_at == NOW


@pytest.mark.parametrize(
    ("reason", "kept"),
    [("", "its agent gives no reason"), (f"{'x' * 200}y\nmore", "x" * 200), ("Xid 79\nmore", "Xid 79")],
)
def test_the_reason_why_gpus_are_unhealthy_is_one_short_line(reason: str, kept: str) -> None:
    assert scene(member(1), member(2), healths=ill(2, reason=reason)).node(2).unhealthy == kept


def test_a_gpu_that_is_gone_costs_its_node_at_once() -> None:
    after = scene(member(1), member(2), healths=ill(2, fatal=True))
    assert after.state(2) in {N.LOST, N.TERMINATING}
    assert EventKind.NODE_LOST in after.event_kinds


@pytest.mark.parametrize(
    ("node_", "messages"),
    [
        (member(2), {"healths": ill(2, healthy=True)}),
        (node(2, N.DRAINING), {"healths": ill(2)}),
        (member(2), {"healths": ill(2), "result": Result("success", "", 1)}),
    ],
)
def test_whose_gpus_are_of_no_interest(node_: NodeRecord, messages: Any) -> None:
    after = scene(member(1), node_, **messages)
    assert not after.node(2).unhealthy
    assert EventKind.NODE_UNHEALTHY not in after.event_kinds


def test_of_more_than_one_and_more_than_a_tenth_at_once_none_is_replaced() -> None:
    after = scene(member(1), member(2), healths=ill(1, 2))
    assert not any(each.doomed for each in after.nodes.values())
    assert after.event_kinds.count(EventKind.UNHEALTHY_HELD) == 1
    again = scene(after.node(1), after.node(2), healths=ill(1, 2))
    assert again.events == []
    one_more = scene(after.node(1), after.node(2), member(3), record=job(3), healths=ill(1, 2, 3))
    assert (one_more.events, one_more.node(3).unhealthy) == ([], "Xid 48"), "people know"
    three = scene(member(1), member(2), member(3), record=job(3), healths=ill(1, 2, 3))
    (event,) = [each for each in three.events if each.kind is EventKind.UNHEALTHY_HELD]
    assert event.text.startswith("3 nodes report unhealthy GPUs at once, so none of them is replaced: look at nvidia")
    better = scene(after.node(1), after.node(2), healths=ill(1, healthy=True) | ill(2))
    assert (better.node(1).unhealthy, better.node(2).doomed) == ("", True)


@pytest.mark.parametrize(("ago_s", "held"), [(599.0, True), (600.0, False)])
def test_one_that_was_replaced_counts_for_ten_minutes_although_its_report_is_gone(ago_s: float, held: bool) -> None:
    gone = node(3, N.GONE, has_joined=True, unhealthy="x", unhealthy_at=NOW - ago_s, took_over_from="")
    after = scene(member(1), member(2), gone, healths=ill(2))
    assert after.node(2).doomed is not held
    assert (EventKind.UNHEALTHY_HELD in after.event_kinds) is held
    many = [member(n) for n in range(4, 34)]
    assert scene(member(2), *many, gone, record=job(31), healths=ill(2)).node(2).doomed, "two of thirty are a few"


@pytest.mark.parametrize(("ago_s", "held"), [(599.0, True), (600.0, False)])
def test_one_that_reported_it_until_it_left_for_another_reason_counts_for_ten_minutes(ago_s: float, held: bool) -> None:
    gone = replace(node(3, N.GONE, has_joined=True, unhealthy="x"), state_since=NOW - ago_s)
    after = scene(member(1), member(2), gone, healths=ill(2))
    assert after.node(2).doomed is not held


@pytest.mark.parametrize(("ago_s", "blocked"), [(3599.0, True), (3600.0, False)])
def test_the_third_machine_of_a_type_within_an_hour_blocks_it(ago_s: float, blocked: bool) -> None:
    gone = [node(n, N.GONE, has_joined=True, unhealthy_at=NOW - at) for n, at in ((3, 700.0), (4, ago_s))]
    after = scene(member(1), member(2), *gone, healths=ill(2))
    reports = [each.text for each in after.events if each.kind is EventKind.MACHINE_TYPE_BLOCKED]
    assert bool(reports) is blocked
    assert (after.new == []) is blocked
    if blocked:
        text = "local machine type small is blocked for 60 min for job: GPUs of 3 machines died within 60 min. "
        assert reports == [f"{text}The last error: Xid 48"]


@pytest.mark.parametrize(("owner", "for_all"), [("ann", False), ("bob", True)])
def test_it_is_blocked_for_all_jobs_once_nodes_of_two_owners_say_so(owner: str, for_all: bool) -> None:
    gone = [node(n, N.GONE, has_joined=True, unhealthy_at=NOW - at) for n, at in ((3, 700.0), (4, 800.0))]
    mine = view(replace(job(2), owner="ann"), [member(1), member(2), *gone], healths=ill(2))
    died = as_job(node(1, N.GONE, has_joined=True, unhealthy_at=NOW - 700), "other")
    others = view(replace(as_job(job(1, J.WAITING), "other"), owner=owner), [died])
    after = decide(world_of(mine, others))
    refused = [after.volatile.capacity.refusal(OFFER, NOW, spare=False, job=each) for each in ("job", "other")]
    assert [each is not None for each in refused] == [True, for_all]


def at_once(*nodes: NodeRecord, **messages: Any) -> int:
    return too_many_unhealthy(world_of(view(job(len(nodes)), nodes, **messages)), "", NOW)


@pytest.mark.parametrize("state", NodeState)
def test_only_nodes_that_could_train_count(state: NodeState) -> None:
    counts = state in {N.READY, N.MEMBER, N.SUSPECT}
    assert at_once(member(1), node(2, state), healths=ill(1, 2)) == (2 if counts else 0)


def test_a_node_without_a_record_and_one_that_is_well_again_do_not_count() -> None:
    assert at_once(member(1), member(2), healths=ill(1, 9)) == 0
    assert at_once(member(1), member(2), healths=ill(1) | ill(2, healthy=True)) == 0


@pytest.mark.parametrize(("there", "held"), [(19, 2), (20, 0), (21, 0)])
def test_a_tenth_is_believed(there: int, held: int) -> None:
    assert at_once(*(member(n) for n in range(1, there + 1)), healths=ill(1, 2)) == held
