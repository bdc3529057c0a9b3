"""EC2 by the real boto3: what test_cloud_calls.py does not hold for all clouds."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest

from provisioners.aws.prices import prices_of
from provisioners.aws.provisioner import AwsProvisioner
from provisioners.base import (
    DeniedError,
    EndCause,
    Fatal,
    InstanceState,
    Launched,
    LaunchOutcome,
    Market,
    NoCapacity,
    PartialListingError,
    ProvisionerError,
    Quota,
    Scope,
    Transient,
    Unknown,
    UnreachableError,
)
from tests.clouds.aws_ec2 import on_demand_price
from tests.clouds.aws_keys import SPOT_ROLE
from tests.clouds.base import bare
from tests.integration.cloud_names import T4, Api
from tests.support.machines import OWNER, TIMEOUT_S, wait_state

pytestmark = pytest.mark.long

# -- launches ------------------------------------------------------------------------------------------------


def test_a_token_whose_machine_the_cloud_forgot_is_transient(aws: Api) -> None:
    machine = aws.launched("n1")
    aws.terminate(machine)
    aws.cloud.fleet.lag_s = 3600.0  # no listing shows it
    outcome = aws.launch("n1")
    assert isinstance(outcome, Transient)
    assert "new token" in outcome.message


def test_the_settings_reach_the_machine(aws: Api) -> None:
    aws = aws.with_settings(placement_groups={"us-east-1a": "near"}, tags={"team": "vision"})
    machine = aws.launched("n1")
    (raw,) = boto3_client(aws).describe_instances()["Reservations"][0]["Instances"]
    assert raw["InstanceId"] == bare(machine.id)
    assert raw["Placement"]["GroupName"] == "near"
    assert raw["InstanceLifecycle"] == "spot"
    assert {tag["Key"]: tag["Value"] for tag in raw["Tags"]}["team"] == "vision"
    assert raw["MetadataOptions"]["HttpTokens"] == "required"


# -- reading -------------------------------------------------------------------------------------------------


def test_without_a_way_to_sts_the_account_is_not_known_and_machines_are_listed(aws: Api) -> None:
    aws.cloud.fail_next("GetCallerIdentity", "drop-reply", times=20)
    assert aws.provisioner.coverage(TIMEOUT_S).account == ""
    aws.launched("n1")
    assert [machine.node for machine in aws.listed()] == ["n1"]


def test_more_than_a_page_is_read_page_by_page(aws: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioners.aws.provisioner._PAGE", 5)
    for number in range(12):
        aws.launched(f"n{number}", f"us-east-1{'ab'[number % 2]}")
    aws.cloud.calls.clear()
    names = {machine.node for machine in aws.listed()}
    assert names == {f"n{number}" for number in range(12)}
    assert aws.cloud.counted() == {"ec2:DescribeInstances": 3, "ec2:DescribeSpotInstanceRequests": 3}
    monkeypatch.setattr("provisioners.aws.client.MAX_PAGES", 2)
    with pytest.raises(ProvisionerError, match="EC2 in us-east-1 has more than 2 pages of Reservations"):
        aws.listed()


def test_without_spot_machines_spot_requests_are_not_listed(aws: Api) -> None:
    aws.launched("n1", market=Market.ON_DEMAND)
    aws.cloud.calls.clear()
    aws.listed()
    assert aws.cloud.counted() == {"ec2:DescribeInstances": 1}


# -- ends ----------------------------------------------------------------------------------------------------


def test_a_machine_that_ec2_does_not_find_yet_still_exists(aws: Api) -> None:
    aws.cloud.ec2.forgets = 1
    machine = aws.launched("n1")
    aws.terminate(machine)
    assert aws.found("n1").state is InstanceState.RUNNING
    aws.terminate(machine)
    assert aws.found("n1").state is InstanceState.TERMINATED


def test_a_profile_that_does_not_exist_is_reported(aws: Api) -> None:
    with pytest.raises(DeniedError, match="nobody"):
        aws.with_settings(profile="nobody").listed()


def boto3_client(aws: Api) -> Any:
    return boto3.client("ec2", region_name="us-east-1", endpoint_url=aws.server.url)


# -- offers --------------------------------------------------------------------------------------------------


def test_a_disk_that_is_too_small_for_the_image_is_named_before_and_after_a_launch(aws: Api) -> None:
    assert "us-east-1 image" not in aws.complaints()
    aws.cloud.ec2.image_gb = 110
    complaint = aws.complaints()["us-east-1 image"]
    assert complaint.endswith("needs a disk of 110 GB, and aws.disk_gb is 100: set aws.disk_gb = 110, or more")
    refused = aws.launch("n1")
    assert isinstance(refused, Fatal)
    assert "Volume of size 100GB is smaller than snapshot" in refused.message
    assert refused.message.endswith(
        "; set aws.disk_gb to what the image needs, and disk_gb in the job's resources, if it is there"
    )


def test_spot_prices_are_the_newest_and_live(aws: Api) -> None:
    aws.cloud.ec2.page = 7
    offers = aws.offers()
    (source,) = {each.price_source for each in offers}
    assert re.fullmatch(r"EC2 spot price history, read \d{4}-\d\d-\d\d \d\d:\d\d UTC", source)
    assert all(each.usd_per_hour is not None and each.usd_per_hour < 1 for each in offers)
    assert {each.gpu for each in offers} == {"T4"}
    assert len({(each.instance_type, each.zone) for each in offers}) == len(offers)
    assert aws.cloud.counted()["ec2:DescribeSpotPriceHistory"] > 3


def test_on_demand_prices_are_the_price_lists_in_every_region_and_read_once_a_day(aws: Api) -> None:
    aws.cloud.ec2.page = 2
    now = [datetime(2026, 11, 22, 20, 10, tzinfo=UTC)]
    settings = aws.server.settings(regions=("us-east-1", "eu-central-1"))
    cloud = AwsProvisioner(settings, now=lambda: now[0])
    offers = cloud.offers(replace(T4, market=Market.ON_DEMAND), TIMEOUT_S)
    assert {each.region for each in offers} == {"us-east-1", "eu-central-1"}
    for each in offers:
        assert each.usd_per_hour == float(on_demand_price(each.instance_type, each.region))
        assert each.price_source == "AWS price list, read 2026-11-22 20:10 UTC"
    asked = aws.cloud.counted()["pricing:GetProducts"]
    now[0] += timedelta(hours=23)
    assert cloud.offers(replace(T4, market=Market.ON_DEMAND), TIMEOUT_S) == offers, "with the time of the reading"
    assert aws.cloud.counted()["pricing:GetProducts"] == asked
    now[0] += timedelta(hours=2)
    cloud.offers(replace(T4, market=Market.ON_DEMAND), TIMEOUT_S)
    assert aws.cloud.counted()["pricing:GetProducts"] == 2 * asked


def test_a_price_list_that_is_no_price_list_has_no_prices() -> None:
    assert (
        prices_of(["", "{", "[]", 5, None, "{}", {"product": 1}, '{"product":{"attributes":{"instanceType":"x"}}}'])
        == {}
    )


def test_without_the_price_list_on_demand_prices_are_the_catalogs_with_their_source(aws: Api) -> None:
    aws.cloud.denied.add("pricing:GetProducts")
    first, *_ = aws.offers(replace(T4, market=Market.ON_DEMAND))
    assert (first.instance_type, first.usd_per_hour) == ("g4dn.xlarge", 0.526)
    assert first.price_source == "catalog: karpenter-provider-aws, price table generated 2026-01-19"


def test_an_offer_without_a_published_price_comes_last(aws: Api) -> None:
    aws.cloud.denied.add("pricing:GetProducts")
    aws = aws.with_settings(regions=("us-east-1", "eu-central-1"))
    offers = aws.offers(replace(T4, market=Market.ON_DEMAND))
    known = [each.usd_per_hour is not None for each in offers]
    assert known == sorted(known, reverse=True)
    assert {each.region for each in offers if each.usd_per_hour is None} == {"eu-central-1"}
    assert {each.price_source for each in offers if each.usd_per_hour is None} == {""}


def test_only_zones_with_a_subnet_are_offered(aws: Api) -> None:
    aws = aws.with_settings(subnets={"us-east-1b": "subnet-1"})
    assert {each.zone for each in aws.offers()} == {"us-east-1b"}


def test_without_a_quota_there_is_no_offer(aws: Api) -> None:
    aws.cloud.ec2.quotas["L-3819A6DF"] = 4
    assert {each.instance_type for each in aws.offers()} == {"g4dn.xlarge"}
    aws.cloud.ec2.quotas["L-3819A6DF"] = 0
    with pytest.raises(ProvisionerError, match=r"L-3819A6DF.*is 0 vCPUs, and g4dn.xlarge needs 4: request more"):
        aws.offers()
    aws.cloud.denied.add("servicequotas:GetServiceQuota")
    assert aws.offers()
    assert "servicequotas:GetServiceQuota" in aws.complaints()["us-east-1 quota"]


def test_a_region_that_is_away_hides_no_other(aws: Api) -> None:
    aws = aws.with_settings(regions=("us-east-1", "eu-central-1"))
    near = aws.launched("n1", "us-east-1a")
    far = aws.launched("n2", "eu-central-1a")
    aws.cloud.away.add("eu-central-1")
    with pytest.raises(PartialListingError, match="eu-central-1 is not listed: EC2 in eu-central-1") as raised:
        aws.listed()
    assert [each.id for each in raised.value.found] == [near.id]
    assert set(raised.value.silent) == {"eu-central-1"}
    assert aws.found("n1").id == near.id
    with pytest.raises(PartialListingError):
        aws.provisioner.find(OWNER, "token-n2", TIMEOUT_S)
    assert {each.region for each in aws.offers()} == {"us-east-1"}
    aws.cloud.away.add("us-east-1")
    with pytest.raises(UnreachableError, match="EC2 in us-east-1"):
        aws.listed()
    with pytest.raises(UnreachableError):
        aws.offers()
    aws.cloud.away.clear()
    assert {each.id for each in aws.listed()} == {near.id, far.id}


# -- check ---------------------------------------------------------------------------------------------------


def open_group(aws: Api, *, ssh: bool, members: bool) -> str:
    by_hand = boto3_client(aws)
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
    [(False, False, "port 22"), (True, False, "reach each other"), (False, True, "port 22"), (True, True, "")],
)
def test_a_group_without_needed_rules_is_reported(aws: Api, ssh: bool, members: bool, message: str) -> None:
    group = open_group(aws, ssh=ssh, members=members)
    found = aws.with_settings(security_groups={"us-east-1": (group,)}).complaints()
    assert message in found.get("us-east-1 network", "")


def default_group(aws: Api) -> tuple[Any, str]:
    by_hand = boto3_client(aws)
    (group,) = by_hand.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["default"]}])[
        "SecurityGroups"
    ]
    return by_hand, str(group["GroupId"])


SSH = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "198.51.100.1/32"}]}


def test_the_default_security_group_lets_nobody_in_and_that_is_reported(aws: Api) -> None:
    by_hand, group = default_group(aws)
    complaint = aws.complaints()["us-east-1 network"]
    assert group in complaint
    assert "port 22, only its own members: add a rule" in complaint
    assert "aws.security_groups.us-east-1" in complaint
    # A daemon in the VPC may be a member itself.
    assert "us-east-1 network" not in aws.with_settings(public_address=False).complaints()
    by_hand.authorize_security_group_ingress(GroupId=group, IpPermissions=[SSH])
    assert "us-east-1 network" not in aws.complaints()


def test_efa_needs_an_outbound_rule_to_the_group_itself(aws: Api) -> None:
    by_hand = boto3_client(aws)
    group = open_group(aws, ssh=True, members=True)
    known = {"security_groups": {"us-east-1": (group,)}}
    assert "us-east-1 network" not in aws.with_settings(**known).complaints()
    with_efa = aws.with_settings(**known, efa=True)
    assert "no outbound rule for all traffic to itself" in with_efa.complaints()["us-east-1 network"]
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    by_hand.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
    assert "us-east-1 network" not in with_efa.complaints()


def test_a_public_address_in_a_private_subnet_is_reported(aws: Api) -> None:
    by_hand = boto3_client(aws)
    vpc = by_hand.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnet = by_hand.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1a"]}])["Subnets"][0]
    table = by_hand.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    by_hand.associate_route_table(RouteTableId=table, SubnetId=subnet["SubnetId"])
    known = {
        "security_groups": {"us-east-1": (open_group(aws, ssh=True, members=True),)},
        "subnets": {"us-east-1a": subnet["SubnetId"]},
    }
    complaint = aws.with_settings(**known).complaints()["us-east-1 network"]
    assert f"{subnet['SubnetId']} of {vpc} has no route to an internet gateway" in complaint
    assert "us-east-1 network" not in aws.with_settings(**known, public_address=False).complaints()


@pytest.mark.parametrize(
    "key",
    [
        {"grantees": ["arn:aws:iam::1:user/eve", "arn:aws:iam::1:user/bob", SPOT_ROLE]},
        {"principals": [SPOT_ROLE]},
        {"principals": ["*"]},
        {"manager": "AWS"},
    ],
)
def test_a_key_that_spot_machines_may_use_is_right(aws: Api, key: dict[str, Any]) -> None:
    assert "us-east-1 encryption" not in aws.complaints()
    aws.cloud.ec2.keys.encrypt(**key)
    assert "us-east-1 encryption" not in aws.complaints()
    aws.launched("n1")
    assert wait_state(aws.provisioner, "token-n1", InstanceState.RUNNING)


def test_a_key_whose_policy_cannot_be_read_is_no_complaint(aws: Api) -> None:
    aws.cloud.ec2.keys.encrypt()
    assert "AWSServiceRoleForEC2Spot may not use" in aws.complaints()["us-east-1 encryption"]
    aws.cloud.denied.add("kms:GetKeyPolicy")
    (found,) = [each for each in aws.provisioner.check(TIMEOUT_S) if each.what == "us-east-1 encryption"]
    assert found.ok
    assert "it cannot be read here (" in found.message


# -- late refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("Enabled", "Client.InternalError: Client error on launch"),
        ("Disabled", "Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state"),
    ],
)
def test_a_key_that_may_not_be_used_is_reported_in_ec2s_words_and_with_what_to_do(
    aws: Api, state: str, message: str
) -> None:
    aws.cloud.ec2.keys.encrypt(state=state)
    machine = aws.launched("n1")
    (ended,) = aws.listed()
    assert ended.id == machine.id
    assert ended.end_message == message
    assert isinstance(ended.refused, Fatal)
    assert message.partition(": ")[2] in ended.refused.message
    assert "AWSServiceRoleForEC2Spot" in ended.refused.message
    assert "us-east-1a, g4dn.xlarge" in ended.refused.message


def test_a_quota_of_volumes_that_is_used_up_is_one(aws: Api) -> None:
    aws.cloud.lose(aws.launched("n1").id, "Client.VolumeLimitExceeded")
    (ended,) = aws.listed()
    assert isinstance(ended.refused, Quota)
    assert "Volume limit exceeded; request more" in ended.refused.message


def test_a_stockout_after_the_launch_is_as_one_before_it(aws: Api) -> None:
    machine = aws.launched("n1")
    aws.cloud.lose(machine.id, "Server.InsufficientInstanceCapacity")
    (ended,) = aws.listed()
    assert isinstance(ended.refused, NoCapacity)
    assert (ended.refused.scope, ended.refused.memory_s) == (Scope.TYPE_IN_ZONE, 180.0)
    other = aws.launched("n2", "us-east-1b")
    aws.cloud.lose(other.id, "Server.InternalError")
    assert aws.found("n2").refused is None


# -- several interfaces --------------------------------------------------------------------------------------


def wide(aws: Api, node: str) -> Any:
    request = aws.request(node)
    offer = replace(request.offer, instance_type="p4d.24xlarge", gpu="A100-40GB", gpus=8)
    return aws.provisioner.launch(replace(request, offer=offer), TIMEOUT_S)


def test_a_machine_with_several_efa_interfaces_gets_a_public_address_and_leaves_nothing(aws: Api) -> None:
    aws = aws.with_settings(efa=True)
    outcome = wide(aws, "n1")
    assert isinstance(outcome, Launched)
    machine = wait_state(aws.provisioner, "token-n1", InstanceState.RUNNING)
    assert machine.ssh_host
    assert wide(aws, "n1") == outcome  # repeated: the same interface, the same machine
    assert aws.cloud.counted()["ec2:CreateNetworkInterface"] == 1
    assert aws.cloud.counted()["ec2:AllocateAddress"] == 1
    assert not aws.provisioner.leftovers(OWNER, TIMEOUT_S)
    aws.terminate(machine)
    for _ in range(3):
        for each in aws.provisioner.leftovers(OWNER, TIMEOUT_S):
            assert each.node == "n1"
            aws.provisioner.remove(each, TIMEOUT_S)
    assert aws.cloud.fleet.left() == []


def test_a_refused_launch_keeps_no_address(aws: Api) -> None:
    aws = aws.with_settings(efa=True)
    aws.cloud.exhaust("us-east-1a")
    assert isinstance(wide(aws, "n1"), NoCapacity)
    assert aws.cloud.fleet.left() == []


def test_a_lost_answer_about_the_address_doubles_nothing(aws: Api) -> None:
    aws = aws.with_settings(efa=True)
    for action in ("CreateNetworkInterface", "AllocateAddress", "AssociateAddress", "RunInstances"):
        aws.cloud.fail_next(action, "drop-reply")
    outcomes = [wide(aws, "n1") for _ in range(4)]
    assert isinstance(outcomes[-1], Launched)
    assert all(isinstance(each, Unknown | Transient | Launched) for each in outcomes)
    backend = aws.cloud.fleet.backend("us-east-1")
    assert len(backend.describe_addresses()) == 1
    assert len(backend.get_all_network_interfaces()) == 4


# -- file systems --------------------------------------------------------------------------------------------

EFS = "fs-0000001a.efs.us-east-1.amazonaws.com"


def test_only_zones_with_a_mount_target_are_offered(aws: Api) -> None:
    aws.cloud.ec2.mount_targets["fs-0000001a"] = [("us-east-1b", "available"), ("us-east-1a", "creating")]
    query = replace(T4, file_servers=(EFS, "10.0.0.5"))
    assert {each.zone for each in aws.offers(query)} == {"us-east-1b"}
    aws.cloud.ec2.mount_targets["fs-0000002b"] = [("us-east-1c", "available")]
    both = replace(query, file_servers=(EFS, "us-east-1c.fs-0000002b.efs.us-east-1.amazonaws.com"))
    with pytest.raises(ProvisionerError, match="mount targets in no common zone"):
        aws.offers(both)
    with pytest.raises(ProvisionerError, match="mount targets in us-east-1b, and these types are in us-east-1a"):
        aws.offers(replace(query, zones=("us-east-1a",)))
    aws.cloud.denied.add("elasticfilesystem:DescribeMountTargets")
    assert len({each.zone for each in aws.offers(query)}) > 1


def test_only_mount_targets_that_let_nodes_in_are_offered(aws: Api) -> None:
    backend = aws.cloud.fleet.backend("us-east-1")
    vpc = backend.get_default_vpc().id
    (default,) = (each for each in backend.describe_security_groups() if (each.name, each.vpc_id) == ("default", vpc))
    closed = backend.create_security_group("nfs", "of a mount target", vpc)
    aws.cloud.ec2.mount_targets["fs-0000001a"] = [("us-east-1a", "available"), ("us-east-1b", "available")]
    aws.cloud.ec2.mount_target_groups["us-east-1a"] = closed.id
    query = replace(T4, file_servers=(EFS,))
    assert {each.zone for each in aws.offers(query)} == {"us-east-1b"}
    aws.cloud.ec2.mount_targets["fs-0000001a"].pop()
    with pytest.raises(ProvisionerError) as refused:
        aws.offers(query)
    assert str(refused.value).endswith(
        f"EFS fs-0000001a in us-east-1 cannot be mounted: {closed.id} of its mount target in us-east-1a does not let "
        f"nodes in at port 2049: add a rule for {default.id}"
    )
    peers = [{"GroupId": default.id, "OwnerId": closed.owner_id, "VpcId": vpc}]
    backend.authorize_security_group_ingress(closed.id, "tcp", "443", "2048", [], source_groups=peers)
    with pytest.raises(ProvisionerError, match="port 2049"):
        aws.offers(query)
    backend.authorize_security_group_ingress(closed.id, "tcp", "2049", "2049", [], source_groups=peers)
    assert {each.zone for each in aws.offers(query)} == {"us-east-1a"}
    # An open one is looked at again after ten minutes, not at each offer.
    before = aws.cloud.counted()["elasticfilesystem:DescribeMountTargetSecurityGroups"]
    aws.offers(query)
    assert aws.cloud.counted()["elasticfilesystem:DescribeMountTargetSecurityGroups"] == before
    aws.cloud.denied.add("elasticfilesystem:DescribeMountTargetSecurityGroups")
    aws.cloud.ec2.mount_targets["fs-0000001a"] = [("us-east-1b", "available")]
    aws.cloud.ec2.mount_target_groups["us-east-1b"] = closed.id
    assert {each.zone for each in aws.offers(query)} == {"us-east-1b"}


def test_a_file_system_that_no_node_can_mount_is_reported_before_money_is_spent(aws: Api) -> None:
    query = replace(T4, file_servers=(EFS,))
    with pytest.raises(
        ProvisionerError, match="File system 'fs-0000001a' does not exist: name an existing file system"
    ):
        aws.offers(query)
    aws.cloud.ec2.mount_targets["fs-0000001a"] = []
    with pytest.raises(ProvisionerError, match="EFS fs-0000001a in us-east-1 has no mount target"):
        aws.offers(query)
    for server in ("fs-0000001a.efs.eu-west-1.amazonaws.com", "fs-0000001a.fsx.eu-west-1.amazonaws.com"):
        with pytest.raises(ProvisionerError, match=f"{server} is in eu-west-1, and the job asks for us-east-1"):
            aws.offers(replace(T4, file_servers=(server,)))


def test_a_cap_below_the_spot_price_is_refused_for_that_request_and_one_above_takes_the_machine_once_it_is_dearer(
    aws: Api,
) -> None:
    price = float(aws.cloud.ec2.spot_price("g4dn.xlarge", "us-east-1a"))
    refused = launch_with_cap(aws, "n1", price - 0.01)
    assert isinstance(refused, NoCapacity)
    assert (refused.above_cap, refused.scope) == (True, Scope.TYPE_IN_ZONE)
    assert "SpotMaxPriceTooLow" in refused.message
    machine = launch_with_cap(aws, "n1", price + 0.01)
    assert isinstance(machine, Launched), "a token that was refused is free"
    assert launch_with_cap(aws, "n1", price + 0.01) == machine, "the same request again is the same machine"
    uncapped = aws.launched("n2")
    aws.cloud.ec2.set_spot_price("g4dn.xlarge", "us-east-1a", f"{price + 0.02:.6f}")
    ended = wait_state(aws.provisioner, "token-n1", InstanceState.TERMINATED)
    assert ended.end_cause is EndCause.PREEMPTED
    assert aws.found("n2").state is not InstanceState.TERMINATED, uncapped
    offers = aws.provisioner.offers(replace(T4, zones=("us-east-1a",)), TIMEOUT_S)
    assert next(each for each in offers if each.instance_type == "g4dn.xlarge").usd_per_hour == pytest.approx(
        price + 0.02
    )


def launch_with_cap(api: Api, node: str, usd_per_hour: float) -> LaunchOutcome:
    request = replace(api.request(node), max_usd_per_hour=usd_per_hour)
    return api.provisioner.launch(request, TIMEOUT_S)
