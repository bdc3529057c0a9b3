"""From which zones an EFS file system can be mounted.

A file system has at most one mount target per zone, and its DNS name resolves, in each zone, to that zone's own
("Mounting EFS file systems", EFS guide): a node in a zone without one cannot mount it. Nor can one that the mount
target's security groups do not let in at port 2049 ("Using VPC security groups", EFS guide): mount hangs then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from provisioners.aws import describe
from provisioners.aws.client import Aws
from provisioners.aws.network import may_let_in
from provisioners.base import DeniedError, ProvisionerError, UnreachableError
from provisioners.calls import Deadline
from provisioners.codes import ApiError
from provisioners.kept import Kept

NFS_PORT = 2049
# A mount target that lets nodes in is not looked at again for so long: that is two calls for each.
OPEN_S = 600.0

_EFS = re.compile(r"(?:[a-z0-9-]+\.)?(fs-[0-9a-f]+)\.efs\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
_FSX = re.compile(r"fs-[0-9a-f]+\.fsx\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")


def region_of(server: str) -> str:
    """Return the region of a file system of Amazon's; "" for another server."""
    if match := _EFS.fullmatch(server):
        return match[2]
    match = _FSX.fullmatch(server)
    return match[1] if match else ""


def check_regions(servers: Sequence[str], regions: Sequence[str]) -> list[str]:
    """Return the regions from which all these file systems can be mounted. Raises ProvisionerError where there are
    none."""
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


class FileSystems:
    """Looks at EFS file systems. Thread-safe."""

    def __init__(self, aws: Aws, groups: Mapping[str, Sequence[str]]) -> None:
        """`groups`: the security groups of nodes by region; in others they are in the VPC's default one."""
        self._aws = aws
        self._groups = groups
        self._open: Kept[str, bool] = Kept(OPEN_S)

    def zones_of(self, region: str, servers: Sequence[str], now: float, deadline: Deadline) -> set[str] | None:
        """Return the zones with a mount target of each of these EFS file systems which lets nodes in; None where none
        restricts them, or none may be asked for. Raises ProvisionerError for a file system that does not exist, or that
        no node can mount.
        """
        found: set[str] | None = None
        for server in servers:
            match = _EFS.fullmatch(server)
            if match is None or match[2] != region:
                continue
            try:
                answer = self._aws.ask(
                    "efs", region, "describe_mount_targets", deadline, want="MountTargets", FileSystemId=match[1]
                )
            except ApiError as error:
                raise ProvisionerError(f"{error}: name an existing file system in the job's storage") from error
            except (DeniedError, UnreachableError):
                continue
            targets = [each for each in answer["MountTargets"] if each.get("LifeCycleState") == "available"]
            if not targets:
                raise ProvisionerError(
                    f"EFS {match[1]} in {region} has no mount target, so that no node can mount it: create one in each "
                    "zone's subnet"
                )
            closed = {str(each["MountTargetId"]): self._why_closed(region, each, now, deadline) for each in targets}
            if all(closed.values()):
                raise ProvisionerError(f"EFS {match[1]} in {region} cannot be mounted: {next(iter(closed.values()))}")
            zones = {
                str(each.get("AvailabilityZoneName", "")) for each in targets if not closed[str(each["MountTargetId"])]
            }
            found = zones if found is None else found & zones
        return found

    def _why_closed(self, region: str, target: Mapping[str, Any], now: float, deadline: Deadline) -> str:
        """Return why nodes do not reach it, with what to do; "" where they may, or where that cannot be read."""
        name = str(target["MountTargetId"])
        if self._open.known(name, now):
            return ""
        try:
            theirs = self._aws.ask(
                *("efs", region, "describe_mount_target_security_groups", deadline),
                want="SecurityGroups",
                MountTargetId=name,
            )["SecurityGroups"]
            groups = self._described(region, deadline, GroupIds=list(theirs))
            ours = list(self._groups.get(region, ())) or self._default_group(region, target, deadline)
        except (ApiError, DeniedError, UnreachableError):
            return ""
        rules = [rule for group in groups for rule in group.get("IpPermissions", ())]
        if any(may_let_in(rule, NFS_PORT, ours) for rule in rules):
            self._open.put(name, now, True)
            return ""
        return (
            f"{', '.join(theirs)} of its mount target in {target.get('AvailabilityZoneName', region)} does not let "
            f"nodes in at port {NFS_PORT}: add a rule for {', '.join(ours)}"
        )

    def _default_group(self, region: str, target: Mapping[str, Any], deadline: Deadline) -> list[str]:
        filters = describe.filters({"vpc-id": str(target.get("VpcId", "")), "group-name": "default"})
        return [str(each["GroupId"]) for each in self._described(region, deadline, Filters=filters)]

    def _described(self, region: str, deadline: Deadline, **which: Any) -> list[Mapping[str, Any]]:
        answer = self._aws.ask("ec2", region, "describe_security_groups", deadline, want="SecurityGroups", **which)
        return list(answer["SecurityGroups"])
