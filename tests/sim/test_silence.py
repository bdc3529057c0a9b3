"""Silence is not death (P4): nodes that only etcd cannot hear go on, and what is really gone is acted on at once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World

from supervisor.api.jobs.changes import Scale
from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from tests.sim.harness import (
    NO_FAULTS,
    RULES,
    alive,
    empty_world,
    machine_of,
    record,
    sentence,
    service,
    submit,
    training_world,
)
from tests.sim.promises import events_of, jobs_of, settled

pytestmark = pytest.mark.long


def cut(world: World, machines: Iterable[Machine], *, on: bool = True) -> None:
    """Cut machines off from etcd, or connect them again; nothing else is touched."""
    for machine in machines:
        machine.cut = on
    world.wake_daemons()


def everything(world: World) -> list[Machine]:
    return [machine for machine in world.cloud.machines.values() if machine.alive]


def texts(world: World, kind: EventKind) -> list[str]:
    return [event.text for event in world.sent if event.kind is kind]


def assert_nothing_was_lost(world: World, machines: int) -> None:
    assert alive(world) == len(world.cloud.machines) == machines
    for name, job in jobs_of(world).items():
        assert events_of(world, name, EventKind.NODE_LOST) == []
        assert job.record.state is JobState.RUNNING
        assert job.round is not None
        assert job.round.number == 1
        assert world.nodes.trainings[name].steps.losses == []


def test_all_nodes_of_three_jobs_cut_off_from_etcd_for_30_s_lose_nothing() -> None:
    world = empty_world()
    for number in range(3):
        world.cloud.capacity = dict.fromkeys(world.cloud.capacity, 24)
        submit(world, f"job-{number}", 4, 8, 8)
    assert world.run_until(lambda w: all(job.record.state is JobState.RUNNING for job in jobs_of(w).values()), 120.0)
    cut(world, everything(world))
    world.run(30.0)
    cut(world, everything(world), on=False)
    world.run(30.0)
    assert settled(world)
    assert_nothing_was_lost(world, 24)


@pytest.mark.parametrize("which", [slice(None), slice(None, None, 2), slice(0, 2)], ids=["all", "half", "two of four"])
def test_nodes_that_only_etcd_cannot_hear_train_on_for_however_long(which: slice) -> None:
    world = training_world(2, 4, 4)
    world.idle_tick_s = 10.0
    cut(world, everything(world)[which])
    world.run(800.0)
    before = world.nodes.trainings["job"].save()
    world.run(100.0)
    assert world.nodes.trainings["job"].save() - before > 150
    cut(world, everything(world), on=False)
    world.run(30.0)
    assert settled(world)
    assert_nothing_was_lost(world, 4)


def test_people_are_told_once_reminded_now_and_then_and_told_when_all_are_heard_again() -> None:
    world = training_world(2, 4, 4)
    cut(world, everything(world)[:3])
    world.run(60.0)
    assert sentence(world) == "1 of 4 nodes trains (round 1); 3 of 4 nodes are silent: network?"
    (text,) = texts(world, EventKind.SILENCE)
    assert text.startswith("3 of 4 nodes are silent: network? What is silent is kept until")
    world.run(200.0)
    assert len(texts(world, EventKind.SILENCE)) == 2
    cut(world, everything(world), on=False)
    world.run(30.0)
    assert texts(world, EventKind.SILENCE_ENDED) == ["all nodes of job are heard again, or known to have ended"]
    assert record(world).silence.since == 0.0


def test_a_zone_that_its_provider_ends_is_replaced_at_once() -> None:
    world = training_world(2, 4, 4)
    for machine in everything(world):
        world.cloud.vanish(machine)
    assert world.run_until(lambda w: len(events_of(w, "job", EventKind.NODE_LOST)) == 4, 5.0)
    assert world.run_until(settled, 60.0)


def test_what_the_provider_ended_among_many_that_are_silent_is_replaced_and_the_others_are_kept() -> None:
    world = training_world(2, 6, 6)
    cut(world, everything(world))
    world.run(120.0)
    gone, *others = everything(world)
    world.cloud.vanish(gone)
    assert world.run_until(lambda w: events_of(w, "job", EventKind.NODE_LOST) == [gone.instance.node], 10.0)
    world.run(120.0)
    assert events_of(world, "job", EventKind.NODE_LOST) == [gone.instance.node]
    cut(world, others, on=False)
    assert world.run_until(settled, 120.0)
    assert all(machine.alive for machine in others)


def test_many_that_are_silent_while_their_cloud_cannot_be_listed_are_kept() -> None:
    world = training_world(2, 4, 4)
    world.set_fault_rates(FaultRates(unreachable=1.0))
    cut(world, everything(world))
    world.run(200.0)
    world.set_fault_rates(NO_FAULTS)
    cut(world, everything(world), on=False)
    world.run(60.0)
    assert_nothing_was_lost(world, 4)


def test_the_next_leader_keeps_them_too() -> None:
    world = training_world(2, 4, 4)
    cut(world, everything(world))
    world.run(60.0)
    world.crash_daemon()
    world.run(120.0)
    cut(world, everything(world), on=False)
    world.run(30.0)
    assert_nothing_was_lost(world, 4)


def test_one_node_each_of_two_jobs_is_many() -> None:
    world = empty_world()
    for name in ("job", "other"):
        submit(world, name, 1, 1, 1)
    assert world.run_until(lambda w: all(job.record.state is JobState.RUNNING for job in jobs_of(w).values()), 60.0)
    for machine in everything(world):
        machine.cut, machine.ssh = True, "refuses"
    world.run(120.0)
    assert "1 of 1 node is silent, and 1 of other jobs: network?" in sentence(world)
    cut(world, everything(world), on=False)
    world.run(30.0)
    assert_nothing_was_lost(world, 2)


def test_those_that_remain_silent_when_the_others_are_back_are_judged_one_by_one() -> None:
    world = training_world(2, 4, 4)
    for machine in everything(world):
        machine.silent = True
    world.run(60.0)
    dead, *others = everything(world)
    for machine in others:
        machine.silent = False
    world.run(RULES.silence.suspect_s - 5.0)
    assert events_of(world, "job", EventKind.NODE_LOST) == [], "its suspicion has begun anew"
    assert world.run_until(lambda w: events_of(w, "job", EventKind.NODE_LOST) == [dead.instance.node], 30.0)
    assert world.run_until(settled, 60.0)


def test_a_user_who_knows_better_drains_silent_nodes() -> None:
    world = training_world(2, 4, 4)
    silent = everything(world)[:2]
    for machine in silent:
        machine.silent = True
    world.run(60.0)
    for machine in silent:
        service(world).commands.drain(machine.instance.node)
    assert world.run_until(settled, 90.0)
    assert not any(machine.alive for machine in silent)


def test_a_node_that_starts_while_many_are_silent_is_not_blamed_for_not_reaching_etcd() -> None:
    world = training_world(2, 4, 5)
    cut(world, everything(world))
    service(world).commands.scale("job", Scale(desired=5))
    assert world.run_until(lambda w: alive(w) == 5, 30.0)
    cut(world, everything(world))
    world.run(5 * RULES.ready_timeout_s)
    assert (record(world).bootstraps.failures, len(world.cloud.machines)) == (0, 5)
    cut(world, everything(world), on=False)
    assert world.run_until(settled, 60.0)


# -- one node ----------------------------------------------------------------------------------------------


def test_a_single_silent_node_whose_steps_advance_is_kept_and_people_are_told() -> None:
    world = training_world(2, 4, 4)
    cut(world, [machine_of(world, 3)])
    world.run(300.0)
    assert "is silent, and its steps advance: it cannot reach etcd" in sentence(world)
    assert len(texts(world, EventKind.SILENCE)) == 2
    cut(world, everything(world), on=False)
    world.run(30.0)
    assert_nothing_was_lost(world, 4)


@pytest.mark.parametrize(
    ("ssh", "why"),
    [
        ("refuses", "over SSH: connection refused"),
        ("hangs", "over SSH: no answer within 20 s"),
        ("stale", "no step advances on it"),
    ],
)
def test_a_single_silent_node_that_cannot_show_that_its_steps_advance_is_given_up(ssh: str, why: str) -> None:
    world = training_world(2, 4, 4)
    machine = machine_of(world, 3)
    machine.cut, machine.ssh = True, ssh
    assert world.run_until(lambda _: not machine.alive, 60.0)
    assert world.run_until(settled, 60.0)
    (lost,) = texts(world, EventKind.NODE_LOST)
    assert lost.endswith(f": silent for 20 s, and {why}")


def test_a_single_silent_node_is_kept_until_its_cloud_was_listed_after_it_fell_silent() -> None:
    world = training_world(2, 4, 4)
    world.set_fault_rates(FaultRates(unreachable=1.0))
    machine = machine_of(world, 3)
    machine.silent = True
    world.run(300.0)
    assert machine.alive
    assert "is silent, and local was not listed since: no answer within the time limit" in sentence(world)
    machine.silent = False
    world.set_fault_rates(NO_FAULTS)
    world.run(60.0)
    assert [node.state for node in jobs_of(world)["job"].nodes.values()] == [NodeState.MEMBER] * 4
