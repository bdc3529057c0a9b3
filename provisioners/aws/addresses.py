"""A public address for a machine with several network interfaces.

EC2 gives such a machine none by itself: "You can only assign a public IPv4 address to a new, single network interface"
(RunInstances, AssociatePublicIpAddress). An Elastic IP cannot be associated while an instance is pending. So the first
interface is created before the launch, with its address; all three carry the node's tags, and the reaping of leftovers
removes what a crash leaves behind, or a machine that has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from provisioners.aws import describe, launch
from provisioners.aws.client import Aws
from provisioners.aws.settings import AwsSettings
from provisioners.base import TOKEN_TAG, LaunchRequest, ProvisionerError
from provisioners.calls import Deadline
from provisioners.catalog import MachineType


def needs_interface(settings: AwsSettings, machine: MachineType) -> bool:
    """True if the machine's first interface has to exist before its launch."""
    return settings.public_address and launch.interface_count(settings, machine) > 1


def ready_interface(
    aws: Aws, request: LaunchRequest, settings: AwsSettings, machine: MachineType, deadline: Deadline
) -> str:
    """Return the id of the token's first interface, with a public address; both are created where they do not exist
    yet. Raises as `Aws.ask`: nothing is launched then.
    """
    region, wanted = request.offer.region, _filters(request)
    found = list(aws.pages("ec2", region, "describe_network_interfaces", deadline, "NetworkInterfaces", Filters=wanted))
    # A machine that has ended leaves the interface that it began with; those of further cards end with it.
    interfaces = [each for each in found if each.get("Description") == _DESCRIPTION]
    interface = interfaces[0] if interfaces else _created(aws, request, settings, machine, deadline)
    name = str(interface["NetworkInterfaceId"])
    if not interface.get("Association"):
        addresses = aws.ask("ec2", region, "describe_addresses", deadline, want="Addresses", Filters=wanted)
        free = [each for each in addresses["Addresses"] if not each.get("AssociationId")]
        address = free[0] if free else _allocated(aws, request, settings, deadline)
        aws.ask(
            "ec2",
            region,
            "associate_address",
            deadline,
            AllocationId=address["AllocationId"],
            NetworkInterfaceId=name,
            AllowReassociation=False,
        )
    return name


def remove_interface(aws: Aws, request: LaunchRequest, interface: str, deadline: Deadline) -> None:
    """After a launch that was refused for good: an account has few addresses. What is left is reaped as a leftover."""
    region = request.offer.region
    with contextlib.suppress(ProvisionerError):
        aws.ask("ec2", region, "delete_network_interface", deadline, NetworkInterfaceId=interface)
        listed = aws.ask("ec2", region, "describe_addresses", deadline, want="Addresses", Filters=_filters(request))
        for each in listed["Addresses"]:
            if not each.get("AssociationId"):
                aws.ask("ec2", region, "release_address", deadline, AllocationId=each["AllocationId"])


_DESCRIPTION = "spotsup: the first interface of a machine with several"


def _filters(request: LaunchRequest) -> list[dict[str, Any]]:
    return describe.filters(describe.tagged({**request.owner.tags, TOKEN_TAG: request.token}))


def _created(
    aws: Aws, request: LaunchRequest, settings: AwsSettings, machine: MachineType, deadline: Deadline
) -> Mapping[str, Any]:
    region, zone = request.offer.region, request.offer.zone
    subnet = settings.subnets.get(zone) or _default_subnet(aws, region, zone, deadline)
    kind, groups = launch.interface_type(0, settings, machine), settings.security_groups.get(region, ())
    answer = aws.ask(
        "ec2",
        region,
        "create_network_interface",
        deadline,
        want="NetworkInterface",
        ClientToken=launch.client_token(request),
        SubnetId=subnet,
        Description=_DESCRIPTION,
        TagSpecifications=[launch.tag_specification("network-interface", request, settings)],
        **({"InterfaceType": kind} if kind else {}),
        **({"Groups": list(groups)} if groups else {}),
    )
    found: Mapping[str, Any] = answer["NetworkInterface"]
    return found


def _allocated(aws: Aws, request: LaunchRequest, settings: AwsSettings, deadline: Deadline) -> Mapping[str, Any]:
    """Called once: EC2 has no idempotency token for addresses."""
    specification = launch.tag_specification("elastic-ip", request, settings)
    region = request.offer.region
    return aws.once(
        "ec2", region, "allocate_address", deadline.left_s(), Domain="vpc", TagSpecifications=[specification]
    )


def _default_subnet(aws: Aws, region: str, zone: str, deadline: Deadline) -> str:
    filters = describe.filters({"default-for-az": "true", "availability-zone": zone})
    answer = aws.ask("ec2", region, "describe_subnets", deadline, want="Subnets", Filters=filters)
    for each in answer["Subnets"]:
        return str(each["SubnetId"])
    raise ProvisionerError(f"{zone} has no default subnet: name one in aws.subnets")
