"""EC2 by the real boto3: what test_cloud_calls.py does not hold for all clouds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import boto3
import pytest

from provisioners.base import DeniedError, InstanceState, Market, ProvisionerError, Transient
from tests.clouds.base import bare
from tests.integration.cloud_names import T4, Api

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


def test_spot_prices_are_the_newest_and_live(aws: Api) -> None:
    aws.cloud.ec2.page = 7
    offers = aws.offers()
    assert {each.price_source for each in offers} == {"EC2 spot price history, live"}
    assert all(each.usd_per_hour is not None and each.usd_per_hour < 1 for each in offers)
    assert {each.gpu for each in offers} == {"T4"}
    assert len({(each.instance_type, each.zone) for each in offers}) == len(offers)
    assert aws.cloud.counted()["ec2:DescribeSpotPriceHistory"] > 3


def test_on_demand_prices_are_the_catalogs_with_their_source(aws: Api) -> None:
    first, *_ = aws.offers(replace(T4, market=Market.ON_DEMAND))
    assert (first.instance_type, first.usd_per_hour) == ("g4dn.xlarge", 0.526)
    assert first.price_source == "catalog: karpenter-provider-aws, price table generated 2026-01-19"


def test_an_offer_without_a_published_price_comes_last(aws: Api) -> None:
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
