"""Nodes that all others wait for: who hears of it, which are replaced, and what a hostile report costs at most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_simulator.etcd_clients import NodeClient
from spotsup_simulator.world import World
from spotsup_trainer.wire import RankTimes, encode

from supervisor.events import EventKind
from supervisor.model import Event, JobState
from tests.sim.harness import RULES, alive, empty_world, in_state, machine_of, record, sentence, submit
from tests.sim.promises import jobs_of

pytestmark = pytest.mark.long

# As the planner's, but shorter.
SLOW = replace(RULES, slow=replace(RULES.slow, lasts_s=150.0, again_s=600.0, limit_s=900.0))
LONG_S = 1200.0


def world_of_four(**more: Any) -> World:
    """A job of four nodes that trains. Reports come every half minute, and little else happens."""
    world = empty_world(SLOW)
    world.busy_tick_s, world.idle_tick_s, world.nodes.progress_every_s = 1.0, 10.0, 30.0
    submit(world, "job", 2, 4, 5, **more)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    world.nodes.trainings["job"].save()
    return world


def slow_world(rank: int = 1, **more: Any) -> tuple[World, str]:
    """One of its nodes is slow from now on."""
    world = world_of_four(**more)
    node = machine_of(world, rank).node
    make_slow(world, node)
    return world, node


def make_slow(world: World, node: str, *, on: bool = True) -> None:
    world.nodes.trainings["job"].slow(node, world.clock.now(), on=on)


def said(world: World) -> list[Event]:
    kinds = {EventKind.NODE_SLOW, EventKind.SLOW_ENDED}
    return [event for event in world.sent if event.kind in kinds]


def launched(world: World) -> int:
    return len(jobs_of(world)["job"].nodes)


def test_a_node_that_is_slow_for_long_is_one_alert_and_so_is_its_recovery() -> None:
    world, node = slow_world()
    world.run(SLOW.slow.lasts_s - 5.0)
    assert said(world) == []
    world.run(120.0)
    (event,) = said(world)
    assert (event.kind, event.node) == (EventKind.NODE_SLOW, node)
    assert event.text.startswith(f"all nodes of job wait for {node} at each step: for 2.5 min it has worked ")
    assert event.text.endswith(f"times as long as most; `spotsupctl drain {node}` replaces it")
    assert 3.0 < event.data["factor"] < 5.0  # type: ignore[operator]  # a number
    assert f"{node} is slow" in sentence(world)
    world.run(400.0)
    assert len(said(world)) == 1
    assert launched(world) == 4
    make_slow(world, node, on=False)
    world.run(SLOW.slow.lasts_s + 120.0)
    assert [each.kind for each in said(world)] == [EventKind.NODE_SLOW, EventKind.SLOW_ENDED]
    assert "slow" not in sentence(world)


def test_what_ends_before_is_no_alert() -> None:
    world, node = slow_world()
    for _ in range(4):
        world.run(SLOW.slow.lasts_s - 40.0)
        make_slow(world, node, on=False)
        world.run(120.0)
        make_slow(world, node)
    assert said(world) == []


def test_a_new_leader_watches_for_as_long_itself() -> None:
    world, _ = slow_world()
    world.run(SLOW.slow.lasts_s - 40.0)
    world.crash_daemon()
    world.run(SLOW.slow.lasts_s - 40.0)
    assert said(world) == []
    world.run(180.0)
    assert len(said(world)) == 1


def test_where_the_job_says_so_a_slow_node_is_replaced_first_and_leaves_then() -> None:
    world, node = slow_world(limits={"slow": "replace"})
    losses = list(world.nodes.trainings["job"].steps.losses)
    assert world.run_until(lambda w: record(w).slow.replaced_at != (), SLOW.slow.lasts_s + 120.0)
    assert world.run_until(lambda w: node not in jobs_of(w)["job"].round.nodes(), 300.0)  # type: ignore[union-attr]
    (successor,) = [each for each in jobs_of(world)["job"].nodes.values() if each.replaces == node]
    assert successor.has_joined
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert world.run_until(lambda w: alive(w) == 4, 120.0)
    assert world.nodes.trainings["job"].steps.losses == losses, "no step was lost"
    world.run(LONG_S)
    assert launched(world) == 5


def test_a_slow_node_that_cannot_be_replaced_stays_and_trains() -> None:
    world = world_of_four(limits={"slow": "replace", "usd_per_hour": 0.45})
    make_slow(world, machine_of(world, 1).node)
    world.run(LONG_S)
    assert len(said(world)) == 1
    assert (launched(world), record(world).slow.replaced_at) == (4, ())
    assert record(world).state is JobState.RUNNING


def test_of_two_slow_nodes_of_four_none_is_replaced() -> None:
    world, _ = slow_world(limits={"slow": "replace"})
    make_slow(world, machine_of(world, 2).node)
    world.run(LONG_S)
    assert launched(world) == 4


def test_a_node_in_the_place_of_a_slow_one_that_is_as_slow_is_not_replaced() -> None:
    """It is not the machine: rank 0 may do what the others do not."""
    world, node = slow_world(limits={"slow": "replace"})
    assert world.run_until(lambda w: launched(w) == 5, SLOW.slow.lasts_s + 120.0)
    successor = next(each.id for each in jobs_of(world)["job"].nodes.values() if each.replaces == node)
    assert world.run_until(lambda w: jobs_of(w)["job"].nodes[successor].has_joined, 300.0)
    make_slow(world, successor)
    world.run(LONG_S)
    assert [each.node for each in said(world)] == [node, successor]
    assert launched(world) == 5


def test_a_hostile_report_costs_no_more_than_three_machines_a_day_one_at_a_time() -> None:
    world = world_of_four(limits={"slow": "replace"})
    training, most = world.nodes.trainings["job"], 0

    def forge(*_arguments: object) -> None:
        """Whichever node has been there for longest is slow."""
        current, now = training.formed, world.clock.now()
        assert current is not None
        first = min(current.nodes(), key=lambda each: int(each.rpartition("-")[2]))
        times = tuple(10.0 if node == first else 1.0 for node in current.nodes())
        message = encode(RankTimes(current.number, now, times, times))
        NodeClient(world.etcd, "job").put(world.nodes.keys.rank_times("job"), message)

    training.ranks.say = forge  # type: ignore[method-assign, assignment]  # the job's program is hostile
    for _ in range(50):
        training.save()
        world.run(60.0)
        most = max(most, sum(machine.billed for machine in world.cloud.machines.values()))
    assert (launched(world), most) == (4 + SLOW.slow.max_a_day, 5)


@pytest.mark.parametrize("times", [(), (1.0, 5.0), (1.0, 5.0, 1.0, 1.0, 1.0), (1.0, 0.0, 1.0, 1.0), (-1.0, 1, 1, 1)])
def test_a_report_that_does_not_fit_the_round_says_nothing(times: tuple[float, ...]) -> None:
    world = world_of_four()
    training = world.nodes.trainings["job"]

    def forge(*_arguments: object) -> None:
        assert training.formed is not None
        message = encode(RankTimes(training.formed.number, world.clock.now(), times, times))
        NodeClient(world.etcd, "job").put(world.nodes.keys.rank_times("job"), message)

    training.ranks.say = forge  # type: ignore[method-assign, assignment]
    world.run(2 * SLOW.slow.lasts_s)
    assert said(world) == []
