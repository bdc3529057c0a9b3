"""What is journaled of the capacity memory, and what the next daemon believes of it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import pytest

from provisioners.base import Denied, Market, NoCapacity, Offer, Quota, Scope
from supervisor.market.capacity import (
    LATE_DECAY_S,
    LATE_S,
    MAX_LATE_S,
    MAX_TOO_FEW_S,
    TOO_FEW_S,
    WARY_S,
    CapacityMemory,
)
from supervisor.market.hazard import HazardRules
from supervisor.market.journaled import (
    EVERY_S,
    MAX_BELIEVED_S,
    MAX_EXPOSURE_S,
    MAX_JOURNALED,
    CapacityRecord,
    due_record,
    memory_of,
)

NOW = 100_000.0
OFFER = Offer("local", "region-1", "zone-a", "small", Market.SPOT, 0.5, quota="cpus", gpu="T4")
FULL = NoCapacity(Scope.TYPE_IN_ZONE, 600.0, "full")


def known() -> CapacityMemory:
    memory = CapacityMemory().remember(OFFER, FULL, NOW, spare=True, job="a")
    return memory.with_late_refusal(OFFER, NOW - 1, NOW, spare=False).with_unhealthy(OFFER, "ann")


def written(memory: CapacityMemory, now: float = NOW) -> CapacityRecord:
    record = due_record(memory, None, now)
    assert record is not None
    return record


def test_another_daemon_believes_what_was_learned() -> None:
    memory, found = known(), memory_of(written(known()), NOW)
    assert (found.late, found.unhealthy_streaks) == (memory.late, memory.unhealthy_streaks)
    (refusal,) = found.refusals
    place = Offer("local", "region-1", "zone-a", "small", Market.SPOT, None, quota="cpus")
    assert refusal == replace(memory.refusals[0], offer=place)
    assert memory_of(None, NOW) == CapacityMemory()


@pytest.mark.parametrize("scope", list(Scope))
def test_a_refusal_reaches_as_far_as_before(scope: Scope) -> None:
    memory = CapacityMemory().remember(OFFER, NoCapacity(scope, 60.0, "full"), NOW, spare=False)
    found = memory_of(written(memory), NOW)
    places = [
        OFFER,
        *(
            replace(OFFER, **cast("Any", {name: "another"}))
            for name in ("cloud", "region", "zone", "instance_type", "quota")
        ),
        replace(OFFER, market=Market.ON_DEMAND),
    ]
    reached = [bool(memory.refusal(each, NOW, spare=False)) for each in places]
    assert [bool(found.refusal(each, NOW, spare=False)) for each in places] == reached
    assert reached[0]
    assert not reached[1]
    assert not reached[-1]


def test_it_is_written_when_it_differs_and_no_more_often_than_every_half_minute() -> None:
    assert due_record(CapacityMemory(), None, NOW) is None
    first = written(known())
    assert first.at == NOW
    more = known().remember(replace(OFFER, zone="zone-b"), FULL, NOW, spare=False)
    assert due_record(more, first, NOW) is None
    assert due_record(more, first, NOW + EVERY_S - 0.1) is None
    second = due_record(more, first, NOW + EVERY_S)
    assert second is not None
    assert [each.offer.zone for each in second.refusals] == ["zone-a", "zone-b"]
    assert due_record(more, second, NOW + 2 * EVERY_S) is None
    # the clock of the daemon that wrote it was ahead
    assert due_record(more, replace(first, at=NOW + 9e5), NOW) is not None


def test_what_is_over_is_not_written() -> None:
    refused = CapacityMemory().remember(OFFER, FULL, NOW, spare=False)
    assert written(refused, NOW + 600.0 + WARY_S - 1).refusals
    assert due_record(refused, None, NOW + 600.0 + WARY_S) is None
    assert due_record(CapacityMemory().remember(OFFER, FULL, NOW, spare=True), None, NOW + 600.0) is None
    late = CapacityMemory().with_late_refusal(OFFER, NOW - 1, NOW, spare=False)
    later = late.with_late_refusal(OFFER, NOW + 1, NOW + 2, spare=False)
    assert written(later, NOW + 2 + LATE_DECAY_S).late
    assert due_record(later, None, NOW + 2 + 2 * LATE_DECAY_S) is None
    # and what was written before is replaced by nothing
    emptied = due_record(CapacityMemory(), written(known()), NOW + EVERY_S)
    assert emptied == CapacityRecord(NOW + EVERY_S)


def test_another_daemon_is_as_wary_and_knows_which_pools_had_too_few() -> None:
    memory = CapacityMemory().remember(OFFER, FULL, NOW, spare=False).with_too_few("a", OFFER, 3, 4, NOW)
    later = NOW + 601.0
    found = memory_of(written(memory, later), later)
    assert found.refusal(OFFER, later, spare=False, job="a", needed=4) is None
    assert found.had_too_few("a", OFFER, later)
    assert found.is_wary(OFFER, later)
    assert found.too_few == memory.too_few
    assert memory_of(written(memory, NOW + 2), NOW + 2).refusal(OFFER, NOW + 2, spare=False, job="a", needed=4)
    ahead = written(CapacityMemory().with_too_few("a", OFFER, 15, 16, NOW + 1e6), NOW + 1e6)
    assert [each.until for each in memory_of(ahead, NOW).too_few.values()] == [NOW + MAX_TOO_FEW_S]
    few = CapacityMemory().with_too_few("a", OFFER, 3, 4, NOW)
    assert due_record(few, None, NOW + 9 * TOO_FEW_S + LATE_DECAY_S - 1)
    assert due_record(few, None, NOW + 9 * TOO_FEW_S + LATE_DECAY_S) is None


def test_what_is_believed_is_written_before_what_only_makes_wary() -> None:
    memory = CapacityMemory().remember(OFFER, replace(FULL, memory_s=3600.0), NOW, spare=False)
    for number in range(MAX_JOURNALED):
        memory = memory.remember(replace(OFFER, zone=f"zone-{number}"), FULL, NOW, spare=False)
    later = written(memory, NOW + 601.0)
    assert len(later.refusals) == MAX_JOURNALED
    assert later.refusals[-1].offer.zone == "zone-a"


def test_only_the_newest_are_written_with_short_messages() -> None:
    memory = CapacityMemory()
    for number in range(MAX_JOURNALED + 1):
        offer = replace(OFFER, zone=f"zone-{number}", instance_type=f"type-{number}")
        memory = memory.remember(offer, replace(FULL, message="m" * 999), NOW, spare=False)
        memory = memory.with_late_refusal(offer, NOW - 1, NOW, spare=False).with_unhealthy(offer, "")
    record = written(memory)
    assert [len(record.refusals), len(record.late), len(record.unhealthy)] == [MAX_JOURNALED] * 3
    assert [record.refusals[0].offer.zone, record.late[0][0][1], record.unhealthy[0][0][1]] == ["zone-1"] * 2 + [
        "type-1"
    ]
    assert {len(each.message) for each in record.refusals} == {200}


def test_a_record_of_a_wrong_clock_is_believed_no_longer_than_a_new_one() -> None:
    far = 1e6
    ahead = written(
        CapacityMemory()
        .remember(OFFER, FULL, NOW + far, spare=False)
        .with_late_refusal(OFFER, NOW + far - 1, NOW + far, spare=False),
        NOW + far,
    )
    found = memory_of(ahead, NOW)
    assert [each.until for each in found.refusals] == [NOW + MAX_BELIEVED_S]
    ((_, late),) = found.late.items()
    assert (late.at, late.until) == (NOW, NOW + MAX_LATE_S)
    past = memory_of(written(known()), NOW + 600.0)
    assert past.refusals == ()
    assert past.refusal(OFFER, NOW + LATE_S, spare=False) is None


def test_requests_that_can_never_work_are_those_of_one_job_and_for_their_time() -> None:
    never = Denied(Scope.TYPE_IN_ZONE, 600.0, "no such image")
    other = replace(OFFER, zone="zone-b")
    memory = CapacityMemory().remember(OFFER, never, NOW, spare=False, job="a")
    assert memory.can_never_work([OFFER], NOW, "a")
    assert not memory.can_never_work([OFFER, other], NOW, "a")
    assert not memory.can_never_work([OFFER], NOW, "b")
    assert not memory.can_never_work([OFFER], NOW + 600.0, "a")


def test_quotas_without_a_name_are_those_of_the_type_in_its_region() -> None:
    unnamed = replace(OFFER, quota="")
    memory = CapacityMemory().remember(unnamed, Quota(Scope.QUOTA, 60.0, "quota"), NOW, spare=False)
    assert memory.refusal(replace(unnamed, zone="zone-b"), NOW, spare=False)
    for another in ("cloud", "region", "instance_type"):
        assert not memory.refusal(replace(unnamed, **cast("Any", {another: "another"})), NOW, spare=False)


def test_a_late_refusal_of_one_pool_leaves_those_of_others() -> None:
    other = replace(OFFER, zone="zone-b")
    memory = CapacityMemory().with_late_refusal(other, NOW - 1, NOW, spare=False)
    memory = memory.with_late_refusal(OFFER, NOW - 1, NOW, spare=False)
    assert len(memory.late) == 2
    refusal = memory.refusal(OFFER, NOW, spare=False)
    assert refusal is not None
    assert refusal.scope is Scope.TYPE_IN_ZONE
    works = memory.with_a_machine_that_works(OFFER)
    assert isinstance(works.late, MappingProxyType)
    assert [pool[1] for pool in works.late] == ["zone-b"]


def test_how_often_pools_took_machines_is_written_for_two_days_and_never_believed_to_be_of_the_future() -> None:
    memory = CapacityMemory().with_an_end(OFFER, 2.0, NOW, HazardRules(), preempted=True)
    record = written(memory)
    assert memory_of(record, NOW).exposures == memory.exposures
    assert due_record(memory, record, NOW + EVERY_S) is None
    assert written(memory, NOW + MAX_EXPOSURE_S - 1).exposures
    assert due_record(memory, None, NOW + MAX_EXPOSURE_S) is None
    (found,) = memory_of(record, NOW - 1e6).exposures.values()
    assert found.at == NOW - 1e6
    for number in range(MAX_JOURNALED):
        memory = memory.with_an_end(replace(OFFER, zone=f"zone-{number}"), 2.0, NOW, HazardRules(), preempted=False)
    assert len(written(memory).exposures) == MAX_JOURNALED
