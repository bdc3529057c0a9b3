"""Capacity memory, and which of a job's offers may be requested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import Market, NoCapacity, Offer, Quota, Scope
from supervisor.market.capacity import MAX_REFUSALS, CapacityMemory, CapacityRefusal
from supervisor.market.offers import Constraints, is_allowed, obstacle

NOW = 100_000.0
OFFER = Offer("local", "region-1", "zone-a", "small", Market.SPOT, 0.5)
ELSEWHERE = replace(OFFER, zone="zone-b")
FREE = Constraints("zone", None, (), ())


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


def test_a_refusal_of_a_spare_holds_back_only_spares_and_only_for_its_time() -> None:
    memory = CapacityMemory().remember(OFFER, NoCapacity(Scope.ZONE, 10.0, "full"), NOW, spare=True)
    assert memory.refusal(OFFER, NOW, spare=True) is memory.refusals[0]
    assert memory.refusal(OFFER, NOW, spare=False) is None
    assert memory.refusal(ELSEWHERE, NOW, spare=True) is None
    assert memory.refusal(OFFER, NOW + 10.0, spare=True) is None


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


@pytest.mark.parametrize(
    ("spread", "changes", "fits"),
    [
        ("zone", {}, True),
        ("zone", {"zone": "zone-b"}, False),
        ("region", {"zone": "zone-b"}, True),
        ("region", {"region": "region-2"}, False),
    ],
)
def test_an_offer_is_in_place_where_the_jobs_nodes_are(spread: str, changes: Mapping[str, Any], fits: bool) -> None:
    constraints = Constraints(spread, None, (OFFER,), ())
    assert constraints.in_place(replace(OFFER, **changes)) is fits
    assert replace(constraints, placed=()).in_place(replace(OFFER, **changes))


@pytest.mark.parametrize(
    ("limit", "price", "fits"),
    [(None, None, True), (None, 9.0, True), (1.5, 0.5, True), (1.49, 0.5, False), (1.5, None, False)],
)
def test_a_machine_is_affordable_within_the_limit_of_all_of_them(
    limit: float | None, price: float | None, fits: bool
) -> None:
    billed = (OFFER, OFFER, replace(OFFER, usd_per_hour=None))
    assert Constraints("zone", limit, (), billed).affordable(replace(OFFER, usd_per_hour=price)) is fits


def test_sums_of_prices_are_compared_without_their_last_digits() -> None:
    assert Constraints("zone", 0.3, (), (replace(OFFER, usd_per_hour=0.1),)).affordable(
        replace(OFFER, usd_per_hour=0.2)
    )


def test_why_no_offer_may_be_requested_is_one_clause() -> None:
    full = CapacityMemory((CapacityRefusal(OFFER, Scope.ZONE, NOW + 9, "zone-a is full"),))

    def why(memory: CapacityMemory, constraints: Constraints, *offers: Offer) -> str:
        output = obstacle(offers, memory, constraints, NOW, spare=False)
        assert bool(output) is not any(is_allowed(each, memory, constraints, NOW, spare=False) for each in offers)
        return output

    assert why(CapacityMemory(), FREE, OFFER) == ""
    assert why(full, FREE, OFFER) == "no capacity: zone-a is full"
    assert why(full, FREE, OFFER, ELSEWHERE) == ""
    placed = replace(FREE, placed=(OFFER,))
    assert why(full, placed, OFFER, ELSEWHERE) == "no capacity: zone-a is full"
    assert why(full, placed, ELSEWHERE) == "no offer in zone-a, where the job's nodes are"
    abroad = replace(OFFER, region="region-2")
    assert why(full, replace(placed, spread="region"), abroad) == "no offer in region-1, where the job's nodes are"
    poor = replace(FREE, usd_per_hour=0.4)
    assert why(CapacityMemory(), poor, OFFER) == "limits.usd_per_hour ($0.4) allows no more machines"
    assert why(full, poor, OFFER, ELSEWHERE) == "limits.usd_per_hour ($0.4) allows no more machines"
