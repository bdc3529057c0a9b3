"""The requests for a machine that the test cloud refuses, as the real one does."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from provisioners.catalog import MachineType
from tests.clouds.azure_machines import IDENTITY, ROOT, SCALE_SET
from tests.clouds.azure_wire import FakeAzureError

REGIONS = {"eastus": ("1", "2", "3"), "westus2": ("1", "2", "3"), "northcentralus": ()}
IMAGES = {
    ("microsoft-dsvm", "ubuntu-hpc", "2404"): ["24.04.2026010100", "24.04.2026090100"],
    ("Canonical", "ubuntu-24_04-lts", "server-arm64"): ["24.04.202610010"],
}
SUBNETS = {
    region: f"{ROOT}/Microsoft.Network/virtualNetworks/net-{region}/subnets/nodes"
    for region in ("eastus", "westus2", "northcentralus")
}
SECURITY_GROUP = f"{ROOT}/Microsoft.Network/networkSecurityGroups/nodes"
# "What are the username requirements when creating a VM?"
_FORBIDDEN = {"root", "admin", "administrator", "test", "user", "guest", "console", "sys", "actuser"}
IMAGE_GB = 64


def architecture_of(sku: str) -> str:
    """Of an image, as Azure names it."""
    return "Arm64" if sku.endswith("-arm64") else "x64"


def check(name: str, body: dict[str, Any], sizes: Mapping[str, MachineType], was_made: Callable[[str], bool]) -> None:
    """`was_made`: whether a security group or a subnet was made here, by its id. Raises FakeAzureError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}[A-Za-z0-9]", name):
        raise FakeAzureError("InvalidResourceName", f"The name '{name}' is none of a virtual machine.")
    _check_tags(body)
    asked = body["properties"]
    size, zones = asked["hardwareProfile"]["vmSize"], REGIONS.get(body["location"])
    if size not in sizes:
        raise FakeAzureError("InvalidParameter", f"The value {size} provided for the VM size is not valid.")
    if zones is None or not set(body.get("zones") or ()) <= set(zones):
        raise FakeAzureError("InvalidParameter", f"The zone(s) {body.get('zones')} of {body['location']} are invalid.")
    if asked.get("priority") != "Spot" and "evictionPolicy" in asked:
        code = "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines"
        raise FakeAzureError(code, "Eviction policy can be set only on Azure Spot Virtual Machines.")
    _check_max_price(asked)
    if asked.get("securityProfile"):  # the feature is not registered
        raise FakeAzureError("InvalidParameter", "The value of parameter securityProfile.securityType is invalid.")
    if asked.get("virtualMachineScaleSet", {}).get("id", SCALE_SET) != SCALE_SET:
        raise FakeAzureError("InvalidParameter", "The scale set is not there.")
    _check_system(asked["osProfile"])
    _check_image(asked["storageProfile"]["imageReference"], sizes[size])
    disk_gb = asked["storageProfile"]["osDisk"]["diskSizeGB"]
    if disk_gb < IMAGE_GB:
        message = (
            f"The specified disk size {disk_gb} GB is smaller than the size of the corresponding disk in the VM image: "
            f"{IMAGE_GB} GB. This is not allowed. Please choose equal or greater size or do not specify an explicit "
            "size."
        )
        raise FakeAzureError("OperationNotAllowed", message)
    for identity in (body.get("identity") or {}).get("userAssignedIdentities") or {}:
        if identity.lower() != IDENTITY.lower():
            raise FakeAzureError("LinkedInvalidPropertyId", f"The identity {identity} is not there.")
    _check_network(name, body["location"], asked["networkProfile"], was_made)


def _check_max_price(asked: Mapping[str, Any]) -> None:
    """Sources: "Error messages for Azure Spot Virtual Machines"; the API's reference of BillingProfile.maxPrice."""
    most = asked.get("billingProfile", {}).get("maxPrice", -1)
    if most != -1 and asked.get("priority") != "Spot":
        code = "MaxPriceCanBeSetOnlyOnAzureSpotVirtualMachines"
        raise FakeAzureError(code, "Max price can be set only on Azure Spot Virtual Machines.")
    if most != -1 and (most < 0.00001 or round(most, 5) != most):
        message = (
            "Invalid max price value. The only supported values for max price are -1 or a decimal greater than zero. "
            "Max price value of -1 indicates the Azure Spot VM will not be evicted for price reasons."
        )
        raise FakeAzureError("MaxPriceValueInvalid", message)


def _check_tags(body: dict[str, Any]) -> None:
    for key, value in (body.get("tags") or {}).items():
        if set(key) & set("<>%&\\?/") or len(value) > 256:
            raise FakeAzureError("InvalidTagNameCharacters", f"The tag {key!r} has characters that are reserved.")


def _check_system(system: dict[str, Any]) -> None:
    if system["adminUsername"] in _FORBIDDEN:
        raise FakeAzureError("InvalidParameter", "The Admin Username specified is not allowed.")
    if not system["linuxConfiguration"]["ssh"]["publicKeys"][0]["keyData"].startswith("ssh-"):
        raise FakeAzureError("InvalidParameter", "The value of parameter linuxConfiguration.ssh.publicKeys is invalid.")
    if len(base64.b64decode(system["customData"], validate=True)) > 65535:
        raise FakeAzureError("InvalidParameter", "Custom data in OSProfile must be a Base64 encoded string of 64 KB.")


def _check_image(image: dict[str, str], size: MachineType) -> None:
    if "id" in image:
        return
    versions = IMAGES.get((image["publisher"], image["offer"], image["sku"]), [])
    if not versions or image["version"] not in {"latest", *versions}:
        raise FakeAzureError("PlatformImageNotFound", f"The platform image '{':'.join(image.values())}' is not there.")
    of_size, of_image = "Arm64" if size.arch == "arm64" else "x64", architecture_of(image["sku"])
    if of_size != of_image:
        message = (
            f"Cannot create a VM of size '{size.name}' because this VM size only supports a CPU Architecture of "
            f"'{of_size}', but an image or disk with CPU Architecture '{of_image}' was given. Please check that the "
            "CPU Architecture of the image or disk is compatible with that of the VM size."
        )
        raise FakeAzureError("BadRequest", message)


def _check_network(name: str, region: str, network: dict[str, Any], was_made: Callable[[str], bool]) -> None:
    if "networkApiVersion" not in network:
        raise FakeAzureError("InvalidParameter", "Required parameter 'networkApiVersion' is missing (null).")
    for wanted in network["networkInterfaceConfigurations"]:
        subnet = wanted["properties"]["ipConfigurations"][0]["properties"]["subnet"]["id"]
        group = wanted["properties"].get("networkSecurityGroup", {}).get("id", SECURITY_GROUP)
        known = {subnet: SUBNETS.get(region), group: SECURITY_GROUP}
        for bad in (each for each, ours in known.items() if each != ours and not was_made(each)):
            message = f"Resource {bad} referenced by resource {name} was not found. Please make sure it exists."
            raise FakeAzureError("InvalidResourceReference", message)
