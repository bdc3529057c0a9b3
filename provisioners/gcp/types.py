"""Machine types that bring their GPUs, as Compute Engine describes them (machineTypes.aggregatedList).

N1's GPUs are attached from outside: their combinations are the built-in catalogue's. How a type is sold is not
described.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from provisioners.calls import Deadline
from provisioners.catalog import MachineType
from provisioners.gcp.client import Gcp
from provisioners.gcp.names import last_of, region_of
from provisioners.gcp.settings import GcpSettings
from provisioners.refreshed import Described

SOURCE = "Compute Engine machineTypes"
_PAGE = 500
# By the accelerator's name: our name, and the GiB of one GPU, which Google does not describe.
_GPUS = {
    "nvidia-l4": ("L4", 24),
    "nvidia-tesla-a100": ("A100", 40),
    "nvidia-a100-80gb": ("A100", 80),
    "nvidia-h100-80gb": ("H100", 80),
    "nvidia-h100-mega-80gb": ("H100", 80),
    "nvidia-h200-141gb": ("H200", 141),
    "nvidia-b200": ("B200", 180),
    "nvidia-gb200": ("GB200", 186),
    "nvidia-gb300": ("GB300", 279),
    "nvidia-rtx-pro-6000": ("RTXPRO6000", 96),
}


def read(settings: GcpSettings, timeout_s: float) -> list[Described]:
    """Return the types of all configured regions. Raises ProvisionerError."""
    gcp, deadline = Gcp(settings), Deadline(timeout_s)
    listed = gcp.aggregated("machineTypes", "machine_types", deadline, max_results=_PAGE)
    return described(item for zone, item in listed if region_of(zone) in settings.regions)


def described(listed: Iterable[Any]) -> list[Described]:
    """Return the types with one kind of NVIDIA GPU. Pure."""
    found: dict[str, Described] = {}
    for raw in listed:
        gpus = [each for each in raw.accelerators if each.guest_accelerator_type.startswith("nvidia-")]
        if len(gpus) != 1 or raw.deprecated.state in {"OBSOLETE", "DELETED"}:
            continue
        accelerator = last_of(gpus[0].guest_accelerator_type)
        short = accelerator.removeprefix("nvidia-").removeprefix("tesla-").upper()
        name, gib = _GPUS.get(accelerator, (short, None))
        machine = MachineType(
            name=raw.name,
            gpus=gpus[0].guest_accelerator_count,
            vcpus=raw.guest_cpus or None,
            memory_gib=raw.memory_mb / 1024 if raw.memory_mb else None,
            accelerator=accelerator,
            arch="arm64" if raw.architecture == "ARM64" else "x86_64",
        )
        found[raw.name] = Described(machine, name, gib)
    return list(found.values())
