"""The network interfaces of an instance, and how near each other instances are. Pure.

"Networking and GPU machines" (Compute Engine) for how many interfaces the types with eight GPUs have, and their kind:
beside the first one A3 High has four gVNICs, A3 Mega eight; A3 Ultra and A4 have one and eight MRDMA ones, which need
subnetworks of a network with the zone's RoCE profile ("RDMA network profiles"; dstack#3152 does the same).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provisioners.base import LaunchRequest
from provisioners.catalog import MachineType
from provisioners.gcp.settings import FURTHER, GcpSettings


def interfaces(request: LaunchRequest, settings: GcpSettings, machine: MachineType) -> list[dict[str, Any]]:
    """Return them with the SDK's names; the first one is the one of SSH, and has the public address."""
    place = f"{request.offer.zone}/{machine.name}"
    names, region = settings.further_subnetworks.get(place, ()), request.offer.region
    further = zip(names, FURTHER[machine.name], strict=True) if names else ()
    return [
        _first(region, settings),
        *({"subnetwork": _path(name, region), "nic_type": kind} for name, kind in further),
    ]


def policies(request: LaunchRequest, settings: GcpSettings, machine: MachineType) -> Mapping[str, Any]:
    """Return the compact placement policy of the region. "Compact placement policy and workload policy overview": not
    of N1, whose GPUs are attached, and of no use to machines without a GPU."""
    region = request.offer.region
    name = settings.placement_policies.get(region, "")
    if not name or not machine.gpus or machine.machine_type:
        return {}
    return {"resource_policies": [name if "/" in name else f"regions/{region}/resourcePolicies/{name}"]}


def network_of(settings: GcpSettings) -> str:
    """Return the path of the network of the first interface."""
    network = settings.network or "default"
    return network if "/" in network else f"global/networks/{network}"


def _first(region: str, settings: GcpSettings) -> dict[str, Any]:
    interface: dict[str, Any] = {}
    if subnetwork := settings.subnetworks.get(region):
        interface["subnetwork"] = _path(subnetwork, region)
    else:
        interface["network"] = network_of(settings)
    if settings.gvnic:
        interface["nic_type"] = "GVNIC"
    if settings.public_address:
        # An ephemeral address: it is released with the instance.
        interface["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    return interface


def _path(subnetwork: str, region: str) -> str:
    return subnetwork if "/" in subnetwork else f"regions/{region}/subnetworks/{subnetwork}"
