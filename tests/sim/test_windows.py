"""Checkpoints that take a minute: a node begins to leave early enough, and people hear of what cannot fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.world import World

from supervisor.events import EventKind
from supervisor.model import JobState
from tests.sim.harness import RULES, in_state, machine_of, sentence, service, training_world
from tests.sim.promises import events_of, jobs_of

pytestmark = pytest.mark.long


def world_with(saving_s: float) -> World:
    """A job whose checkpoints take so long, which the daemon knows."""
    world = training_world()
    world.nodes.trainings["job"].steps.saving_s = saving_s
    assert world.run_until(lambda w: jobs_of(w)["job"].record.checkpoints.save_s == saving_s, 60.0)
    return world


def lost_steps(world: World) -> int:
    return world.nodes.trainings["job"].steps.lost


@pytest.mark.parametrize("saving_s", [5.0, 30.0, 60.0])
def test_no_step_is_lost_where_a_notice_is_longer_than_a_checkpoint(saving_s: float) -> None:
    world = world_with(saving_s)
    doomed = machine_of(world, 1)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 3)  # no replacement: it leaves when it has to
    world.cloud.preempt(doomed, 120.0)
    world.run(300.0)
    assert not doomed.alive
    assert lost_steps(world) == 0


def test_a_node_whose_metadata_service_is_away_leaves_in_time_by_the_clouds_own_announcement() -> None:
    world = world_with(45.0)
    doomed = machine_of(world, 1)
    doomed.metadata_away = True
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 3)
    world.cloud.preempt(doomed, 120.0)
    world.run(300.0)
    assert not doomed.alive
    assert lost_steps(world) == 0


def test_no_step_is_lost_where_too_few_nodes_are_left_and_only_the_daemon_knows_of_the_notice() -> None:
    """A launcher alone trains on: it knows of no notice, and of no round that could form without the node."""
    world = training_world(low=3, desired=3, high=3)
    world.nodes.trainings["job"].steps.saving_s = 45.0
    assert world.run_until(lambda w: jobs_of(w)["job"].record.checkpoints.save_s == 45.0, 60.0)
    doomed = machine_of(world, 1)
    doomed.metadata_away = True
    zone = doomed.instance.zone  # no other has machines: the job cannot go elsewhere
    world.cloud.capacity = {each: 3 if each == zone else 0 for each in world.cloud.capacity}
    world.cloud.preempt(doomed, 120.0)
    assert world.run_until(lambda _: not doomed.alive, 300.0)
    assert lost_steps(world) == 0
    assert world.run_until(lambda w: sentence(w).startswith("2 of at least 3 nodes are here, and none trains"), 60.0)
    assert world.run_until(in_state(JobState.RUNNING), 300.0)
    assert lost_steps(world) == 0


def test_a_node_that_is_not_taken_after_all_holds_up_a_job_of_too_few_until_it_is_replaced() -> None:
    world = training_world(low=3, desired=3, high=3)
    doomed = machine_of(world, 1)
    doomed.metadata_away = True
    world.cloud.preempt(doomed, 120.0, comes_true=False)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 3)
    world.run(150.0)
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 4)
    assert world.run_until(in_state(JobState.RUNNING), 600.0)
    assert lost_steps(world) == 0


@pytest.mark.nightly
def test_a_pause_waits_for_a_checkpoint_of_ten_minutes_and_not_for_ever() -> None:
    world = world_with(600.0)
    service(world).commands.pause("job")
    assert world.run_until(in_state(JobState.PAUSED), 1000.0)
    service(world).commands.resume("job")
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert lost_steps(world) == 0
    world = world_with(600.0)
    world.nodes.trainings["job"].steps.saving_s = 1e6
    service(world).commands.pause("job")
    assert world.run_until(in_state(JobState.PAUSED), 7200.0 + 2 * RULES.drain_timeout_s)


def test_people_hear_once_of_checkpoints_that_no_notice_is_long_enough_for() -> None:
    world = training_world()
    world.daemon.loop._rules = replace(world.daemon.loop._rules, notice_s={"local": 30.0})
    world.nodes.trainings["job"].steps.saving_s = 45.0
    world.run(60.0)
    (event,) = [event for event in world.sent if event.kind is EventKind.CHECKPOINTS_TOO_SLOW]
    assert event.text == (
        "checkpoints of job take 45 s, and a preemption is announced 30 s before: each one costs the steps since "
        "the last checkpoint; checkpoint more often, or to faster storage"
    )
    world.run(600.0)
    assert len(events_of(world, "job", EventKind.CHECKPOINTS_TOO_SLOW)) <= 1
