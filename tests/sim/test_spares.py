"""Spares: prepared nodes that wait outside the round and step in at once. Case by case, in a simulated world."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_simulator.nodes import LEASE_S
from spotsup_simulator.world import World
from spotsup_trainer.rendezvous.membership import Stay, standing
from spotsup_trainer.rendezvous.view import Rules, View
from spotsup_trainer.wire import Round

from provisioners.base import EndCause
from supervisor.api.jobs.changes import Scale
from supervisor.api.jobs.views import job_detail
from supervisor.cli.show import show_job
from supervisor.errors import CommandRefusedError
from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from supervisor.planner.world import JobView
from tests.sim.harness import (
    NO_FAULTS,
    RULES,
    alive,
    empty_world,
    in_state,
    machine_of,
    machine_with,
    record,
    sentence,
    service,
    submit,
    training_world,
)
from tests.sim.promises import events_of, jobs_of, settled
from tests.unit.members import hint, member, round_of

pytestmark = pytest.mark.long


def job_of(world: World) -> JobView:
    """The job as etcd has it."""
    return jobs_of(world)["job"]


def round_in(world: World) -> Round:
    """Its current round."""
    found = job_of(world).round
    assert found is not None
    return found


def joined_by(world: World, node: str) -> bool:
    """Whether a node is in the round."""
    return node in round_in(world).nodes()


# -- stepping in -------------------------------------------------------------------------------------------


def test_a_notice_brings_the_spare_in_at_once_for_one_pause_and_no_lost_step() -> None:
    world = training_world(2, 3, 4, spares=1)
    before, (spare,) = round_in(world), job_of(world).spares
    doomed = machine_of(world, 1)
    world.cloud.preempt(doomed, 60.0)
    assert world.run_until(lambda w: joined_by(w, spare), 2.0)
    assert events_of(world, "job", EventKind.REPLACEMENT_REQUESTED) != [], "in the same tick as the notice"
    assert world.run_until(settled, 120.0)
    after = round_in(world)
    assert after.number == before.number + 1
    assert after.nodes() == (before.nodes()[0], before.nodes()[2], spare)
    assert world.nodes.trainings["job"].steps.lost == 0
    assert events_of(world, "job", EventKind.REPLACEMENT_JOINED) == [spare]
    assert job_of(world).nodes[spare].took_over_from == doomed.instance.node
    assert job_of(world).spares == tuple(events_of(world, "job", EventKind.REPLACEMENT_REQUESTED))


def test_two_members_that_vanish_are_replaced_by_two_spares_in_one_round() -> None:
    world = training_world(1, 3, 4, spares=2)
    before, spares = round_in(world), job_of(world).spares
    for rank in (0, 2):
        world.cloud.end(machine_of(world, rank), EndCause.UNKNOWN)
    assert world.run_until(lambda w: round_in(w).number > before.number, 10.0)
    assert round_in(world).nodes() == (before.nodes()[1], *spares)
    assert world.run_until(settled, 120.0)
    assert round_in(world).number == before.number + 1
    assert set(events_of(world, "job", EventKind.REPLACEMENT_JOINED)) == set(spares)


def test_a_spare_that_vanishes_with_a_member_delays_no_node() -> None:
    world = training_world(2, 3, 4, spares=1)
    before, (spare,) = round_in(world), job_of(world).spares
    for machine in (machine_of(world, 0), machine_with(world, spare)):
        world.cloud.end(machine, EndCause.PREEMPTED)
    assert world.run_until(lambda w: round_in(w).number > before.number, LEASE_S - 1.0)
    assert round_in(world).nodes() == before.nodes()[1:]
    assert world.run_until(settled, 60.0)


def test_a_spare_that_stood_in_without_a_daemon_is_a_member_when_one_is_back() -> None:
    world = training_world(2, 3, 4, spares=1)
    (spare,) = job_of(world).spares
    victim = machine_of(world, 0)
    world.lose_daemon()
    world.cloud.end(victim, EndCause.UNKNOWN)
    assert world.run_until(lambda w: joined_by(w, spare), 10.0)
    formed = round_in(world)
    world.run(20.0)
    world.crash_daemon()
    assert world.run_until(settled, 120.0)
    assert round_in(world) == formed, "what its members have decided stays"
    assert job_of(world).nodes[spare].state is NodeState.MEMBER
    assert events_of(world, "job", EventKind.NODE_LOST) == [victim.instance.node]
    assert events_of(world, "job", EventKind.REPLACEMENT_JOINED) == [spare]


def test_a_member_that_comes_back_after_a_spare_stood_in_is_the_next_spare() -> None:
    world = training_world(2, 3, 4, spares=1)
    (spare,) = job_of(world).spares
    victim = machine_of(world, 1)
    victim.silent = True
    assert world.run_until(lambda w: joined_by(w, spare), 15.0)
    formed = round_in(world)
    victim.silent = False
    assert world.run_until(settled, 60.0)
    assert round_in(world) == formed
    assert job_of(world).spares == (victim.instance.node,)
    assert events_of(world, "job", EventKind.NODE_LOST) == []


def test_a_spare_whose_launcher_restarts_is_not_called_in_before_it_waits_again() -> None:
    world = training_world(2, 3, 4, spares=1)
    (spare,) = job_of(world).spares
    formed = round_in(world)
    training = world.nodes.trainings["job"]
    doomed = machine_of(world, 1)
    run, training.run = training.run, lambda node: None if node == spare else run(node)  # type: ignore[method-assign]
    world.etcd.delete(world.nodes.keys.member("job", spare))
    world.cloud.preempt(doomed, 60.0)
    world.run(3.0)
    assert job_of(world).nodes[spare].state is NodeState.READY
    assert round_in(world) == formed, "no node stops for a spare that does not exist"
    training.run = run  # type: ignore[method-assign]
    assert world.run_until(lambda w: joined_by(w, spare), 3.0)
    assert round_in(world).number == formed.number + 1


def test_a_member_whose_launcher_restarts_is_still_expected_where_no_node_can_stand_in() -> None:
    world = training_world(2, 3, 4)
    victim, training = round_in(world).nodes()[1], world.nodes.trainings["job"]
    run, training.run = training.run, lambda node: None if node == victim else run(node)  # type: ignore[method-assign]
    training.stop(victim)
    world.etcd.delete(world.nodes.keys.member("job", victim))
    assert world.run_until(lambda w: not joined_by(w, victim), 5.0)
    world.run(2.0)
    world.lose_daemon()
    training.run = run  # type: ignore[method-assign]
    assert world.run_until(lambda w: joined_by(w, victim), 5.0), "also where no daemon is there any more"


def test_a_job_that_wants_no_spares_names_none() -> None:
    world = training_world(2, 3, 4)
    named: list[str] = []
    world.hooks.step.append(lambda: named.extend(found.spares if (found := job_of(world).hint) else ()))
    for rank in (0, 1):
        world.cloud.preempt(machine_of(world, rank), 60.0)
    assert world.run_until(lambda w: len(events_of(w, "job", EventKind.REPLACEMENT_JOINED)) == 2, 60.0)
    assert world.run_until(settled, 120.0)
    assert named == []


# -- the round is left alone -------------------------------------------------------------------------------


@pytest.mark.parametrize("noticed", [True, False])
def test_a_spare_that_is_taken_is_replaced_and_the_round_goes_on(noticed: bool) -> None:
    world = training_world(2, 3, 4, spares=1)
    formed, (spare,) = round_in(world), job_of(world).spares
    machine = machine_with(world, spare)
    if noticed:
        world.cloud.preempt(machine, 60.0)
    else:
        world.cloud.end(machine, EndCause.UNKNOWN)
    assert world.run_until(lambda w: spare not in job_of(w).spares, 10.0)
    assert world.run_until(settled, 60.0)
    assert round_in(world) == formed
    assert not machine.alive
    assert record(world).state is JobState.RUNNING
    assert events_of(world, "job", EventKind.REPLACEMENT_REQUESTED) == [], "no place is empty"
    sent = [event.text for event in world.sent]
    assert all("the spare" in text for text in sent), sent


NODES = st.lists(st.sampled_from("abcde"), unique=True, min_size=1)


@given(NODES, st.lists(st.sampled_from("stuv"), unique=True), st.sets(st.sampled_from("stuv")), st.integers(1, 3))
def test_no_node_in_the_round_stops_because_the_list_of_spares_changes(
    nodes: list[str], spares: list[str], there: set[str], minimum: int
) -> None:
    current = round_of(nodes)
    members = [member(node, "running", 1) for node in nodes] + [member(spare) for spare in there]
    of = View(
        Rules(1, 6),
        {m.node: m for m in members},
        round=current,
        hint=hint("".join(nodes), minimum, 6, spares="".join(spares)),
    )
    assert all(standing(of, current, node, 1e6) == Stay() for node in nodes)


def test_asking_for_more_or_fewer_spares_does_not_touch_the_round() -> None:
    world = training_world(2, 3, 4, spares=1)
    formed = round_in(world)
    for spares in (2, 0):
        service(world).commands.scale("job", Scale(spares=spares))
        assert world.run_until(settled, 60.0)
        assert len(job_of(world).spares) == spares
    assert round_in(world) == formed
    with pytest.raises(CommandRefusedError, match="cannot scale job: spares is 17; it can be 0 to 16"):
        service(world).commands.scale("job", Scale(spares=17))


def test_fewer_nodes_cost_the_spare_first_and_the_member_with_the_highest_rank_waits_in_its_place() -> None:
    world = training_world(1, 3, 4, spares=1)
    order, (spare,) = round_in(world).nodes(), job_of(world).spares
    service(world).commands.scale("job", Scale(desired=2))
    assert world.run_until(settled, 60.0)
    assert round_in(world).nodes() == order[:2]
    assert job_of(world).spares == (order[2],)
    assert job_of(world).nodes[spare].state is NodeState.GONE
    assert world.nodes.trainings["job"].steps.lost == 0


def test_more_nodes_are_the_spare_at_once_and_another_spare_later() -> None:
    world = training_world(1, 2, 4, spares=1)
    (spare,) = job_of(world).spares
    service(world).commands.scale("job", Scale(desired=3))
    assert world.run_until(lambda w: joined_by(w, spare), 2.0)
    assert world.run_until(settled, 60.0)
    assert events_of(world, "job", EventKind.REPLACEMENT_JOINED) == []


# -- members first -----------------------------------------------------------------------------------------


def test_the_first_round_waits_for_no_spare_and_what_a_cloud_does_not_grant_is_a_spare() -> None:
    world = empty_world()
    world.cloud.capacity = {"zone-a": 3, "zone-b": 0}
    submit(world, "job", 2, 3, 4, 2)
    assert world.run_until(in_state(JobState.RUNNING), 12.0)
    world.run(30.0)
    assert record(world).state is JobState.RUNNING, "spares are not missing members"
    assert "no spare yet" in sentence(world)
    assert "no capacity: zone-a is full" in sentence(world)
    assert len(events_of(world, "job", EventKind.ROUND)) == 1
    world.cloud.capacity["zone-a"] = 5
    assert world.run_until(settled, 60.0)
    world.run(1.0)
    assert sentence(world) == "3 of 3 nodes train (round 1); 2 spares"


def test_no_node_waits_for_a_spare_that_is_slow_to_come() -> None:
    world = empty_world(replace(RULES, gather_s=60.0))
    submit(world, "job", 2, 3, 4, 1)
    assert world.run_until(lambda w: len(w.cloud.machines) == 4, 10.0)
    slow = next(iter(world.cloud.machines.values()))
    slow.runs_at += 40.0
    assert world.run_until(in_state(JobState.RUNNING), 12.0)
    assert world.run_until(settled, 60.0)
    assert job_of(world).spares == (slow.instance.node,), "the first that are there train"


def test_a_refusal_of_a_spare_does_not_delay_a_member() -> None:
    world = empty_world()
    world.cloud.capacity = {"zone-a": 2, "zone-b": 0}
    submit(world, "job", 1, 2, 2, 1)
    assert world.run_until(in_state(JobState.RUNNING), 30.0)
    refused = len(events_of(world, "job", EventKind.LAUNCH_REFUSED))
    assert world.run_until(lambda w: len(events_of(w, "job", EventKind.LAUNCH_REFUSED)) >= refused + 2, 60.0)
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    assert world.run_until(lambda w: bool(events_of(w, "job", EventKind.NODE_LOST)), 10.0)
    assert events_of(world, "job", EventKind.REPLACEMENT_REQUESTED), (
        "in the same tick, not when a spare may be requested"
    )
    assert world.run_until(lambda w: in_state(JobState.RUNNING)(w) and len(w.cloud.machines) == 3, 20.0)


def test_spares_never_cost_more_per_hour_than_allowed() -> None:
    world = empty_world()
    submit(world, "job", 1, 2, 2, 1, limits={"usd_per_hour": 0.2})
    assert world.run_until(in_state(JobState.RUNNING), 30.0)
    world.run(30.0)
    assert alive(world) == 2
    assert "limits.usd_per_hour ($0.2) allows no more machines" in sentence(world)


def test_spares_that_cannot_be_bootstrapped_end_no_job_and_are_requested_rarely() -> None:
    world = empty_world(replace(RULES, bootstraps=replace(RULES.bootstraps, failures=3, spare_retry_s=100.0)))
    submit(world, "job", 1, 2, 2)
    assert world.run_until(in_state(JobState.RUNNING), 30.0)
    world.set_fault_rates(replace(NO_FAULTS, bootstrap=1.0))
    service(world).commands.scale("job", Scale(spares=1))
    world.run(450.0)
    assert record(world).state is JobState.RUNNING
    assert 3 <= len(events_of(world, "job", EventKind.NODE_FAILED)) <= 5
    assert "the next spare is requested later" in sentence(world)
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    world.run(60.0)
    assert record(world).state is JobState.DEGRADED, "a member's place cannot be filled, and the other trains on"


def test_the_end_of_a_job_releases_its_spares() -> None:
    world = training_world(2, 3, 4, spares=2)
    service(world).commands.cancel("job")
    assert world.run_until(settled, 60.0)
    assert not alive(world)


def test_the_api_shows_which_node_is_a_spare(capsys: pytest.CaptureFixture[str]) -> None:
    world = training_world(2, 3, 4, spares=1)
    capsys.readouterr()
    (spare,) = job_of(world).spares
    said_within_a_tick = world.run_until(lambda w: sentence(w) == "3 of 3 nodes train (round 1); 1 spare", 2.0)
    assert said_within_a_tick, sentence(world)
    shown = job_detail(job_of(world), sentence(world), world.clock.now())
    assert (shown["nodes"]["training"], shown["nodes"]["spares"], shown["nodes"]["spares_ready"]) == (3, 1, 1)
    assert [node["id"] for node in shown["node_list"] if node["spare"]] == [spare]
    assert {node["state"] for node in shown["node_list"]} == {"member", "ready"}, "what scripts rely on"
    show_job(shown)
    output = capsys.readouterr().out
    assert "nodes 3 of 3 (min 2, max 4), spares 1 of 1 " in output
    assert re.search(rf"^{spare} +spare ", output, re.MULTILINE)
