"""Offers and refusals before money is spent: through the API, from EC2's test cloud and from clouds that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from provisioners.base import DeniedError, Market, Offer, OfferQuery, ProvisionerError, UnreachableError
from supervisor.api.quote import Quotes
from supervisor.errors import UsageError
from tests.clouds.base import CloudServer, wire_cloud
from tests.unit.quoting import Answer, Api, Stub, api, raising, service_over, spec

OFFERS = tuple(
    Offer("local", "r", zone, "small", Market.SPOT, price, "", 0, "made up" if price else "")
    for zone, price in (("a", 0.25), ("b", 0.5), ("c", None))
)


def test_a_plan_has_the_offers_in_order_and_the_price_of_all_nodes() -> None:
    found = api(local=Stub(lambda _: OFFERS)).post("/v1/plan", json=spec()).json()
    assert [(each["zone"], each["usd_per_hour"], each["price_source"]) for each in found["offers"]] == [
        ("a", 0.25, "made up"),
        ("b", 0.5, "made up"),
        ("c", None, None),
    ]
    assert (found["nodes"], found["usd_per_hour"], found["offers_total"]) == (4, 1.0, 3)
    assert (found["offers_known"], found["warnings"]) == (True, [])


@pytest.mark.parametrize("limits", [{}, {"usd_per_hour": 5}, {"usd_per_node_hour": 5}])
def test_a_job_that_nothing_ends_is_said_to_cost_until_it_ends(limits: dict[str, float]) -> None:
    def of(limits: dict[str, float]) -> dict[str, Any]:
        asked: dict[str, Any] = spec(limits=limits, checkpoints="none")["spec"]
        return asked

    service, _ = service_over(Quotes({"aws": Stub(lambda _: OFFERS)}), "aws", rented=True)
    _, quote = service.job_files.plan(of(limits))
    said = "job has no limit of money, and costs $1.00 per hour until it ends: `--usd 100` pauses it there"
    assert said in quote.warnings
    assert service.submissions.check(of(limits)).quote == quote
    for ends in ({"usd": 10}, {"usd_per_month": 10}, {"hours": 1}):
        assert said not in service.job_files.plan(of({**limits, **ends}))[1].warnings


def test_a_plan_of_several_places_says_where_the_job_goes_after_the_first() -> None:
    places = [{"cloud": "gcp", "regions": ["r"]}, {"cloud": "aws"}]
    clouds = api(gcp=Stub(lambda _: OFFERS), aws=Stub(lambda _: ()))
    found = clouds.post("/v1/plan", json=spec(placement=places, checkpoints="none")).json()
    assert found["warnings"] == ["these are offers of gcp (r); where it has no machine for the job, it goes on to aws"]


def test_a_market_that_has_to_be_set_up_and_has_nothing_is_said() -> None:
    def answer(query: OfferQuery) -> Sequence[Offer]:
        if query.market is Market.RESERVED:
            raise ProvisionerError("nothing is reserved: name it in aws.reservations")
        return OFFERS

    cloud = api(aws=Stub(answer))
    wanted = {"placement": {"cloud": "aws"}, "checkpoints": "none", "limits": {"usd": 9}}
    found = cloud.post("/v1/plan", json=spec(market=["reserved", "spot"], **wanted)).json()
    said = "aws has no reserved machines for it: `spotsupctl plan --market reserved` says why"
    assert said in found["warnings"]
    refused = cloud.post("/v1/plan", json=spec(market="reserved", **wanted))
    assert "name it in aws.reservations" in refused.text
    assert said not in cloud.post("/v1/plan", json=spec(market="spot", **wanted)).json()["warnings"]


def test_the_cloud_is_asked_for_what_the_job_wants() -> None:
    asked: list[OfferQuery] = []

    def answer(query: OfferQuery) -> Sequence[Offer]:
        asked.append(query)
        return OFFERS

    job = spec(
        resources={"gpu": "T4", "gpus_per_node": 1},
        market="on-demand",
        placement={"regions": ["r"], "zones": ["a", "b"]},
    )
    found = api(local=Stub(answer)).post("/v1/check", json=job).json()
    assert (found["name"], found["warnings"], found["plan"]["offers_total"]) == ("job", [], 3)
    assert asked == [OfferQuery("T4", 1, (), ("r",), ("a", "b"), Market.ON_DEMAND)]


def test_what_was_just_checked_is_neither_parsed_nor_quoted_again() -> None:
    asked: list[OfferQuery] = []

    def answer(query: OfferQuery) -> Sequence[Offer]:
        asked.append(query)
        return OFFERS

    service, _ = service_over(Quotes({"local": Stub(answer)}), "local")
    job = spec(limits={"usd": 5.0})["spec"]

    def submit(value: Any, owner: str) -> None:
        with pytest.raises(UsageError, match="the job's code was not uploaded first"):
            service.submissions.submit(value, "0" * 64, "submission", owner=owner)

    service.submissions.check(job, owner="ann")
    submit({**job}, "ann")
    assert len(asked) == 1
    submit(job, "bob")
    submit({**job, "priority": 1}, "ann")
    assert len(asked) == 3, "another user's, and another job"


OTHER = "ask for other `resources`, or for another `placement`"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda _: (), f"local cannot give what job asks for: no machine with 2 × V100 in zone-x (spot); {OTHER}"),
        (raising(ProvisionerError("no such type")), "local cannot give what job asks for: no such type"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/check", "/v1/plan"])
def test_what_the_cloud_does_not_offer_is_refused(path: str, answer: Answer, text: str) -> None:
    job = spec(resources={"gpu": "V100", "gpus_per_node": 2}, placement={"zones": ["zone-x"]})
    refused = api(local=Stub(answer)).post(path, json=job)
    said = refused.json()
    assert (refused.status_code, said["error"], said["code"]) == (409, text, 5)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnreachableError("the line is dead"), "the line is dead"),
        (DeniedError("renew the credentials"), "renew the credentials"),
        (TimeoutError("too slow"), "too slow"),
        (KeyError("oops"), "a fault of spotsup: KeyError('oops')"),
    ],
)
def test_a_cloud_that_does_not_answer_stops_no_job(error: Exception, text: str) -> None:
    client = api(local=Stub(raising(error)))
    reply = client.post("/v1/check", json=spec())
    assert reply.status_code == 200
    assert reply.json()["warnings"] == [f"local did not list its offers ({text}): the job waits until it does"]
    planned = client.post("/v1/plan", json=spec()).json()
    assert (planned["offers_known"], planned["offers"], planned["usd_per_hour"]) == (False, [], None)


def test_a_cloud_that_hangs_delays_no_one_for_long() -> None:
    over = threading.Event()
    stub = Stub(lambda _: OFFERS if over.wait(60.0) else ())
    quotes = Quotes({"local": stub}, timeout_s=0.2)
    service, _ = service_over(quotes, "local")
    quote = service.submissions.check(spec()["spec"]).quote
    over.set()
    assert quote is not None
    assert quote.warnings == ("local did not list its offers (no answer within 0.2 s): the job waits until it does",)


@pytest.mark.parametrize(
    ("offers", "limit", "parts"),
    [
        (OFFERS[:2], 0.5, []),
        (OFFERS, 0.5, ["no price is known for small in r (spot): they are not asked for, because of a limit of money"]),
        (
            OFFERS[:2],
            0.4,
            ["`limits.usd_per_hour` is 0.4", "(2 nodes) costs 0.50 per hour now: the job waits for lower prices"],
        ),
    ],
)
def test_a_price_limit_in_the_way_is_a_warning(offers: Sequence[Offer], limit: float, parts: list[str]) -> None:
    reply = api(local=Stub(lambda _: offers)).post("/v1/check", json=spec(limits={"usd_per_hour": limit}))
    assert reply.status_code == 200
    assert len(reply.json()["warnings"]) == bool(parts)
    for part in parts:
        assert part in reply.json()["warnings"][0]


@pytest.mark.parametrize("limit", ["usd", "usd_per_hour"])
@pytest.mark.parametrize("path", ["/v1/check", "/v1/plan", "/v1/jobs"])
def test_a_limit_that_no_known_price_can_keep_is_refused(path: str, limit: str) -> None:
    job = spec(limits={limit: 5.0}) | (
        {"code_sha256": "0" * 64, "submission": "submission"} if path == "/v1/jobs" else {}
    )
    refused = api(local=Stub(lambda _: OFFERS[2:])).post(path, json=job)
    assert refused.status_code == 409
    assert refused.json()["error"] == (
        f"`limits.{limit}` cannot be kept: no price is known for small in r (spot); add one to [prices] in "
        "spotsupd.toml, or leave the limit out"
    )


def test_without_a_limit_an_unknown_price_is_a_warning_and_the_operators_price_is_taken() -> None:
    warned = api(local=Stub(lambda _: OFFERS[2:])).post("/v1/check", json=spec())
    assert warned.json()["warnings"] == [
        "no price is known for small in r (spot): they cost unseen; add one to [prices] in spotsupd.toml"
    ]
    quotes = Quotes({"local": Stub(lambda _: OFFERS)}, prices={"local/c/small/spot": 0.1})
    service, _ = service_over(quotes, "local")
    _, planned = service.job_files.plan(spec(limits={"usd": 5.0})["spec"])
    assert [(each.zone, each.usd_per_hour) for each in planned.offers] == [("c", 0.1), ("a", 0.25), ("b", 0.5)]
    assert planned.warnings == ()


# -- by a cloud ----------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[CloudServer]:
    with wire_cloud("aws") as running:
        yield running


def ec2(server: CloudServer) -> Api:
    return api(aws=server.provisioner())


def on_ec2() -> dict[str, Any]:
    return spec(resources={"gpu": "T4", "gpus_per_node": 1}, placement={"cloud": "aws"})


def test_a_plan_on_ec2_says_where_the_price_is_from(server: CloudServer) -> None:
    found = ec2(server).post("/v1/plan", json=on_ec2()).json()
    first = found["offers"][0]
    assert (first["cloud"], first["instance_type"].partition(".")[0], first["market"]) == ("aws", "g4dn", "spot")
    assert first["price_source"].startswith("EC2 spot price history, read 20")
    assert found["usd_per_hour"] == pytest.approx(4 * first["usd_per_hour"])
    prices = [each["usd_per_hour"] for each in found["offers"]]
    assert prices == sorted(prices)
    assert not server.cloud.fleet.records


def test_an_unreachable_ec2_stops_no_job(server: CloudServer) -> None:
    client = ec2(server)
    server.stop()
    reply = client.post("/v1/check", json=on_ec2())
    assert reply.status_code == 200
    (warning,) = reply.json()["warnings"]
    assert warning.startswith("aws did not list its offers (EC2 in us-east-1 cannot be reached")
    assert warning.endswith("the job waits until it does")


WAITS = (
    "`limits.usd_per_node_hour` is 0.2, and the cheapest node costs 0.25 per hour now: the job waits for lower prices"
)


@pytest.mark.parametrize(
    ("cap", "above", "warning"),
    [
        (0.3, [False, True], "`limits.usd_per_node_hour` is 0.3: 1 of 2 offers cost more, and wait"),
        (
            0.2,
            [True, True],
            WAITS,
        ),
    ],
)
def test_a_plan_says_which_offers_cost_more_than_the_job_pays_for_a_node(
    cap: float, above: list[bool], warning: str
) -> None:
    asked = api(local=Stub(lambda _: OFFERS[:2])).post("/v1/plan", json=spec(limits={"usd_per_node_hour": cap}))
    found = asked.json()
    assert [each["above_limit"] for each in found["offers"]] == above
    assert found["warnings"] == [warning]


def test_what_is_asked_for_comes_first_in_a_plan() -> None:
    listed = spec(
        resources=[{"instance_types": ["dear"]}, {"instance_types": ["small"]}], limits={"usd_per_node_hour": 0.3}
    )
    dear = Offer("local", "r", "a", "dear", Market.SPOT, 0.9, "", 0, "made up")
    clouds = api(local=Stub(lambda query: (dear,) if query.instance_types == ("dear",) else OFFERS[:1]))
    found = clouds.post("/v1/plan", json=listed).json()
    assert [(each["instance_type"], each["above_limit"]) for each in found["offers"]] == [
        ("small", False),
        ("dear", True),
    ]
    assert found["usd_per_hour"] == 1.0


def test_a_cap_that_no_known_price_can_keep_is_refused() -> None:
    reply = api(local=Stub(lambda _: OFFERS[2:])).post("/v1/plan", json=spec(limits={"usd_per_node_hour": 1}))
    assert reply.status_code == 409
    assert "`limits.usd_per_node_hour` cannot be kept: no price is known for small in r (spot)" in reply.text
