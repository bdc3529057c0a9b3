"""Resources that an instance may leave behind: how they are listed and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioners.aws import describe
from provisioners.aws.client import Aws
from provisioners.base import Leftover, LeftoverKind, Owner
from provisioners.calls import Deadline
from provisioners.codes import ApiError

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind."""

    listing: str  # the call that lists it
    filters: Mapping[str, str]  # select resources without an instance
    key: str  # of the list in the answer
    id_key: str
    removal: str  # the call that deletes it
    parameter: str  # the removal's parameter for the id
    gone: str  # the error code of one that is already gone
    paged: bool = True


_KINDS: Mapping[LeftoverKind, _Kind] = {
    LeftoverKind.DISK: _Kind(
        "describe_volumes",
        {"status": "available"},
        "Volumes",
        "VolumeId",
        "delete_volume",
        "VolumeId",
        "InvalidVolume.NotFound",
    ),
    LeftoverKind.NETWORK_INTERFACE: _Kind(
        "describe_network_interfaces",
        {"status": "available"},
        "NetworkInterfaces",
        "NetworkInterfaceId",
        "delete_network_interface",
        "NetworkInterfaceId",
        "InvalidNetworkInterfaceID.NotFound",
    ),
    LeftoverKind.ADDRESS: _Kind(
        "describe_addresses",
        {},
        "Addresses",
        "AllocationId",
        "release_address",
        "AllocationId",
        "InvalidAllocationID.NotFound",
        paged=False,
    ),
    LeftoverKind.SPOT_REQUEST: _Kind(
        "describe_spot_instance_requests",
        {"state": "open"},
        "SpotInstanceRequests",
        "SpotInstanceRequestId",
        "cancel_spot_instance_requests",
        "SpotInstanceRequestIds",
        "InvalidSpotInstanceRequestID.NotFound",
    ),
}


def listed(aws: Aws, region: str, owner: Owner, deadline: Deadline) -> Sequence[Leftover]:
    """Return all leftovers of one region, in four calls."""
    found = []
    for kind, calls in _KINDS.items():
        filters = describe.filters({**describe.tagged(owner.tags), **calls.filters})
        pages = {"MaxResults": _PAGE} if calls.paged else {}
        resources = list(aws.pages("ec2", region, calls.listing, deadline, calls.key, Filters=filters, **pages))
        # An address has no status: it is in use while associated.
        found += [
            describe.leftover(each, kind, calls.id_key, region) for each in resources if not each.get("AssociationId")
        ]
    return found


def removed(aws: Aws, leftover: Leftover, deadline: Deadline) -> None:
    """Delete one; one that is already gone is no error."""
    calls = _KINDS[leftover.kind]
    _, ec2_id = describe.split_id(leftover.id)
    value: Any = [ec2_id] if calls.parameter.endswith("Ids") else ec2_id
    try:
        aws.ask("ec2", leftover.region, calls.removal, deadline, **{calls.parameter: value})
    except ApiError as error:
        if error.reply.code != calls.gone:
            raise
