"""What a machine may leave behind: how it is listed, and how it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioners.aws import describe
from provisioners.aws.client import Aws, AwsApiError
from provisioners.base import CLUSTER_TAG, Leftover, LeftoverKind, ProvisionerError
from provisioners.calls import Deadline

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Trace:
    """One kind: the call that lists it with the filters that leave only what belongs to no machine, the key of the
    answer, the key of an id, the call that ends it with its parameter, and the code for what is gone.
    """

    listing: str
    filters: Mapping[str, str]
    key: str
    id_key: str
    removal: str
    parameter: str
    gone: str
    paged: bool = True


_TRACES: Mapping[LeftoverKind, _Trace] = {
    LeftoverKind.DISK: _Trace(
        "describe_volumes",
        {"status": "available"},
        "Volumes",
        "VolumeId",
        "delete_volume",
        "VolumeId",
        "InvalidVolume.NotFound",
    ),
    LeftoverKind.NETWORK_INTERFACE: _Trace(
        "describe_network_interfaces",
        {"status": "available"},
        "NetworkInterfaces",
        "NetworkInterfaceId",
        "delete_network_interface",
        "NetworkInterfaceId",
        "InvalidNetworkInterfaceID.NotFound",
    ),
    LeftoverKind.ADDRESS: _Trace(
        "describe_addresses",
        {},
        "Addresses",
        "AllocationId",
        "release_address",
        "AllocationId",
        "InvalidAllocationID.NotFound",
        paged=False,
    ),
    LeftoverKind.SPOT_REQUEST: _Trace(
        "describe_spot_instance_requests",
        {"state": "open"},
        "SpotInstanceRequests",
        "SpotInstanceRequestId",
        "cancel_spot_instance_requests",
        "SpotInstanceRequestIds",
        "InvalidSpotInstanceRequestID.NotFound",
    ),
}


def listed(aws: Aws, region: str, cluster: str, deadline: Deadline) -> Sequence[Leftover]:
    """All of one region: four calls, whatever there is."""
    found = []
    for kind, trace in _TRACES.items():
        wanted = {f"tag:{CLUSTER_TAG}": cluster, **trace.filters}
        filters = [{"Name": name, "Values": [value]} for name, value in wanted.items()]
        pages = {"MaxResults": _PAGE} if trace.paged else {}
        try:
            resources = list(aws.pages("ec2", region, trace.listing, deadline, trace.key, Filters=filters, **pages))
        except AwsApiError as error:
            raise ProvisionerError(str(error)) from error
        # An address has no status: it is in use while it is associated.
        found += [
            describe.leftover(each, kind, trace.id_key, region) for each in resources if not each.get("AssociationId")
        ]
    return found


def removed(aws: Aws, leftover: Leftover, deadline: Deadline) -> None:
    """End one; what is gone already is fine."""
    trace = _TRACES[leftover.kind]
    _, ec2_id = describe.split_id(leftover.id)
    value: Any = [ec2_id] if trace.parameter.endswith("Ids") else ec2_id
    try:
        aws.ask("ec2", leftover.region, trace.removal, deadline, **{trace.parameter: value})
    except AwsApiError as error:
        if error.reply.code != trace.gone:
            raise ProvisionerError(str(error)) from error
