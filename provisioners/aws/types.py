"""Instance types with NVIDIA GPUs, as EC2 describes them (DescribeInstanceTypes)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from provisioners.aws.client import Aws
from provisioners.aws.settings import AwsSettings
from provisioners.base import BY_THE_HOUR
from provisioners.calls import Deadline
from provisioners.catalog import MachineType
from provisioners.refreshed import Described

SOURCE = "EC2 DescribeInstanceTypes"
_NAMES = {"RTX PRO Server 6000": "RTXPRO6000", "RTX PRO 4500": "RTXPRO4500", "T4g": "T4G"}


def read(settings: AwsSettings, timeout_s: float) -> list[Described]:
    """Return the types of all configured regions. Raises ProvisionerError."""
    aws, deadline = Aws(settings), Deadline(timeout_s)
    found: dict[str, Described] = {}
    for region in settings.regions:
        listed = aws.pages("ec2", region, "describe_instance_types", deadline, "InstanceTypes", MaxResults=100)
        found |= {each.machine.name: each for each in described(listed)}
    return list(found.values())


def described(listed: Iterable[Mapping[str, Any]]) -> list[Described]:
    """Return the types with whole NVIDIA GPUs. Pure. One that cannot be read is left out."""
    found = []
    for raw in listed:
        try:
            gpus = [each for each in raw["GpuInfo"]["Gpus"] if each["Manufacturer"] == "NVIDIA"]
            if len(gpus) == 1 and float(gpus[0].get("GpuPartitionSize", 1.0)) == 1.0 and gpus[0]["Count"] >= 1:
                found.append(_described(raw, gpus[0]))
        except (KeyError, TypeError, ValueError):
            continue
    return found


def _described(raw: Mapping[str, Any], gpu: Mapping[str, Any]) -> Described:
    network = raw.get("NetworkInfo", {})
    first: Mapping[str, Any] = next(
        (each for each in network.get("NetworkCards", ()) if each.get("NetworkCardIndex") == 0), {}
    )
    kinds = first.get("InterfaceTypes")
    sold = tuple(each for each in BY_THE_HOUR if each.value in raw["SupportedUsageClasses"])
    efa = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    machine = MachineType(
        name=raw["InstanceType"],
        gpus=gpu["Count"],
        vcpus=raw["VCpuInfo"]["DefaultVCpus"],
        memory_gib=raw["MemoryInfo"]["SizeInMiB"] / 1024,
        efa=efa,
        efa_first_card=not efa or kinds is None or "efa" in kinds,
        markets=sold or BY_THE_HOUR,
        arch="arm64" if "arm64" in raw["ProcessorInfo"]["SupportedArchitectures"] else "x86_64",
    )
    return Described(machine, _NAMES.get(gpu["Name"], gpu["Name"]), gpu["MemoryInfo"]["SizeInMiB"] / 1024)
