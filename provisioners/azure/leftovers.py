"""What a machine may leave behind: how it is listed, and how it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioners.azure import describe
from provisioners.azure.client import Azure, AzureApiError, Clients
from provisioners.base import Leftover, LeftoverKind, ProvisionerError
from provisioners.calls import Deadline

_GONE = ("ResourceNotFound", "NotFound", "HTTP 404")


@dataclass(frozen=True, slots=True)
class _Trace:
    """One kind: what it is called, the operations that list and delete it, when it is nobody's, and what its name has
    beside its machine's.
    """

    what: str
    operations: Callable[[Clients], Any]
    listing: str
    is_left: Callable[[Mapping[str, Any]], bool]
    suffix: str


_TRACES: Mapping[LeftoverKind, _Trace] = {
    # A disk that Azure makes with its machine has none of the machine's tags: it is known by its name.
    LeftoverKind.DISK: _Trace(
        "disks",
        lambda clients: clients.compute.disks,
        "list_by_resource_group",
        lambda properties: str(properties.get("diskState", "")).lower() == "unattached",
        "-disk",
    ),
    LeftoverKind.NETWORK_INTERFACE: _Trace(
        "network interfaces",
        lambda clients: clients.network.network_interfaces,
        "list",
        lambda properties: not properties.get("virtualMachine") and not properties.get("privateEndpoint"),
        "-nic",
    ),
    LeftoverKind.ADDRESS: _Trace(
        "public addresses",
        lambda clients: clients.network.public_ip_addresses,
        "list",
        lambda properties: not properties.get("ipConfiguration") and not properties.get("natGateway"),
        "-ip",
    ),
}


def listed(azure: Azure, cluster: str, deadline: Deadline) -> Sequence[Leftover]:
    """All of the resource group: three calls, whatever there is."""
    found = []
    for kind, trace in _TRACES.items():
        for raw in all_of(azure, kind, deadline):
            each = describe.leftover(raw, kind, str(raw.get("name", "")).removesuffix(trace.suffix))
            if each.cluster == cluster and trace.is_left(raw.get("properties") or {}):
                found.append(each)
    return found


def all_of(azure: Azure, kind: LeftoverKind, deadline: Deadline) -> list[Mapping[str, Any]]:
    """Whatever there is of a kind in the resource group. Raises ProvisionerError."""
    trace = _TRACES[kind]
    try:
        return list(
            azure.pages(
                trace.what,
                lambda clients, more: getattr(trace.operations(clients), trace.listing)(clients.group, **more),
                deadline,
            )
        )
    except AzureApiError as error:
        raise ProvisionerError(str(error)) from error


def removed(azure: Azure, leftover: Leftover, deadline: Deadline) -> None:
    """End one; what is gone already is fine."""
    if leftover.kind not in _TRACES:
        raise ProvisionerError(f"Azure has no {leftover.kind}")
    trace = _TRACES[leftover.kind]
    try:
        azure.ask(
            f"the end of {leftover.id}",
            lambda clients, more: trace.operations(clients).begin_delete(
                clients.group, leftover.id, polling=False, **more
            ),
            deadline,
        )
    except AzureApiError as error:
        if error.reply.code not in _GONE:
            raise ProvisionerError(str(error)) from error
