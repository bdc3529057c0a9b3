"""Jobs that name several kinds of machines: of which one they are, and when they change it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.events import EventKind
from supervisor.market.admission import Cap, QueueRules
from supervisor.market.warm import WarmRules
from supervisor.model import JobState
from supervisor.planner.world import Rules
from tests.sim.harness import RULES, alive, empty_world, in_state, machine_of, record, service, submit
from tests.sim.promises import jobs_of, settled

pytestmark = pytest.mark.long

LARGE, SMALL = {"instance_types": ["large"], "speed": 3.0}, {"instance_types": ["small"]}
# What a job keeps an alternative for, a refusal that is believed for 10 s, and what it speaks against a move besides.
BACK_S = RULES.moves.back_to_listed_s + RULES.moves.probe_s + 300.0


def world_of_kinds(*sold_out: str, rules: Rules = RULES) -> World:
    """A cloud with small machines, and large ones at twice the price."""
    world = empty_world(rules)
    world.cloud.types, world.cloud.gpus = ("small", "large"), {"small": 1, "large": 4}
    world.cloud.sold_out_types = frozenset(sold_out)
    return world


def submit_both(world: World, low: int = 2, desired: int = 3, **more: Any) -> None:
    submit(world, "job", low, desired, desired, **{"resources": [LARGE, SMALL], **more})


def kinds(world: World) -> set[str]:
    """What the current round is of."""
    job = jobs_of(world)["job"]
    assert job.round is not None
    return {job.nodes[node].offer.instance_type for node in job.round.nodes()}


def moves(world: World) -> list[str]:
    return [each.text for each in world.journal.events("job") if each.kind is EventKind.MOVED]


def test_a_job_is_of_the_first_kind_in_its_list_although_the_second_is_cheaper() -> None:
    world = world_of_kinds()
    submit_both(world)
    assert world.run_until(settled, 120.0)
    assert kinds(world) == {"large"}
    world.run(3000.0)
    assert (kinds(world), moves(world)) == ({"large"}, [])


def test_a_job_is_of_the_next_kind_where_the_first_is_sold_out_and_goes_back_at_one_pause() -> None:
    world = world_of_kinds("large")
    submit_both(world)
    assert world.run_until(settled, 120.0)
    assert kinds(world) == {"small"}
    rounds = record(world).rounds.reported
    world.cloud.sold_out_types = frozenset()
    world.run(RULES.moves.back_to_listed_s - 120.0)
    assert kinds(world) == {"small"}, "not at once: what is back may be gone again"
    assert world.run_until(lambda w: kinds(w) == {"large"}, BACK_S)
    assert world.run_until(settled, 120.0)
    assert record(world).rounds.reported == rounds + 1
    assert world.nodes.trainings["job"].steps.lost == 0
    assert moves(world) == ["job leaves 3 nodes in zone-a (small) for 3 in zone-a (large) (large, spot)"]


@pytest.mark.nightly
def test_a_first_kind_that_comes_and_goes_costs_few_moves_and_no_step() -> None:
    world = world_of_kinds("large")
    submit_both(world)
    assert world.run_until(settled, 120.0)
    for _ in range(4):
        world.cloud.sold_out_types = frozenset()
        world.run(600.0)
        world.cloud.sold_out_types = frozenset({"large"})
        for machine in [m for m in world.cloud.machines.values() if m.alive and m.instance.instance_type == "large"]:
            world.cloud.preempt(machine, 120.0)
        world.run(600.0)
    assert len(moves(world)) <= 3
    assert world.nodes.trainings["job"].steps.lost == 0
    assert world.run_until(settled, 300.0)


def test_the_kind_vanishes_in_the_middle_of_a_move_and_the_job_stays() -> None:
    world = world_of_kinds("large")
    submit_both(world)
    assert world.run_until(settled, 120.0)
    world.cloud.sold_out_types = frozenset()
    assert world.run_until(lambda w: alive(w) == 6, BACK_S)
    world.cloud.sold_out_types = frozenset({"large"})
    for machine in [m for m in world.cloud.machines.values() if m.instance.instance_type == "large"]:
        world.cloud.end(machine, EndCause.PREEMPTED)
    assert world.run_until(settled, 300.0)
    assert (kinds(world), record(world).moves.since) == ({"small"}, 0.0)
    assert world.nodes.trainings["job"].steps.lost == 0


def test_another_daemon_goes_on_with_a_change_of_kind() -> None:
    world = world_of_kinds("large")
    submit_both(world)
    assert world.run_until(settled, 120.0)
    world.cloud.sold_out_types = frozenset()
    assert world.run_until(lambda w: record(w).moves.since > 0, BACK_S)
    world.crash_daemon()
    assert world.run_until(lambda w: settled(w) and kinds(w) == {"large"}, 300.0)
    assert len([m for m in world.cloud.machines.values() if m.instance.instance_type == "large"]) == 3
    assert world.nodes.trainings["job"].steps.lost == 0


def test_a_job_never_mixes_kinds_where_each_has_a_part_of_what_it_needs() -> None:
    world = world_of_kinds()
    submit_both(world, 4, 4)
    world.cloud.capacity.update({"zone-a": 2, "zone-b": 1})
    world.run(600.0)
    assert record(world).state is not JobState.RUNNING
    world.cloud.capacity["zone-a"] = 16
    assert world.run_until(in_state(JobState.RUNNING), 1200.0)
    assert len(kinds(world)) == 1


def test_a_job_that_loses_the_kind_below_its_minimum_begins_again_on_the_other() -> None:
    world = world_of_kinds()
    submit_both(world)
    assert world.run_until(settled, 120.0)
    world.cloud.sold_out_types = frozenset({"large"})
    for rank in range(3):
        world.cloud.preempt(machine_of(world, rank), 120.0)
    assert world.run_until(lambda w: kinds(w) == {"small"} and settled(w), 300.0)
    assert world.nodes.trainings["job"].steps.lost == 0


@pytest.mark.parametrize(("speed", "kind"), [(3.0, "large"), (1.5, "small")])
def test_of_two_kinds_the_one_whose_work_costs_less_is_the_cheapest(speed: float, kind: str) -> None:
    world = world_of_kinds()
    submit_both(world, resources=[{**LARGE, "speed": speed}, SMALL], prefer="cheapest")
    assert world.run_until(settled, 120.0)
    assert kinds(world) == {kind}


def test_a_job_that_prefers_the_cheapest_follows_what_its_work_costs() -> None:
    world = world_of_kinds("large")
    submit_both(world, prefer="cheapest")
    assert world.run_until(settled, 120.0)
    assert kinds(world) == {"small"}
    world.cloud.sold_out_types = frozenset()
    assert world.run_until(lambda w: kinds(w) == {"large"} and settled(w), 7200.0), "a third less for the same work"
    assert world.nodes.trainings["job"].steps.lost == 0


def test_workers_and_limits_count_the_gpus_of_the_kind_that_a_job_has() -> None:
    both = [{**LARGE, "gpus_per_node": 4}, {**SMALL, "gpus_per_node": 1}]
    world = world_of_kinds()
    submit_both(world, resources=both)
    assert world.run_until(settled, 120.0)
    job = jobs_of(world)["job"]
    offers = [node.offer for node in job.nodes.values()]
    assert {job.record.spec.nproc_on(offer) for offer in offers} == {4}


def test_a_user_whose_gpus_are_too_few_for_the_first_kind_gets_the_second() -> None:
    world = world_of_kinds(rules=replace(RULES, queue=QueueRules(user=Cap(gpus=6))))
    submit_both(world, resources=[{**LARGE, "gpus_per_node": 4}, {**SMALL, "gpus_per_node": 1}], owner="ann")
    assert world.run_until(settled, 300.0)
    assert kinds(world) == {"small"}
    world.run(3000.0)
    assert kinds(world) == {"small"}, "both sets, or the larger alone, are more than ann may have"


def test_a_machine_that_waits_is_taken_as_what_the_next_job_calls_it() -> None:
    world = world_of_kinds(rules=replace(RULES, warm=WarmRules(600.0)))
    submit(world, "job", 2, 2, 2, resources=[LARGE, SMALL])
    assert world.run_until(settled, 120.0)
    service(world).commands.cancel("job")
    world.run(30.0)
    submit(world, "next", 2, 2, 2, resources=[SMALL, LARGE], prefer="cheapest")
    assert world.run_until(lambda w: record(w, "next").state is JobState.RUNNING, 120.0)
    assert {node.offer.alternative for node in jobs_of(world)["next"].nodes.values()} == {1}
    assert len(world.cloud.machines) == 2
