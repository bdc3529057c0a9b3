"""EC2's requests, and the reading of its answers: pure functions."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from provisioners.aws import describe, launch, quota
from provisioners.aws.settings import AwsSettings
from provisioners.base import EndCause, InstanceState, LaunchRequest, Market, Offer, ProvisionerError, owner_of
from provisioners.catalog import MachineType
from tests.unit.launching import TEAM, abridged, assert_reviewed, machine_of, request_for, request_on

SPOT = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Market.SPOT, 0.2, "T4", 1)
RESERVED = replace(SPOT, market=Market.RESERVED, reservation="cr-0123456789abcdef0")
BLOCK = replace(RESERVED, reservation="capacity-block/cr-0fedcba9876543210")
REQUEST, asking = request_for(SPOT), partial(request_on, SPOT)
PLAIN = AwsSettings(regions=("us-east-1",))
FULL = AwsSettings(
    regions=("us-east-1",),
    public_address=False,
    disk_gb=200,
    tags={"team": "vision"},
    images={"A100": "/our/a100/image"},
    instance_profile="arn:aws:iam::123456789012:instance-profile/nodes",
    subnets={"us-east-1a": "subnet-1"},
    security_groups={"us-east-1": ("sg-1", "sg-2")},
    placement_groups={"us-east-1a": "near"},
    efa=True,
)


def parameters(request: LaunchRequest, settings: AwsSettings) -> dict[str, Any]:
    return launch.run_instances(request, settings, *machine_of(request))


CASES: Mapping[str, tuple[LaunchRequest, AwsSettings]] = {
    "aws_spot": (REQUEST, PLAIN),
    "aws_on_demand_with_everything": (
        asking("g5.8xlarge", Market.ON_DEMAND, tags={"job": "resnet"}, disk_gb=500, dead_man_s=0.0),
        FULL,
    ),
    "aws_spot_with_four_efa": (asking("p4d.24xlarge"), FULL),
    "aws_in_a_reservation": (request_for(RESERVED), FULL),
    "aws_in_a_block": (replace(request_for(BLOCK), max_usd_per_hour=1.0), FULL),
}


@pytest.mark.parametrize("name", CASES)
def test_the_launch_request_matches_the_reviewed_one(name: str) -> None:
    asked = parameters(*CASES[name])
    asked["UserData"] = abridged(asked["UserData"])
    assert_reviewed(name, asked)


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_is_in_ec2s_model(name: str) -> None:
    shape = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape
    report = ParamValidator().validate(parameters(*CASES[name]), shape)
    assert not report.has_errors(), report.generate_report()


@pytest.mark.parametrize("market", Market)
@pytest.mark.parametrize("settings", [PLAIN, FULL], ids=["plain", "full"])
def test_all_resources_are_tagged_and_deleted_with_their_machine(market: Market, settings: AwsSettings) -> None:
    asked = parameters(asking("g4dn.xlarge", market), settings)
    born = {
        each["ResourceType"]: {tag["Key"]: tag["Value"] for tag in each["Tags"]} for each in asked["TagSpecifications"]
    }
    spot = {"spot-instances-request"} if market is Market.SPOT else set()
    assert set(born) == {"instance", "volume", "network-interface"} | spot
    for tags in born.values():
        assert owner_of(tags) == TEAM
        assert (tags["spotsup-node"], tags["spotsup-token"]) == ("node-1", "token-1")
    assert all(each["DeleteOnTermination"] for each in asked["NetworkInterfaces"])
    assert all(each["Ebs"]["DeleteOnTermination"] for each in asked["BlockDeviceMappings"])
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert asked["MetadataOptions"]["HttpTokens"] == "required"
    assert ("InstanceMarketOptions" in asked) is (market is Market.SPOT)


def test_a_launch_into_a_reservation_has_nothing_of_spot_and_goes_nowhere_else() -> None:
    one, block = (parameters(request_for(offer), FULL) for offer in (RESERVED, BLOCK))
    names = [each["CapacityReservationSpecification"]["CapacityReservationTarget"] for each in (one, block)]
    assert names == [
        {"CapacityReservationId": "cr-0123456789abcdef0"},
        {"CapacityReservationId": "cr-0fedcba9876543210"},
    ]
    assert block["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert "InstanceMarketOptions" not in one
    # A block's machines are near each other; a placement group could only refuse them.
    assert (one["Placement"].get("GroupName"), block["Placement"].get("GroupName")) == ("near", None)
    for plain in (REQUEST, asking("g4dn.xlarge", Market.ON_DEMAND)):
        assert "CapacityReservationSpecification" not in parameters(plain, FULL)


def test_our_own_tags_win() -> None:
    asked = parameters(replace(REQUEST, tags={"spotsup-cluster": "somebody-else"}), PLAIN)
    tags = {tag["Key"]: tag["Value"] for tag in asked["TagSpecifications"][0]["Tags"]}
    assert tags["spotsup-cluster"] == "team-a"


def test_user_data_is_within_ec2s_limit() -> None:
    assert len(base64.b64encode(parameters(REQUEST, FULL)["UserData"].encode())) < 16384


def test_the_image_depends_on_the_gpus_generation() -> None:
    images = {name: parameters(asking(name), FULL)["ImageId"] for name in ("p3dn.24xlarge", "g4dn.xlarge")}
    assert "proprietary" in images["p3dn.24xlarge"]
    assert "oss-nvidia" in images["g4dn.xlarge"]
    private = FULL.model_copy(update={"efa": False})
    assert parameters(asking("p4d.24xlarge"), private)["ImageId"] == "resolve:ssm:/our/a100/image"
    own = AwsSettings(regions=("us-east-1",), image="ami-1")
    assert parameters(REQUEST, own)["ImageId"] == "ami-1"


def test_a_public_machine_with_many_interfaces_begins_with_one_that_exists() -> None:
    public = AwsSettings(regions=("us-east-1",), efa=True)
    with pytest.raises(ProvisionerError, match=r"p5\.48xlarge has 32 network interfaces.*has to exist before"):
        parameters(asking("p5.48xlarge"), public)
    machine, _ = machine_of(asking("p5.48xlarge"))
    asked = launch.run_instances(asking("p5.48xlarge"), public, machine, "open", "eni-1")
    first, *others = asked["NetworkInterfaces"]
    assert first == {"DeviceIndex": 0, "NetworkCardIndex": 0, "NetworkInterfaceId": "eni-1"}
    # The EC2 guide: "for each additional network interface … device index 0, for EFA-only".
    assert [each["NetworkCardIndex"] for each in others] == list(range(1, 32))
    assert {(each["DeviceIndex"], each["InterfaceType"]) for each in others} == {(0, "efa-only")}
    (one,) = parameters(asking("g5.8xlarge"), public)["NetworkInterfaces"]
    assert (one["InterfaceType"], one["AssociatePublicIpAddress"]) == ("efa", True)
    (none,) = parameters(asking("g5.xlarge"), public)["NetworkInterfaces"]
    assert "InterfaceType" not in none


def test_a_first_card_without_efa_is_an_ordinary_one_beside_the_others() -> None:
    private = AwsSettings(regions=("us-east-1",), efa=True, public_address=False)
    machine = MachineType(name="p6-b300.48xlarge", efa=16, efa_first_card=False)
    first, *others = launch.run_instances(REQUEST, private, machine, "open")["NetworkInterfaces"]
    assert "InterfaceType" not in first
    assert len(others) == 16


@given(token=st.text(min_size=1), cluster=st.text(min_size=1))
@pytest.mark.long
def test_ec2s_token_is_ours_for_one_owner_whatever_the_offer(token: str, cluster: str) -> None:
    request = replace(REQUEST, token=token, owner=replace(TEAM, cluster=cluster))
    made = launch.client_token(request)
    assert len(made) == 64
    assert made.isascii()
    assert made == launch.client_token(replace(request, offer=replace(SPOT, instance_type="g5.xlarge")))
    assert made != launch.client_token(replace(request, token=f"{token}x"))
    for other in (replace(request.owner, cluster=f"{cluster}x"), replace(request.owner, key_mark="other")):
        assert made != launch.client_token(replace(request, owner=other))


# -- answers -------------------------------------------------------------------------------------------------

RAW: Mapping[str, Any] = {
    "InstanceId": "i-1",
    "LaunchTime": datetime(2026, 11, 21, tzinfo=UTC),
    "State": {"Name": "running"},
    "Placement": {"AvailabilityZone": "us-east-1a"},
    "InstanceType": "g4dn.xlarge",
    "PublicIpAddress": "3.4.5.6",
    "PrivateIpAddress": "10.0.0.1",
    "InstanceLifecycle": "spot",
    "Tags": [{"Key": key, "Value": value} for key, value in {**TEAM.tags, "spotsup-node": "node-1"}.items()],
}


def test_a_description_becomes_an_instance() -> None:
    read = describe.instance(RAW, "us-east-1", PLAIN, 1000.0)
    assert (read.id, read.region, read.zone) == ("us-east-1:i-1", "us-east-1", "us-east-1a")
    assert (read.owner, read.node, read.token) == (TEAM, "node-1", "")
    assert (read.ssh_host, read.private_address, read.ssh_port) == ("3.4.5.6", "10.0.0.1", 22)
    assert (read.state, read.end_cause, read.preempt_at) == (InstanceState.RUNNING, None, 1000.0)
    assert describe.instance(RAW, "us-east-1", FULL, None).ssh_host == "10.0.0.1"


@pytest.mark.parametrize(
    ("state", "code", "expected", "cause"),
    [
        ("pending", "", InstanceState.PENDING, None),
        ("shutting-down", "Client.UserInitiatedShutdown", InstanceState.STOPPING, EndCause.USER),
        ("terminated", "Client.UserInitiatedShutdown", InstanceState.TERMINATED, EndCause.USER),
        ("terminated", "Server.SpotInstanceTermination", InstanceState.TERMINATED, EndCause.PREEMPTED),
        ("stopped", "Server.SpotInstanceShutdown", InstanceState.STOPPED, EndCause.PREEMPTED),
        ("stopping", "Server.SpotInstanceShutdown", InstanceState.STOPPING, EndCause.PREEMPTED),
        ("terminated", "Client.InstanceInitiatedShutdown", InstanceState.TERMINATED, EndCause.FAILED),
        ("terminated", "Server.InsufficientInstanceCapacity", InstanceState.TERMINATED, EndCause.FAILED),
        ("terminated", "Server.NeverHeardOf", InstanceState.TERMINATED, EndCause.UNKNOWN),
        ("terminated", "", InstanceState.TERMINATED, EndCause.UNKNOWN),
        ("running", "Server.SpotInstanceTermination", InstanceState.RUNNING, None),
    ],
)
def test_states_and_their_reasons(state: str, code: str, expected: InstanceState, cause: EndCause | None) -> None:
    raw = {**RAW, "State": {"Name": state}, "StateReason": {"Code": code}}
    read = describe.instance(raw, "us-east-1", PLAIN, None)
    assert (read.state, read.end_cause) == (expected, cause)


@pytest.mark.parametrize(
    "field", ["Placement", "InstanceType", "PublicIpAddress", "PrivateIpAddress", "Tags", "LaunchTime"]
)
def test_optional_fields_may_be_missing(field: str) -> None:
    raw = {name: value for name, value in RAW.items() if name != field}
    assert describe.instance(raw, "us-east-1", PLAIN, None).id == "us-east-1:i-1"


@pytest.mark.parametrize("field", ["InstanceId", "State"])
def test_a_missing_required_field_is_an_error(field: str) -> None:
    raw = {name: value for name, value in RAW.items() if name != field}
    with pytest.raises(ProvisionerError, match="us-east-1 describes an instance without a required field"):
        describe.instance(raw, "us-east-1", PLAIN, None)


def test_a_mark_on_a_spot_request_is_a_notice_of_two_minutes() -> None:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    marked = {"InstanceId": "i-1", "Status": {"Code": "marked-for-termination", "UpdateTime": at}}
    stopped = {"InstanceId": "i-2", "Status": {"Code": "marked-for-stop", "UpdateTime": at}}
    plain: dict[str, Any] = {"InstanceId": "i-3", "Status": {"Code": "fulfilled", "UpdateTime": at}}
    requests: list[dict[str, Any]] = [marked, stopped, plain, {"Status": {}}, {}]
    now = at.timestamp() + 60
    assert describe.preemptions(requests, now) == {"i-1": at.timestamp() + 120, "i-2": at.timestamp() + 120}
    behind = at.timestamp() - 3600
    assert describe.preemptions(requests, behind) == {"i-1": behind + 120, "i-2": behind + 120}


@given(region=st.sampled_from(["us-east-1", "eu-central-1"]), ec2_id=st.from_regex(r"i-[0-9a-f]{8,17}", fullmatch=True))
def test_ids_carry_their_region(region: str, ec2_id: str) -> None:
    assert describe.split_id(describe.id_of(region, ec2_id)) == (region, ec2_id)
    assert describe.split_id(ec2_id) == ("", ec2_id)


def test_types_count_towards_their_quota() -> None:
    spot = {name: quota.quota_of(name, Market.SPOT) for name in ("g6.xlarge", "p4d.24xlarge", "p5en.48xlarge")}
    assert [each.code for each in spot.values() if each] == ["L-3819A6DF", "L-7212CCBC", "L-C4BD4855"]
    on_demand = {name: quota.quota_of(name, Market.ON_DEMAND) for name in ("g6.xlarge", "p4d.24xlarge", "p5.4xlarge")}
    assert [each.code for each in on_demand.values() if each] == ["L-DB2E81BA", "L-417A185B", "L-417A185B"]
    assert quota.quota_of("p6-b200.48xlarge", Market.SPOT) is None
    assert quota.quota_of("trn1.2xlarge", Market.SPOT) is None


def test_a_cap_goes_with_a_spot_request_as_text_and_with_no_other() -> None:
    options = parameters(replace(REQUEST, max_usd_per_hour=1.8), PLAIN)["InstanceMarketOptions"]["SpotOptions"]
    assert options["MaxPrice"] == "1.8"
    tiny = parameters(replace(REQUEST, max_usd_per_hour=0.00123), PLAIN)["InstanceMarketOptions"]["SpotOptions"]
    assert tiny["MaxPrice"] == "0.00123", "without an exponent"
    assert "MaxPrice" not in parameters(REQUEST, PLAIN)["InstanceMarketOptions"]["SpotOptions"]
    on_demand = replace(asking("g4dn.xlarge", Market.ON_DEMAND), max_usd_per_hour=1.8)
    assert "InstanceMarketOptions" not in parameters(on_demand, PLAIN)
