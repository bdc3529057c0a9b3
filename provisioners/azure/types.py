"""Sizes with whole NVIDIA GPUs, as Azure describes them (Microsoft.Compute/skus).

Azure describes how many GPUs a size has, and not which: newer sizes have the GPU in their name, as
Standard_ND96isr_H100_v5. Others, and parts of a GPU (NVads), are those of the built-in catalogue alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from provisioners.azure.client import Azure
from provisioners.azure.settings import AzureSettings
from provisioners.base import BY_THE_HOUR, Market
from provisioners.calls import Deadline
from provisioners.catalog import MachineType
from provisioners.refreshed import Described

SOURCE = "Azure Resource SKUs"
# "Virtual machine size naming conventions": [family][vCPUs][features]_[accelerator]_[version]
_NAME = re.compile(r"Standard_N[CD]\d+[a-z]*_(?:xl_|NDR_)?([A-Z][A-Z0-9]*\d[A-Z0-9]*)_v\d+")
_GPUS: Mapping[str, tuple[str, float | None]] = {
    "T4": ("T4", 16),
    "A100": ("A100", 80),
    "H100": ("H100", None),
    "H200": ("H200", 141),
    "GB200": ("GB200", 186),
    "GB300": ("GB300", 279),
    "RTXPRO6000BSE": ("RTXPRO6000", 96),
}


def read(settings: AzureSettings, timeout_s: float) -> list[Described]:
    """Return the types of all configured regions. Raises ProvisionerError."""
    azure, deadline = Azure(settings), Deadline(timeout_s)
    found: dict[str, Described] = {}
    for region in settings.regions:
        wanted = f"location eq '{region}'"
        listed = azure.pages(
            f"sizes in {region}",
            lambda clients, more, wanted=wanted: clients.compute.resource_skus.list(filter=wanted, **more),  # type: ignore[misc]
            deadline,
        )
        found |= {each.machine.name: each for each in described(listed)}
    return list(found.values())


def described(listed: Iterable[Mapping[str, Any]]) -> list[Described]:
    """Return the types whose name has an NVIDIA GPU. Pure. One that cannot be read is left out."""
    found = []
    for sku in listed:
        match = _NAME.fullmatch(str(sku.get("name", "")))
        if match is None or sku.get("resourceType") != "virtualMachines" or match[1].startswith("MI"):
            continue
        has = {each.get("name"): each.get("value") for each in sku.get("capabilities") or ()}
        try:
            gpus, vcpus, memory = int(has["GPUs"]), int(has["vCPUs"]), float(has["MemoryGB"])
        except (KeyError, TypeError, ValueError):
            continue
        spot = str(has.get("LowPriorityCapable", "")).lower() == "true"
        name, gib = _GPUS.get(match[1], (match[1], None))
        machine = MachineType(
            name=str(sku["name"]),
            gpus=gpus,
            vcpus=vcpus,
            memory_gib=memory,
            markets=BY_THE_HOUR if spot else (Market.ON_DEMAND,),
            arch="arm64" if str(has.get("CpuArchitectureType", "")).lower() == "arm64" else "x86_64",
        )
        found.append(Described(machine, name, gib))
    return found
