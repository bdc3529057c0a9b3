"""Resources that an instance may leave behind: disks. Its interface and its address are parts of it."""

from __future__ import annotations

from collections.abc import Sequence

from provisioners.base import Leftover, LeftoverKind, Owner, ProvisionerError
from provisioners.calls import Deadline
from provisioners.codes import ApiError
from provisioners.gcp import describe, names
from provisioners.gcp.client import Gcp
from provisioners.gcp.errors import is_gone

_PAGE = 500


def listed(gcp: Gcp, owner: Owner, deadline: Deadline) -> Sequence[Leftover]:
    """Return all leftovers of the project, in one call."""
    wanted = names.labelled(owner.tags)
    disks = list(gcp.aggregated("disks", "disks", deadline, filter=wanted, max_results=_PAGE))
    return [describe.leftover(disk, zone) for zone, disk in disks if not disk.users]


def removed(gcp: Gcp, leftover: Leftover, deadline: Deadline) -> None:
    """Delete one; one that is already gone is no error."""
    if leftover.kind is not LeftoverKind.DISK:
        raise ProvisionerError(f"{leftover.id} is a {leftover.kind}, and Compute Engine's machines leave only disks")
    zone, name = names.split_id(leftover.id)
    try:
        gcp.ask("disks", "delete_unary", deadline, zone, zone=zone, disk=name)
    except ApiError as error:
        if not is_gone(error.reply):
            raise
