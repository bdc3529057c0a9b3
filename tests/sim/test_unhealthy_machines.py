"""Machines that are at fault themselves, one after the other: no more of their type for a while, and people hear."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.events import EventKind
from supervisor.model import JobRecord, JobState, NodeRecord
from supervisor.planner.actions import BootstrapDone
from tests.sim.harness import RULES, empty_world, in_state, machine_of, record, sentence, submit
from tests.sim.promises import jobs_of, settled

REASON = "node n, step gpu: GPU 0 is unhealthy: Xid 79\nand more lines"


def unhealthy_world(
    monkeypatch: pytest.MonkeyPatch, failing: Collection[int], *, unhealthy: bool = True, **more: Any
) -> World:
    """A job of which these attempts, counted from 1, fail at their bootstrap: by the machine's fault, or another."""
    world = empty_world(replace(RULES, unhealthy=replace(RULES.unhealthy, max_streak=3, memory_s=120.0)))
    well = world.nodes.prepare
    count = 0

    def prepare(node: NodeRecord, job: JobRecord) -> BootstrapDone:
        nonlocal count
        count += 1
        return BootstrapDone(node.id, REASON, unhealthy=unhealthy, **more) if count in failing else well(node, job)

    monkeypatch.setattr(world.nodes, "prepare", prepare)
    submit(world, "job", 1, 1, 1)
    return world


def blocks(world: World) -> list[str]:
    return [event.text for event in world.journal.events("job") if event.kind is EventKind.MACHINE_TYPE_BLOCKED]


def test_three_unhealthy_machines_in_a_row_block_their_type_for_a_while_with_one_alert(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = unhealthy_world(monkeypatch, {1, 2, 3})
    assert world.run_until(lambda w: blocks(w) != [], 60.0)
    world.run(60.0)
    (text,) = blocks(world)
    assert text == (
        "local machine type small is blocked for 2 min for job: 3 machines in a row were unhealthy. "
        "The last error: node n, step gpu: GPU 0 is unhealthy: Xid 79"
    )
    assert len(jobs_of(world)["job"].nodes) == 3, "no zone has another of this type"
    assert "local machine type small is blocked for 2 min" in sentence(world)
    assert record(world).bootstraps.failures == 0, "the machines' fault is not the job's"
    assert [event.kind for event in world.sent if event.kind is EventKind.MACHINE_TYPE_BLOCKED] == [
        EventKind.MACHINE_TYPE_BLOCKED
    ]
    assert world.run_until(in_state(JobState.RUNNING), 120.0), "the memory ends"
    assert world.run_until(settled, 120.0)


def test_a_machine_that_works_resets_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    world = unhealthy_world(monkeypatch, {1, 2, 4, 5})
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    assert world.run_until(lambda w: record(w).state is not JobState.RUNNING, 30.0)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert (
        len([node for node in jobs_of(world)["job"].nodes.values() if node.error.startswith("node n, step gpu")]) == 4
    )
    assert blocks(world) == []


def test_a_failure_of_the_job_itself_blocks_no_machine_type(monkeypatch: pytest.MonkeyPatch) -> None:
    world = unhealthy_world(monkeypatch, range(20), unhealthy=False)
    assert world.run_until(lambda w: record(w).bootstraps.failures >= 6, 300.0)
    assert blocks(world) == []


def test_an_unreachable_machine_is_retried_and_keeps_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = unhealthy_world(monkeypatch, {1, 2, 3}, unhealthy=False, unreachable=True)
    assert world.run_until(lambda w: any(node.error == REASON for node in jobs_of(w)["job"].nodes.values()), 60.0)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert len(jobs_of(world)["job"].nodes) == 1
    assert record(world).bootstraps.failures == 0


def test_a_machine_that_is_never_reached_is_replaced_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = unhealthy_world(monkeypatch, range(14), unhealthy=False, unreachable=True)
    assert world.run_until(in_state(JobState.RUNNING), 180.0)
    first, second = sorted(jobs_of(world)["job"].nodes.values(), key=lambda node: node.created_at)
    assert first.error == REASON
    assert second.has_joined
    assert world.run_until(settled, 120.0)


def test_a_foreign_machine_at_a_nodes_address_is_reported_and_the_node_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = unhealthy_world(monkeypatch, {1}, unhealthy=False, foreign=True)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    (event,) = [event for event in world.sent if event.kind is EventKind.FOREIGN_HOST]
    assert event.text.startswith(f"{event.node} is not bootstrapped: node n, step gpu")
    assert len(jobs_of(world)["job"].nodes) == 2
    assert world.run_until(settled, 120.0)
