"""From which zones an EFS file system can be mounted.

A file system has at most one mount target per zone, and its DNS name resolves, in each zone, to that zone's own
("Mounting EFS file systems", EFS guide): a node in a zone without one cannot mount it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from provisioners.aws.client import Aws
from provisioners.base import DeniedError, ProvisionerError, UnreachableError
from provisioners.calls import Deadline
from provisioners.codes import ApiError

_EFS = re.compile(r"(?:[a-z0-9-]+\.)?(fs-[0-9a-f]+)\.efs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_FSX = re.compile(r"fs-[0-9a-f]+\.fsx\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")


def region_of(server: str) -> str:
    """The region of a file system of Amazon's; "" for another server."""
    if match := _EFS.fullmatch(server):
        return match[2]
    match = _FSX.fullmatch(server)
    return match[1] if match else ""


def check_regions(servers: Sequence[str], regions: Sequence[str]) -> list[str]:
    """The regions from which all these file systems can be mounted. Raises ProvisionerError where there are none."""
    usable = list(regions)
    for server in servers:
        if region := region_of(server):
            usable = [each for each in usable if each == region]
            if not usable:
                raise ProvisionerError(
                    f"{server} is in {region}, and the job asks for {', '.join(regions)}: ask for that region (it "
                    "has to be among aws.regions), or name another file system"
                )
    return usable


def zones_of(aws: Aws, region: str, servers: Sequence[str], deadline: Deadline) -> set[str] | None:
    """The zones with a mount target of each of these EFS file systems; None where none restricts them, or none may be
    asked for. Raises ProvisionerError for a file system that does not exist, or has no mount target.
    """
    found: set[str] | None = None
    for server in servers:
        match = _EFS.fullmatch(server)
        if match is None or match[2] != region:
            continue
        try:
            answer = aws.ask(
                "efs", region, "describe_mount_targets", deadline, want="MountTargets", FileSystemId=match[1]
            )
        except ApiError as error:
            raise ProvisionerError(f"{error}: name an existing file system in the job's storage") from error
        except (DeniedError, UnreachableError):
            continue
        zones = {
            str(each.get("AvailabilityZoneName", ""))
            for each in answer["MountTargets"]
            if each.get("LifeCycleState") == "available"
        }
        if not zones:
            raise ProvisionerError(
                f"EFS {match[1]} in {region} has no mount target, so that no node can mount it: create one in each "
                "zone's subnet"
            )
        found = zones if found is None else found & zones
    return found
