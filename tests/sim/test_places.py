"""Where a job's nodes are: all in one zone, which it leaves as a whole when that zone takes or lacks too many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.world import World

from provisioners.base import EndCause
from supervisor.api.jobs.changes import Scale
from supervisor.events import EventKind
from supervisor.market.hazard import HazardRules
from supervisor.market.journaled import EVERY_S
from supervisor.model import COUNTED_NODE_STATES, JobState
from tests.sim.harness import RULES, alive, empty_world, in_state, machine_of, record, service, submit, training_world
from tests.sim.promises import events_of, jobs_of, settled

pytestmark = pytest.mark.long


def zones(world: World) -> set[str]:
    """Where the current round is."""
    job = jobs_of(world)["job"]
    assert job.round is not None
    return {job.nodes[node].offer.zone for node in job.round.nodes()}


def test_a_job_whose_zone_takes_all_of_its_nodes_goes_on_in_another_one_without_losing_a_step() -> None:
    world = training_world(low=2, desired=3, high=3)
    assert zones(world) == {"zone-a"}
    world.cloud.capacity["zone-a"] = 0
    for rank in range(3):
        world.cloud.preempt(machine_of(world, rank), 120.0)
    assert world.run_until(lambda w: zones(w) == {"zone-b"}, 60.0), "as many are ready before the others have to leave"
    assert world.run_until(settled, 60.0)
    assert world.nodes.trainings["job"].steps.lost == 0


def test_a_job_trains_on_with_all_that_are_doomed_until_as_many_are_ready_or_they_have_to_leave() -> None:
    world = training_world(low=1, desired=3, high=3)
    world.cloud.capacity.update({"zone-a": 0, "zone-b": 2})
    for rank in range(3):
        world.cloud.preempt(machine_of(world, rank), 120.0)
    world.run(60.0)
    assert zones(world) == {"zone-a"}, "two that are ready elsewhere are fewer than three that have a minute left"
    assert world.run_until(lambda w: zones(w) == {"zone-b"}, 65.0)
    assert world.nodes.trainings["job"].steps.lost == 0


def test_a_job_of_which_some_nodes_stay_stays_with_them() -> None:
    world = training_world(low=1, desired=3, high=3)
    world.cloud.preempt(machine_of(world, 0), 120.0)
    world.cloud.preempt(machine_of(world, 1), 120.0)
    world.cloud.capacity["zone-a"] = 5
    world.run(150.0)
    assert zones(world) == {"zone-a"}


def test_a_job_of_which_some_nodes_stay_moves_in_time_where_its_zone_refuses_others() -> None:
    world = training_world(low=1, desired=3, high=3)
    world.cloud.preempt(machine_of(world, 0), 120.0)
    world.cloud.preempt(machine_of(world, 1), 120.0)
    world.cloud.capacity["zone-a"] = 1
    assert world.run_until(lambda w: zones(w) == {"zone-b"}, 110.0), "before they are taken"
    assert world.run_until(settled, 60.0)
    assert world.nodes.trainings["job"].steps.lost == 0


def test_machines_that_are_too_few_to_train_are_given_back_once_the_next_zone_has_enough() -> None:
    world = empty_world()
    world.cloud.capacity.update({"zone-a": 2, "zone-b": 16})
    submit(world, "job", 4, 6, 6)
    assert world.run_until(in_state(JobState.RUNNING), 60.0)
    assert zones(world) == {"zone-b"}
    assert world.run_until(lambda w: alive(w) == 6, 200.0)
    assert not events_of(world, "job", EventKind.TOO_FEW_NODES)


def test_machines_that_are_too_few_to_train_are_given_back_where_no_zone_has_enough() -> None:
    world = empty_world()
    world.cloud.capacity.update({"zone-a": 2, "zone-b": 1})
    submit(world, "job", 4, 6, 6)
    world.run(60.0)
    assert alive(world) == 2
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.TOO_FEW_NODES)), 150.0)
    (given_up,) = [each for each in world.journal.events("job") if each.kind is EventKind.TOO_FEW_NODES]
    assert given_up.text == "zone-a had 2 of at least 4 nodes for 120 s: they are released"


def test_machines_that_are_too_few_are_kept_while_nobody_has_refused_more() -> None:
    """An answer that is slow says nothing: here each further request waits for credentials."""
    world = training_world(low=2, desired=3, high=3)
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    world.cloud.end(machine_of(world, 1), EndCause.PREEMPTED)
    world.set_fault_rates(FaultRates(denied=1.0))
    world.run(400.0)
    assert alive(world) == 1
    assert not events_of(world, "job", EventKind.TOO_FEW_NODES)


def test_machines_that_are_too_few_are_given_back_also_where_no_other_place_can_be_asked() -> None:
    world = empty_world()
    world.cloud.capacity.update({"zone-a": 2, "zone-b": 0})
    submit(world, "job", 4, 6, 6)
    world.run(100.0)
    assert alive(world) == 2
    assert world.run_until(lambda w: alive(w) == 0, 60.0)
    world.cloud.capacity["zone-a"] = 4
    assert world.run_until(lambda w: record(w).state is JobState.DEGRADED, 900.0)


def test_drained_nodes_are_replaced_where_they_are() -> None:
    world = training_world(low=1, desired=3, high=3)
    world.cloud.capacity.update({"zone-a": 5, "zone-b": 2})
    for node in list(jobs_of(world)["job"].nodes):
        service(world).commands.drain(node)
    world.run(300.0)
    assert zones(world) == {"zone-a"}
    assert {machine.instance.zone for machine in world.cloud.machines.values() if machine.alive} == {"zone-a"}


def test_a_zone_that_had_few_is_asked_again_every_few_minutes_and_what_it_grants_is_given_back_at_once() -> None:
    world = empty_world()
    world.cloud.capacity.update({"zone-a": 2, "zone-b": 1})
    submit(world, "job", 4, 6, 6)
    world.run(1800.0)
    first, *others = [each.text for each in world.journal.events("job") if each.kind is EventKind.TOO_FEW_NODES]
    assert first == "zone-a had 2 of at least 4 nodes for 120 s: they are released"
    assert "zone-a had 2 of at least 4 nodes again: they are released" in others
    assert 18 <= len(others) <= 32, "each of two zones"
    nodes = [node for node in jobs_of(world)["job"].nodes.values() if node.launched_at]
    billed_s = sum((node.ended_at or world.clock.now()) - node.launched_at for node in nodes)
    assert billed_s < 1.0 * 1800.0, "less than one machine all the time"
    world.cloud.capacity["zone-b"] = 6
    assert world.run_until(in_state(JobState.RUNNING), 240.0)


def test_a_zone_that_has_nearly_enough_for_a_gang_is_asked_a_few_times_an_hour() -> None:
    world = empty_world()
    world.cloud.no_capacity_s = 600.0
    world.cloud.capacity.update({"zone-a": 7, "zone-b": 0})
    submit(world, "job", 8, 8, 8)
    world.run(1000.0)
    assert world.cloud.launched == 2 * 7, "each bills a minute"
    world.cloud.capacity["zone-a"] = 8
    assert world.run_until(in_state(JobState.RUNNING), 800.0)


def test_a_gang_that_is_scaled_down_to_what_a_zone_had_asks_it_at_once() -> None:
    world = empty_world()
    world.cloud.capacity.update({"zone-a": 11, "zone-b": 0})
    submit(world, "job", 16, 16, 16)
    world.run(300.0)
    assert alive(world) == 0
    service(world).commands.scale("job", Scale(desired=11, min_nodes=11))
    assert world.run_until(in_state(JobState.RUNNING), 60.0)


def test_a_zone_that_refused_is_asked_for_one_machine_before_it_is_asked_for_all() -> None:
    world = empty_world()
    world.cloud.capacity.update({"zone-a": 0, "zone-b": 0})
    submit(world, "job", 4, 16, 16)
    world.run(5.0)
    asked = len(events_of(world, "job", EventKind.LAUNCH_REQUESTED))
    world.run(100.0)
    more = len(events_of(world, "job", EventKind.LAUNCH_REQUESTED)) - asked
    assert 10 <= more <= 24, "each of two zones every ten seconds, for one"
    world.cloud.capacity["zone-b"] = 16
    assert world.run_until(in_state(JobState.RUNNING), 60.0)


def preempt_and_settle(world: World) -> str:
    """Take the only node, and name the zone of the next one."""
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    world.run(1.0)
    assert world.run_until(settled, 60.0)
    (zone,) = zones(world)
    return zone


def test_a_zone_that_takes_node_after_node_is_asked_after_one_that_costs_a_tenth_more() -> None:
    world = training_world(low=1, desired=1, high=1)
    found = [preempt_and_settle(world) for _ in range(6)]
    assert found[0] == "zone-a", "one says little"
    assert "zone-b" in found[1:3]
    assert found[-1] != found[-2], "what has taken as many is no better"


def test_a_zone_that_took_nodes_is_believed_again_by_and_by() -> None:
    world = empty_world(replace(RULES, hazard=HazardRules(half_life_s=60.0)))
    submit(world, "job", 1, 1, 1)
    assert world.run_until(settled, 60.0)
    assert any(preempt_and_settle(world) == "zone-b" for _ in range(4))
    world.run(600.0)
    assert preempt_and_settle(world) == "zone-a"


def test_another_daemon_knows_how_often_a_zone_took_nodes() -> None:
    world = training_world(low=1, desired=1, high=1)
    preempt_and_settle(world)
    world.run(EVERY_S + 2.0)
    world.crash_daemon()
    world.run(30.0)
    assert "zone-b" in {preempt_and_settle(world), preempt_and_settle(world)}


def test_of_two_jobs_and_a_pool_for_one_of_them_one_trains_and_the_other_holds_nothing_for_long() -> None:
    world = empty_world()
    world.cloud.no_capacity_s = 60.0
    world.cloud.capacity.update({"zone-a": 6, "zone-b": 0})
    submit(world, "one", 4, 4, 4)
    submit(world, "two", 4, 4, 4)
    both = ("one", "two")
    assert world.run_until(lambda w: JobState.RUNNING in {record(w, name).state for name in both}, 300.0)
    (waits,) = (name for name in both if record(world, name).state is not JobState.RUNNING)

    def held(world: World) -> bool:
        return any(m.alive and m.instance.node.startswith(f"{waits}-") for m in world.cloud.machines.values())

    if held(world):
        assert world.run_until(lambda w: not held(w), world.rules.gang.timeout_s + 60.0)
    assert alive(world) == 4
    world.cloud.capacity["zone-b"] = 4
    assert world.run_until(lambda w: record(w, waits).state is JobState.RUNNING, 900.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_two_jobs_that_ask_for_what_is_enough_for_one_do_not_wait_for_each_other(seed: int) -> None:
    world = empty_world(seed=seed)
    world.cloud.capacity.update({"zone-a": 0, "zone-b": 0})
    submit(world, "one", 4, 4, 4)
    submit(world, "two", 4, 4, 4)
    world.run(30.0)
    world.cloud.capacity["zone-a"] = 6
    both = ("one", "two")

    def trains(world: World) -> bool:
        return JobState.RUNNING in {record(world, name).state for name in both}

    assert world.run_until(trains, 400.0)


# -- moves -------------------------------------------------------------------------------------------------


def full_zone(low: int = 2, desired: int = 6, has: int = 3, elsewhere: int = 16, **more: Any) -> World:
    """A job of which a part trains in a zone that has no more; the other zone has room."""
    world = empty_world()
    world.cloud.capacity.update({"zone-a": has, "zone-b": 0})
    submit(world, "job", low, desired, desired, **more)
    assert world.run_until(in_state(JobState.DEGRADED), 60.0)
    world.run(60.0)
    world.cloud.capacity["zone-b"] = elsewhere
    return world


def moves(world: World) -> list[str]:
    """What came of attempts to move."""
    kinds = {EventKind.MOVED, EventKind.MOVE_GIVEN_UP}
    return [each.text for each in world.journal.events("job") if each.kind in kinds]


def test_a_job_leaves_a_full_zone_for_one_that_has_enough_at_one_pause_and_without_losing_a_step() -> None:
    world = full_zone()
    before = record(world).rounds.reported
    assert world.run_until(settled, 1800.0)
    assert zones(world) == {"zone-b"}
    assert moves(world) == ["job leaves 3 nodes in zone-a for 6 in zone-b (small, spot)"]
    assert record(world).rounds.reported == before + 1
    assert world.nodes.trainings["job"].steps.lost == 0


def test_a_move_whose_new_nodes_are_preempted_leaves_the_job_where_it_is() -> None:
    world = full_zone()
    assert world.run_until(lambda w: alive(w) == 9, 1800.0)
    for machine in [m for m in world.cloud.machines.values() if m.instance.zone == "zone-b"]:
        world.cloud.preempt(machine, 30.0)
    world.cloud.capacity["zone-b"] = 0
    assert world.run_until(lambda w: alive(w) == 3, 120.0)
    world.run(60.0)
    assert zones(world) == {"zone-a"}
    assert record(world).moves.since == 0
    assert world.nodes.trainings["job"].steps.lost == 0


def test_a_move_goes_on_or_ends_as_the_job_is_scaled_or_cancelled() -> None:
    world = full_zone()
    assert world.run_until(lambda w: record(w).moves.since > 0, 1800.0)
    service(world).commands.scale("job", Scale(desired=3))
    assert world.run_until(lambda w: alive(w) == 3 and settled(w), 120.0), "what it has is all it wants"
    assert zones(world) == {"zone-a"}
    world = full_zone()
    assert world.run_until(lambda w: record(w).moves.since > 0, 1800.0)
    service(world).commands.scale("job", Scale(desired=8, max_nodes=8))
    assert world.run_until(settled, 300.0)
    assert (zones(world), alive(world)) == ({"zone-b"}, 8)
    world = full_zone()
    assert world.run_until(lambda w: record(w).moves.since > 0, 1800.0)
    service(world).commands.cancel("job")
    assert world.run_until(lambda w: not alive(w), 120.0)


def test_what_a_move_has_too_many_once_fewer_are_wanted_is_given_back_at_once() -> None:
    world = full_zone()

    def coming(w: World) -> int:
        nodes = jobs_of(w)["job"].nodes.values()
        return sum(node.ahead and node.state in COUNTED_NODE_STATES for node in nodes)

    assert world.run_until(lambda w: coming(w) == 6, 1800.0)
    service(world).commands.scale("job", Scale(desired=4))
    assert world.run_until(lambda w: coming(w) == 4, 15.0)
    assert world.run_until(lambda w: zones(w) == {"zone-b"} and alive(w) == 4, 600.0)


def test_a_node_that_is_drained_during_a_move_holds_no_second_set() -> None:
    world = full_zone(low=2, desired=6, has=4, elsewhere=5)
    assert world.run_until(lambda w: record(w).moves.since > 0, 1800.0)
    for rank in (0, 1):
        service(world).commands.drain(machine_of(world, rank).instance.node)
    assert world.run_until(lambda w: zones(w) == {"zone-b"} and alive(w) == 5, 600.0)
    assert world.nodes.trainings["job"].steps.lost == 0


def test_a_job_stays_where_a_move_would_gain_too_little() -> None:
    world = full_zone(desired=9, has=8)
    world.cloud.no_capacity_s = 180.0
    world.run(400.0)
    assert zones(world) == {"zone-a"}
    assert len(world.cloud.machines) == 8


def test_a_job_whose_other_zone_has_too_few_gives_them_back_at_once_and_asks_ever_more_rarely() -> None:
    world = full_zone(elsewhere=3)
    world.cloud.no_capacity_s = 180.0
    world.run(1800.0)
    assert zones(world) == {"zone-a"}
    assert 2 <= len(moves(world)) <= 3
    extra = [node for node in jobs_of(world)["job"].nodes.values() if node.offer.zone == "zone-b" and node.launched_at]
    assert all(node.ended_at for node in extra)
    assert sum(node.ended_at - node.launched_at for node in extra) < 0.02 * 3 * 1800.0, "of what the job costs"


@pytest.mark.parametrize("more", [{"checkpoints": "none"}, {"limits": {"usd_per_hour": 0.7}}])
def test_a_job_does_not_move_without_checkpoints_nor_beyond_its_limit_of_money(more: dict[str, Any]) -> None:
    world = full_zone(**more)
    world.cloud.no_capacity_s = 180.0
    world.run(400.0)
    assert zones(world) == {"zone-a"}
    assert not [m for m in world.cloud.machines.values() if m.instance.zone == "zone-b"]


def test_a_job_whose_old_zone_takes_all_during_a_move_goes_on_with_the_nodes_that_are_coming() -> None:
    world = full_zone()
    assert world.run_until(lambda w: record(w).moves.since > 0, 1800.0)
    for rank in range(3):
        world.cloud.end(machine_of(world, rank), EndCause.PREEMPTED)
    assert world.run_until(settled, 120.0)
    assert zones(world) == {"zone-b"}
    assert len(world.cloud.machines) <= 10, "none was requested twice"


def test_a_move_outlives_its_daemon_and_ends_with_a_pause() -> None:
    world = full_zone()
    assert world.run_until(lambda w: record(w).moves.since > 0, 1800.0)
    world.crash_daemon()
    assert world.run_until(settled, 120.0)
    assert zones(world) == {"zone-b"}
    world = full_zone()
    assert world.run_until(lambda w: record(w).moves.since > 0, 1800.0)
    service(world).commands.pause("job")
    assert world.run_until(lambda w: not alive(w), 120.0)
    assert record(world).moves.since == 0


def test_nodes_ahead_of_a_move_that_are_not_ready_in_time_are_given_back() -> None:
    world = full_zone()
    assert world.run_until(lambda w: alive(w) == 9, 1800.0)
    for machine in world.cloud.machines.values():
        if machine.instance.zone == "zone-b":
            machine.silent = True
    assert world.run_until(lambda w: len(moves(w)) == 1, world.rules.moves.limit_s + 60.0)
    assert zones(world) == {"zone-a"}
    assert world.run_until(lambda w: alive(w) == 3, 60.0)
