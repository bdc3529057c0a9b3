"""In which order a job that prefers the cheapest goes to its places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from provisioners.base import Market, Offer, OfferQuery, UnreachableError
from supervisor.api.place_order import PricedPlace, by_price, places_by_price, prefers_the_cheapest, with_places
from supervisor.api.quote import Quotes
from supervisor.spec import JobSpec, parse_spec
from supervisor.spec_places import Placement
from tests.unit.quoting import Stub, raising

AWS, GCP, AZURE = (Placement(cloud=name) for name in ("aws", "gcp", "azure"))


def spec(**more: Any) -> JobSpec:
    return parse_spec(
        {
            "name": "job",
            "run": "train.py",
            "nodes": 2,
            "placement": [{"cloud": "aws"}, {"cloud": "gcp"}, {"cloud": "azure"}],
            "checkpoints": "s3://bucket/checkpoints",
            "prefer": "cheapest",
            **more,
        }
    )


def offer(cloud: str, usd: float | None, market: Market = Market.SPOT, alternative: int = 0) -> Offer:
    return Offer(cloud, "r", "z", "t", market, usd, "A100", 8, alternative=alternative)


def order(prices: Mapping[str, Sequence[Offer]], job: JobSpec) -> list[str]:
    found = places_by_price(job, lambda at: tuple(prices[at.placement.cloud]))
    return [each.place.cloud for each in found]


def test_the_cheapest_comes_first_and_equal_ones_stay_as_listed() -> None:
    prices = {"aws": [offer("aws", 3.0)], "gcp": [offer("gcp", 1.0), offer("gcp", 9.0)], "azure": [offer("azure", 1.0)]}
    assert order(prices, spec()) == ["gcp", "azure", "aws"]


def test_spot_comes_before_on_demand_whatever_it_costs_and_no_price_last() -> None:
    prices = {"aws": [offer("aws", 0.1, Market.ON_DEMAND)], "gcp": [offer("gcp", None)], "azure": [offer("azure", 5.0)]}
    assert order(prices, spec()) == ["azure", "aws", "gcp"]


def test_what_is_above_the_price_cap_counts_as_no_offer() -> None:
    prices = {"aws": [offer("aws", 2.0)], "gcp": [offer("gcp", 1.5)], "azure": [offer("azure", 1.0)]}
    assert order(prices, spec(limits={"usd_per_node_hour": 0.5})) == ["aws", "gcp", "azure"]
    prices["gcp"] = [offer("gcp", 1.5), offer("gcp", 0.4)]
    assert order(prices, spec(limits={"usd_per_node_hour": 0.5})) == ["gcp", "aws", "azure"]


def test_prices_are_compared_by_what_alternatives_do_in_an_hour() -> None:
    job = spec(resources=[{"gpu": "H100", "gpus_per_node": 8, "speed": 3.0}, {"gpu": "A100", "gpus_per_node": 8}])
    prices = {"aws": [offer("aws", 2.4)], "gcp": [offer("gcp", 1.0, alternative=1)], "azure": []}
    assert order(prices, job) == ["aws", "gcp", "azure"]


def test_a_place_that_has_nothing_comes_after_one_that_is_unknown() -> None:
    found = by_price([PricedPlace(AWS, ()), PricedPlace(GCP), PricedPlace(AZURE, (offer("azure", None),))])
    assert [each.place for each in found] == [GCP, AZURE, AWS]


def test_a_place_without_a_price_says_why() -> None:
    assert [str(PricedPlace(AWS, offers)) for offers in (None, (), (offer("aws", None),))] == [
        "aws (its offers are not known)",
        "aws (nothing that fits)",
        "aws (no price is known)",
    ]
    assert str(PricedPlace(AWS, (), 1.5)) == "aws (from 1.5 USD per node and hour, on demand)"


def test_only_a_job_with_places_that_prefers_the_cheapest_is_ordered() -> None:
    assert prefers_the_cheapest(spec())
    assert not prefers_the_cheapest(spec(prefer="listed"))
    assert not prefers_the_cheapest(spec(placement={"cloud": "aws"}))


def test_the_job_is_in_the_first_of_its_places_and_has_the_storage_of_its_cloud() -> None:
    job = spec(storage=[{"mount": "/mnt/a", "nfs": "10.0.0.1:/x", "cloud": "gcp"}])
    ordered = with_places(job, by_price([PricedPlace(AWS), PricedPlace(GCP, (), 1.0, spot=True), PricedPlace(AZURE)]))
    assert (ordered.placement, ordered.places) == (GCP, (GCP, AWS, AZURE))
    assert [each.mount for each in ordered.mounted] == ["/mnt/a"]
    assert with_places(job, ()) == job


def test_the_quote_is_of_the_cheapest_place_and_each_cloud_is_asked_once() -> None:
    asked: list[str] = []

    def answer(cloud: str, usd: float) -> Any:
        def offers(_: OfferQuery) -> Sequence[Offer]:
            asked.append(cloud)
            return [offer(cloud, usd)]

        return offers

    clouds = {
        "aws": Stub(answer("aws", 2.0)),
        "gcp": Stub(answer("gcp", 1.0)),
        "azure": Stub(raising(UnreachableError("no"))),
    }
    quote = Quotes(clouds, timeout_s=60.0, provider_s=55.0).quote(spec())
    assert [each.cloud for each in quote.offers] == ["gcp"]
    assert sorted(asked) == ["aws", "gcp"]
    assert quote.warnings[-1] == (
        "these are offers of gcp (from 1 USD per node and hour); where it has no machine for the job, it goes on to "
        "aws (from 2 USD per node and hour), then to azure (its offers are not known)"
    )


@pytest.mark.parametrize("prefer", ["listed", "cheapest"])
def test_where_no_cloud_answers_the_job_waits_as_listed(prefer: str) -> None:
    clouds = {name: Stub(raising(UnreachableError("no route"))) for name in ("aws", "gcp", "azure")}
    quote = Quotes(clouds, timeout_s=60.0, provider_s=55.0).quote(spec(prefer=prefer))
    assert (quote.known, quote.offers) == (False, ())
    assert with_places(spec(prefer=prefer), quote.places).placement == AWS
