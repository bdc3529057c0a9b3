"""A region that does not answer hides no other: there machines are seen, ended and replaced, and nothing is taken for
ended in the one that is silent (P4, P13, P15)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.cloud import ZONES
from spotsup_simulator.machine import Machine
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from provisioners.base import EndCause, InstanceState
from supervisor.events import EventKind
from supervisor.model import JobState, NodeState
from tests.sim.harness import NO_FAULTS, RULES, record, service, submit
from tests.sim.promises import jobs_of

pytestmark = pytest.mark.long

NEAR, FAR = "near", "far"


def two_regions() -> World:
    """A job of two nodes trains in each of two regions."""
    world = World(Conditions(1, NO_FAULTS, replace(RULES, listing_s=5.0)))
    world.cloud.region_of = dict(zip(ZONES, (NEAR, FAR), strict=True))
    world.run(1.0)
    for name, zone in zip((NEAR, FAR), ZONES, strict=True):
        world.cloud.capacity = {each: 2 * (each == zone) for each in ZONES}
        submit(world, name, 1, 2, 2)
        world.run(60.0)
        assert record(world, name).state is JobState.RUNNING
    world.cloud.capacity = dict.fromkeys(ZONES, 3)
    return world


def alive_in(world: World, region: str) -> list[Machine]:
    return [each for each in world.cloud.machines.values() if each.billed and each.instance.region == region]


def states(world: World, job: str) -> list[NodeState]:
    """Of nodes that have, or had, a machine."""
    return [node.state for node in jobs_of(world)[job].nodes.values() if node.instance_id]


def test_the_other_regions_go_on_and_people_are_told_of_the_one() -> None:
    world = two_regions()
    world.cloud.silent_regions.add(FAR)
    world.run(20.0)
    world.cloud.end(alive_in(world, NEAR)[0], EndCause.PREEMPTED)
    assert world.run_until(lambda w: record(w, NEAR).state is JobState.RUNNING and len(alive_in(w, NEAR)) == 2, 120.0)
    service(world).commands.cancel(NEAR)
    assert world.run_until(lambda w: set(states(w, NEAR)) == {NodeState.GONE}, 200.0), "an end is seen there"
    world.run(300.0)
    (text,) = [event.text for event in world.sent if event.kind is EventKind.NOT_LISTED and "leftovers" not in event.id]
    assert "which machines run in far: no answer. Until it does, no silent node there is replaced" in text
    assert record(world, FAR).state is JobState.RUNNING
    world.cloud.silent_regions.clear()
    world.run(60.0)
    assert "local says again which machines run in each region" in [event.text for event in world.sent]


def test_a_machine_of_the_silent_region_is_neither_replaced_nor_booked_as_gone_until_it_is_seen() -> None:
    world = two_regions()
    world.cloud.silent_regions.add(FAR)
    world.run(20.0)
    service(world).commands.cancel(FAR)
    world.run(600.0)
    assert len(alive_in(world, FAR)) == 2
    assert set(states(world, FAR)) == {NodeState.TERMINATING}
    world.cloud.silent_regions.clear()
    assert world.run_until(lambda w: set(states(w, FAR)) == {NodeState.GONE}, 900.0)
    assert alive_in(world, FAR) == []


def test_a_daemon_that_starts_meanwhile_serves_the_other_regions_and_takes_nothing_for_gone() -> None:
    world = two_regions()
    world.cloud.silent_regions.add(FAR)
    world.crash_daemon()
    world.run(60.0)
    world.cloud.end(alive_in(world, NEAR)[0], EndCause.PREEMPTED)
    assert world.run_until(lambda w: len(alive_in(w, NEAR)) == 2 and record(w, NEAR).state is JobState.RUNNING, 120.0)
    submit(world, "next", 1, 1, 1)
    assert world.run_until(lambda w: record(w, "next").state is JobState.RUNNING, 120.0)
    assert record(world, FAR).state is JobState.RUNNING
    assert len(alive_in(world, FAR)) == 2
    assert NodeState.GONE not in states(world, FAR)


def test_an_orphan_that_was_seen_once_is_not_ended_by_listings_that_lack_its_region() -> None:
    world = two_regions()
    world.run(100.0)
    world.cloud.add_unjournaled("somebody-1", stopped=False)
    (orphan,) = [each for each in world.cloud.machines.values() if each.node == "somebody-1"]
    assert orphan.instance.region == NEAR
    world.run_until(lambda w: bool(w.daemon.loop._volatile.sightings), 30.0)
    world.cloud.silent_regions.add(NEAR)
    world.run(300.0)
    (seen,) = world.daemon.loop._volatile.sightings.values()
    assert (seen.listings, seen.ended_at) == (1, 0.0)
    world.cloud.silent_regions.clear()
    assert world.run_until(lambda _: orphan.instance.state is InstanceState.TERMINATED, 200.0)
