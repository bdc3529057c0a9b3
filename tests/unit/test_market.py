"""Capacity memory, and which of a job's offers may be requested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import Market, NoCapacity, Offer, Quota, Scope
from supervisor.market.capacity import MAX_REFUSALS, CapacityMemory, CapacityRefusal
from supervisor.market.offers import Constraints

NOW = 100_000.0
OFFER = Offer("local", "region-1", "zone-a", "small", Market.SPOT, 0.5)
ELSEWHERE = replace(OFFER, zone="zone-b")


@pytest.mark.parametrize(
    ("scope", "changes", "covers"),
    [
        (Scope.TYPE_IN_ZONE, {}, True),
        (Scope.TYPE_IN_ZONE, {"zone": "zone-b"}, False),
        (Scope.TYPE_IN_ZONE, {"instance_type": "large"}, False),
        (Scope.ZONE, {"instance_type": "large"}, True),
        (Scope.ZONE, {"zone": "zone-b"}, False),
        (Scope.REGION, {"zone": "zone-b"}, True),
        (Scope.REGION, {"region": "region-2"}, False),
        (Scope.GLOBAL, {"region": "region-2", "zone": "x", "instance_type": "large"}, True),
        (Scope.GLOBAL, {"cloud": "aws"}, False),
        (Scope.GLOBAL, {"market": Market.ON_DEMAND}, False),
    ],
)
def test_how_far_a_refusal_reaches(scope: Scope, changes: Mapping[str, Any], covers: bool) -> None:
    assert CapacityRefusal(OFFER, scope, NOW, "").covers(replace(OFFER, **changes)) is covers


def test_refusals_are_believed_for_their_time_and_then_forgotten() -> None:
    memory = CapacityMemory().remember(OFFER, Quota(Scope.ZONE, 10.0, "quota"), NOW, spare=True)
    (kept,) = memory.refusals
    assert kept == CapacityRefusal(OFFER, Scope.ZONE, NOW + 10.0, "quota", spare=True)
    later = memory.remember(ELSEWHERE, NoCapacity(Scope.ZONE, 10.0, "full"), NOW + 10.0, spare=False)
    assert [each.offer for each in later.refusals] == [ELSEWHERE]
    both = memory.remember(ELSEWHERE, NoCapacity(Scope.ZONE, 10.0, "full"), NOW + 9.9, spare=False)
    assert [each.offer for each in both.refusals] == [OFFER, ELSEWHERE]


def test_the_refusals_that_are_remembered_are_bounded() -> None:
    full = CapacityMemory(tuple(CapacityRefusal(OFFER, Scope.ZONE, NOW + 9, str(n)) for n in range(MAX_REFUSALS)))
    after = full.remember(OFFER, NoCapacity(Scope.ZONE, 9.0, "new"), NOW, spare=False).refusals
    assert (len(after), after[0].message, after[-1].message) == (MAX_REFUSALS, "1", "new")


def test_unhealthy_machines_are_counted_by_cloud_and_type() -> None:
    larger, elsewhere = replace(OFFER, instance_type="large"), replace(OFFER, cloud="aws")
    memory = CapacityMemory().with_unhealthy_streak(OFFER, 2).with_unhealthy_streak(larger, 1)
    assert memory.unhealthy_streak(ELSEWHERE) == 2, "whatever the zone"
    assert (memory.unhealthy_streak(larger), memory.unhealthy_streak(elsewhere)) == (1, 0)
    assert memory.with_unhealthy_streak(OFFER, 0).unhealthy_streaks == {("local", "large"): 1}


def test_sums_of_prices_are_compared_without_their_last_digits() -> None:
    assert Constraints("zone", 0.3, (), (replace(OFFER, usd_per_hour=0.1),)).affordable(
        replace(OFFER, usd_per_hour=0.2)
    )
