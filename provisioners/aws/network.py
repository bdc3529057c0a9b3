"""What `spotsupd check` finds out about a region's network: whether the daemon reaches nodes, and nodes each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provisioners.aws import describe
from provisioners.aws.client import Aws
from provisioners.aws.settings import AwsSettings
from provisioners.base import ProvisionerError
from provisioners.calls import Deadline

_EVERYWHERE = "0.0.0.0/0"


def check(aws: Aws, settings: AwsSettings, region: str, deadline: Deadline) -> str:
    """Return the finding's message. Raises ProvisionerError for what keeps nodes from working."""
    vpc, subnets = subnets_of(aws, settings, region, deadline)
    if settings.public_address:
        _check_routes(aws, vpc, subnets, deadline, region)
    names = settings.security_groups.get(region, ())
    filters = describe.filters({"vpc-id": vpc, "group-name": "default"})
    wanted = {"GroupIds": list(names)} if names else {"Filters": filters}
    answer = aws.ask("ec2", region, "describe_security_groups", deadline, want="SecurityGroups", **wanted)
    groups = answer["SecurityGroups"]
    ids = [str(each["GroupId"]) for each in groups]
    called = ", ".join(names) or f"the default security group of {vpc} ({', '.join(ids)})"
    remedy = "" if names else f", or name another group in aws.security_groups.{region}"
    return _check_groups(groups, ids, settings, called, remedy)


def _check_groups(
    groups: Sequence[Mapping[str, Any]], ids: Sequence[str], settings: AwsSettings, called: str, remedy: str
) -> str:
    port = settings.ssh_port
    ingress = [rule for group in groups for rule in group.get("IpPermissions", ())]
    egress = [rule for group in groups for rule in group.get("IpPermissionsEgress", ())]
    for_members = any(_is_for_members(rule, ids) for rule in ingress)
    lets_in = any(lets_others_in(rule, port, ids) for rule in ingress)
    if not lets_in and (settings.public_address or not for_members):
        # "Default security groups for your VPCs": inbound traffic only from members of the group itself.
        only = ", only its own members" if for_members else ""
        raise ProvisionerError(
            f"{called} does not let the daemon in at port {port}{only}: add a rule for the daemon's address{remedy}"
        )
    if not for_members:
        raise ProvisionerError(
            f"{called} does not let its members reach each other: add a rule for all traffic from itself{remedy}"
        )
    if settings.efa and not any(_is_for_members(rule, ids) for rule in egress):
        # "Step 1: Prepare an EFA-enabled security group": all inbound and outbound traffic to and from the group
        # itself. A rule for addresses does not cover EFA's traffic, which is not IP. Jobs hang.
        raise ProvisionerError(
            f"{called} has no outbound rule for all traffic to itself, which EFA needs besides one for "
            f"{_EVERYWHERE}: add it{remedy}, or set aws.efa = false"
        )
    if not lets_in:
        return f"{called} lets its members in only: the daemon's host has to be one; nodes reach each other"
    return f"{called} lets the daemon in, and nodes reach each other"


def lets_others_in(rule: Mapping[str, Any], port: int, groups: Sequence[str]) -> bool:
    """True if the rule allows `port` for others than the group's own members."""
    others = [each for each in rule.get("UserIdGroupPairs", ()) if each.get("GroupId") not in groups]
    return _covers(rule, port) and bool(_addresses(rule) or others)


def may_let_in(rule: Mapping[str, Any], port: int, groups: Sequence[str]) -> bool:
    """True if the rule allows `port` for members of these groups, or for addresses, which may be theirs."""
    members = [each for each in rule.get("UserIdGroupPairs", ()) if each.get("GroupId") in groups]
    return _covers(rule, port) and bool(_addresses(rule) or members)


def _covers(rule: Mapping[str, Any], port: int) -> bool:
    everything = rule.get("IpProtocol") == "-1"
    return everything or (
        rule.get("IpProtocol") == "tcp" and rule.get("FromPort", 0) <= port <= rule.get("ToPort", 65535)
    )


def _addresses(rule: Mapping[str, Any]) -> Any:
    return rule.get("IpRanges") or rule.get("Ipv6Ranges") or rule.get("PrefixListIds")


def _is_for_members(rule: Mapping[str, Any], groups: Sequence[str]) -> bool:
    return rule.get("IpProtocol") == "-1" and any(
        each.get("GroupId") in groups for each in rule.get("UserIdGroupPairs", ())
    )


def subnets_of(aws: Aws, settings: AwsSettings, region: str, deadline: Deadline) -> tuple[str, list[str]]:
    """(the VPC, the subnets in it) in which nodes of the region start."""
    wanted = {zone: each for zone, each in settings.subnets.items() if zone.startswith(region)}
    if wanted:
        selected = {"SubnetIds": list(wanted.values())}
        answer = aws.ask("ec2", region, "describe_subnets", deadline, want="Subnets", **selected)
        found = {each["SubnetId"]: each for each in answer["Subnets"]}
        for zone, subnet in wanted.items():
            if (where := found.get(subnet, {}).get("AvailabilityZone")) != zone:
                raise ProvisionerError(f"aws.subnets: {subnet} is in {where}, not in {zone}: name one of {zone} there")
        vpcs = sorted({str(each["VpcId"]) for each in found.values()})
        if len(vpcs) > 1:
            raise ProvisionerError(f"aws.subnets of {region} are in several VPCs ({', '.join(vpcs)}): name one's")
        return vpcs[0], list(wanted.values())
    filters = describe.filters({"is-default": "true"})
    vpcs = [
        str(each["VpcId"])
        for each in aws.ask("ec2", region, "describe_vpcs", deadline, want="Vpcs", Filters=filters)["Vpcs"]
    ]
    if not vpcs:
        raise ProvisionerError(f"{region} has no default VPC: name subnets of another one in aws.subnets")
    filters = describe.filters({"vpc-id": vpcs[0], "default-for-az": "true"})
    answer = aws.ask("ec2", region, "describe_subnets", deadline, want="Subnets", Filters=filters)
    return vpcs[0], [str(each["SubnetId"]) for each in answer["Subnets"]]


def _check_routes(aws: Aws, vpc: str, subnets: Sequence[str], deadline: Deadline, region: str) -> None:
    """Check the routes. A public address works only where the subnet's route table leads to an internet gateway
    ("Internet gateways", VPC guide). A subnet without a table of its own has the VPC's main one."""
    filters = describe.filters({"vpc-id": vpc})
    tables = list(aws.pages("ec2", region, "describe_route_tables", deadline, "RouteTables", Filters=filters))
    public: dict[str, bool] = {}
    main = False
    for table in tables:
        leads_out = any(
            route.get("DestinationCidrBlock") == _EVERYWHERE
            and str(route.get("GatewayId", "")).startswith("igw-")
            and route.get("State", "active") == "active"
            for route in table.get("Routes", ())
        )
        for each in table.get("Associations", ()):
            public[str(each.get("SubnetId", ""))] = leads_out
            main = leads_out if each.get("Main") else main
    closed = [subnet for subnet in subnets if not public.get(subnet, main)]
    if closed:
        raise ProvisionerError(
            f"{', '.join(closed)} of {vpc} has no route to an internet gateway, so that nodes' public addresses cannot "
            "be reached: add one, name public subnets in aws.subnets, or set aws.public_address = false and run the "
            "daemon in the VPC"
        )
