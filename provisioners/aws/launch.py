"""RunInstances' parameters for a launch request. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from provisioners.aws.reservations import BLOCK, split_name
from provisioners.aws.settings import AwsSettings
from provisioners.base import LaunchRequest, Market, ProvisionerError
from provisioners.catalog import MachineType
from provisioners.prices import decimal_text
from provisioners.userdata import DeadMan, user_data

# The root device of Deep Learning AMIs and Canonical's: its size is set by name. `spotsupd check` compares it.
ROOT_DEVICE = "/dev/sda1"


def run_instances(
    request: LaunchRequest,
    settings: AwsSettings,
    machine: MachineType,
    driver: Literal["open", "proprietary"],
    primary: str = "",
) -> dict[str, Any]:
    """Return the parameters of the call. `primary`: the id of the first network interface where that exists already.
    Raises ProvisionerError for what EC2 would refuse with an unhelpful message."""
    spot = request.offer.market is Market.SPOT
    dead_man = DeadMan(request.dead_man_s) if request.dead_man_s else None
    parameters: dict[str, Any] = {
        "ClientToken": client_token(request),
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": image_id(settings, machine, driver),
        "InstanceType": request.offer.instance_type,
        "Placement": _placement(request, settings),
        "UserData": user_data(request.node, settings.ssh_user, request.authorized_keys, request.host_key, dead_man),
        "BlockDeviceMappings": [_root_disk(request.disk_gb or settings.disk_gb)],
        "NetworkInterfaces": _interfaces(request, settings, machine, primary),
        # A machine that shuts itself down is gone and costs nothing: the dead-man switch relies on it.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 2},
        "TagSpecifications": _tag_specifications(request, settings, spot=spot),
    }
    if spot:
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        if request.max_usd_per_hour is not None:
            options["MaxPrice"] = decimal_text(request.max_usd_per_hour)
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    if request.offer.market is Market.RESERVED:
        parameters |= _within(request.offer.reservation)
    if settings.instance_profile:
        kind = "Arn" if settings.instance_profile.startswith("arn:") else "Name"
        parameters["IamInstanceProfile"] = {kind: settings.instance_profile}
    return parameters


def client_token(request: LaunchRequest) -> str:
    """EC2's idempotency token: 64 ASCII characters at most, the same for the same token of the same owner.

    Neither type nor zone is in it: one token means one request. EC2 keeps tokens by zone, and refuses one that comes
    with another type.
    """
    return hashlib.sha256(f"{request.owner.key_mark}\n{request.owner.cluster}\n{request.token}".encode()).hexdigest()


def image_id(settings: AwsSettings, machine: MachineType, driver: Literal["open", "proprietary"]) -> str:
    """Return an AMI, or an SSM parameter that EC2 resolves: a retry sends the same value after a new image is
    released."""
    family = machine.gpu.split("-", 1)[0]
    image = settings.images.get(machine.gpu) or settings.images.get(family)
    if not image and machine.arch != "x86_64":
        raise ProvisionerError(
            f"{machine.name} has a CPU of kind {machine.arch}, and the default images are for x86_64: name an image "
            f"for it in aws.images.{machine.gpu}"
        )
    image = image or (settings.image if driver == "open" else settings.image_proprietary)
    return f"resolve:ssm:{image}" if image.startswith("/") else image


def _within(reservation: str) -> dict[str, Any]:
    """Return what sends a machine into a reservation, and nowhere else: where that is full, EC2 refuses the launch."""
    kind, ec2_id = split_name(reservation)
    target = {"CapacityReservationTarget": {"CapacityReservationId": ec2_id}}
    # "Launch instances using Capacity Blocks" (EC2 guide): without the market type the launch is refused.
    market = {"InstanceMarketOptions": {"MarketType": BLOCK}} if kind == BLOCK else {}
    return {"CapacityReservationSpecification": target, **market}


def _placement(request: LaunchRequest, settings: AwsSettings) -> dict[str, str]:
    zone = request.offer.zone
    # The machines of a block are near each other as they are; AWS ParallelCluster refuses a group beside a block.
    is_block = split_name(request.offer.reservation)[0] == BLOCK
    group = "" if is_block else settings.placement_groups.get(zone)
    return {"AvailabilityZone": zone, **({"GroupName": group} if group else {})}


def _root_disk(disk_gb: int) -> dict[str, Any]:
    ebs = {"VolumeSize": disk_gb, "VolumeType": "gp3", "DeleteOnTermination": True}
    return {"DeviceName": ROOT_DEVICE, "Ebs": ebs}


def interface_count(settings: AwsSettings, machine: MachineType) -> int:
    """Return how many network interfaces the machine gets."""
    if not settings.efa or not machine.efa:
        return 1
    return machine.efa if machine.efa_first_card else machine.efa + 1


def _interfaces(
    request: LaunchRequest, settings: AwsSettings, machine: MachineType, primary: str
) -> list[dict[str, Any]]:
    """Return one per network card. The first carries IP; the others EFA alone.

    Layout: "Maximize network bandwidth on Amazon EC2 instances with multiple network cards" (EC2 guide): EFA-only
    interfaces of further cards have device index 0. The first card of some types (P6-B300) has no EFA.
    """
    count = interface_count(settings, machine)
    if count > 1 and settings.public_address and not primary:
        raise ProvisionerError(
            f"{machine.name} has {count} network interfaces with EFA, and EC2 gives such a machine no public address "
            "by itself: its first interface has to exist before"
        )
    return [_interface(card, request, settings, machine, primary) for card in range(count)]


def _interface(
    card: int, request: LaunchRequest, settings: AwsSettings, machine: MachineType, primary: str
) -> dict[str, Any]:
    interface: dict[str, Any] = {"DeviceIndex": 0, "NetworkCardIndex": card}
    if card == 0 and primary:
        return {**interface, "NetworkInterfaceId": primary}
    interface["DeleteOnTermination"] = True
    if card == 0:
        interface["AssociatePublicIpAddress"] = settings.public_address
    if kind := interface_type(card, settings, machine):
        interface["InterfaceType"] = kind
    if subnet := settings.subnets.get(request.offer.zone):
        interface["SubnetId"] = subnet
    if groups := settings.security_groups.get(request.offer.region):
        interface["Groups"] = list(groups)
    return interface


def interface_type(card: int, settings: AwsSettings, machine: MachineType) -> str:
    """EC2's name of the interface's type; "" for its default."""
    if not settings.efa or not machine.efa:
        return ""
    if card == 0:
        return "efa" if machine.efa_first_card else ""
    return "efa-only"


def _tag_specifications(request: LaunchRequest, settings: AwsSettings, *, spot: bool) -> list[dict[str, Any]]:
    """Tags for all resources, set at their creation: a resource without a tag cannot be found again."""
    kinds = ["instance", "volume", "network-interface", *(["spot-instances-request"] if spot else [])]
    return [tag_specification(kind, request, settings) for kind in kinds]


def tag_specification(kind: str, request: LaunchRequest, settings: AwsSettings) -> dict[str, Any]:
    """Return the tags of one kind of resource."""
    tags = {"Name": f"{request.owner.cluster}-{request.node}", **settings.tags, **request.tags, **request.own_tags}
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
