"""The one sentence per job: what is done and why, short also for a job of many nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from spotsup_trainer.wire import AgentStatus, Result

from provisioners.base import InstanceState, Scope
from supervisor.market.capacity import CapacityMemory, CapacityRefusal
from supervisor.model import JobRecord, NodeRecord, NodeState
from supervisor.planner.sentences import MAX_ERROR_CHARACTERS, MAX_REASON_CHARACTERS, first_line, named, node_count
from supervisor.spec import parse_spec
from tests.unit.scene import (
    FULL,
    NONE_KNOWN,
    NOW,
    OFFER,
    SOON,
    J,
    N,
    hint_of,
    job,
    listing,
    machines_of,
    member,
    name,
    node,
    offering,
    round_of,
    scene,
    spec,
)

TWO_LINES = 200
ELSEWHERE = replace(OFFER, zone="zone-b")
FULL_HERE = CapacityMemory((CapacityRefusal(OFFER, Scope.ZONE, NOW + 60, "zone-a is full"),))
DATA = parse_spec({"name": "job", "kind": "data", "run": "copy", "placement": {"cloud": "local"}})
CHEAP = job(2, spec=spec(limits={"usd_per_hour": 0.6}))
REGIONAL = job(2, spec=spec(placement={"spread": "region"}))
LOST = node(90, N.GONE, has_joined=True, needs_replacement=True)


UNHEALTHY: dict[str, Any] = {"unhealthy": "Xid 79", "unhealthy_at": NOW - 9, "needs_replacement": True}


def gone(number: int) -> NodeRecord:
    """A node that the round lost."""
    return node(number, N.GONE, has_joined=True, needs_replacement=True)


@pytest.mark.parametrize(
    ("nodes", "record", "messages", "sentence"),
    [
        ([member(1), member(2)], job(2), {}, "2 of 2 nodes train (round 1)"),
        (
            [node(1, N.TERMINATING, retry_at=NOW + 9)],
            job(2, J.FAILED, reason="too dear"),
            {},
            "failed: too dear; releasing 1 node",
        ),
        ([node(1, N.GONE)], job(2, J.FAILED, reason="too dear"), {"hint": None}, "failed: too dear"),
        ([node(1, N.GONE)], job(2), {"result": Result("success", "", 1)}, "finished: exit code 0"),
        (
            [member(1), node(2, N.READY), node(3, N.SUSPECT, state_since=NOW)],
            job(2, pause={"at": NOW}),
            {},
            "pausing: waiting for a checkpoint of 2 nodes",
        ),
        (
            [member(1)],
            job(1, spare_nodes=1),
            {},
            "1 of 1 node trains (round 1); no spare yet; 1 spare requested",
        ),
        (
            [member(1), node(2, N.READY)],
            job(1, spare_nodes=1),
            {"hint": hint_of(1, spares=[2])},
            "1 of 1 node trains (round 1); 1 spare",
        ),
        (
            [member(1), node(2, N.READY), node(3, N.READY)],
            job(1, spare_nodes=2),
            {"hint": hint_of(1, spares=[2, 3])},
            "1 of 1 node trains (round 1); 2 spares",
        ),
        (
            [member(1), node(2, N.READY)],
            job(1, spare_nodes=2),
            {"hint": hint_of(1, spares=[2])},
            "1 of 1 node trains (round 1); 1 of 2 spares; 1 spare requested",
        ),
        (
            [member(1, notice=SOON, needs_replacement=True), member(2)],
            job(2),
            {},
            "2 of 2 nodes train (round 1); job-u-1 will be preempted in about 60 s; 1 replacement requested",
        ),
        (
            [member(1, notice=replace(SOON, deadline=NOW - 7)), member(2)],
            job(1),
            {},
            "2 of 1 node train (round 1); job-u-1 will be preempted in about 0 s",
        ),
        (
            [member(1), member(2), node(3, N.DRAINING)],
            job(2),
            {},
            "2 of 2 nodes train (round 1); job-u-3 is draining",
        ),
        (
            [member(1), member(2, drain_requested=True, needs_replacement=True)],
            job(2),
            {},
            "2 of 2 nodes train (round 1); job-u-2 leaves once replaced; 1 replacement requested",
        ),
        (
            [member(1), node(2, N.SUSPECT, state_since=NOW)],
            job(2),
            {"round": round_of(1, 2)},
            "1 of 2 nodes trains (round 1); job-u-2 is silent",
        ),
        (
            [member(1), node(2, N.BOOTSTRAPPING, error="no route\nmore", retry_at=NOW + 9)],
            job(2),
            {},
            "scaling up: 1 of 2 nodes trains (round 1); 1 node is bootstrapping (no route)",
        ),
        (
            [member(1), node(2, N.BOOTSTRAPPING), node(3, N.REQUESTED), node(4, N.REQUESTED, error="slow")],
            job(4),
            {},
            "scaling up: 1 of 4 nodes trains (round 1); 3 nodes: 1 bootstrapping, 2 requested (slow)",
        ),
        (
            [member(1), node(2, N.BOOTSTRAPPING, bootstrapped=True, ready_by=NOW + 9)],
            job(2),
            {"agents": {name(2): AgentStatus(name(2), "boot", 1, 0.0, "1", preparing="importing transformers")}},
            "scaling up: 1 of 2 nodes trains (round 1); 1 node is bootstrapping; 1 node imports what the program needs",
        ),
        ([node(1, N.READY)], job(1, J.STARTING), {}, "waiting for 1 node to begin; 1 node is ready"),
        (
            [node(1, N.READY)],
            job(1, J.STARTING, spare_nodes=1),
            {"volatile": NONE_KNOWN},
            "waiting for 1 node to begin; 1 node is ready; asking local for offers",
        ),
        (  # as many as one transaction takes; the others follow with the next plan
            [],
            job(200, J.STARTING, max_nodes=200),
            {},
            "waiting for 1 node to begin; 51 nodes requested",
        ),
        ([node(1, N.READY)], job(1, J.WAITING), {"round": round_of(7)}, "no node trains"),
        ([member(1)], job(1, spec=DATA), {}, "the command runs (round 1)"),
        (
            [member(1), gone(2), gone(3)],
            job(3, J.WAITING, min_nodes=3),
            {"round": round_of(1, 2, 3)},
            "1 of at least 3 nodes is here, and none trains (round 1); 2 replacements requested",
        ),
        (
            [member(1), member(2), gone(3)],
            job(3, J.WAITING, min_nodes=3),
            {"round": round_of(1, 2, 3)},
            "2 of at least 3 nodes are here, and none trains (round 1); 1 replacement requested",
        ),
        (
            [member(1), member(2), node(3, N.SUSPECT, state_since=NOW)],
            job(3, J.WAITING, min_nodes=3),
            {"round": round_of(1, 2, 3)},
            "2 of 3 nodes train (round 1); job-u-3 is silent",
        ),
        (
            [member(1), member(2)],
            job(3, J.WAITING, min_nodes=3),  # as a user set it while two trained
            {"round": round_of(1, 2)},
            "2 of 3 nodes train (round 1); 1 node requested",
        ),
        (
            [member(1), member(2, **UNHEALTHY), node(3, N.DRAINING, **UNHEALTHY)],
            job(2, max_nodes=2),
            {},
            "2 of 2 nodes train (round 1); job-u-3 is draining; job-u-2 has unhealthy GPUs; 1 replacement requested",
        ),
        (
            [member(1), member(2, drain_requested=True, **UNHEALTHY)],
            job(2),
            {},
            "2 of 2 nodes train (round 1); job-u-2 has unhealthy GPUs; 1 replacement requested",
        ),
    ],
)
def test_the_sentence_says_what_is_done_and_why(nodes: Any, record: JobRecord, messages: Any, sentence: str) -> None:
    assert scene(*nodes, record=record, **messages).sentence == sentence


def test_few_nodes_of_several_kinds_are_all_named_and_more_are_counted() -> None:
    soon, later = SOON, replace(SOON, deadline=NOW + 99)
    noticed = [member(1, notice=later, needs_replacement=True), member(2, notice=soon, needs_replacement=True)]
    few = scene(*noticed, member(3), node(4, N.DRAINING), record=job(3, max_nodes=8), volatile=NONE_KNOWN)
    assert "; job-u-1, job-u-2 will be preempted in about 60 s; job-u-4 is draining; " in few.sentence
    more = scene(*noticed, member(3), node(4, N.DRAINING), node(5, N.DRAINING), volatile=NONE_KNOWN)
    assert "; 2 nodes will be preempted in about 60 s; 2 are draining" in more.sentence


def test_a_draining_node_with_a_notice_is_listed_once_as_preempted() -> None:
    after = scene(member(1), member(2), node(3, N.DRAINING, notice=SOON, drain_requested=True), volatile=NONE_KNOWN)
    assert after.sentence == "2 of 2 nodes train (round 1); job-u-3 will be preempted in about 60 s"


def test_a_draining_node_that_a_user_drains_is_listed_once_as_draining() -> None:
    after = scene(member(1), member(2), node(3, N.DRAINING, drain_requested=True), volatile=NONE_KNOWN)
    assert after.sentence == "2 of 2 nodes train (round 1); job-u-3 is draining"


def test_a_job_that_lost_a_node_is_not_scaling_up() -> None:
    lost = node(9, N.GONE, has_joined=True, needs_replacement=True)
    assert scene(member(1), lost).sentence.startswith("1 of 2 nodes trains (round 1); 1 replacement requested")
    outside = scene(member(1), node(2, N.READY, has_joined=True), hint=hint_of(1, 2))
    assert outside.sentence == "1 of 2 nodes trains (round 1)"


# -- what is missing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "volatile", "reason"),
    [
        (job(2), NONE_KNOWN, "asking local for offers"),
        (job(2), offering(known=False, error="denied"), "asking local for offers (denied)"),
        (job(2), offering(), "local offers nothing that fits the job's resources and placement"),
        (job(2), FULL, "no capacity: all is full"),
        (CHEAP, {}, "limits.usd_per_hour ($0.6) allows no more machines"),
        (
            job(1, spare_nodes=1, spec=spec(limits={"usd_per_hour": 0.6})),
            {},
            "limits.usd_per_hour ($0.6) allows no more machines",
        ),
        (job(2), offering(ELSEWHERE), "no offer in zone-a, where the job's nodes are"),
        (job(2), offering(ELSEWHERE) | {"capacity": FULL_HERE}, "no offer in zone-a, where the job's nodes are"),
        (REGIONAL, offering(replace(OFFER, region="region-2")), "no offer in region-1, where the job's nodes are"),
        (
            job(1, spare_nodes=1, bootstraps={"spare_retry_at": NOW + 1}),
            {},
            "the next spare is requested later: the last one could not be bootstrapped",
        ),
        (
            job(2, bootstraps={"failures": 1, "retry_at": NOW + 5}),
            {},
            "1 node in a row could not be bootstrapped: the next is requested at 03:46:45 UTC",
        ),
        (job(2, bootstraps={"failures": 1, "retry_at": NOW}), FULL, "no capacity: all is full"),
        (job(2, bootstraps={"failures": 2}), FULL, "no capacity: all is full"),
        (job(1, spare_nodes=1), FULL, "no capacity: all is full"),
        (job(1, spare_nodes=1, bootstraps={"spare_retry_at": NOW}), FULL, "no capacity: all is full"),
        (job(2, bootstraps={"spare_retry_at": NOW + 1}), FULL, "no capacity: all is full"),
        (job(2), offering(OFFER, ELSEWHERE) | {"capacity": FULL_HERE}, "no capacity: zone-a is full"),
    ],
)
def test_the_sentence_says_why_nodes_are_missing(record: JobRecord, volatile: Any, reason: str) -> None:
    assert scene(member(1), record=record, volatile=volatile).sentence.split("; ")[-1] == reason


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        (1, "2 nodes: 1 bootstrapping, 1 requested"),
        (2, "2 nodes in a row could not be bootstrapped (no route): they are tried one at a time"),
    ],
)
def test_the_sentence_says_that_nodes_are_tried_one_at_a_time(failures: int, reason: str) -> None:
    failed = [
        node(8, N.GONE, error="no route", state_since=NOW - 60),
        node(9, N.GONE, error="no disk", state_since=NOW - 90),
    ]
    trying = node(2, N.BOOTSTRAPPING, retry_at=NOW + 9)
    after = scene(member(1), trying, *failed, record=job(3, bootstraps={"failures": failures}))
    assert reason in after.sentence
    assert ("in a row" in after.sentence) is (failures == 2)


def test_one_open_zone_is_enough_to_have_capacity() -> None:
    dear = replace(OFFER, instance_type="dear", usd_per_hour=9.0)
    small_full = CapacityMemory((CapacityRefusal(OFFER, Scope.TYPE_IN_ZONE, NOW + 9, "small is full"),))
    record = job(2, spec=spec(limits={"usd_per_hour": 1.0}))
    after = scene(member(1), record=record, volatile=offering(OFFER, dear) | {"capacity": small_full})
    assert after.sentence.endswith("limits.usd_per_hour ($1) allows no more machines")


# -- 64 nodes ----------------------------------------------------------------------------------------------


def members(count: int, first: int = 1, **changes: Any) -> list[NodeRecord]:
    return [member(number, **changes) for number in range(first, first + count)]


def coming(count: int, state: NodeState, first: int = 100, **changes: Any) -> list[NodeRecord]:
    return [node(number, state, retry_at=NOW + 60, **changes) for number in range(first, first + count)]


def cloud_of(nodes: Sequence[NodeRecord]) -> dict[str, Any]:
    """Fresh offers; the machines of pending nodes do not run yet."""
    pending = {each.instance_id for each in nodes if each.state is N.PENDING}
    machines = [replace(m, state=InstanceState.PENDING) if m.id in pending else m for m in machines_of(nodes)]
    return offering(OFFER) | {"clouds": {"local": listing(*machines)}}


NOTICED: dict[str, Any] = {"notice": SOON, "needs_replacement": True}
DRAINED: dict[str, Any] = {"drain_requested": True, "needs_replacement": True}
LARGE: dict[str, Any] = {"max_nodes": 64, "next_node": 500}


@pytest.mark.parametrize(
    ("nodes", "record", "messages", "sentence"),
    [
        (members(64), job(64, **LARGE), {}, "64 of 64 nodes train (round 1)"),
        (
            [*members(62), *coming(2, N.BOOTING, replaces="job-u-90"), LOST],
            job(64, J.DEGRADED, **LARGE),
            {"round": round_of(*range(1, 63), number=7)},
            "62 of 64 nodes train (round 7); 2 replacements are booting",
        ),
        (
            coming(32, N.REQUESTED),
            job(32, J.STARTING, **LARGE),
            {"hint": hint_of()},
            "waiting for 1 node to begin; 32 nodes requested",
        ),
        (
            [*coming(40, N.READY), *coming(14, N.BOOTSTRAPPING, 200), *coming(10, N.REQUESTED, 300)],
            job(64, J.STARTING, min_nodes=64, **LARGE),
            {"hint": hint_of()},
            "waiting for 64 nodes to begin; 40 nodes are ready; 24 nodes: 14 bootstrapping, 10 requested",
        ),
        (
            [*members(32), *coming(32, N.SUSPECT, state_since=NOW, has_joined=True)],
            job(64, J.DEGRADED, **LARGE),
            {},
            "32 of 64 nodes train (round 1); 32 of 64 nodes are silent: network?",
        ),
        (
            [*members(48), *members(16, 49, **NOTICED), *coming(16, N.PENDING, replaces="job-u-49")],
            job(64, **LARGE),
            {},
            (
                "64 of 64 nodes train (round 1); job-u-49, job-u-50, job-u-51 and 13 more will be preempted "
                "in about 60 s; 16 replacements are pending"
            ),
        ),
        (
            members(64, **DRAINED) + coming(64, N.PENDING),
            job(64, **LARGE),
            {},
            (
                "64 of 64 nodes train (round 1); job-u-1, job-u-2, job-u-3 and 61 more leave once replaced; "
                "64 nodes are pending"
            ),
        ),
        (
            coming(64, N.TERMINATING),
            job(64, J.CANCELLED, reason="a user cancelled it", **LARGE),
            {},
            "cancelled: a user cancelled it; releasing 64 nodes",
        ),
    ],
)
def test_the_sentence_of_64_nodes_has_counts_and_at_most_three_names(
    nodes: Sequence[NodeRecord], record: JobRecord, messages: Any, sentence: str
) -> None:
    busy = frozenset(f"node:{each.id}" for each in nodes if each.state is N.BOOTING)
    after = scene(*nodes, record=record, volatile=cloud_of(nodes), busy=busy, **messages)
    assert after.sentence == sentence
    assert len(sentence) <= TWO_LINES
    assert sentence.count("job-u-") <= 3


def test_the_sentence_of_64_nodes_in_all_states_at_once_fits_on_two_lines() -> None:
    nodes = [
        *members(40),
        *members(7, 300),
        *members(2, 41, **NOTICED),
        *members(4, 43, **DRAINED),
        *coming(3, N.DRAINING, 50, has_joined=True),
        *coming(5, N.SUSPECT, 60, state_since=NOW, has_joined=True),
        *coming(3, N.BOOTSTRAPPING, 80, replaces="job-u-41", error="no route"),
        *coming(9, N.REQUESTED, 200, replaces="job-u-43"),
    ]
    sentence = scene(*nodes, record=job(64, J.DEGRADED, **LARGE), volatile=cloud_of(nodes)).sentence
    assert sentence == (
        "53 of 64 nodes train (round 1); 2 nodes will be preempted in about 60 s; 3 are draining; "
        "4 leave once replaced; 5 are silent; 12 replacements: 3 bootstrapping, 9 requested (no route)"
    )
    assert len(sentence) <= TWO_LINES


# -- phrases -----------------------------------------------------------------------------------------------


def test_few_names_are_listed_and_the_rest_counted() -> None:
    assert named(["a"]) == "a"
    assert named(["a", "b", "c"]) == "a, b, c"
    assert named(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert (node_count(0), node_count(1), node_count(64)) == ("0 nodes", "1 node", "64 nodes")


def test_a_foreign_text_is_cut_to_its_first_line() -> None:
    assert first_line("", 9) == ""
    assert first_line("no route\nmore", 9) == "no route"
    assert first_line("x" * 9, 9) == "x" * 9
    assert first_line("x" * 10, 9) == "x" * 8 + "…"


def test_the_sentence_has_little_of_a_long_error_and_of_a_long_reason() -> None:
    failing = node(2, N.BOOTSTRAPPING, error="y" * 999, retry_at=NOW + 9)
    assert MAX_ERROR_CHARACTERS == 60
    assert scene(member(1), failing).sentence.endswith(f"({'y' * 59}…)")
    full = CapacityMemory((CapacityRefusal(OFFER, Scope.ZONE, NOW + 60, "z" * 999),))
    reason = scene(member(1), volatile=offering(OFFER) | {"capacity": full}).sentence.split("; ")[-1]
    assert (len(reason), reason[-1]) == (MAX_REASON_CHARACTERS, "…") == (160, "…")
