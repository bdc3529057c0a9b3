"""Failures of the program: which count, which end a job at once, and rounds of a multiple of nodes."""

from __future__ import annotations

from typing import Any

from spotsup_simulator.world import World

from supervisor.model import JobState
from tests.sim.harness import alive, empty_world, in_state, machine_of, record, submit
from tests.sim.promises import jobs_of, settled

CHECKPOINT_S = 30.0


def world_of_a_program(**more: Any) -> World:
    """A job that trains, with a checkpoint every 30 s."""
    world = empty_world()
    world.nodes.checkpoint_s = CHECKPOINT_S
    submit(world, "job", 1, 2, 2, **more)
    assert world.run_until(settled, 60.0)
    return world


def fail(world: World, after_s: float = 0.0) -> None:
    """The program fails, and is started again."""
    assert world.nodes.trainings["job"].fail(machine_of(world, 0).instance.node, world.clock.now(), after_s)
    world.run(10.0)


def test_after_three_checkpoints_failures_of_the_program_start_anew() -> None:
    world = world_of_a_program(limits={"app_failures": 1})
    for _ in range(4):
        fail(world)
        assert in_state(JobState.RUNNING)(world)
        world.run(4 * CHECKPOINT_S)
    fail(world)
    world.run(CHECKPOINT_S)
    assert in_state(JobState.RUNNING)(world)
    fail(world)
    assert in_state(JobState.FAILED)(world), "the second one within three checkpoints"
    assert record(world).reason.startswith("the program failed 2 times, 1 allowed")


def test_one_failure_soon_after_the_start_ends_no_job_and_a_second_one_of_its_kind_does() -> None:
    world = world_of_a_program()
    fail(world, after_s=1.0)
    assert in_state(JobState.RUNNING)(world)
    fail(world, after_s=1.0)
    assert in_state(JobState.FAILED)(world)
    assert record(world).reason.startswith("the program failed twice in the same way, 1.0 s after the start")


def test_a_job_that_trains_on_pairs_trains_on_two_of_three_nodes_until_the_fourth_is_back() -> None:
    world = empty_world()
    submit(world, "job", 2, 4, 4, nodes={"min": 2, "desired": 4, "max": 4, "multiple_of": 2})
    assert world.run_until(settled, 60.0)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 0)
    world.lose_daemon()
    world.cloud.vanish(machine_of(world, 3))
    world.run(60.0)
    current = jobs_of(world)["job"].round
    assert current is not None
    assert len(current.nodes()) == 2, "launchers know it without a daemon"
    world.crash_daemon()
    world.run(60.0)
    current = jobs_of(world)["job"].round
    assert current is not None
    assert (len(current.nodes()), alive(world)) == (2, 3)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 16)
    assert world.run_until(settled, 120.0)
