"""The tables of legal passages: complete, without dead ends, and refusing everything else."""

from __future__ import annotations

import pytest

from provisioners.base import Market, Offer
from supervisor.model import (
    ENDED_JOB_STATES,
    JOB_EDGES,
    NODE_EDGES,
    IllegalTransitionError,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    move_job,
    move_node,
)
from supervisor.spec import parse_spec

OFFER = Offer("local", "local", "local-a", "small", Market.SPOT, None)


def reachable(edges: set[tuple[str, str]], start: str) -> set[str]:
    seen, frontier = {start}, {start}
    while frontier:
        frontier = {after for before, after in edges if before in frontier} - seen
        seen |= frontier
    return seen


def test_every_state_of_a_node_can_be_reached_and_left_for_gone() -> None:
    edges = {(str(before), str(after)) for before, after in NODE_EDGES}
    assert reachable(edges, "requested") == {str(state) for state in NodeState}
    for state in NodeState:
        assert "gone" in reachable(edges, str(state))
    assert not any(before is NodeState.GONE for before, _ in NODE_EDGES)


def test_every_state_of_a_job_can_be_reached_and_its_ends_are_final() -> None:
    edges = {(str(before), str(after)) for before, after in JOB_EDGES}
    assert reachable(edges, "queued") == {str(state) for state in JobState}
    assert not any(before in ENDED_JOB_STATES for before, _ in JOB_EDGES)


def test_each_edge_has_a_reason() -> None:
    assert all(reason.strip() for reason in [*NODE_EDGES.values(), *JOB_EDGES.values()])


def test_an_illegal_passage_is_refused_and_changes_nothing() -> None:
    node = NodeRecord("n", "j", "t", OFFER, 0.0)
    with pytest.raises(IllegalTransitionError, match="requested → member"):
        move_node(node, NodeState.MEMBER, 1.0, "why not")
    assert node.history == ()
    spec = parse_spec({"name": "job", "nodes": 1, "run": "x.py"})
    job = JobRecord("job", "u", spec, "", 0.0, 1, 1, 1, state=JobState.SUCCEEDED)
    with pytest.raises(IllegalTransitionError, match="succeeded → running"):
        move_job(job, JobState.RUNNING, 1.0, "why not")


def test_history_is_kept_with_time_and_reason_and_bounded() -> None:
    node = NodeRecord("n", "j", "t", OFFER, 0.0, state=NodeState.READY)
    for turn in range(100):
        after = NodeState.MEMBER if node.state is NodeState.READY else NodeState.READY
        node = move_node(node, after, float(turn), f"turn {turn}")
    assert len(node.history) == 40
    assert node.history[-1].reason == "turn 99"
    assert node.since == 99.0
