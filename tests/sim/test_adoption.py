"""Machines that the journal does not know are adopted and train on; what they are is never guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.world import World

from supervisor.errors import CommandRefusedError, NotFoundError
from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from tests.sim.harness import adopt, in_state, record, service, submit, training_world
from tests.sim.promises import events_of, jobs_of, settled

SIM = "/spotsup/sim/"


def empty(world: World, prefix: str = SIM) -> None:
    """etcd loses its data; the launchers and agents that live publish themselves again."""
    world.hooks.step.clear()  # only a person can tell what is a leak then (P1)
    for key in [key for key in world.etcd.keys if key.startswith(prefix) and not key.endswith("/round")]:
        world.etcd.delete(key)
    world.crash_daemon()
    world.run(3.0)


def alive(world: World) -> set[str]:
    return {machine.instance.node for machine in world.cloud.machines.values() if machine.alive}


def test_a_job_that_is_submitted_again_adopts_its_machines_and_trains_on() -> None:
    world = training_world()
    before, current = alive(world), jobs_of(world)["job"].round
    empty(world)
    submit(world, "job", 2, 3, 4)
    world.run(5.0)
    assert record(world).state is JobState.QUEUED
    adopted = adopt(world)
    assert [{node.id for node in each.nodes} for each in adopted] == [before]
    assert world.run_until(settled, 30.0)
    assert alive(world) == before
    assert jobs_of(world)["job"].round == current, "no node stopped training"
    assert world.nodes.trainings["job"].steps.lost == 0
    assert all(node.offer.usd_per_hour for node in jobs_of(world)["job"].nodes.values())
    service(world).commands.cancel("job")
    assert world.run_until(lambda w: settled(w) and not alive(w), 60.0)


def test_an_adopted_job_counts_on_and_never_uses_a_nodes_name_again() -> None:
    world = training_world()
    empty(world)
    submit(world, "job", 2, 3, 4)
    adopt(world)
    taken = {node.id for node in jobs_of(world)["job"].nodes.values()}
    victim = next(m for m in world.cloud.machines.values() if m.alive)
    world.cloud.preempt(victim, 30.0)
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.REPLACEMENT_JOINED)), 120.0)
    assert not set(events_of(world, "job", EventKind.REPLACEMENT_JOINED)) & taken
    assert world.run_until(settled, 60.0)


def test_nodes_that_an_older_backup_lacks_come_back_to_their_job() -> None:
    world = training_world()
    before = alive(world)
    node = max(before)
    empty(world, f"{SIM}world/nodes/job/{node}")
    world.run(60.0)
    assert node in alive(world)
    adopt(world)
    assert jobs_of(world)["job"].nodes[node].state is NodeState.READY
    assert world.run_until(settled, 120.0)


def test_machines_that_no_user_wants_are_terminated_in_order() -> None:
    world = training_world()
    empty(world)
    assert [each.job.state for each in adopt(world, "job")] == [JobState.CANCELLED]
    assert world.run_until(lambda w: not alive(w) and settled(w), 60.0)
    submit(world, "job", 1, 1, 1)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)


def test_nothing_is_written_before_each_machine_is_accounted_for() -> None:
    world = training_world()
    submit(world, "other", 1, 1, 1)
    assert world.run_until(settled, 60.0)
    before = alive(world)
    empty(world)
    submit(world, "other", 1, 1, 1)
    with pytest.raises(
        CommandRefusedError, match="3 machines of job job: submit its job file again, or terminate them with --rel"
    ):
        adopt(world)
    with pytest.raises(NotFoundError, match="no machine of a job 'stranger' is missing from the journal"):
        adopt(world, "stranger")
    assert not any(key.startswith(f"{SIM}world/nodes/") for key in world.etcd.keys)
    adopt(world, "job")
    assert world.run_until(lambda w: settled(w) and len(alive(w)) == 1, 60.0)
    assert alive(world) < before


def test_machines_of_an_older_job_of_the_same_name_are_not_mixed_up() -> None:
    world = training_world()
    unjournaled = alive(world)
    record_key = f"{SIM}world/jobs/job"
    value = world.etcd.keys[record_key].value
    uid = record(world).uid
    world.etcd.put(record_key, value.replace(f'"uid":"{uid}"'.encode(), b'"uid":"zzzzz"'))
    for node in unjournaled:
        world.etcd.delete(f"{SIM}world/nodes/job/{node}")
    world.run(0.5)
    with pytest.raises(CommandRefusedError, match="3 machines of job job and another job of that name"):
        adopt(world)


def test_a_machine_whose_tag_names_no_node_is_named() -> None:
    world = training_world()
    machine = next(iter(world.cloud.machines.values()))
    machine.instance = replace(machine.instance, node="by-hand")
    world.run(1.0)
    with pytest.raises(
        CommandRefusedError, match=r"i-0 carries the cluster's tag, but names no node \('by-hand'\): terminate it"
    ):
        adopt(world)


def test_nothing_is_adopted_while_a_cloud_cannot_be_listed() -> None:
    world = training_world()
    empty(world)
    world.set_fault_rates(replace(world.fault_rates, unreachable=1.0))
    with pytest.raises(CommandRefusedError, match=r"local does not list its machines .*: nothing was adopted"):
        adopt(world)


def test_where_every_machine_is_known_there_is_nothing_to_adopt() -> None:
    world = training_world()
    assert adopt(world) == []
    assert settled(world)
