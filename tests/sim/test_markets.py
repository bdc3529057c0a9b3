"""Spot, on demand, or one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from spotsup_simulator.world import World

from provisioners.base import DeniedError, EndCause, Market, Offer, OfferQuery, ProvisionerError, UnreachableError
from supervisor.events import EventKind
from supervisor.model import JobState
from supervisor.runtime.offers import offers_in_order
from tests.sim.harness import empty_world, in_state, machine_of, record, submit
from tests.sim.promises import events_of, jobs_of, settled
from tests.unit.quoting import Stub

pytestmark = pytest.mark.long

BOTH = (OfferQuery(market=Market.SPOT), OfferQuery(market=Market.ON_DEMAND))
CHEAP = Offer("stub", "r", "r-a", "small", Market.SPOT, 0.1)
DEAR = Offer("stub", "r", "r-a", "small", Market.ON_DEMAND, 0.3)


def markets(world: World) -> list[Market]:
    """How each living machine is paid for."""
    nodes = jobs_of(world)["job"].nodes.values()
    alive = {machine.instance.node for machine in world.cloud.machines.values() if machine.alive}
    return sorted(node.offer.market for node in nodes if node.id in alive)


# -- a job in a market that has room, or none --------------------------------------------------------------


def test_on_demand_is_requested_where_spot_is_sold_out() -> None:
    world = empty_world()
    world.cloud.sold_out = frozenset({Market.SPOT})
    submit(world, "job", 2, 2, 2, market="spot-then-on-demand")
    assert world.run_until(in_state(JobState.RUNNING), 30.0)
    assert markets(world) == [Market.ON_DEMAND] * 2


def test_spot_is_taken_while_there_is_any_and_a_lost_node_is_replaced_by_what_there_is() -> None:
    world = empty_world()
    submit(world, "job", 2, 3, 3, market="spot-then-on-demand")
    assert world.run_until(settled, 60.0)
    assert markets(world) == [Market.SPOT] * 3
    world.cloud.sold_out = frozenset({Market.SPOT})
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    world.run(1.0)
    assert world.run_until(settled, 240.0), "once the other zone has refused, too"
    assert markets(world) == [Market.ON_DEMAND, Market.SPOT, Market.SPOT]
    world.cloud.sold_out = frozenset()
    world.run(60.0)  # longer than a refusal is believed
    world.cloud.end(machine_of(world, 0), EndCause.PREEMPTED)
    world.run(1.0)
    assert world.run_until(settled, 60.0)
    assert markets(world).count(Market.SPOT) == 2


@pytest.mark.parametrize(("market", "other"), [("spot", Market.SPOT), ("on-demand", Market.ON_DEMAND)])
def test_a_job_that_names_one_market_waits_for_it(market: str, other: Market) -> None:
    world = empty_world()
    world.cloud.sold_out = frozenset({other})
    submit(world, "job", 1, 2, 2, market=market)
    world.run(60.0)
    assert not world.cloud.machines
    world.cloud.sold_out = frozenset()
    assert world.run_until(settled, 60.0)
    assert markets(world) == [other] * 2


def test_the_limit_on_money_holds_in_every_market() -> None:
    world = empty_world()
    world.cloud.sold_out = frozenset({Market.SPOT})
    submit(world, "job", 1, 2, 2, market="spot-then-on-demand", limits={"usd_per_hour": 0.5})
    assert world.run_until(in_state(JobState.DEGRADED), 30.0)
    world.run(30.0)
    assert markets(world) == [Market.ON_DEMAND], "a second would cost more than allowed"


def zones_of(world: World) -> set[str]:
    """Where the current round is."""
    job = jobs_of(world)["job"]
    return {job.nodes[node].offer.zone for node in job.round.nodes()} if job.round else set()


@pytest.mark.parametrize("left", ["nothing", "on-demand"])
def test_on_demand_is_not_bought_beside_spot_that_is_free_in_the_next_zone(left: str) -> None:
    world = empty_world()
    if left == "nothing":
        world.cloud.capacity.update({"zone-a": 1, "zone-b": 16})
    else:  # one spot machine, and as many on demand as anybody wants
        world.hooks.launch.append(lambda _: world.cloud.without_spot.add("zone-a"))
    submit(world, "job", 1, 8, 8, market="spot-then-on-demand")
    assert world.run_until(settled, 400.0)
    assert markets(world) == [Market.SPOT] * 8
    assert zones_of(world) == {"zone-b"}
    bought = {machine.instance.node for machine in world.cloud.machines.values()}
    assert {jobs_of(world)["job"].nodes[node].offer.market for node in bought} == {Market.SPOT}
    assert world.nodes.trainings["job"].steps.lost == 0


def test_a_job_that_pays_for_on_demand_goes_back_to_spot_within_the_hour_at_one_pause() -> None:
    world = empty_world()
    world.cloud.sold_out = frozenset({Market.SPOT})
    submit(world, "job", 2, 4, 4, market="spot-then-on-demand")
    assert world.run_until(settled, 60.0)
    assert markets(world) == [Market.ON_DEMAND] * 4
    world.run(600.0)
    before = record(world).rounds.reported
    world.cloud.sold_out = frozenset()
    assert world.run_until(lambda w: markets(w) == [Market.SPOT] * 4, 3600.0)
    assert world.run_until(settled, 60.0)
    assert record(world).rounds.reported == before + 1
    assert world.nodes.trainings["job"].steps.lost == 0


def test_what_spot_there_is_takes_the_place_of_as_many_on_demand_nodes() -> None:
    world = empty_world()
    world.cloud.sold_out = frozenset({Market.SPOT})
    submit(world, "job", 2, 4, 4, market="spot-then-on-demand")
    assert world.run_until(settled, 60.0)
    world.cloud.sold_out = frozenset()
    (here,) = zones_of(world)
    world.cloud.capacity.update(dict.fromkeys(world.cloud.capacity, 0) | {here: 6})
    assert world.run_until(lambda w: markets(w).count(Market.SPOT) == 2 and settled(w), 3600.0)
    assert markets(world) == [Market.ON_DEMAND, Market.ON_DEMAND, Market.SPOT, Market.SPOT]


def test_an_on_demand_node_is_kept_where_the_limit_on_money_allows_no_second_one_beside_it() -> None:
    world = empty_world()
    world.cloud.sold_out = frozenset({Market.SPOT})
    submit(world, "job", 1, 1, 1, market="spot-then-on-demand", limits={"usd_per_hour": 0.35})
    assert world.run_until(settled, 60.0)
    world.cloud.sold_out = frozenset()
    world.run(3000.0)
    assert markets(world) == [Market.ON_DEMAND]
    assert settled(world)


# -- asking a cloud ----------------------------------------------------------------------------------------


def stub(spot: Sequence[Offer] | Exception, on_demand: Sequence[Offer] | Exception) -> Stub:
    """A cloud that answers each market with offers, or an error."""
    answers = {Market.SPOT: spot, Market.ON_DEMAND: on_demand}

    def answer(query: OfferQuery) -> Sequence[Offer]:
        found = answers[query.market]
        if isinstance(found, Exception):
            raise found
        return found

    return Stub(answer)


def test_offers_come_by_market() -> None:
    assert offers_in_order(stub([CHEAP], [DEAR]), BOTH, 10.0) == (CHEAP, DEAR)


def test_a_market_that_has_nothing_leaves_the_other() -> None:
    nothing = ProvisionerError("no spot here")
    assert offers_in_order(stub(nothing, [DEAR]), BOTH, 10.0) == (DEAR,)
    assert offers_in_order(stub([CHEAP], nothing), BOTH, 10.0) == (CHEAP,)
    assert offers_in_order(stub([], [DEAR]), BOTH, 10.0) == (DEAR,)
    with pytest.raises(ProvisionerError, match="no spot here"):
        offers_in_order(stub(nothing, ProvisionerError("nor on demand")), BOTH, 10.0)


@pytest.mark.parametrize("error", [UnreachableError("no answer"), DeniedError("not allowed")])
def test_a_market_that_does_not_answer_is_not_skipped_for_a_dearer_one(error: ProvisionerError) -> None:
    with pytest.raises(type(error)):
        offers_in_order(stub(error, [DEAR]), BOTH, 10.0)


# -- machines whose end is known before --------------------------------------------------------------------


def test_flex_machines_are_asked_for_once_spot_is_sold_out_and_on_demand_ones_once_those_are() -> None:
    world = empty_world()
    world.cloud.sold_out = frozenset({Market.SPOT})
    submit(world, "job", 2, 2, 2, market=["spot", "flex", "on-demand"])
    assert world.run_until(in_state(JobState.RUNNING), 30.0)
    assert markets(world) == [Market.FLEX] * 2
    world.cloud.sold_out = frozenset({Market.SPOT, Market.FLEX})
    world.cloud.end(machine_of(world, 0), EndCause.FAILED)
    world.run(1.0)
    assert world.run_until(settled, 240.0)
    assert markets(world) == [Market.FLEX, Market.ON_DEMAND]


def test_a_machine_that_lasts_for_a_limited_time_is_replaced_before_its_end_and_no_step_is_lost() -> None:
    world = empty_world()
    world.cloud.flex_lasts_s = 1200.0
    submit(world, "job", 2, 2, 2, market="flex")
    assert world.run_until(in_state(JobState.RUNNING), 30.0)
    first = {machine.instance.node for machine in world.cloud.machines.values()}
    world.run(1200.0)
    assert world.run_until(settled, 60.0)
    assert sorted(events_of(world, "job", EventKind.NOTICE)[:2]) == sorted(first)
    assert not events_of(world, "job", EventKind.NODE_LOST), "each has left before its end"
    assert markets(world) == [Market.FLEX] * 2
