"""EC2 by the real boto3, against the test cloud with machines on paper: faults, time limits, numbers of calls."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest

from provisioners.aws.provisioner import AwsProvisioner
from provisioners.aws.settings import AwsSettings
from provisioners.base import (
    DeniedError,
    EndCause,
    Fatal,
    Instance,
    InstanceState,
    LaunchRequest,
    LeftoverKind,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    ProvisionerError,
    Quota,
    Scope,
    Transient,
    Unknown,
)
from tests.clouds import aws
from tests.clouds.machines import PaperMachines
from tests.support.machines import CLUSTER, TIMEOUT_S, found_by, launched_by, request_at

T4 = OfferQuery(gpu="T4", gpus_per_node=1)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[aws.AwsServer]:
    for name, value in aws.ENVIRON.items():
        monkeypatch.setenv(name, value)
    with aws.aws_cloud(PaperMachines()) as running:
        yield running


def provider(server: aws.AwsServer, **settings: Any) -> AwsProvisioner:
    return AwsProvisioner(AwsSettings(**{"regions": ("us-east-1",), "endpoint": server.url, **settings}))


@pytest.fixture
def ec2(server: aws.AwsServer) -> AwsProvisioner:
    return provider(server)


def offer(zone: str = "us-east-1a", region: str = "us-east-1", market: Market = Market.SPOT) -> Offer:
    return Offer("aws", region, zone, "g4dn.xlarge", market, None, "T4", 1)


def request(node: str, place: Offer | None = None) -> LaunchRequest:
    return request_at(place or offer(), node)


def launched(ec2: AwsProvisioner, node: str, place: Offer | None = None) -> Instance:
    return launched_by(ec2, request(node, place))


def bare(instance: Instance) -> str:
    return instance.id.rpartition(":")[2]


# -- launches ------------------------------------------------------------------------------------------------


def test_a_launch_is_sent_once_even_where_the_sdk_would_retry(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    server.cloud.exhaust("us-east-1a", "g4dn.xlarge")
    outcome = ec2.launch(request("n1"), TIMEOUT_S)
    assert isinstance(outcome, NoCapacity)
    assert outcome.scope is Scope.TYPE_IN_ZONE
    server.cloud.fail_next("RunInstances", "throttled")
    ec2.launch(request("n1"), TIMEOUT_S)
    assert server.cloud.counted() == {"ec2:RunInstances": 2}
    launched(ec2, "n2", offer("us-east-1b"))
    server.cloud.make_room("us-east-1a", "g4dn.xlarge")
    launched(ec2, "n1")


def test_a_fault_inside_the_cloud_is_unknown(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    server.cloud.fail_next("RunInstances", "internal")
    assert isinstance(ec2.launch(request("n1"), TIMEOUT_S), Unknown)
    assert ec2.find("token-n1", TIMEOUT_S) is None


def test_the_accounts_limit_is_a_quota_of_the_region(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    server.cloud.ec2.most_machines = 1
    launched(ec2, "n1")
    for market in Market:
        outcome = ec2.launch(request("n2", offer(market=market)), TIMEOUT_S)
        assert isinstance(outcome, Quota)
        assert outcome.scope is Scope.REGION


def test_a_type_that_a_zone_lacks_is_no_capacity_for_an_hour(ec2: AwsProvisioner) -> None:
    outcome = ec2.launch(request("n1", offer("us-east-1e")), TIMEOUT_S)
    assert isinstance(outcome, NoCapacity)
    assert outcome.memory_s == 3600


def test_a_token_whose_machine_the_cloud_forgot_is_transient(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    machine = launched(ec2, "n1")
    ec2.terminate(machine.id, TIMEOUT_S)
    server.cloud.lag(3600.0)  # no listing shows it
    outcome = ec2.launch(request("n1"), TIMEOUT_S)
    assert isinstance(outcome, Transient)
    assert "new token" in outcome.message


def test_the_settings_reach_the_machine(server: aws.AwsServer) -> None:
    ec2 = provider(server, placement_groups={"us-east-1a": "near"}, tags={"team": "vision"})
    machine = launched(ec2, "n1")
    (raw,) = boto3_client(server).describe_instances()["Reservations"][0]["Instances"]
    assert raw["InstanceId"] == bare(machine)
    assert raw["Placement"]["GroupName"] == "near"
    assert raw["InstanceLifecycle"] == "spot"
    assert {tag["Key"]: tag["Value"] for tag in raw["Tags"]}["team"] == "vision"
    assert raw["MetadataOptions"]["HttpTokens"] == "required"


# -- reading -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("credentials", "message"), [("wrong", "AuthFailure"), ("expired", "RequestExpired")])
def test_invalid_credentials_are_reported_by_every_call(
    server: aws.AwsServer, ec2: AwsProvisioner, credentials: str, message: str
) -> None:
    server.cloud.credentials = credentials
    for ask in (
        lambda: ec2.offers(T4, TIMEOUT_S),
        lambda: ec2.instances(CLUSTER, TIMEOUT_S),
        lambda: ec2.find("token", TIMEOUT_S),
        lambda: ec2.terminate("us-east-1:i-0123456789abcdef0", TIMEOUT_S),
        lambda: ec2.leftovers(CLUSTER, TIMEOUT_S),
    ):
        with pytest.raises(DeniedError, match=f"{message}.*renew the daemon's AWS credentials"):
            ask()
    outcome = ec2.launch(request("n1"), TIMEOUT_S)
    assert isinstance(outcome, Fatal)
    assert "renew the daemon's AWS credentials" in outcome.message


def test_missing_credentials_are_reported(
    server: aws.AwsServer, ec2: AwsProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(DeniedError, match=r"no AWS credentials.*aws\.profile"):
        ec2.instances(CLUSTER, TIMEOUT_S)
    assert isinstance(ec2.launch(request("n1"), TIMEOUT_S), Fatal)
    with pytest.raises(DeniedError, match="nobody"):
        provider(server, profile="nobody").instances(CLUSTER, TIMEOUT_S)


def test_descriptions_may_lack_fields(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    launched(ec2, "n1")
    server.cloud.ec2.missing = {"placement", "ipAddress", "privateIpAddress", "instanceType"}
    (machine,) = ec2.instances(CLUSTER, TIMEOUT_S)
    assert (machine.zone, machine.ssh_host, machine.private_address) == ("", "", "")
    server.cloud.ec2.missing = {"instanceState"}
    with pytest.raises(ProvisionerError, match="describes an instance without a required field"):
        ec2.instances(CLUSTER, TIMEOUT_S)


def test_more_than_a_page_is_read_page_by_page(
    server: aws.AwsServer, ec2: AwsProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioners.aws.provisioner._PAGE", 5)
    for number in range(12):
        launched(ec2, f"n{number}", offer(f"us-east-1{'ab'[number % 2]}"))
    server.cloud.calls.clear()
    names = {machine.node for machine in ec2.instances(CLUSTER, TIMEOUT_S)}
    assert names == {f"n{number}" for number in range(12)}
    assert server.cloud.counted() == {"ec2:DescribeInstances": 3, "ec2:DescribeSpotInstanceRequests": 3}
    monkeypatch.setattr("provisioners.aws.client.MAX_PAGES", 2)
    with pytest.raises(ProvisionerError, match="EC2 in us-east-1 has more than 2 pages of Reservations"):
        ec2.instances(CLUSTER, TIMEOUT_S)


def test_without_spot_machines_spot_requests_are_not_listed(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    launched(ec2, "n1", offer(market=Market.ON_DEMAND))
    server.cloud.calls.clear()
    ec2.instances(CLUSTER, TIMEOUT_S)
    assert server.cloud.counted() == {"ec2:DescribeInstances": 1}


def test_each_region_is_listed_once(server: aws.AwsServer) -> None:
    ec2 = provider(server, regions=("us-east-1", "us-west-2"))
    west = launched(ec2, "n1", offer("us-west-2a", "us-west-2"))
    east = launched(ec2, "n2")
    server.cloud.calls.clear()
    assert {each.id for each in ec2.instances(CLUSTER, TIMEOUT_S)} == {west.id, east.id}
    called = Counter((call.action, call.region) for call in server.cloud.calls)
    assert set(called.values()) == {1}
    assert found_by(ec2, "n1").region == "us-west-2"
    ec2.terminate(west.id, TIMEOUT_S)
    assert found_by(ec2, "n1").state is InstanceState.TERMINATED
    ec2.terminate(bare(east), TIMEOUT_S)
    assert found_by(ec2, "n2").state is InstanceState.TERMINATED


# -- ends ----------------------------------------------------------------------------------------------------


def test_a_machine_that_ec2_does_not_find_yet_still_exists(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    server.cloud.ec2.forgets = 1
    machine = launched(ec2, "n1")
    ec2.terminate(machine.id, TIMEOUT_S)
    assert found_by(ec2, "n1").state is InstanceState.RUNNING
    ec2.terminate(machine.id, TIMEOUT_S)
    assert found_by(ec2, "n1").state is InstanceState.TERMINATED


def test_an_interruption_may_stop_a_machine_which_then_still_costs(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    machine = launched(ec2, "n1")
    deadline = server.cloud.preempt(bare(machine), 0.0, stop=True)
    stopped = found_by(ec2, "n1")
    assert (stopped.state, stopped.end_cause) == (InstanceState.STOPPED, EndCause.PREEMPTED)
    assert deadline == pytest.approx(time.time() + 120, abs=5)
    ec2.terminate(machine.id, TIMEOUT_S)
    assert found_by(ec2, "n1").state is InstanceState.TERMINATED


def test_a_machine_that_shut_itself_down_is_gone_with_its_cause(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    machine = launched(ec2, "n1")
    server.cloud.lose(bare(machine), "Client.InstanceInitiatedShutdown")
    gone = found_by(ec2, "n1")
    assert (gone.state, gone.end_cause) == (InstanceState.TERMINATED, EndCause.FAILED)


def test_a_console_is_shown_and_none_is_empty(ec2: AwsProvisioner) -> None:
    machine = launched(ec2, "n1")
    assert ec2.console(machine.id, TIMEOUT_S) == f"{bare(machine)}: a machine on paper\n"
    assert ec2.console("us-east-1:i-0123456789abcdef0", TIMEOUT_S) == ""
    assert ec2.console("no-such-machine", TIMEOUT_S) == ""


def boto3_client(server: aws.AwsServer) -> Any:
    return boto3.client("ec2", region_name="us-east-1", endpoint_url=server.url)


def test_leftovers_are_found_by_tag_and_removed(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    launched(ec2, "n1")  # its resources are in use
    for cluster in ("another", CLUSTER):
        server.cloud.leave_behind("us-east-1", {"spotsup-cluster": cluster, "spotsup-node": "n1"})
    left = ec2.leftovers(CLUSTER, TIMEOUT_S)
    assert sorted(each.kind for each in left) == sorted(LeftoverKind)
    assert {(each.cluster, each.node, each.region) for each in left} == {(CLUSTER, "n1", "us-east-1")}
    for each in [*left, *left]:
        ec2.remove(each, TIMEOUT_S)
    assert not ec2.leftovers(CLUSTER, TIMEOUT_S)
    assert len(ec2.leftovers("another", TIMEOUT_S)) == 3
    assert found_by(ec2, "n1").state is InstanceState.RUNNING


def test_a_machine_leaves_nothing_behind(ec2: AwsProvisioner) -> None:
    machine = launched(ec2, "n1")
    ec2.terminate(machine.id, TIMEOUT_S)
    assert found_by(ec2, "n1").state is InstanceState.TERMINATED
    assert not ec2.leftovers(CLUSTER, TIMEOUT_S)


# -- offers --------------------------------------------------------------------------------------------------


def test_spot_prices_are_the_newest_and_live(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    server.cloud.ec2.page = 7
    offers = ec2.offers(T4, TIMEOUT_S)
    assert {each.price_source for each in offers} == {"EC2 spot price history, live"}
    assert all(each.usd_per_hour is not None and each.usd_per_hour < 1 for each in offers)
    assert {each.gpu for each in offers} == {"T4"}
    assert len({(each.instance_type, each.zone) for each in offers}) == len(offers)
    assert server.cloud.counted()["ec2:DescribeSpotPriceHistory"] > 3


def test_on_demand_prices_are_the_catalogs_with_their_source(ec2: AwsProvisioner) -> None:
    first, *_ = ec2.offers(replace(T4, market=Market.ON_DEMAND), TIMEOUT_S)
    assert (first.instance_type, first.usd_per_hour) == ("g4dn.xlarge", 0.526)
    assert first.price_source == "catalog: karpenter-provider-aws, price table generated 2026-01-19"


def test_an_offer_without_a_published_price_comes_last(server: aws.AwsServer) -> None:
    ec2 = provider(server, regions=("us-east-1", "eu-central-1"))
    offers = ec2.offers(replace(T4, market=Market.ON_DEMAND), TIMEOUT_S)
    known = [each.usd_per_hour is not None for each in offers]
    assert known == sorted(known, reverse=True)
    assert {each.region for each in offers if each.usd_per_hour is None} == {"eu-central-1"}
    assert {each.price_source for each in offers if each.usd_per_hour is None} == {""}


def test_only_zones_with_a_subnet_are_offered(server: aws.AwsServer) -> None:
    ec2 = provider(server, subnets={"us-east-1b": "subnet-1"})
    assert {each.zone for each in ec2.offers(T4, TIMEOUT_S)} == {"us-east-1b"}


def test_without_a_quota_there_is_no_offer(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    server.cloud.ec2.quotas["L-3819A6DF"] = 4
    assert {each.instance_type for each in ec2.offers(T4, TIMEOUT_S)} == {"g4dn.xlarge"}
    server.cloud.ec2.quotas["L-3819A6DF"] = 0
    with pytest.raises(ProvisionerError, match=r"L-3819A6DF.*is 0 vCPUs, and g4dn.xlarge needs 4: request more"):
        ec2.offers(T4, TIMEOUT_S)
    server.cloud.denied.add("servicequotas:GetServiceQuota")
    assert ec2.offers(T4, TIMEOUT_S)


# -- check ---------------------------------------------------------------------------------------------------


def complaints(ec2: AwsProvisioner) -> dict[str, str]:
    return {each.what: each.message for each in ec2.check(30.0) if not each.ok}


def test_correct_settings_have_no_complaint(server: aws.AwsServer) -> None:
    group = open_group(server)
    ec2 = provider(server, security_groups={"us-east-1": (group,)})
    findings = ec2.check(30.0)
    assert [each.what for each in findings if not each.ok] == []
    assert {each.what for each in findings} >= {"credentials", "us-east-1 launching", "us-east-1 quota"}
    assert not ec2.instances("check", TIMEOUT_S)


def open_group(server: aws.AwsServer, *, ssh: bool = True, members: bool = True) -> str:
    by_hand = boto3_client(server)
    vpc = by_hand.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = str(by_hand.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"])
    rules = []
    if ssh:
        rules.append({"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "198.51.100.1/32"}]})
    if members:
        rules.append({"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]})
    if rules:
        by_hand.authorize_security_group_ingress(GroupId=group, IpPermissions=rules)
    return group


@pytest.mark.parametrize(
    ("ssh", "members", "message"),
    [(False, False, "port 22"), (True, False, "reach each other"), (False, True, "port 22")],
)
def test_a_group_without_needed_rules_is_reported(
    server: aws.AwsServer, ssh: bool, members: bool, message: str
) -> None:
    group = open_group(server, ssh=ssh, members=members)
    found = complaints(provider(server, security_groups={"us-east-1": (group,)}))
    assert message in found["us-east-1 network"]


def test_missing_permissions_are_found_before_anything_is_launched(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    server.cloud.denied |= {"ec2:DescribeVolumes", "ec2:DescribeAddresses", "ec2:RunInstances"}
    found = complaints(ec2)
    assert "lacks ec2:DescribeVolumes, ec2:DescribeAddresses" in found["us-east-1 reading"]
    assert "docs/permissions" in found["us-east-1 launching"]


def test_images_are_looked_up(server: aws.AwsServer) -> None:
    found = complaints(provider(server, image="/our/image"))
    assert found["us-east-1 image"] == "us-east-1 has no SSM parameter /our/image (ParameterNotFound): set aws.image"
    found = complaints(provider(server, image="ami-9"))
    assert "us-east-1 has no image ami-9" in found["us-east-1 image"] or "InvalidAMIID" in found["us-east-1 image"]
    found = complaints(provider(server, images={"L4": "ami-0amazon"}))
    assert "the root device of ami-0amazon is /dev/xvda" in found["us-east-1 image"]
    assert "aws.images (L4)" in found["us-east-1 image"]


def test_no_quota_for_any_gpu_is_a_complaint(server: aws.AwsServer, ec2: AwsProvisioner) -> None:
    for code in ("L-3819A6DF", "L-7212CCBC", "L-C4BD4855"):
        server.cloud.ec2.quotas[code] = 0
    assert "the quotas of us-east-1 allow no GPU spot instance" in complaints(ec2)["us-east-1 quota"]
