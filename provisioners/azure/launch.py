"""The body of the PUT for a launch request: a machine, and the resources that are deleted with it. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from provisioners.azure.settings import AzureSettings
from provisioners.base import LaunchRequest, Market, Offer, Owner, ProvisionerError
from provisioners.catalog import MachineType
from provisioners.prices import rounded_down
from provisioners.userdata import DeadMan, user_data

# Azure requires an administrator, and allows neither root nor a user of the image; this one is never used. Cloud-init
# creates the daemon's user.
ADMIN = "spotsup-admin"
COMPUTE_API = "2025-04-01"
"""The API version with which machines are created, and deallocate themselves. 2024-07-01 has no tags of interfaces and
addresses within a machine's request, and Azure refuses what a version lacks. From 2025-11-01 on, Trusted Launch is the
default where image and size support it, and its Secure Boot loads no driver that bootstrap builds; `securityType`
Standard is refused unless the subscription has the feature UseStandardSecurityType (azure-cli#31195, #31234).
"""

NETWORK_API = "2022-11-01"
"""The oldest network API version that allows interfaces within a machine's request."""

_NAME = re.compile(r"spotsup-([a-z2-7]{8})-([a-z0-9-]+)")
_ASSIGNMENTS = uuid.UUID("2f6f0f6c-0d0c-5d3f-8a5b-6a1d9c5b7e21")
_MAX_NAME = 63  # Azure allows 64, but the name is also the host name
_MAX_TAGS = 50
_PRICE_DECIMALS = 5  # "a maximum price, in US dollars, of up to five decimal places"
_MAX_CUSTOM_DATA = 87380  # "64 KB before encoding", virtual machines' custom data


def vm_name(owner: Owner, token: str) -> str:
    """Azure's name of a token's machine, which makes launches idempotent. Injective: the owner is a digest, and so is a
    token that does not fit, or has capitals (Azure's names do not differ in case alone); no readable token looks like a
    digest.
    """
    prefix = f"spotsup-{owner.digest}-"
    if re.fullmatch(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", token) and len(prefix) + len(token) <= _MAX_NAME:
        return prefix + token
    return f"{prefix}-{hashlib.sha256(token.encode()).hexdigest()[:40]}"


def machine_id(settings: AzureSettings, name: str) -> str:
    """Return the resource id of a machine."""
    return (
        f"/subscriptions/{settings.subscription}/resourceGroups/{settings.resource_group}"
        f"/providers/Microsoft.Compute/virtualMachines/{name}"
    )


def is_named_by(owner: Owner, name: str) -> bool:
    """True if the owner gives its machines such names."""
    match = _NAME.fullmatch(name)
    return match is not None and match[1] == owner.digest


def token_in(name: str) -> str:
    """Return the token in a machine's name, "" where there is none."""
    match = _NAME.fullmatch(name)
    return "" if match is None or match[2].startswith("-") else match[2]


def zone_of(offer: Offer) -> list[str]:
    """Azure's zones are numbers; ours include the region: eastus-1, or eastus where a region has none. Raises
    ProvisionerError for a zone of another region.
    """
    if offer.zone == offer.region:
        return []
    region, _, number = offer.zone.rpartition("-")
    if region != offer.region or not number.isdecimal():
        raise ProvisionerError(
            f"{offer.zone} is not a zone of {offer.region}: its zones are {offer.region}-1, -2 and so on"
        )
    return [number]


def virtual_machine(
    request: LaunchRequest, settings: AzureSettings, machine: MachineType, driver: Literal["open", "proprietary"]
) -> dict[str, Any]:
    """Return the body. Raises ProvisionerError for what Azure would refuse with an unhelpful message."""
    offer = request.offer
    name = vm_name(request.owner, request.token)
    tags = all_tags(request, settings)
    subnet = settings.subnets.get(offer.region)
    if not subnet:
        raise ProvisionerError(
            f"no subnet is configured for {offer.region}, and Azure has no default one: "
            f"set azure.subnets.{offer.region} to the resource id of a subnet there"
        )
    body: dict[str, Any] = {
        "location": offer.region,
        "tags": tags,
        "properties": {
            "hardwareProfile": {"vmSize": offer.instance_type},
            "storageProfile": {
                "imageReference": image_reference(image(settings, machine, driver)),
                "osDisk": _disk(name, request.disk_gb or settings.disk_gb),
            },
            "osProfile": _system(name, request, settings),
            "networkProfile": _network(name, settings, subnet, settings.security_groups.get(offer.region, ""), tags),
            "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
        },
    }
    if zones := zone_of(offer):
        body["zones"] = zones
    if offer.market is Market.SPOT:
        # The disks of a deallocated machine still cost money. A maximum price of -1 means the market's price.
        cap = request.max_usd_per_hour
        body["properties"] |= {
            "priority": "Spot",
            "evictionPolicy": "Delete",
            "billingProfile": {"maxPrice": -1 if cap is None else rounded_down(cap, _PRICE_DECIMALS)},
        }
    if identity := _identity(settings, request.dead_man_s):
        body["identity"] = identity
    if offer.market is Market.RESERVED:
        # Not within a scale set: with a single placement group, which InfiniBand needs, none takes reserved capacity
        # ("On-demand capacity reservation", limitations).
        body["properties"]["capacityReservation"] = {"capacityReservationGroup": {"id": offer.reservation}}
    elif scale_set := settings.scale_sets.get(offer.zone):
        body["properties"]["virtualMachineScaleSet"] = {"id": scale_set}
    return body


def _identity(settings: AzureSettings, dead_man_s: float) -> dict[str, Any]:
    """Return the identities. The machine's own identity is what its dead-man switch uses; another one is the user's."""
    own, users = bool(dead_man_s and settings.dead_man_role), bool(settings.identity)
    kinds = [name for name, wanted in (("SystemAssigned", own), ("UserAssigned", users)) if wanted]
    found: dict[str, Any] = {"type": ", ".join(kinds)} if kinds else {}
    return found | ({"userAssignedIdentities": {settings.identity: {}}} if users else {})


def role_assignment(vm: Mapping[str, Any], settings: AzureSettings) -> tuple[str, dict[str, Any]] | None:
    """(path, body) of the PUT that lets a machine deallocate itself: the role's scope is that machine alone, so that no
    program on it can end another one. None where it has no identity of its own. The name is always the same: a repeated
    PUT changes nothing.
    """
    principal = str((vm.get("identity") or {}).get("principalId") or "")
    if not principal or not settings.dead_man_role:
        return None
    name = uuid.uuid5(_ASSIGNMENTS, f"{str(vm['id']).lower()}\n{principal}")
    properties = {
        "roleDefinitionId": settings.dead_man_role,
        "principalId": principal,
        # Without it, Azure looks the new identity up, and does not find it for minutes.
        "principalType": "ServicePrincipal",
    }
    path = f"{vm['id']}/providers/Microsoft.Authorization/roleAssignments/{name}"
    return path, {"properties": properties}


def all_tags(request: LaunchRequest, settings: AzureSettings) -> dict[str, str]:
    """Tags of all resources from their creation: one without a tag is never found again. Raises ProvisionerError."""
    tags = {**settings.tags, **request.tags, **request.own_tags}
    for key, value in tags.items():
        if set(key) & set("<>%&\\?/") or len(key) > 512 or len(value) > 256:
            raise ProvisionerError(
                f"Azure does not allow the tag {key!r} = {value!r}: names may not contain <>%&\\?/, and values have "
                "at most 256 characters"
            )
    if len(tags) > _MAX_TAGS:
        raise ProvisionerError(f"Azure allows {_MAX_TAGS} tags, and the machine would have {len(tags)}")
    return tags


def image(settings: AzureSettings, machine: MachineType, driver: Literal["open", "proprietary"]) -> str:
    """Return the image by GPU, else by driver. Raises ProvisionerError where none is set."""
    family = machine.gpu.split("-", 1)[0]
    named = settings.images.get(machine.gpu) or settings.images.get(family)
    if not named and machine.arch != "x86_64":
        raise ProvisionerError(
            f"{machine.name} has a CPU of kind {machine.arch}, and the default images are for x86_64: name an image "
            f"for it in azure.images.{machine.gpu}"
        )
    named = named or (settings.image if driver == "open" else settings.image_proprietary)
    if not named:
        raise ProvisionerError(
            f"{machine.name} has a {machine.gpu}, which NVIDIA's open kernel modules do not drive: set "
            "azure.image_proprietary to an image with the proprietary ones"
        )
    return named


def image_reference(named: str) -> dict[str, str]:
    """publisher:offer:sku:version, or a resource id. Raises ProvisionerError for neither."""
    if named.startswith("/"):
        return {"id": named}
    parts = named.split(":")
    if len(parts) != 4 or not all(parts):
        raise ProvisionerError(
            f"azure.image {named!r} is neither publisher:offer:sku:version nor the resource id of an image"
        )
    return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))


def dead_man(name: str, settings: AzureSettings, after_s: float) -> DeadMan | None:
    """Return the switch: the machine deallocates itself, with its own identity. None without the role for it: Azure
    bills a machine that has shut itself down, so it keeps running and the daemon can find it.
    """
    if not after_s or not settings.dead_man_role:
        return None
    arm = settings.endpoint or "https://management.azure.com"
    machine = f"{arm}{machine_id(settings, name)}/deallocate?api-version={COMPUTE_API}"
    imds = '"${SPOTSUP_AZURE_METADATA:-http://169.254.169.254}/metadata/identity/oauth2/token"'
    return DeadMan(
        after_s,
        "\n".join(
            [
                f"token=$(curl -fsS --noproxy '*' --max-time 30 --retry 3 -H Metadata:true -G {imds} \\",
                "    -d api-version=2018-02-01 --data-urlencode resource=https://management.azure.com/ \\",
                "    | python3 -c 'import json, sys; print(json.load(sys.stdin)[\"access_token\"])')",
                # Not on the command line, which every process on the machine may read.
                'printf \'header = "Authorization: Bearer %s"\\n\' "$token" \\',
                f"    | curl -fsS --max-time 60 --retry 3 -X POST -d '' -K - {shlex.quote(machine)}",
            ]
        ),
    )


def _disk(name: str, disk_gb: int) -> dict[str, Any]:
    return {
        "name": f"{name}-disk"[:80],
        "createOption": "FromImage",
        "diskSizeGB": disk_gb,
        "managedDisk": {"storageAccountType": "Premium_LRS"},
        # Azure's default is Detach: the disk would stay and cost money.
        "deleteOption": "Delete",
    }


def _system(name: str, request: LaunchRequest, settings: AzureSettings) -> dict[str, Any]:
    switch = dead_man(name, settings, request.dead_man_s)
    data = user_data(request.node, settings.ssh_user, request.authorized_keys, request.host_key, switch)
    encoded = base64.b64encode(data.encode()).decode()
    if len(encoded) > _MAX_CUSTOM_DATA:
        raise ProvisionerError(f"the user data of {name} is larger than Azure accepts")
    key = {"path": f"/home/{ADMIN}/.ssh/authorized_keys", "keyData": request.authorized_keys[0].strip()}
    return {
        "computerName": name,
        "adminUsername": ADMIN,
        "customData": encoded,
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": [key]}},
    }


def _network(name: str, settings: AzureSettings, subnet: str, group: str, tags: Mapping[str, str]) -> dict[str, Any]:
    address: dict[str, Any] = {"subnet": {"id": subnet}, "primary": True}
    if settings.public_address:
        address["publicIPAddressConfiguration"] = {
            "name": f"{name}-ip",
            "sku": {"name": "Standard", "tier": "Regional"},
            "tags": dict(tags),
            "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
        }
    interface: dict[str, Any] = {
        "primary": True,
        "deleteOption": "Delete",
        "ipConfigurations": [{"name": "ip", "properties": address}],
    }
    if settings.accelerated_networking:
        interface["enableAcceleratedNetworking"] = True
    if group:
        interface["networkSecurityGroup"] = {"id": group}
    configuration = {"name": f"{name}-nic", "tags": dict(tags), "properties": interface}
    return {"networkApiVersion": NETWORK_API, "networkInterfaceConfigurations": [configuration]}
