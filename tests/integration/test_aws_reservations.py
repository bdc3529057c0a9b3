"""What an account has reserved on EC2, by the real boto3: offers, launches, `check`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest

from provisioners.base import (
    DeniedError,
    Instance,
    Launched,
    LaunchOutcome,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    ProvisionerError,
    Scope,
    UnreachableError,
)
from tests.clouds.base import bare
from tests.integration.cloud_names import T4, Api
from tests.support.machines import TIMEOUT_S, request_at

pytestmark = pytest.mark.long

RESERVED = replace(T4, market=Market.RESERVED)


def reserving(aws: Api, *ids: str, **settings: Any) -> Api:
    """A daemon whose configuration names these."""
    return aws.with_settings(reservations=ids, **settings)


def launch(aws: Api, offer: Offer, node: str) -> LaunchOutcome:
    return aws.provisioner.launch(request_at(offer, node), TIMEOUT_S)


def launched(aws: Api, offer: Offer, node: str) -> Instance:
    outcome = launch(aws, offer, node)
    assert isinstance(outcome, Launched), outcome
    return outcome.instance


def refusal(aws: Api, query: OfferQuery = RESERVED) -> str:
    with pytest.raises(ProvisionerError) as refused:
        aws.offers(query)
    assert not isinstance(refused.value, UnreachableError | DeniedError)
    return str(refused.value)


def test_what_is_reserved_is_offered_with_its_number_and_the_end_of_its_machines(aws: Api) -> None:
    have = aws.cloud.ec2.reservations
    have.page = 2
    have.add("cr-0", "us-east-1c", 9)  # the account's, and not named
    have.add("cr-1", "us-east-1a", 4)
    ends_at = have.add("cr-2", "us-east-1b", 8, hours=10, block=True)
    until = have.add("cr-3", "eu-central-1a", 2, hours=10)
    aws.cloud.ec2.quotas["L-DB2E81BA"] = aws.cloud.ec2.quotas["L-3819A6DF"] = 0
    api = reserving(aws, "cr-3", "cr-1", "cr-2", regions=("us-east-1", "eu-central-1"))
    offers = {each.reservation: each for each in api.offers(RESERVED)}
    assert offers["cr-1"] == Offer(
        *("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Market.RESERVED, 0.0, "T4", 1),
        price_source="reserved: billed whether it is used or not",
        room=4,
        reservation="cr-1",
    )
    block, other = offers["capacity-block/cr-2"], offers["cr-3"]
    assert (block.room, block.ends_at) == (8, (ends_at - timedelta(minutes=30)).timestamp())
    assert (other.region, other.room, other.ends_at) == ("eu-central-1", 2, until.timestamp())
    assert len(offers) == 3
    assert [each.reservation for each in api.offers(replace(RESERVED, regions=("eu-central-1",)))] == ["cr-3"]
    assert [each.reservation for each in api.offers(replace(RESERVED, zones=("us-east-1a",)))] == ["cr-1"]


@pytest.mark.parametrize(
    ("given", "settings", "why"),
    [
        ({"State": "expired"}, {}, "cr-1 has ended"),
        ({"block": True, "hours": 0.4}, {}, "cr-1 has ended"),  # EC2 terminates its machines
        ({"State": "cancelled"}, {}, "cr-1 is cancelled"),
        (
            {"State": "scheduled", "block": True, "StartDate": datetime(2027, 1, 5, 11, 30, tzinfo=UTC)},
            {},
            "cr-1 has not begun (scheduled, from 2027-01-05 11:30 UTC)",
        ),
        ({"InstanceType": "g5.xlarge"}, {}, "cr-1 is of g5.xlarge, and the job asks for g4dn."),
        ({"InstanceType": "c5.large"}, {}, "cr-1 is of c5.large, which the catalogue does not have: run spotsupd"),
        ({"InstancePlatform": "Windows"}, {}, "cr-1 is for Windows, and spotsup's machines are Linux/UNIX"),
        ({"Tenancy": "dedicated"}, {}, "cr-1 is of dedicated tenancy"),
        ({"Interruptible": True}, {}, "cr-1 is interruptible"),
        ({}, {"subnets": {"us-east-1b": "subnet-1"}}, "cr-1 is in us-east-1a, for which there is no subnet"),
        (
            {"PlacementGroupArn": "arn:aws:ec2:us-east-1:123456789012:placement-group/near"},
            {"placement_groups": {"us-east-1b": "near"}},
            'made in the placement group near: set aws.placement_groups.us-east-1a = "near"',
        ),
    ],
)
def test_what_cannot_be_used_is_left_out_and_where_nothing_is_left_each_has_its_reason(
    aws: Api, given: dict[str, Any], settings: dict[str, Any], why: str
) -> None:
    aws.cloud.ec2.reservations.add("cr-1", "us-east-1a", 4, **given)
    message = refusal(reserving(aws, "cr-1", "cr-9", **settings))
    assert message.startswith("nothing in aws.reservations can be used: cr-1 ")
    assert why in message
    assert message.endswith("; cr-9 is not in us-east-1")
    aws.cloud.ec2.reservations.add("cr-9", "us-east-1b", 1)
    assert [each.reservation for each in reserving(aws, "cr-1", "cr-9", **settings).offers(RESERVED)] == ["cr-9"]


def test_only_zones_that_have_the_jobs_file_systems_are_offered(aws: Api) -> None:
    aws.cloud.ec2.reservations.add("cr-1", "us-east-1a", 4)
    aws.cloud.ec2.mount_targets["fs-0000001a"] = [("us-east-1b", "available")]
    query = replace(RESERVED, file_servers=("fs-0000001a.efs.us-east-1.amazonaws.com",))
    assert "cr-1 is in us-east-1a, where the job's EFS file systems have no mount target" in refusal(
        reserving(aws, "cr-1"), query
    )


def test_without_a_reservation_in_the_configuration_the_setting_is_named(aws: Api) -> None:
    assert "name your Capacity Reservations (cr-…) in aws.reservations" in refusal(aws)
    assert not aws.cloud.calls


def test_what_cannot_be_read_is_not_taken_for_gone(aws: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioners.calls._BACKOFF_S", (0.01, 0.01, 0.01))
    have = aws.cloud.ec2.reservations
    have.add("cr-1", "us-east-1a", 4)
    api = reserving(aws, "cr-1", "cr-2", regions=("us-east-1", "eu-central-1"))
    aws.cloud.away.add("eu-central-1")
    assert [each.reservation for each in api.offers(RESERVED)] == ["cr-1"]
    aws.cloud.away = {"us-east-1"}
    with pytest.raises(UnreachableError, match="EC2 in us-east-1"):
        api.offers(RESERVED)
    aws.cloud.away.clear()
    aws.cloud.denied.add("ec2:DescribeCapacityReservations")
    with pytest.raises(DeniedError, match=r"ec2:DescribeCapacityReservations.*aws-iam-policy\.json"):
        api.offers(RESERVED)


@pytest.mark.parametrize("block", [False, True])
def test_a_launch_goes_into_the_reservation_also_where_the_zone_is_full_until_that_is_full(
    aws: Api, block: bool
) -> None:
    aws.cloud.ec2.reservations.add("cr-1", "us-east-1a", 1, block=block)
    aws.cloud.exhaust("us-east-1a")
    api = reserving(aws, "cr-1")
    (offer,) = api.offers(RESERVED)
    machine = launched(api, offer, "n1")
    assert launched(api, offer, "n1").id == machine.id, "the same token is the same machine"
    by_hand: Any = boto3.client("ec2", region_name="us-east-1", endpoint_url=aws.server.url)
    (raw,) = by_hand.describe_instances()["Reservations"][0]["Instances"]
    assert (raw["InstanceId"], raw["CapacityReservationId"]) == (bare(machine.id), "cr-1")
    assert raw.get("InstanceLifecycle") == ("capacity-block" if block else None)
    full = launch(api, offer, "n2")
    assert isinstance(full, NoCapacity)
    assert full.scope is Scope.TYPE_IN_ZONE
    assert "ReservationCapacityExceeded" in full.message
    assert [each.room for each in api.offers(RESERVED)] == [1], "in all, whoever uses them"
    api.terminate(machine)
    assert isinstance(launch(api, offer, "n2"), Launched)


def test_a_reservation_that_is_gone_or_not_there_yet_refuses_and_says_why(aws: Api) -> None:
    have = aws.cloud.ec2.reservations
    have.add("cr-1", "us-east-1a", 1)
    (offer,) = reserving(aws, "cr-1").offers(RESERVED)
    gone = launch(aws, replace(offer, reservation="cr-2"), "n1")
    assert isinstance(gone, NoCapacity)
    assert gone.scope is Scope.TYPE_IN_ZONE
    assert "The capacity reservation ID 'cr-2' was not found; put into aws.reservations" in gone.message
    have.add("cr-1", "us-east-1a", 1, State="scheduled")
    early = launch(aws, offer, "n1")
    assert isinstance(early, NoCapacity)
    assert "PendingActivation" in early.message
    have.add("cr-1", "us-east-1a", 1)
    launched(aws, offer, "n1")


def test_check_tells_what_is_reserved_and_what_cannot_be_found(aws: Api) -> None:
    have = aws.cloud.ec2.reservations
    have.add("cr-1", "us-east-1a", 4)
    have.add("cr-2", "us-east-1b", 8, State="scheduled", StartDate=datetime(2027, 1, 5, 11, 30, tzinfo=UTC))
    (found,) = [each for each in reserving(aws, "cr-1", "cr-2").provisioner.check(30.0) if each.what == "reservations"]
    assert found.ok
    assert found.message == (
        "cr-1 is 4 g4dn.xlarge in us-east-1a; cr-2 is 8 g4dn.xlarge in us-east-1b, and has not begun (scheduled, from "
        "2027-01-05 11:30 UTC)"
    )
    have.add("cr-1", "us-east-1a", 4, State="expired")
    complaints = reserving(aws, "cr-1", "cr-2", "cr-9").complaints()
    assert complaints["reservations"] == ("cr-1 has ended; cr-9 is not in us-east-1: take it out of aws.reservations")
