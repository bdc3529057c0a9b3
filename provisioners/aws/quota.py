"""EC2's vCPU quotas, and which one an instance type counts towards. Pure.

Source of the codes: Service Quotas, service "ec2", as `aws service-quotas list-service-quotas` shows them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from provisioners.base import Market


@dataclass(frozen=True, slots=True)
class VcpuQuota:
    """A quota in vCPUs, counted over all types whose names begin with one of `families`."""

    code: str
    name: str
    market: Market
    families: tuple[str, ...]


_STANDARD = ("a", "c", "d", "h", "i", "m", "r", "t", "z")

TABLE: Sequence[VcpuQuota] = (
    VcpuQuota("L-3819A6DF", "All G and VT Spot Instance Requests", Market.SPOT, ("g", "gr", "vt")),
    VcpuQuota("L-DB2E81BA", "Running On-Demand G and VT instances", Market.ON_DEMAND, ("g", "gr", "vt")),
    VcpuQuota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", Market.SPOT, ("p2", "p3", "p4")),
    VcpuQuota("L-C4BD4855", "All P5 Spot Instance Requests", Market.SPOT, ("p5",)),
    VcpuQuota("L-417A185B", "Running On-Demand P instances", Market.ON_DEMAND, ("p",)),
    VcpuQuota("L-34B43A08", "All Standard Spot Instance Requests", Market.SPOT, _STANDARD),
    VcpuQuota("L-1216C47A", "Running On-Demand Standard instances", Market.ON_DEMAND, _STANDARD),
)


def quota_of(instance_type: str, market: Market) -> VcpuQuota | None:
    """Return the quota that a type counts towards; None for an unknown family."""
    match = re.match(r"([a-z]+)(\d*)", instance_type)
    if match is None:
        return None
    names = {match[1], match[1] + match[2]}
    return next((each for each in TABLE if each.market is market and names & set(each.families)), None)
