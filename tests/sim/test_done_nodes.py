"""Nodes whose ranks have ended well while others work on: their loss restarts nothing, and nothing is rented for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from tests.sim.harness import alive, in_state, machine_of, record, sentence, service, training_world
from tests.sim.promises import events_of, jobs_of, settled

pytestmark = pytest.mark.long

FINISH_S = 120.0


def done_world(*ranks: int, low: int = 2, desired: int = 3) -> tuple[World, list[Machine]]:
    """A job of which the ranks of these nodes have ended well, and their machines."""
    world = training_world(low, desired)
    machines = [machine_of(world, rank) for rank in ranks]
    for machine in machines:
        assert world.nodes.trainings["job"].end_ranks(machine.node, world.clock.now())
    return world, machines


def number(world: World) -> int:
    return world.nodes.trainings["job"].round_number


TAKEN: dict[str, Callable[[World, Machine], object]] = {
    "preempted": lambda world, machine: world.cloud.end(machine, EndCause.PREEMPTED),
    "noticed": lambda world, machine: world.cloud.preempt(machine, 30.0),
    "vanished": lambda world, machine: world.cloud.vanish(machine),
    "silent": lambda _, machine: setattr(machine, "silent", True),
    "drained": lambda world, machine: service(world).commands.drain(machine.node),
}


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("daemon_away", [False, True])
def test_the_loss_of_done_nodes_restarts_nothing_and_rents_nothing(taken: str, daemon_away: bool) -> None:
    world, machines = done_world(1, 2)
    if daemon_away and taken != "drained":
        world.crash_daemon()
    for machine in machines:
        TAKEN[taken](world, machine)
    world.run(20.0)
    if daemon_away and taken != "drained":
        world.start_daemon()
    world.run(90.0)
    assert number(world) == 1
    assert world.nodes.trainings["job"].steps.under_way
    assert events_of(world, "job", EventKind.REPLACEMENT_REQUESTED) == []
    assert len(jobs_of(world)["job"].nodes) == 3
    assert record(world).state is JobState.RUNNING
    assert alive(world) == (3 if taken == "silent" else 1), "silence is not death (P4)"
    world.nodes.trainings["job"].finish()
    assert world.run_until(in_state(JobState.SUCCEEDED), 60.0)
    assert world.run_until(settled, 120.0)


def test_done_nodes_are_released_after_finish_minutes_and_the_last_one_works_on() -> None:
    world, _ = done_world(1, 2)
    world.run(FINISH_S - 10.0)
    assert alive(world) == 3
    world.run(30.0)
    assert (alive(world), number(world)) == (1, 1)
    assert "1 of 3 nodes trains, 2 have ended well (round 1)" in sentence(world)
    world.crash_daemon()
    world.start_daemon()
    world.run(600.0)
    assert (alive(world), number(world)) == (1, 1), "a new leader knows it, too"
    assert world.nodes.trainings["job"].steps.lost == 0
    assert settled(world)


def test_when_the_node_that_works_is_lost_all_run_again_and_those_that_were_released_are_replaced() -> None:
    world, _ = done_world(1, 2)
    world.run(FINISH_S + 30.0)
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    assert world.run_until(lambda w: number(w) > 1, 300.0)
    assert world.run_until(settled, 300.0)
    assert len(jobs_of(world)["job"].round.nodes()) == 3  # type: ignore[union-attr]


def test_done_nodes_that_are_there_run_again_with_the_others_at_once() -> None:
    world, machines = done_world(2)
    lost = machine_of(world, 1)
    world.cloud.end(lost, EndCause.PREEMPTED)
    assert world.run_until(lambda w: number(w) > 1, 30.0)
    current = jobs_of(world)["job"].round
    assert current is not None
    assert machines[0].node in current.nodes()
    assert lost.node not in current.nodes()
    assert world.run_until(settled, 300.0)


def test_the_node_that_hosts_the_store_is_replaced_and_the_others_checkpoint_before_it_goes() -> None:
    world, (host,) = done_world(0)
    world.cloud.preempt(host, 60.0)
    assert world.run_until(lambda w: number(w) > 1, 90.0)
    assert world.nodes.trainings["job"].steps.lost == 0
    assert world.run_until(settled, 300.0)
    (replaced,) = [event.data["replaces"] for event in world.journal.events("job") if "replaces" in event.data][:1]
    assert replaced == host.node


def test_a_job_pauses_with_a_checkpoint_although_some_are_done() -> None:
    world, _ = done_world(1)
    service(world).commands.pause("job")
    assert world.run_until(in_state(JobState.PAUSED), 60.0)
    steps = world.nodes.trainings["job"].steps
    assert (steps.losses, steps.under_way) == ([], False)
    service(world).commands.resume("job")
    assert world.run_until(in_state(JobState.RUNNING), 200.0)


def test_done_nodes_outlive_an_outage_of_etcd() -> None:
    world, machines = done_world(1, 2)
    world.run(5.0)
    world.etcd.down = True
    for machine in machines:
        world.cloud.end(machine, EndCause.PREEMPTED)
    world.run(60.0)
    world.etcd.down = False
    world.run(120.0)
    assert number(world) == 1
    job = jobs_of(world)["job"]
    states = {job.nodes[machine.node].state for machine in machines}
    assert states <= {NodeState.TERMINATING, NodeState.GONE}
    assert len(job.nodes) == 3
