"""Compute Engine's GPU quotas, and which ones an accelerator counts towards. Pure.

Source of the names: the enumeration of Quota.metric in Google's discovery document of the API, and "GPU quota" in its
guide. Newer GPUs (H100 Mega, H200, B200) have theirs in Cloud Quotas only, which this API does not cover.
"""

from __future__ import annotations

from collections.abc import Mapping

from provisioners.base import Market
from provisioners.gcp.disks import DiskType, quota_of

ALL_REGIONS = "GPUS_ALL_REGIONS"
CPUS_ALL_REGIONS = "CPUS_ALL_REGIONS"
ADDRESSES = "IN_USE_ADDRESSES"
_METRICS = {
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-p4": "NVIDIA_P4_GPUS",
}


def of_accelerator(accelerator: str) -> str:
    """Return the name of its quota. An accelerator comes with machines of one family, so this stands for their CPUs,
    too."""
    return _METRICS.get(accelerator, accelerator)


def limit(accelerator: str, market: Market, limits: Mapping[str, float]) -> tuple[str, float] | None:
    """(metric, GPUs) of the quota for an accelerator; None where a region's `limits` have none.

    Spot machines count towards the preemptible quota, where the project has one, else towards the standard one; and so
    do GPU machines that Google deletes within seven days ("Limit the run time of a VM").
    """
    metric = _METRICS.get(accelerator)
    if metric is None:
        return None
    preemptible = f"PREEMPTIBLE_{metric}"
    preemptible_first = market in {Market.SPOT, Market.FLEX}
    if preemptible_first and limits.get(preemptible, 0.0) > 0:
        return preemptible, limits[preemptible]
    known = [name for name in (metric, preemptible) if name in limits and (name == metric or preemptible_first)]
    return (known[0], limits[known[0]]) if known else None


def other_limit(
    vcpus: int | None,
    disk_gb: int,
    disk_type: DiskType,
    *,
    public: bool,
    limits: Mapping[str, float],
    everywhere: Mapping[str, float],
) -> tuple[str, float, str] | None:
    """(metric, limit, what one machine needs) of the first quota besides GPUs' that does not allow even one machine;
    None where all do, or are not known. `limits`: a region's; `everywhere`: the project's.

    New projects have small ones of disks, and of external addresses, which count towards IN_USE_ADDRESSES.
    """
    wanted = (
        (everywhere, CPUS_ALL_REGIONS, float(vcpus or 0), f"{vcpus} vCPUs"),
        (limits, quota_of(disk_type), float(disk_gb), f"a disk of {disk_gb} GB"),
        (limits, ADDRESSES, 1.0 if public else 0.0, "a public address"),
    )
    for known, metric, needed, what in wanted:
        if metric in known and known[metric] < needed:
            return metric, known[metric], what
    return None


def gpus_in(limits: Mapping[str, float]) -> dict[str, float]:
    """Return the GPU quotas among a region's limits, those above 0."""
    names = {name for metric in _METRICS.values() for name in (metric, f"PREEMPTIBLE_{metric}")}
    return {name: value for name, value in sorted(limits.items()) if name in names and value > 0}
