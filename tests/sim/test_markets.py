"""Spot, on demand, or one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from provisioners.base import DeniedError, EndCause, Market, Offer, OfferQuery, ProvisionerError, UnreachableError
from supervisor.model import JobState
from supervisor.runtime.offers import offers_in_order
from supervisor.simulation.world import World
from tests.sim.harness import empty_world, in_state, machine_of, submit
from tests.sim.promises import jobs_of, settled
from tests.unit.quoting import Stub

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
    assert world.run_until(settled, 60.0)
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
