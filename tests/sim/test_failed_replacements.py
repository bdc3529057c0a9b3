"""Replacements that cannot be bootstrapped: a job that has trained goes on with what it has (P12)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.api.jobs.changes import Scale
from supervisor.events import EventKind
from supervisor.model import JobRecord, JobState, NodeRecord
from supervisor.planner.actions import BootstrapDone
from tests.sim.harness import (
    NO_FAULTS,
    RULES,
    alive,
    empty_world,
    in_state,
    machine_of,
    record,
    sentence,
    service,
    submit,
)
from tests.sim.promises import events_of, jobs_of, settled

STRICT = replace(RULES, bootstraps=replace(RULES.bootstraps, failures=5))


def index_away(world: World, *, away: bool = True) -> None:
    """The package index is away: no node can be bootstrapped."""
    world.set_fault_rates(replace(NO_FAULTS, bootstrap=1.0 if away else 0.0))


def kinds(world: World) -> list[EventKind]:
    return [event.kind for event in world.journal.events("job")]


@pytest.mark.nightly
def test_an_hour_without_the_package_index_does_not_end_a_job_of_which_seven_of_eight_nodes_train() -> None:
    world = empty_world(STRICT)
    submit(world, "job", 2, 8, 8)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    index_away(world)
    world.cloud.end(machine_of(world, 3), EndCause.PREEMPTED)
    world.run(3600.0)
    assert record(world).state is JobState.DEGRADED
    assert len(jobs_of(world)["job"].round.nodes()) == 7  # type: ignore[union-attr]
    assert 8 <= len(events_of(world, "job", EventKind.NODE_FAILED)) <= 15, "each failure costs a machine"
    assert kinds(world).count(EventKind.BOOTSTRAPS_FAILING) == 1
    assert "in a row could not be bootstrapped (step environment failed): " in sentence(world)
    index_away(world, away=False)
    assert world.run_until(settled, 660.0)
    assert kinds(world).count(EventKind.BOOTSTRAPS_RECOVERED) == 1
    world.run(10.0)  # alerts are delivered behind the decision
    sent = [event.kind for event in world.sent]
    assert {EventKind.BOOTSTRAPS_FAILING, EventKind.BOOTSTRAPS_RECOVERED} <= set(sent)


@pytest.mark.long
def test_a_job_that_lost_all_nodes_meanwhile_waits_tries_one_machine_at_a_time_and_trains_again() -> None:
    world = empty_world(STRICT)
    submit(world, "job", 2, 8, 8)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    index_away(world)
    for machine in [each for each in world.cloud.machines.values() if each.alive]:
        world.cloud.end(machine, EndCause.PREEMPTED)
    world.run(120.0)
    for _ in range(600):
        world.run(1.0)
        assert alive(world) <= 1
    assert record(world).state is JobState.WAITING
    index_away(world, away=False)
    assert world.run_until(settled, 660.0)


def test_a_job_that_never_trained_fails_after_its_budget_and_not_by_its_first_nodes_together() -> None:
    world = empty_world(STRICT)
    index_away(world)
    submit(world, "job", 2, 8, 8)
    world.run(20.0)
    assert record(world).state is JobState.STARTING
    assert world.run_until(in_state(JobState.FAILED), 300.0)
    assert record(world).reason == "5 nodes in a row could not be bootstrapped: step environment failed"
    assert len(events_of(world, "job", EventKind.NODE_FAILED)) <= 8 + 8 + 3
    assert world.run_until(settled, 60.0)


@pytest.mark.long
def test_a_new_job_waits_while_one_that_has_trained_cannot_bootstrap_either() -> None:
    world = empty_world(STRICT)
    submit(world, "job", 1, 2, 3)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    index_away(world)
    service(world).commands.scale("job", Scale(desired=3))
    submit(world, "new", 1, 2, 2)
    world.run(900.0)
    assert record(world, "new").state in {JobState.STARTING, JobState.WAITING}
    index_away(world, away=False)
    assert world.run_until(settled, 660.0)


def test_what_a_job_brings_and_fails_alike_ends_it_after_one_further_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    world = empty_world(STRICT)

    def fail(node: NodeRecord, _: JobRecord) -> BootstrapDone:
        said = "step environment: `setup` ended with status 1: no such package: nope"
        return BootstrapDone(node.id, f"node {node.id}, {said}", of_job=said)

    monkeypatch.setattr(world.nodes, "prepare", fail)
    submit(world, "job", 2, 4, 4)
    assert world.run_until(in_state(JobState.FAILED), 120.0)
    assert record(world).reason == (
        "2 nodes in a row could not be bootstrapped, the last 2 in the same way, by what the job or its image brings: "
        f"node {record(world).task_id}-5, step environment: `setup` ended with status 1: no such package: nope"
    )
    assert len(jobs_of(world)["job"].nodes) == 4 + 1
    assert world.run_until(settled, 60.0)
