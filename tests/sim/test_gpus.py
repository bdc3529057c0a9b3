"""GPUs that die under a program that trains: their node is replaced, and the program is not blamed (P4, P5)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from spotsup_simulator.world import World
from spotsup_trainer.wire import Round

from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from tests.sim.harness import RULES, alive, empty_world, in_state, machine_of, record, sentence, submit, training_world
from tests.sim.promises import events_of, jobs_of, settled

pytestmark = pytest.mark.long


def node_at(world: World, rank: int) -> str:
    return machine_of(world, rank).instance.node


def state_of(world: World, node: str) -> NodeState:
    return jobs_of(world)["job"].nodes[node].state


def is_replaced(node: str, world: World) -> bool:
    return state_of(world, node) is NodeState.GONE and settled(world)


def step_of(world: World) -> int:
    progress = jobs_of(world)["job"].progress
    return progress.step if progress else 0


def _round_of(world: World) -> Round:
    current = jobs_of(world)["job"].round
    assert current is not None
    return current


def test_a_gpu_that_dies_under_a_program_costs_its_node_and_not_the_program() -> None:
    world = training_world(2, 3, 4, limits={"app_failures": 0})
    victim = node_at(world, 1)
    assert world.nodes.break_gpu(victim, "xid")
    assert world.run_until(lambda w: state_of(w, victim) is NodeState.TERMINATING, 90.0)
    assert world.run_until(lambda w: settled(w) and record(w).state is JobState.RUNNING, 120.0)
    assert events_of(world, "job", EventKind.NODE_UNHEALTHY) == [victim]
    current = jobs_of(world)["job"].round
    assert current is not None
    assert current.app_failures == 0
    assert victim not in current.nodes()


def test_a_dead_gpu_that_cannot_be_replaced_ends_no_job_however_often_its_worker_would_fail() -> None:
    world = training_world(2, 3, 4, limits={"app_failures": 0})
    world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 0)
    victim = node_at(world, 0)
    assert world.nodes.break_gpu(victim, "xid")
    assert world.run_until(in_state(JobState.DEGRADED), 30.0)
    world.run(120.0)
    assert record(world).state is JobState.DEGRADED, sentence(world)
    before = step_of(world)
    assert world.run_until(lambda w: step_of(w) > before, 10.0), "the others train"


def test_gpus_of_two_nodes_that_die_at_once_are_not_the_program_s_fault_and_replaced_one_by_one() -> None:
    world = training_world(3, 3, 4, limits={"app_failures": 0})
    victims = [node_at(world, rank) for rank in (1, 2)]
    assert all(world.nodes.break_gpu(node, "xid") for node in victims)
    world.run(10.0)
    assert events_of(world, "job", EventKind.NODE_UNHEALTHY) == []
    current = jobs_of(world)["job"].round
    assert current is not None
    assert current.reason.endswith("which may have unhealthy GPUs")
    world.run(110.0)
    first = events_of(world, "job", EventKind.NODE_UNHEALTHY)
    assert len(first) == 1
    assert first[0] in victims
    assert world.run_until(lambda w: settled(w) and not {*victims} & {*_round_of(w).nodes()}, 900.0)
    assert record(world).state is JobState.RUNNING, record(world).reason
    assert {*events_of(world, "job", EventKind.NODE_UNHEALTHY)} == {*victims}
    assert _round_of(world).number < 30  # each start waits longer than the one before
    assert _round_of(world).app_failures == 0


def test_below_its_minimum_a_job_waits_for_a_machine_with_gpus_that_work() -> None:
    world = training_world(3, 3, 4, limits={"app_failures": 0})
    assert world.nodes.break_gpu(node_at(world, 2), "xid")
    assert world.run_until(lambda w: events_of(w, "job", EventKind.NODE_UNHEALTHY) != [], 30.0)
    assert world.run_until(lambda w: settled(w) and record(w).state is JobState.RUNNING, 120.0)


def test_a_gpu_under_which_a_worker_only_hangs_is_taken_at_once_and_steps_go_on() -> None:
    world = training_world()
    victim = node_at(world, 1)
    assert world.nodes.break_gpu(victim, "hang")
    stuck = step_of(world)
    assert world.run_until(lambda w: state_of(w, victim) is not NodeState.MEMBER, 30.0)
    assert world.run_until(lambda w: step_of(w) > stuck, 60.0)
    assert world.run_until(settled, 120.0)
    (text,) = [e.text for e in world.journal.events("job") if e.kind is EventKind.NODE_LOST]
    assert "a GPU is gone: Xid 79" in text


def test_a_node_that_still_trains_stays_until_its_replacement_is_ready_and_no_step_is_lost() -> None:
    world = training_world()
    victim = node_at(world, 0)
    assert world.nodes.break_gpu(victim, "ecc")
    assert world.run_until(lambda w: alive(w) == 4, 30.0)
    assert state_of(world, victim) is NodeState.MEMBER
    assert "has unhealthy GPUs" in sentence(world)
    assert world.run_until(settled, 120.0)
    assert state_of(world, victim) is NodeState.GONE
    assert not world.nodes.trainings["job"].steps.losses


def test_a_spare_whose_gpus_are_unhealthy_is_replaced() -> None:
    world = training_world(spares=1)
    (spare,) = jobs_of(world)["job"].spares
    assert world.nodes.break_gpu(spare, "ecc")
    assert world.run_until(lambda w: state_of(w, spare) is NodeState.GONE, 60.0)
    assert world.run_until(settled, 120.0)


def test_when_all_nodes_call_their_gpus_unhealthy_at_once_none_is_ended_and_people_are_told_once() -> None:
    world = training_world()
    nodes = [node_at(world, rank) for rank in range(3)]
    for node in nodes:
        world.nodes.report_gpus(node, healthy=False, reason="nvidia-smi: Driver/library version mismatch")
    world.run(900.0)
    assert [state_of(world, node) for node in nodes] == [NodeState.MEMBER] * 3
    (text,) = [e.text for e in world.journal.events("job") if e.kind is EventKind.UNHEALTHY_HELD]
    assert text.startswith("3 nodes report unhealthy GPUs at once, so none of them is replaced")
    assert [e.kind for e in world.sent if e.kind is EventKind.UNHEALTHY_HELD] == [EventKind.UNHEALTHY_HELD]
    for node in nodes:
        world.nodes.report_gpus(node, healthy=True, reason="")
    assert world.run_until(lambda w: all(not n.unhealthy for n in jobs_of(w)["job"].nodes.values()), 60.0)
    assert alive(world) == 3


def test_the_second_of_a_few_nodes_is_held_for_some_minutes_only() -> None:
    world = empty_world(replace(RULES, unhealthy=replace(RULES.unhealthy, hold_s=120.0)))
    submit(world, "job", 2, 3, 4)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    first, second = node_at(world, 0), node_at(world, 1)
    assert world.nodes.break_gpu(first, "ecc")
    assert world.run_until(lambda w: state_of(w, first) is NodeState.GONE, 60.0)
    assert world.nodes.break_gpu(second, "ecc")
    assert world.run_until(lambda w: events_of(w, "job", EventKind.UNHEALTHY_HELD) == [second], 30.0)
    assert world.run_until(lambda w: state_of(w, second) is NodeState.GONE, 180.0)
    assert world.run_until(settled, 60.0)


def test_a_type_whose_gpus_die_again_and_again_is_blocked_and_its_nodes_train_on() -> None:
    world = empty_world(replace(RULES, unhealthy=replace(RULES.unhealthy, hold_s=1.0, memory_s=600.0)))
    submit(world, "job", 2, 3, 4)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    for dying in (node_at(world, 0), node_at(world, 1)):
        assert world.nodes.break_gpu(dying, "ecc")
        assert world.run_until(partial(is_replaced, dying), 120.0)
    third = node_at(world, 0)
    assert world.nodes.break_gpu(third, "ecc")
    world.run(60.0)
    assert len(events_of(world, "job", EventKind.MACHINE_TYPE_BLOCKED)) == 1
    assert state_of(world, third) is NodeState.MEMBER, "a wrong report costs three machines an hour at most"
