"""Boot disks: which kind a machine type takes, and which quota it counts towards. Pure.

Sources, all of Compute Engine: "Machine families resource and comparison guide" for each family's disks, "Disk quotas",
and the enumeration of Quota.metric in the API's discovery document.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

DiskType: TypeAlias = Literal["pd-balanced", "pd-ssd", "pd-standard", "hyperdisk-balanced"]

# All families that came later take Hyperdisk only, as Google says of each: a new family needs no entry.
_PERSISTENT_DISK = frozenset(
    {
        *("f1", "g1", "n1", "e2", "n2", "n2d", "t2d", "t2a", "c2", "c2d", "c3", "c3d", "m1", "m2", "m3", "z3"),
        *("g2", "a2", "a3-edgegpu", "a3-highgpu", "a3-megagpu"),
    }
)
_QUOTAS: dict[DiskType, str] = {
    "pd-balanced": "SSD_TOTAL_GB",
    "pd-ssd": "SSD_TOTAL_GB",
    "pd-standard": "DISKS_TOTAL_GB",
    "hyperdisk-balanced": "HDB_TOTAL_GB",
}


def of_type(machine_type: str, wanted: DiskType | Literal[""] = "") -> DiskType:
    """Return the kind of disk that is `wanted`, else the one that a machine type takes."""
    if wanted:
        return wanted
    family, _, rest = machine_type.partition("-")
    known = family in _PERSISTENT_DISK or f"{family}-{rest.partition('-')[0]}" in _PERSISTENT_DISK
    # Bare metal takes Hyperdisk only, in each family.
    return "pd-balanced" if known and not machine_type.endswith("-metal") else "hyperdisk-balanced"


def quota_of(disk_type: DiskType) -> str:
    """Return the name of the quota that counts the GB of such disks."""
    return _QUOTAS[disk_type]
