"""Maintenance of etcd itself: compaction of its history, and defragmentation of its members."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotsup_trainer.etcd import Etcd, EtcdRefusedError, EtcdUnavailableError

from supervisor.errors import SpotsupError

# gRPC's code for a revision that is already compacted: etcd's api/v3rpc/rpctypes/error.go
_OUT_OF_RANGE = 11

# A member does not answer while it is defragmented, so a majority must go on without it.
MIN_MEMBERS = 3
# etcd 3.4 was seen to crash when it was defragmented under reads (a nil pointer in its concurrentReadTx).
MIN_VERSION = (3, 5)
# As OpenShift's etcd operator does (defragcontroller.go): smaller gains are not worth it.
MIN_SIZE_BYTES = 100 * 1024 * 1024
MIN_FREE_FRACTION = 0.45
# An etcd that is so full after defragmentation is full again at once.
MAX_FULL_FRACTION = 0.9


class Compactor:
    """Compacts in steps: each call drops the history that the call before it saw."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._seen = 0

    def compact(self) -> str:
        """Compact up to the revision of the last call. Returns what was done, or ""."""
        revision = int(self._etcd.status()["header"]["revision"])
        target, self._seen = self._seen, revision
        if not 0 < target < revision:
            return ""  # the first call, no news, or an etcd that was restored from a backup
        try:
            self._etcd.compact(target)
        except EtcdRefusedError as error:
            if error.code != _OUT_OF_RANGE:
                raise
            return ""  # etcd's own auto-compaction was faster
        return f"compacted etcd's history up to revision {target}"


class MaintenanceError(SpotsupError):
    """Maintenance is refused by etcd, or would risk its availability now."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of etcd, by its own status."""

    endpoint: str
    id: str
    leads: bool
    version: tuple[int, ...]
    size_bytes: int
    used_bytes: int
    # Alarms, or that it knows no leader.
    problems: tuple[str, ...] = ()

    @property
    def free_fraction(self) -> float:
        """Return how much of its file is free space."""
        return 1 - self.used_bytes / self.size_bytes if self.size_bytes else 0.0


def defragment(etcd: Etcd, *, min_size_bytes: int = MIN_SIZE_BYTES, min_version: tuple[int, ...] = MIN_VERSION) -> str:
    """Defragment the members that gain from it, one after another, while all are healthy. Returns what was done, or ""
    if etcd has too few members or nothing to gain. Raises EtcdError, and MaintenanceError where it stops early.
    """
    count = len(etcd.call("/v3/cluster/member/list", {})["members"])
    if count < MIN_MEMBERS:
        return ""
    done = []
    for member in members_to_defragment(_members(etcd), min_size_bytes):
        if reason := reason_not_to_defragment(_members(etcd), count, min_version):
            raise MaintenanceError(f"etcd at {member.endpoint} is not defragmented: {reason}")
        try:
            etcd.call("/v3/maintenance/defragment", {}, endpoint=member.endpoint)
        except EtcdRefusedError as error:
            raise MaintenanceError(
                f"etcd at {member.endpoint} refuses to be defragmented ({error}): give the user of etcd.user the role "
                'root, or set housekeeping.defragment to ""'
            ) from error
        done.append(member.endpoint)
    return f"defragmented etcd at {', '.join(done)}" if done else ""


def refuses_writes(etcd: Etcd) -> bool:
    """True if its space quota is used up."""
    return any("NOSPACE" in str(error) for error in etcd.status().get("errors", ()))


def make_room(etcd: Etcd, quota_bytes: int) -> str:
    """Make an etcd of one member, whose space quota is used up, accept writes again. Returns what was done.

    Raises EtcdError, and MaintenanceError if what it holds fills the quota.
    """
    with contextlib.suppress(EtcdRefusedError):  # etcd has compacted by itself meanwhile
        etcd.compact(int(etcd.status()["header"]["revision"]))
    etcd.call("/v3/maintenance/defragment", {})
    size_bytes = int(etcd.status().get("dbSize", 0))
    if size_bytes > MAX_FULL_FRACTION * quota_bytes:
        raise MaintenanceError(
            f"the embedded etcd refuses writes: what it holds fills its space quota ({size_bytes:,} of {quota_bytes:,} "
            "bytes). Training goes on; `spotsupctl delete` deletes ended jobs, docs/operations.md says what else to do"
        )
    for alarm in etcd.call("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", ()):
        etcd.call("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
    return f"the embedded etcd was full and takes writes again: {size_bytes:,} of {quota_bytes:,} bytes are used"


def members_to_defragment(members: Sequence[Member], min_size_bytes: int = MIN_SIZE_BYTES) -> list[Member]:
    """Return the members with much free space, the leader last: the others elect another one while it does not
    answer."""
    gain = [each for each in members if each.size_bytes >= min_size_bytes and each.free_fraction >= MIN_FREE_FRACTION]
    return sorted(gain, key=lambda member: member.leads)


def reason_not_to_defragment(members: Sequence[Member], count: int, min_version: tuple[int, ...] = MIN_VERSION) -> str:
    """Return why no member may stop answering now, or "". `members`: those that answer; `count`: how many etcd has."""
    missing = count - len({member.id for member in members})
    if missing > 0:
        return f"{missing} of its {count} members did not answer"
    for member in members:
        if member.problems:
            return f"{member.endpoint} reports {', '.join(member.problems)}"
        if member.version < min_version:
            return f"{member.endpoint} is older than version {'.'.join(map(str, min_version))}"
    return ""


def _members(etcd: Etcd) -> list[Member]:
    """Return all members that answer."""
    found = []
    for endpoint in etcd.endpoints:
        try:
            found.append(_member(endpoint, etcd.call("/v3/maintenance/status", {}, endpoint=endpoint)))
        except EtcdUnavailableError:
            continue
    return found


def _member(endpoint: str, status: Mapping[str, Any]) -> Member:
    identity, leader = str(status["header"]["member_id"]), str(status.get("leader", "0"))
    problems = [str(error) for error in status.get("errors", ())]
    if leader == "0":
        problems.append("no leader")
    size_bytes = int(status.get("dbSize", 0))
    return Member(
        endpoint,
        identity,
        identity == leader,
        tuple(int(part) for part in str(status["version"]).partition("-")[0].split(".")),
        size_bytes,
        int(status.get("dbSizeInUse", size_bytes)),
        tuple(problems),
    )
