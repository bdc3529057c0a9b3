"""Markets in the order of wish, what is reserved, and ends that are known before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioners.base import Market, NoCapacity, Offer, Scope
from supervisor.errors import UsageError
from supervisor.events import EventKind
from supervisor.market.capacity import CapacityMemory
from supervisor.market.ends import MIN_LEFT_S, NOTICE_S, has_time, is_near, known_end
from supervisor.market.hazard import HazardRules
from supervisor.market.offers import Constraints, is_allowed, obstacle, ranked
from supervisor.spec import parse_spec
from tests.unit.scene import NOW, OFFER, J, job, listing, machine, member, name, offering, scene, spec

DAY_S = 86400.0
RESERVED = replace(OFFER, market=Market.RESERVED, usd_per_hour=0.0, room=2, reservation="cr-1", ends_at=NOW + DAY_S)
FLEX = replace(OFFER, market=Market.FLEX, lasts_s=7 * DAY_S)
ON_DEMAND = replace(OFFER, market=Market.ON_DEMAND)
FREE = Constraints("zone", None, needs_price=False, placed=(), billed=())
# The local cloud has nothing reserved; a job's markets are its own matter.
WISHES = spec(market=["spot", "flex", "on-demand"]).model_copy(update={"market": "reserved-then-spot-then-flex"})


def placed(*clouds: str, market: Any) -> dict[str, Any]:
    where = [{"cloud": each} for each in clouds]
    storage = {"checkpoints": "s3://bucket/x"} if len(where) > 1 else {}
    return {"name": "job", "nodes": 1, "run": "t.py", "market": market, "placement": where, **storage}


def test_a_list_of_markets_is_the_same_as_its_one_form_and_what_follows_spot_is_dear() -> None:
    listed = parse_spec(placed("gcp", market=["reserved", "spot", "flex", "on-demand"]))
    assert listed.market == "reserved-then-spot-then-flex-then-on-demand"
    assert parse_spec(placed("gcp", market=listed.market)) == listed
    assert [each.market for each in listed.offer_queries] == list(listed.markets)
    assert listed.dear_markets == {Market.FLEX, Market.ON_DEMAND}
    assert parse_spec(placed("gcp", market=["flex", "spot"])).dear_markets == frozenset()
    assert parse_spec(placed("gcp", market="on-demand")).dear_markets == frozenset()


def test_each_place_is_asked_for_the_markets_that_its_cloud_has() -> None:
    both = parse_spec(placed("gcp", "aws", market=["spot", "flex"]))
    markets = [[each.market for each in place.offer_queries] for place in map(both.at, both.all_places)]
    assert markets == [[Market.SPOT, Market.FLEX], [Market.SPOT]]


@pytest.mark.parametrize(
    ("clouds", "market", "sentence"),
    [
        (["gcp"], ["spot", "spot"], "each market is named once"),
        (["gcp"], [], "'' is no market; write spot, on-demand, flex, reserved, or several of them in a list"),
        (["gcp"], ["spot", "cheap"], "'cheap' is no market"),
        (["aws"], "flex", "aws sells no flex machines: `market` is spot or on-demand or reserved there"),
        (["aws", "gcp"], "flex", "aws sells no flex machines"),
        (["aws", "azure"], ["spot", "flex"], "aws and azure sell no flex machines: leave flex out of `market`"),
        (["own"], ["spot", "reserved"], "own sells no reserved machines: leave reserved out of `market`"),
    ],
)
def test_wrong_markets_are_said_in_one_sentence(clouds: list[str], market: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        parse_spec(placed(*clouds, market=market))


def test_offers_come_by_market_as_the_job_lists_them() -> None:
    order = ranked((ON_DEMAND, OFFER, FLEX, RESERVED), CapacityMemory(), HazardRules(), 60.0, NOW, WISHES.preference)
    assert [each.market for each in order[:3]] == list(WISHES.markets)


def test_what_is_reserved_is_counted_by_reservation_and_left_alone_near_its_end() -> None:
    other = replace(RESERVED, reservation="cr-2")
    full = replace(FREE, billed=(RESERVED, RESERVED, OFFER))
    assert full.has_room(other)
    assert not full.has_room(RESERVED)
    refused = CapacityMemory().remember(RESERVED, NoCapacity(Scope.TYPE_IN_ZONE, 60.0, "full"), NOW, spare=False)
    allowed = [is_allowed(each, refused, FREE, NOW + 1, spare=False) for each in (RESERVED, other, OFFER)]
    assert allowed == [False, True, True]
    late = replace(RESERVED, ends_at=NOW + MIN_LEFT_S - 1)
    assert not has_time(late, NOW)
    assert (
        obstacle((late,), CapacityMemory(), FREE, NOW, spare=False) == "what is reserved in zone-a ends within 30 min"
    )


@pytest.mark.parametrize(
    ("offer", "launched_at", "end"),
    [
        (OFFER, NOW, None),
        (RESERVED, 0.0, (NOW + DAY_S, "the end of cr-1")),
        (FLEX, 0.0, None),
        (FLEX, NOW, (NOW + 7 * DAY_S, "flex machines last 7 d")),
        (replace(RESERVED, lasts_s=60.0), NOW, (NOW + 60, "reserved machines last 0.000694444 d")),
    ],
)
def test_when_a_machine_ends(offer: Offer, launched_at: float, end: tuple[float, str] | None) -> None:
    assert known_end(offer, launched_at) == end


def test_a_machine_is_replaced_before_its_end_and_one_that_lasts_a_short_time_in_its_last_quarter() -> None:
    assert [is_near(RESERVED, NOW + NOTICE_S + 1, NOW), is_near(RESERVED, NOW + NOTICE_S - 1, NOW)] == [False, True]
    assert not is_near(RESERVED, NOW - 1, NOW), "it is there: the clock was set, or what is reserved prolonged"
    short = replace(FLEX, lasts_s=400.0)
    assert [is_near(short, NOW + 101, NOW), is_near(short, NOW + 99, NOW)] == [False, True]


def test_a_known_end_is_a_notice_that_says_nothing_of_the_pool() -> None:
    ends = replace(RESERVED, ends_at=NOW + 600)
    after = scene(member(1), member(2, offer=ends), listed=listing(machine(1), machine(2)))
    found = after.node(2).notice
    assert found is not None
    assert (found.deadline, found.seen_at, found.source, found.confirmed) == (NOW + 600, NOW, "the end of cr-1", False)
    assert after.node(2).needs_replacement
    assert [each.text for each in after.events if each.kind is EventKind.NOTICE] == [
        f"{name(2)} ends in 600 s (the end of cr-1)"
    ]
    assert EventKind.NOTICE not in scene(member(1), member(2, offer=RESERVED)).event_kinds


def test_what_was_prolonged_lasts_longer() -> None:
    later = replace(RESERVED, ends_at=NOW + 3 * DAY_S)
    after = scene(member(1), member(2, offer=RESERVED), volatile=offering(later))
    assert after.node(2).offer.ends_at == NOW + 3 * DAY_S


def test_spot_nodes_are_left_for_what_is_reserved() -> None:
    spot = [member(n, state_since=NOW - 2000) for n in (1, 2)]
    record = job(2, J.RUNNING, state_since=NOW - 2000, spec=WISHES)
    asked = scene(*spot, record=record, volatile=offering(RESERVED, OFFER, FLEX))
    assert [(each.offer, each.ahead) for each in asked.new] == [(RESERVED, True)] * 2
