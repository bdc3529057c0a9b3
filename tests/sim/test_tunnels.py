"""Nodes of `reach = "ssh"`: they use etcd through the daemon's SSH connections, and train on without them."""

from __future__ import annotations

import pytest
from spotsup_simulator.daemon import LEADER_TTL_S
from spotsup_simulator.machine import Machine
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from supervisor.api.jobs.changes import Scale
from supervisor.events import EventKind
from supervisor.model import JobState
from tests.sim.harness import NO_FAULTS, RULES, alive, in_state, record, service, submit
from tests.sim.promises import Promises, events_of, jobs_of, settled
from tests.sim.tunnel_faults import TunnelFaults

CONNECTED_S = 10.0


def world_with_tunnels() -> World:
    """Its one job trains on three nodes."""
    world = World(Conditions(1, NO_FAULTS, RULES, by_ssh=True))
    Promises(world)
    world.run(1.0)
    submit(world, "job", 2, 3, 4)
    assert world.run_until(in_state(JobState.RUNNING), 120.0), world.daemon.loop.status
    return world


def machines(world: World) -> list[Machine]:
    return [machine for machine in world.cloud.machines.values() if machine.alive]


def carried(world: World) -> int:
    return sum(machine.carried for machine in machines(world))


def assert_trains_on(world: World, nodes: int = 3) -> None:
    """Nothing has disturbed the job."""
    job = jobs_of(world)["job"]
    assert job.round is not None
    assert job.round.number == 1
    assert world.nodes.trainings["job"].steps.losses == []
    assert not [each for kind in (EventKind.NODE_LOST, EventKind.NODE_FAILED) for each in events_of(world, "job", kind)]
    assert alive(world) == len(world.cloud.machines) == nodes
    assert carried(world) == nodes
    assert record(world).bootstraps.failures == 0


def test_training_goes_on_without_any_daemon_and_the_next_one_carries_etcd_again() -> None:
    world = world_with_tunnels()
    world.lose_daemon()
    assert carried(world) == 0
    before = world.nodes.trainings["job"].steps.made(world.clock.now())
    world.run(600.0)
    assert world.nodes.trainings["job"].steps.made(world.clock.now()) > before + 1000
    world.daemon = world.start_daemon()
    assert world.run_until(lambda w: carried(w) == 3, LEADER_TTL_S + CONNECTED_S)
    assert world.run_until(settled, 60.0)
    world.run(300.0)
    assert_trains_on(world)


def test_a_standby_takes_the_ports_that_a_frozen_leader_holds_and_keeps_them_when_that_goes_on() -> None:
    world = world_with_tunnels()
    first, second = world.daemon, world.start_daemon()
    world.run(2.0)
    world.freeze(first, 60.0)
    assert carried(world) == 0
    assert world.run_until(lambda w: carried(w) == 3, 2 * LEADER_TTL_S + CONNECTED_S)
    assert second.leader.leading
    world.run(90.0)
    assert not first.carriers
    assert len(second.carriers) == 3
    assert_trains_on(world)


def test_a_leader_that_steps_down_lets_the_next_one_have_the_ports() -> None:
    world = world_with_tunnels()
    first, second = world.daemon, world.start_daemon()
    world.run(2.0)
    first.leader.step_down()
    world.kill(first)
    assert world.run_until(lambda w: second.leader.leading and carried(w) == 3, CONNECTED_S)
    assert_trains_on(world)


@pytest.mark.parametrize("fault", ["lost", "lost unnoticed", "half-open", "kept"])
def test_a_tunnel_that_breaks_is_opened_again_and_no_training_stops(fault: str) -> None:
    world = world_with_tunnels()
    faults = TunnelFaults(world)
    for machine in machines(world):
        match fault:
            case "lost":
                faults.lose(machine)
            case "lost unnoticed":
                faults.lose(machine, noticed=False)
            case "half-open":
                faults.silence(machine)
            case "kept":
                faults.stick(machine, 120.0)
    assert carried(world) == 0
    assert world.run_until(lambda w: carried(w) == 3, (120.0 if fault == "kept" else 20.0) + CONNECTED_S)
    world.run(120.0)
    assert_trains_on(world)


@pytest.mark.long
def test_a_single_node_without_its_tunnel_is_not_given_up_while_its_steps_advance() -> None:
    world = world_with_tunnels()
    machine = machines(world)[0]
    TunnelFaults(world).stick(machine, 900.0)
    world.run(900.0 + CONNECTED_S)
    world.run(60.0)
    assert_trains_on(world)


def test_a_bootstrap_is_not_blamed_for_a_tunnel_that_carries_nothing() -> None:
    world = world_with_tunnels()
    faults = TunnelFaults(world)
    world.hooks.launch.append(lambda machine: faults.stick(machine, 40.0))
    service(world).commands.scale("job", Scale(desired=4))
    assert world.run_until(lambda w: settled(w) and record(w).desired_nodes == 4, 180.0)
    assert record(world).bootstraps.failures == 0
    assert alive(world) == len(world.cloud.machines) == 4
