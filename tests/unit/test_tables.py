"""The tables of legal transitions: complete, without dead ends, and refusing everything else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioners.base import Market, Offer
from supervisor.model import (
    ALERT_KINDS,
    COUNTED_NODE_STATES,
    ENDED_JOB_STATES,
    IN_FLIGHT_NODE_STATES,
    JOB_EDGES,
    NODE_EDGES,
    OPEN_NODE_STATES,
    IllegalTransitionError,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    NoticeRecord,
    move_job,
    move_node,
)
from supervisor.spec import parse_spec

OFFER = Offer("local", "local", "local-a", "small", Market.SPOT, None)


NODE_TABLE = """
requested:     pending gone failed
pending:       booting lost terminating failed
booting:       bootstrapping lost terminating failed
bootstrapping: ready lost terminating failed
ready:         member draining suspect lost terminating
member:        ready draining suspect lost terminating
draining:      terminating lost
suspect:       ready member lost terminating
lost:          terminating
failed:        gone terminating
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

ALERTED = """
notice node-lost replacement-requested replacement-joined
checkpoints-failing checkpoints-resumed
job-done job-failed
unknown-code machine-type-blocked foreign-host
"""


def edges(table: str) -> dict[str, set[str]]:
    rows = (line.split(":") for line in table.strip().splitlines())
    return {before: set(after.split()) for before, after in rows}


def a_job() -> JobRecord:
    spec = parse_spec({"name": "job", "nodes": 1, "run": "x.py"})
    return JobRecord("job", "u", spec, "", 0.0, 1, 1, 1)


@pytest.mark.parametrize(("before", "legal"), edges(NODE_TABLE).items())
def test_a_node_moves_from_each_state_to_these_and_no_other(before: str, legal: set[str]) -> None:
    assert {str(after) for each, after in NODE_EDGES if each == before} == legal
    node = NodeRecord("n", "j", "t", OFFER, 0.0, state=NodeState(before))
    for after in NodeState:
        if after in legal:
            moved = move_node(node, after, 5.0, "because")
            assert (moved.state, moved.state_since) == (after, 5.0)
            assert [(each.at, each.before, each.after, each.reason) for each in moved.history] == [
                (5.0, before, after, "because")
            ]
        else:
            with pytest.raises(IllegalTransitionError, match=f"{before} → {after}"):
                move_node(node, after, 5.0, "because")


@pytest.mark.parametrize(("before", "legal"), edges(JOB_TABLE).items())
def test_a_job_moves_from_each_state_to_these_and_no_other(before: str, legal: set[str]) -> None:
    assert {str(after) for each, after in JOB_EDGES if each == before} == legal
    job = replace(a_job(), state=JobState(before))
    for after in JobState:
        if after in legal:
            moved = move_job(job, after, 5.0, "because")
            assert (moved.state, moved.state_since, moved.reason) == (after, 5.0, "because")
            assert moved.ended_at == (5.0 if after in {"succeeded", "failed", "cancelled"} else 0.0)
            assert moved.ended is (after in {"succeeded", "failed", "cancelled"})
            assert [(each.at, each.before, each.after, each.reason) for each in moved.history] == [
                (5.0, before, after, "because")
            ]
        else:
            with pytest.raises(IllegalTransitionError, match=f"{before} → {after}"):
                move_job(job, after, 5.0, "because")


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
    hour = replace(NodeRecord("n", "j", "t", replace(OFFER, usd_per_hour=2.0), 0.0), launched_at=1000.0)
    assert hour.usd(4600.0) == 2.0
    assert replace(hour, ended_at=2800.0).usd(9999.0) == 1.0
    assert hour.usd(900.0) == 0.0, "a clock that was set back costs nothing"
    assert replace(hour, launched_at=0.0).usd(4600.0) == 0.0
    assert replace(hour, offer=OFFER).usd(4600.0) == 0.0


def test_a_node_is_doomed_by_a_notice_or_a_drain() -> None:
    node = NodeRecord("n", "j", "t", OFFER, 0.0)
    assert not node.doomed
    assert replace(node, notice=NoticeRecord(9.0, 1.0, "x")).doomed
    assert replace(node, drain_requested=True).doomed


def test_a_job_is_called_by_its_name_and_what_makes_it_unique() -> None:
    assert a_job().task_id == "job-u"


def test_each_edge_has_a_reason() -> None:
    assert all(reason.strip() for reason in [*NODE_EDGES.values(), *JOB_EDGES.values()])


def test_history_is_kept_with_time_and_reason_and_bounded() -> None:
    node = NodeRecord("n", "j", "t", OFFER, 0.0, state=NodeState.READY)
    for turn in range(100):
        after = NodeState.MEMBER if node.state is NodeState.READY else NodeState.READY
        node = move_node(node, after, float(turn), f"turn {turn}")
    job = replace(a_job(), state=JobState.RUNNING)
    for turn in range(100):
        job = move_job(job, JobState.DEGRADED if turn % 2 == 0 else JobState.RUNNING, float(turn), f"turn {turn}")
    assert len(node.history) == len(job.history) == 40
    assert job.history[-1].reason == "turn 99"
    assert node.history[-1].reason == "turn 99"
    assert node.state_since == 99.0


def test_alerts_are_preemptions_ends_and_what_needs_a_person() -> None:
    assert {kind.value for kind in ALERT_KINDS} == set(ALERTED.split())
