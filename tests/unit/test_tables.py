"""The tables of legal transitions: complete, without dead ends, and refusing everything else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.model import (
    COUNTED_NODE_STATES,
    ENDED_JOB_STATES,
    IN_FLIGHT_NODE_STATES,
    JOB_EDGES,
    NODE_EDGES,
    OPEN_NODE_STATES,
    IllegalTransitionError,
    JobState,
    NodeState,
    move_job,
    move_node,
)
from tests.unit.scene import OFFER, SOON, job, member, node

NODE_TABLE = """
requested:     pending gone failed
pending:       booting lost terminating failed
booting:       bootstrapping lost terminating failed
bootstrapping: ready lost terminating failed
ready:         member draining suspect cleaning lost terminating
member:        ready draining suspect cleaning lost terminating
draining:      terminating lost
suspect:       ready member lost terminating
lost:          terminating
failed:        gone terminating
cleaning:      warm lost terminating
warm:          booting gone lost terminating
terminating:   gone
gone:
"""
JOB_TABLE = """
queued:    starting paused succeeded failed cancelled
starting:  running degraded waiting paused succeeded failed cancelled
running:   degraded waiting paused succeeded failed cancelled
degraded:  running waiting paused succeeded failed cancelled
waiting:   running degraded paused succeeded failed cancelled
paused:    starting succeeded failed cancelled
succeeded:
failed:
cancelled:
"""


def edges(table: str) -> dict[str, set[str]]:
    rows = (line.split(":") for line in table.strip().splitlines())
    return {before: set(after.split()) for before, after in rows}


@pytest.mark.parametrize(("before", "legal"), edges(NODE_TABLE).items())
def test_a_node_moves_from_each_state_to_these_and_no_other(before: str, legal: set[str]) -> None:
    assert {str(after) for each, after in NODE_EDGES if each == before} == legal
    record = node(1, NodeState(before))
    for after in NodeState:
        if after in legal:
            moved = move_node(record, after, 5.0, "because")
            assert (moved.state, moved.state_since) == (after, 5.0)
            assert [(each.at, each.before, each.after, each.reason) for each in moved.history] == [
                (5.0, before, after, "because")
            ]
        else:
            with pytest.raises(IllegalTransitionError, match=f"{before} → {after}"):
                move_node(record, after, 5.0, "because")


@pytest.mark.parametrize(("before", "legal"), edges(JOB_TABLE).items())
def test_a_job_moves_from_each_state_to_these_and_no_other(before: str, legal: set[str]) -> None:
    assert {str(after) for each, after in JOB_EDGES if each == before} == legal
    record = job(1, JobState(before))
    for after in JobState:
        if after in legal:
            moved = move_job(record, after, 5.0, "because")
            assert (moved.state, moved.state_since, moved.reason) == (after, 5.0, "because")
            assert moved.ended_at == (5.0 if after in {"succeeded", "failed", "cancelled"} else 0.0)
            assert moved.ended is (after in {"succeeded", "failed", "cancelled"})
            assert [(each.at, each.before, each.after, each.reason) for each in moved.history] == [
                (5.0, before, after, "because")
            ]
        else:
            with pytest.raises(IllegalTransitionError, match=f"{before} → {after}"):
                move_job(record, after, 5.0, "because")


def test_the_tables_name_every_state() -> None:
    assert edges(NODE_TABLE).keys() == {str(state) for state in NodeState}
    assert edges(JOB_TABLE).keys() == {str(state) for state in JobState}


@pytest.mark.parametrize(
    ("states", "named"),
    [
        (set(NodeState) - OPEN_NODE_STATES, "gone"),
        (IN_FLIGHT_NODE_STATES, "requested pending booting bootstrapping"),
        (COUNTED_NODE_STATES, "requested pending booting bootstrapping ready member suspect"),
        (ENDED_JOB_STATES, "succeeded failed cancelled"),
    ],
)
def test_the_named_sets_of_states_hold_these(states: frozenset[str], named: str) -> None:
    assert {str(state) for state in states} == set(named.split())


def test_what_a_machine_costs_begins_with_its_launch_and_ends_with_it() -> None:
    hour = member(1, offer=replace(OFFER, usd_per_hour=2.0), launched_at=1000.0)
    assert hour.usd(4600.0) == 2.0
    assert replace(hour, ended_at=2800.0).usd(9999.0) == 1.0
    assert hour.usd(900.0) == 0.0, "a clock that was set back costs nothing"
    assert replace(hour, launched_at=0.0).usd(4600.0) == 0.0
    changed = replace(hour, usd_before=7.0, priced_at=2800.0)
    assert (changed.usd(4600.0), changed.usd(2000.0)) == (8.0, 7.0), "at the prices of the time"
    assert replace(hour, offer=replace(OFFER, usd_per_hour=None)).usd(4600.0) == 0.0


def test_a_node_is_doomed_by_a_notice_a_drain_or_its_gpus() -> None:
    assert not member(1).doomed
    assert member(1, notice=SOON).doomed
    assert member(1, drain_requested=True).doomed
    assert member(1, unhealthy_at=0.5).doomed


def test_a_job_is_called_by_its_name_and_what_makes_it_unique() -> None:
    assert job().task_id == "job-u"


def test_each_edge_has_a_reason() -> None:
    assert all(reason.strip() for reason in [*NODE_EDGES.values(), *JOB_EDGES.values()])
    general = NODE_EDGES[NodeState.MEMBER, NodeState.TERMINATING]
    assert NODE_EDGES[NodeState.DRAINING, NodeState.TERMINATING] == "it has left the round" != general


def test_history_is_kept_with_time_and_reason_and_bounded() -> None:
    a_node, a_job = node(1, NodeState.READY), job(1, JobState.RUNNING)
    for turn in range(100):
        back = turn % 2 == 1
        a_node = move_node(a_node, NodeState.READY if back else NodeState.MEMBER, float(turn), f"turn {turn}")
        a_job = move_job(a_job, JobState.RUNNING if back else JobState.DEGRADED, float(turn), f"turn {turn}")
    assert len(a_node.history) == len(a_job.history) == 40
    assert a_node.history[-1].reason == a_job.history[-1].reason == "turn 99"
    assert a_node.state_since == 99.0
