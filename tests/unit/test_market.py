"""Capacity memory, and which of a job's offers may be requested."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from spotsup_simulator.replay.world import changes_at

from provisioners.base import Denied, Market, NoCapacity, Offer, Quota, Scope
from supervisor.market.capacity import (
    LATE_DECAY_S,
    LATE_S,
    MAX_EXPOSURES,
    MAX_LATE_POOLS,
    MAX_REFUSALS,
    TOO_FEW_S,
    WARY_S,
    CapacityMemory,
    CapacityRefusal,
)
from supervisor.market.hazard import HOUR_S, Exposure, HazardRules, per_hour
from supervisor.market.offers import Constraints, obstacle, ranked
from supervisor.market.prices import named, priced
from supervisor.planner.sentences import MAX_REASON_CHARACTERS

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
        # No name of one kind is taken for one of another kind.
        (Scope.ZONE, {"zone": "zone-b", "region": "zone-a"}, False),
        (Scope.REGION, {"region": "region-2", "zone": "region-1"}, False),
        (Scope.TYPE_IN_ZONE, {"zone": "zone-b", "region": "zone-a", "quota": "small"}, False),
    ],
)
def test_how_far_a_refusal_reaches(scope: Scope, changes: Mapping[str, Any], covers: bool) -> None:
    memory = CapacityMemory((CapacityRefusal(OFFER, scope, NOW + 1, ""),))
    assert bool(memory.refusal(replace(OFFER, **changes), NOW, spare=False)) is covers


def test_refusals_are_believed_for_their_time_and_then_forgotten() -> None:
    memory = CapacityMemory().remember(OFFER, Quota(Scope.ZONE, 10.0, "quota"), NOW, spare=True)
    (kept,) = memory.refusals
    here, there = (replace(each, usd_per_hour=None) for each in (OFFER, ELSEWHERE))
    assert kept == CapacityRefusal(here, Scope.ZONE, NOW + 10.0, "quota", spare=True)
    assert memory.refusal(OFFER, NOW + 9.9, spare=True) == kept
    assert memory.refusal(OFFER, NOW + 10.0, spare=True) is None
    (of_other,) = memory.remember(ELSEWHERE, Quota(Scope.ZONE, 9.0, ""), NOW + 10.0, spare=False).refusals
    assert of_other.offer == there, "that of a spare makes nobody wary"
    memory, end = memory.remember(OFFER, Quota(Scope.ZONE, 10.0, "quota"), NOW, spare=False), NOW + 10.0 + WARY_S
    later = memory.remember(ELSEWHERE, NoCapacity(Scope.ZONE, 10.0, "full"), end, spare=False)
    assert [each.offer for each in later.refusals] == [there]
    both = memory.remember(ELSEWHERE, NoCapacity(Scope.ZONE, 10.0, "full"), end - 0.1, spare=False)
    assert [each.offer for each in both.refusals] == [here, there]


def test_when_the_next_refusal_is_not_believed_any_more() -> None:
    memory = CapacityMemory()
    assert changes_at(memory, NOW) == math.inf
    memory = memory.with_late_refusal(OFFER, NOW, NOW, spare=False)
    memory = memory.with_too_few("job", ELSEWHERE, 3, 4, NOW + 1.0)
    memory = memory.remember(OFFER, Quota(Scope.ZONE, 10.0, "quota"), NOW, spare=False)
    assert [changes_at(memory, NOW + after_s) for after_s in (0.0, 9.9, 10.0, LATE_S, 9 * TOO_FEW_S + 1.0)] == [
        NOW + 10.0,
        NOW + 10.0,
        NOW + LATE_S,
        NOW + 9 * TOO_FEW_S + 1.0,
        math.inf,
    ]


def test_a_pool_that_refused_is_asked_for_one_machine_until_it_grants() -> None:
    memory = CapacityMemory().remember(OFFER, NoCapacity(Scope.TYPE_IN_ZONE, 10.0, "full"), NOW, spare=False)
    assert memory.is_wary(OFFER, NOW + 10.0 + WARY_S - 1)
    assert not memory.is_wary(OFFER, NOW + 10.0 + WARY_S)
    assert not memory.is_wary(ELSEWHERE, NOW + 20.0)
    assert not memory.with_a_grant(OFFER, NOW + 20.0).is_wary(OFFER, NOW + 20.0)
    assert memory.with_a_grant(OFFER, NOW + 5.0) == memory, "what is still believed may be a block for another reason"
    assert memory.with_a_grant(ELSEWHERE, NOW) is memory


def test_a_pool_with_too_few_machines_is_not_asked_for_the_longer_the_more_it_had_and_for_half_an_hour_at_most() -> (
    None
):
    for machines, needed, wait_s in ((1, 4, 120.0), (3, 4, 135.0), (3, 16, 480.0), (8, 16, 960.0), (63, 64, 1800.0)):
        memory = CapacityMemory().with_too_few("job", OFFER, machines, needed, NOW).with_a_machine_that_works(OFFER)
        refusal = memory.refusal(OFFER, NOW + wait_s - 1, spare=False, job="job", needed=needed)
        assert refusal is not None
        assert (refusal.until, refusal.message) == (NOW + wait_s, f"zone-a had {machines} of {needed} small")
        assert memory.refusal(OFFER, NOW + wait_s, spare=False, job="job", needed=needed) is None
        assert memory.had_too_few("job", OFFER, NOW + wait_s + LATE_DECAY_S - 1), "and when it is asked again"
        assert not memory.had_too_few("job", OFFER, NOW + wait_s + LATE_DECAY_S)


def test_too_few_is_a_matter_of_one_job_and_pool_until_it_has_enough_or_the_job_needs_fewer() -> None:
    memory = CapacityMemory().with_too_few("job", OFFER, 9, 16, NOW)
    assert memory.refusal(ELSEWHERE, NOW, spare=False, job="job", needed=16) is None
    assert memory.refusal(OFFER, NOW, spare=False, job="other", needed=16) is None
    assert not memory.had_too_few("other", OFFER, NOW)
    assert memory.with_enough("other", OFFER) is memory
    assert memory.with_enough("job", OFFER).refusal(OFFER, NOW, spare=False, job="job", needed=16) is None
    assert memory.refusal(OFFER, NOW, spare=False, job="job", needed=10)
    assert memory.refusal(OFFER, NOW, spare=False, job="job", needed=9) is None


def test_the_refusals_that_are_remembered_are_bounded() -> None:
    zones = [replace(OFFER, zone=str(number)) for number in range(MAX_REFUSALS)]
    full = CapacityMemory(tuple(CapacityRefusal(each, Scope.ZONE, NOW + 9, each.zone) for each in zones))
    after = full.remember(OFFER, NoCapacity(Scope.ZONE, 9.0, "new"), NOW, spare=False).refusals
    assert (len(after), after[0].message, after[-1].message) == (MAX_REFUSALS, "1", "new")


def test_a_thousand_refusals_of_one_pool_are_one_and_leave_those_of_others() -> None:
    memory = CapacityMemory().remember(ELSEWHERE, NoCapacity(Scope.TYPE_IN_ZONE, 60.0, "full"), NOW, spare=False)
    for number in range(MAX_REFUSALS):
        answer = NoCapacity(Scope.TYPE_IN_ZONE, 60.0 - number % 7, str(number))
        memory = memory.remember(OFFER, answer, NOW, spare=False)
    assert len(memory.refusals) == 2
    refusal = memory.refusal(OFFER, NOW, spare=False)
    assert refusal
    assert (refusal.until, refusal.message) == (NOW + 60.0, str(MAX_REFUSALS - 1))
    assert memory.refusal(ELSEWHERE, NOW, spare=False)


def test_refusals_of_spares_and_of_single_jobs_are_kept_apart() -> None:
    full = NoCapacity(Scope.TYPE_IN_ZONE, 60.0, "full")
    memory = CapacityMemory().remember(OFFER, full, NOW, spare=True).remember(OFFER, full, NOW, spare=False, job="a")
    refused = [
        bool(memory.refusal(OFFER, NOW, spare=spare, job=job)) for spare in (False, True) for job in ("", "a", "b")
    ]
    assert refused == [False, True, False, True, True, True]
    assert (memory.can_never_work([OFFER], NOW, "a"), memory.can_never_work([OFFER, ELSEWHERE], NOW, "a")) == (1, 0)


def test_unhealthy_machines_are_counted_by_cloud_and_type() -> None:
    larger, elsewhere = replace(OFFER, instance_type="large"), replace(OFFER, cloud="aws")
    memory = CapacityMemory().with_unhealthy(OFFER, "ann").with_unhealthy(OFFER, "bob").with_unhealthy(OFFER, "ann")
    memory = memory.with_unhealthy(larger, "ann")
    assert memory.unhealthy_streak(ELSEWHERE) == {"ann": 2, "bob": 1}, "whatever the zone"
    assert (memory.unhealthy_streak(larger), memory.unhealthy_streak(elsewhere)) == ({"ann": 1}, {})
    assert memory.without_unhealthy(OFFER).unhealthy_streaks == {("local", "large", "ann"): 1}


def test_sums_of_prices_are_compared_without_their_last_digits() -> None:
    assert Constraints("zone", 0.3, True, (), (replace(OFFER, usd_per_hour=0.1),)).affordable(
        replace(OFFER, usd_per_hour=0.2)
    )


def test_a_quota_covers_its_family_in_its_region_and_no_other() -> None:
    large = replace(OFFER, instance_type="large", zone="zone-b", quota="G and VT")
    memory = CapacityMemory().remember(replace(OFFER, quota="G and VT"), Quota(Scope.QUOTA, 600, "x"), 0.0, spare=False)
    assert memory.refusal(large, 1.0, spare=False)
    for other in (replace(large, quota="P"), replace(large, region="far"), replace(large, market=Market.ON_DEMAND)):
        assert not memory.refusal(other, 1.0, spare=False)
    unknown = CapacityMemory().remember(OFFER, Quota(Scope.QUOTA, 600, "x"), 0.0, spare=False)
    assert unknown.refusal(replace(OFFER, zone="zone-b"), 1.0, spare=False), "the same type"
    assert not unknown.refusal(replace(OFFER, instance_type="large"), 1.0, spare=False)


def late(memory: CapacityMemory, at: float, requested_at: float | None = None, **more: bool) -> CapacityMemory:
    """One more machine of OFFER that ended before it was bootstrapped."""
    spare = more.get("spare", False)
    return memory.with_late_refusal(OFFER, at if requested_at is None else requested_at, at, spare=spare)


def test_a_pool_that_takes_machines_before_they_are_ready_is_asked_ever_more_rarely() -> None:
    memory, at = CapacityMemory(), NOW
    for count, wait_s in enumerate((30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0), 1):
        memory = late(memory, at)
        refused = memory.refusal(OFFER, at + wait_s - 0.1, spare=False)
        assert refused
        assert refused.message == f"small in zone-a ended before it was ready, {count} times in a row"
        at += wait_s
        assert not memory.refusal(OFFER, at, spare=False)
    for other in (ELSEWHERE, replace(OFFER, instance_type="large"), replace(OFFER, market=Market.ON_DEMAND)):
        assert not memory.refusal(other, NOW, spare=False)


def test_a_pool_is_trusted_a_step_more_for_each_quarter_of_an_hour_and_wholly_once_a_machine_works() -> None:
    memory = late(late(late(CapacityMemory(), NOW), NOW + 30), NOW + 90)
    assert memory.late["local", "zone-a", "small", Market.SPOT].count == 3
    assert [
        late(memory, NOW + 90 + s).late["local", "zone-a", "small", Market.SPOT].count for s in (899, 900, 9000)
    ] == [
        4,
        3,
        1,
    ]
    works = memory.with_a_machine_that_works(OFFER)
    assert (works.late, memory.with_a_machine_that_works(ELSEWHERE).late) == ({}, memory.late)


def test_machines_that_were_requested_together_are_one_late_refusal_and_a_spares_holds_back_only_spares() -> None:
    memory = late(CapacityMemory(), NOW + 9)
    assert late(memory, NOW + 20, requested_at=NOW + 9) is memory
    spare = late(CapacityMemory(), NOW, spare=True)
    assert (bool(spare.refusal(OFFER, NOW, spare=False)), bool(spare.refusal(OFFER, NOW, spare=True))) == (False, True)


def test_the_pool_that_refused_last_is_forgotten_last() -> None:
    first, second = (replace(OFFER, zone=zone) for zone in ("zone-a", "zone-b"))
    memory = CapacityMemory()
    for at, offer in enumerate((first, second, first)):
        memory = memory.with_late_refusal(offer, NOW + at, NOW + at, spare=False)
    assert [zone for _, zone, *_ in memory.late] == ["zone-b", "zone-a"]


def test_few_late_refusals_are_remembered() -> None:
    memory = CapacityMemory()
    for number in range(MAX_LATE_POOLS + 1):
        memory = memory.with_late_refusal(replace(OFFER, zone=f"zone-{number}"), NOW, NOW, spare=False)
    assert len(memory.late) == MAX_LATE_POOLS
    assert not memory.refusal(replace(OFFER, zone="zone-0"), NOW, spare=False)


def test_a_job_with_a_limit_of_money_takes_no_machine_without_a_known_price() -> None:
    unpriced = replace(OFFER, usd_per_hour=None)
    free, limited = (Constraints("zone", None, needs_price, (), ()) for needs_price in (False, True))
    assert (free.affordable(unpriced), limited.affordable(unpriced), limited.affordable(OFFER)) == (True, False, True)
    assert obstacle((unpriced,), CapacityMemory(), free, NOW, spare=False) == ""
    assert obstacle((unpriced,), CapacityMemory(), limited, NOW, spare=False) == (
        "no price is known for small in region-1 (spot), and the job has a limit of money: "
        "add one to [prices] in spotsupd.toml"
    )


UNPRICED = replace(OFFER, instance_type="unpriced", usd_per_hour=None)
DEAR = replace(OFFER, instance_type="dear", usd_per_hour=9.0)
LIMITED = Constraints("zone", 1.0, needs_price=True, placed=(), billed=())


@pytest.mark.parametrize(
    ("offers", "refused", "why"),
    [
        ((OFFER, DEAR, UNPRICED), [], ""),
        ((DEAR, UNPRICED), [], "limits.usd_per_hour ($1) allows no more machines"),
        ((UNPRICED, UNPRICED), [], "no price is known for unpriced in region-1 (spot), and the job has a limit"),
        ((OFFER, UNPRICED), [OFFER], "no price is known for unpriced in region-1 (spot), and the job has a limit"),
        ((OFFER, DEAR), [OFFER], "limits.usd_per_hour ($1) allows no more machines"),
        ((DEAR, OFFER), [OFFER, DEAR], "no capacity: dear is full"),
    ],
)
def test_the_obstacle_is_what_keeps_the_offers_that_no_cloud_refuses_from_being_requested(
    offers: tuple[Offer, ...], refused: list[Offer], why: str
) -> None:
    memory = CapacityMemory()
    for each in refused:
        answer = NoCapacity(Scope.TYPE_IN_ZONE, 60.0, f"{each.instance_type} is full")
        memory = memory.remember(each, answer, NOW, spare=False)
    found = obstacle(offers, memory, LIMITED, NOW, spare=False)
    assert found.startswith(why)
    assert bool(found) is bool(why)


def test_what_the_account_may_not_is_not_said_to_be_a_matter_of_capacity() -> None:
    denied = Denied(Scope.REGION, 60.0, "UnauthorizedOperation for ec2:RunInstances")
    memory = CapacityMemory().remember(OFFER, denied, NOW, spare=False)
    why = obstacle(
        (OFFER,), memory, Constraints("zone", None, needs_price=False, placed=(), billed=()), NOW, spare=False
    )
    assert why == "the account may not: UnauthorizedOperation for ec2:RunInstances"


def test_an_operators_price_wins_and_that_of_the_most_exact_place_counts() -> None:
    far, unpriced = replace(OFFER, region="far", zone="far-a"), replace(OFFER, instance_type="large", usd_per_hour=None)
    dear = replace(OFFER, market=Market.ON_DEMAND)
    offers = (OFFER, ELSEWHERE, far, dear, unpriced)
    assert priced(offers, {}) == offers
    prices = {"local/*/small/spot": 0.9, "local/region-1/small/spot": 0.8, "local/zone-b/small/spot": 0.7}
    found = priced(offers, prices)
    assert [(each.zone, each.usd_per_hour, each.price_source) for each in found] == [
        ("zone-a", 0.5, ""),
        ("zone-b", 0.7, "[prices]"),
        ("zone-a", 0.8, "[prices]"),
        ("far-a", 0.9, "[prices]"),
        ("zone-a", None, ""),
    ], "cheapest first, those without a price last"
    assert found[0].market is Market.ON_DEMAND


def test_of_many_kinds_of_offers_few_are_named() -> None:
    many = [replace(OFFER, instance_type=f"t{number}") for number in (1, 1, 2, 3, 4, 5)]
    assert named(many[:4]) == "t1 in region-1 (spot), t2 in region-1 (spot), t3 in region-1 (spot)"
    assert named(many[:3]) == "t1 in region-1 (spot), t2 in region-1 (spot)"
    assert named(many).endswith("t3 in region-1 (spot) and 2 more")


# -- preemptions -------------------------------------------------------------------------------------------

HAZARD = HazardRules(prior_per_hour=0.1, prior_hours=1.0, half_life_s=HOUR_S)


def test_what_was_counted_of_a_pool_is_weighed_against_the_prior_and_halves_in_its_time() -> None:
    assert per_hour(None, NOW, HAZARD) == 0.1
    seen = Exposure(NOW).plus(3.0, 1, NOW, HAZARD)
    assert per_hour(seen, NOW, HAZARD) == pytest.approx(1.1 / 4)
    assert per_hour(seen, NOW + HOUR_S, HAZARD) == pytest.approx(0.6 / 2.5)
    assert per_hour(seen, NOW - HOUR_S, HAZARD) == pytest.approx(1.1 / 4), "a clock that was set back ages nothing"
    assert seen.plus(1.0, 0, NOW + HOUR_S, HAZARD) == Exposure(NOW + HOUR_S, 2.5, 0.5)
    assert per_hour(Exposure(NOW).plus(99.0, 0, NOW, HAZARD), NOW, HAZARD) < 0.01, "machines that lived long count too"


def test_only_spot_machines_are_counted_and_few_pools() -> None:
    dear = replace(OFFER, market=Market.ON_DEMAND)
    memory = CapacityMemory()
    assert memory.with_an_end(dear, 1.0, NOW, HAZARD, preempted=True) is memory
    assert (memory.preemptions_per_hour(OFFER, NOW, HAZARD), memory.preemptions_per_hour(dear, NOW, HAZARD)) == (0.1, 0)
    for number in range(MAX_EXPOSURES + 1):
        memory = memory.with_an_end(replace(OFFER, zone=f"zone-{number}"), -1.0, NOW, HAZARD, preempted=True)
    assert len(memory.exposures) == MAX_EXPOSURES
    assert next(iter(memory.exposures.values())) == Exposure(NOW, 0.0, 1.0), "the clock was set back: no time"


def test_offers_are_ranked_by_market_and_what_a_useful_hour_is_to_cost() -> None:
    dearer, unpriced = replace(ELSEWHERE, usd_per_hour=0.55), replace(OFFER, zone="zone-c", usd_per_hour=None)
    on_demand = replace(OFFER, market=Market.ON_DEMAND, usd_per_hour=0.1)
    offers = (on_demand, unpriced, dearer, OFFER)

    def order(memory: CapacityMemory, lost_s: float = 180.0) -> list[Offer]:
        return list(ranked(offers, memory, HAZARD, lost_s, NOW))

    assert order(CapacityMemory()) == [OFFER, dearer, unpriced, on_demand]
    once = CapacityMemory().with_an_end(OFFER, 0.1, NOW, HAZARD, preempted=True)
    assert order(once)[0] == OFFER, "one preemption is not worth a tenth of the price"
    often = once.with_an_end(OFFER, 0.1, NOW, HAZARD, preempted=True).with_an_end(
        OFFER, 0.1, NOW, HAZARD, preempted=True
    )
    assert order(often) == [dearer, OFFER, unpriced, on_demand]
    assert order(often, lost_s=1.0)[0] == OFFER, "for a job that loses nothing"


CAPPED = Constraints("zone", None, needs_price=True, placed=(), billed=(), job="job", usd_per_node_hour=0.5)


@pytest.mark.parametrize(
    ("offers", "why"),
    [
        ((OFFER, DEAR), ""),
        (
            (DEAR, replace(DEAR, usd_per_hour=2.101)),
            "the cheapest costs $2.11 per hour, your limit is $0.5; raise it",
        ),
        ((DEAR, UNPRICED), "the cheapest costs $9.00 per hour, your limit is $0.5; raise it: "),
        ((UNPRICED,), "no price is known for unpriced in region-1 (spot), and the job has a limit of money: "),
    ],
)
def test_what_costs_more_than_a_job_pays_for_a_machine_is_not_asked_for_and_the_sentence_says_so(
    offers: tuple[Offer, ...], why: str
) -> None:
    found = obstacle(offers, CapacityMemory(), CAPPED, NOW, spare=False)
    assert found.startswith(why)
    assert bool(found) == bool(why)
    if "raise it" in why:
        enough = why.split("$")[1].split(maxsplit=1)[0]
        assert found.endswith(f"`spotsupctl limits job --usd-per-node-hour {enough}`")


def test_the_command_that_raises_a_cap_is_not_cut_off_the_sentence_of_a_job_with_the_longest_name() -> None:
    limits = replace(CAPPED, job="j" * 40, usd_per_node_hour=98.55)
    why = obstacle((replace(OFFER, usd_per_hour=98.56),), CapacityMemory(), limits, NOW, spare=False)
    assert why.endswith("--usd-per-node-hour 98.56`")
    assert len(why) <= MAX_REASON_CHARACTERS


def test_on_demand_machines_are_asked_for_up_to_the_limit_for_each_and_no_further() -> None:
    on_demand = replace(OFFER, market=Market.ON_DEMAND)
    assert CAPPED.affordable(on_demand)
    assert not CAPPED.affordable(replace(on_demand, usd_per_hour=0.51))


def test_a_price_above_one_jobs_cap_holds_back_no_other_job_and_ends_none() -> None:
    answer = NoCapacity(Scope.TYPE_IN_ZONE, 10.0, "too dear", above_cap=True)
    memory = CapacityMemory().remember(OFFER, answer, NOW, spare=False, job="job")
    assert memory.refusal(OFFER, NOW, spare=False, job="job")
    assert not memory.refusal(OFFER, NOW, spare=False, job="other")
    assert not memory.can_never_work([OFFER], NOW, "job"), "it may cost less later"
    assert not memory.is_wary(OFFER, NOW + 11.0), "it says nothing about how many there are"
    assert obstacle((OFFER,), memory, CAPPED, NOW, spare=False) == "too dear: too dear"
    never = CapacityMemory().remember(OFFER, replace(answer, above_cap=False), NOW, spare=False, job="job")
    assert never.can_never_work([OFFER], NOW, "job")
