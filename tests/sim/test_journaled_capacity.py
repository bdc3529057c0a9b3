"""What clouds have answered outlives the daemon that asked them, at a few small writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from spotsup_simulator.world import World

from provisioners.base import Market, NoCapacity, Offer, Scope
from supervisor.events import EventKind
from supervisor.journal.codec import dump, load
from supervisor.market.capacity import MAX_REFUSALS, CapacityMemory
from supervisor.market.journaled import EVERY_S, MAX_BELIEVED_S, MAX_JOURNALED, CapacityRecord, due_record, memory_of
from supervisor.planner.actions import Launch
from tests.sim.harness import RULES, empty_world, record, sentence, submit
from tests.sim.promises import events_of, jobs_of

pytestmark = pytest.mark.long

NOW = 100_000.0
OFFER = Offer("aws", "us-east-1", "us-east-1a", "p4d.24xlarge", Market.SPOT, 9.0, "A100", 8, "pricing", "P")
POOLS = [replace(OFFER, zone=f"us-east-1{zone}", instance_type=f"p{n}.large") for zone in "abcde" for n in range(8)]
MESSAGE = "EC2 has no capacity: InsufficientInstanceCapacity: We currently do not have sufficient capacity in the zone"


def full(memory: CapacityMemory, offer: Offer, memory_s: float = 180.0) -> CapacityMemory:
    return memory.remember(offer, NoCapacity(Scope.TYPE_IN_ZONE, memory_s, MESSAGE), NOW, spare=False)


def written(memory: CapacityMemory, before: CapacityRecord | None = None, now: float = NOW) -> CapacityRecord:
    found = due_record(memory, before, now)
    assert found is not None
    return load(CapacityRecord, dump(found), "capacity")


# -- the record --------------------------------------------------------------------------------------------


def test_another_daemon_believes_what_the_last_one_was_answered() -> None:
    memory = full(CapacityMemory(), OFFER).with_unhealthy(OFFER, "ann")
    memory = memory.with_late_refusal(POOLS[1], NOW, NOW, spare=True)
    found = memory_of(written(memory), NOW + 9)
    for offer, spare in ((OFFER, False), (POOLS[1], True), (POOLS[1], False), (POOLS[2], False)):
        mine, others = memory.refusal(offer, NOW + 9, spare=spare), found.refusal(offer, NOW + 9, spare=spare)
        assert (mine and (mine.until, mine.message)) == (others and (others.until, others.message))
    assert found.unhealthy_streak(OFFER) == {"ann": 1}
    assert found.with_late_refusal(POOLS[1], NOW + 9, NOW + 9, spare=False).late[_pool(POOLS[1])].count == 2


def _pool(offer: Offer) -> tuple[str, str, str, Market]:
    return offer.cloud, offer.zone, offer.instance_type, offer.market


def test_it_is_written_when_something_has_changed_and_not_more_often_than_every_half_minute() -> None:
    assert due_record(CapacityMemory(), None, NOW) is None
    memory = full(CapacityMemory(), OFFER)
    first = written(memory)
    assert due_record(memory, first, NOW + 10 * EVERY_S) is None, "nothing new, and what has expired is none"
    more = full(memory, POOLS[1])
    assert due_record(more, first, NOW + EVERY_S - 1) is None
    assert written(more, first, NOW + EVERY_S) != first
    works = memory.with_late_refusal(POOLS[1], NOW, NOW, spare=False)
    after = written(works, first, NOW + EVERY_S)
    assert written(works.with_a_machine_that_works(POOLS[1]), after, NOW + 2 * EVERY_S).late == ()


def test_a_clock_that_was_ahead_is_not_believed_for_longer_and_holds_up_no_write() -> None:
    ahead = NOW + 1e6
    memory = CapacityMemory().remember(OFFER, NoCapacity(Scope.ZONE, 60.0, "full"), ahead, spare=False)
    before = written(memory.with_late_refusal(POOLS[1], ahead, ahead, spare=False), now=ahead)
    found = memory_of(before, NOW)
    assert [each.until for each in found.refusals] == [NOW + MAX_BELIEVED_S]
    assert [(each.at, each.until) for each in found.late.values()] == [(NOW, NOW + 600.0)]
    assert due_record(full(found, POOLS[1]), before, NOW) is not None


def test_forty_pools_take_few_kilobytes_and_any_number_is_bounded() -> None:
    memory = CapacityMemory()
    for number in range(2_000):  # nodes, each of which was refused by one of the pools
        memory = full(memory, POOLS[number % len(POOLS)])
    assert len(dump(written(memory))) < 25_000
    for number in range(MAX_REFUSALS):
        memory = full(memory, replace(OFFER, zone=str(number)))
        memory = memory.with_late_refusal(replace(OFFER, zone=str(number)), NOW, NOW, spare=False)
    found = written(memory)
    assert (len(found.refusals), len(found.late)) == (MAX_JOURNALED, MAX_JOURNALED)
    assert len(dump(found)) < 200_000
    assert found.refusals[-1].offer.zone == str(MAX_REFUSALS - 1), "the newest"


# -- in the simulated world --------------------------------------------------------------------------------


class Counted:
    """A world of 40 pools that have nothing for five minutes after each request; what its daemons do is counted."""

    def __init__(self) -> None:
        self.world = empty_world()
        self.requests = self.writes = 0
        self.world.cloud.types = tuple(f"type-{number}" for number in range(20))
        self.world.cloud.sold_out = frozenset(Market)
        self.world.cloud.no_capacity_s = 300.0
        self.world.hooks.action.append(lambda _, action: self._count(requests=isinstance(action, Launch)))
        self.world.hooks.commit.append(lambda _, commit: self._count(writes=commit.capacity is not None))

    def _count(self, *, requests: bool = False, writes: bool = False) -> None:
        self.requests += requests
        self.writes += writes


def pools_refused(world: World) -> int:
    return len(world.daemon.loop._volatile.capacity.refusals)


@pytest.mark.parametrize("desired", [1, 8])
def test_a_daemon_that_restarts_each_minute_asks_each_pool_once_in_its_time(desired: int) -> None:
    counted = Counted()
    world = counted.world
    submit(world, "job", 1, desired, desired)
    assert world.run_until(lambda w: pools_refused(w) == 40, 200.0)
    world.run(EVERY_S + 2.0)
    asked, since = counted.requests, world.clock.now()
    for _ in range(4):
        world.crash_daemon()
        world.run(45.0)
    assert world.clock.now() - since < 300.0 - EVERY_S
    assert world.clock.now() - since < 2 * RULES.gang.retry_s
    assert counted.requests <= asked + 40 + 8 * desired, "a job that cannot train believes each answer for few_retry_s"
    assert counted.writes <= (world.clock.now() - since + 240.0) / EVERY_S
    assert "is out of spot capacity" in sentence(world)
    world.cloud.sold_out = frozenset()
    assert world.run_until(lambda w: record(w).state == "running", 400.0), "asked again in its time"
    assert len([n for n in jobs_of(world)["job"].nodes.values() if n.has_joined]) == desired


def test_a_standby_asks_a_zone_that_refused_for_one_machine_first_as_the_last_daemon_did() -> None:
    world = empty_world()
    world.cloud.capacity.update({"zone-a": 0, "zone-b": 0})
    submit(world, "job", 4, 16, 16)
    world.run(2 * EVERY_S - 5.0)
    asked = len(events_of(world, "job", EventKind.LAUNCH_REQUESTED))
    world.crash_daemon()
    world.run(20.0)
    more = len(events_of(world, "job", EventKind.LAUNCH_REQUESTED)) - asked
    assert 1 <= more <= 8, "each of two zones about every ten seconds, for one"


def test_a_standby_does_not_ask_the_zone_that_had_too_few_again() -> None:
    world = empty_world()
    world.cloud.capacity.update({"zone-a": 2, "zone-b": 1})
    submit(world, "job", 4, 6, 6)
    assert world.run_until(lambda w: len(events_of(w, "job", EventKind.TOO_FEW_NODES)) == 5, 3600.0)
    world.run(EVERY_S + 2.0)
    known = dict(world.daemon.loop._volatile.capacity.too_few)
    world.crash_daemon()
    world.run(30.0)
    assert dict(world.daemon.loop._volatile.capacity.too_few) == known
    assert len(known) == 2
