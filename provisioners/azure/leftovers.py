"""Resources that a machine may leave behind: how they are listed and deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioners.azure import describe
from provisioners.azure.client import Azure, Clients
from provisioners.base import Leftover, LeftoverKind, Owner, ProvisionerError
from provisioners.calls import Deadline
from provisioners.codes import ApiError

_GONE = ("ResourceNotFound", "NotFound", "HTTP 404")


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind."""

    what: str
    operations: Callable[[Clients], Any]  # list and delete it
    listing: str  # the list operation
    is_left: Callable[[Mapping[str, Any]], bool]  # whether it belongs to no machine
    suffix: str  # of its name, after the machine's


_KINDS: Mapping[LeftoverKind, _Kind] = {
    # A disk that Azure creates with a machine lacks the machine's tags: its name identifies it.
    LeftoverKind.DISK: _Kind(
        "disks",
        lambda clients: clients.compute.disks,
        "list_by_resource_group",
        lambda properties: str(properties.get("diskState", "")).lower() == "unattached",
        "-disk",
    ),
    LeftoverKind.NETWORK_INTERFACE: _Kind(
        "network interfaces",
        lambda clients: clients.network.network_interfaces,
        "list",
        lambda properties: not properties.get("virtualMachine") and not properties.get("privateEndpoint"),
        "-nic",
    ),
    LeftoverKind.ADDRESS: _Kind(
        "public addresses",
        lambda clients: clients.network.public_ip_addresses,
        "list",
        lambda properties: not properties.get("ipConfiguration") and not properties.get("natGateway"),
        "-ip",
    ),
}


def listed(azure: Azure, owner: Owner, deadline: Deadline) -> Sequence[Leftover]:
    """Return all leftovers of the resource group, in three calls; Azure cannot filter them by tags."""
    found = []
    for kind, calls in _KINDS.items():
        for raw in all_of(azure, kind, deadline):
            each = describe.leftover(raw, kind, str(raw.get("name", "")).removesuffix(calls.suffix), owner)
            if each.owner == owner and calls.is_left(raw.get("properties") or {}):
                found.append(each)
    return found


def all_of(azure: Azure, kind: LeftoverKind, deadline: Deadline) -> list[Mapping[str, Any]]:
    """Return all of a kind in the resource group. Raises ProvisionerError."""
    calls = _KINDS[kind]
    return list(
        azure.pages(
            calls.what,
            lambda clients, more: getattr(calls.operations(clients), calls.listing)(clients.group, **more),
            deadline,
        )
    )


def removed(azure: Azure, leftover: Leftover, deadline: Deadline) -> None:
    """Delete one; one that is already gone is no error."""
    if leftover.kind not in _KINDS:
        raise ProvisionerError(f"Azure has no {leftover.kind}")
    calls = _KINDS[leftover.kind]
    try:
        azure.ask(
            f"the deletion of {leftover.id}",
            lambda clients, more: calls.operations(clients).begin_delete(
                clients.group, leftover.id, polling=False, **more
            ),
            deadline,
        )
    except ApiError as error:
        if error.reply.code not in _GONE:
            raise
