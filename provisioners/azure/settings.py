"""The [azure] section of the configuration. The text below each key is its entry in docs/reference/spotsupd-toml.md."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from provisioners.settings import CloudSettings, Name

_GROUP = re.compile(
    r"[^/]+/[^/]+|"
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/capacityReservationGroups/[^/]+",
    re.IGNORECASE,
)


class AzureSettings(CloudSettings):
    """Microsoft Azure. Credentials are azure-identity's default ones."""

    subscription: Name
    """The subscription's id."""
    resource_group: Name
    """The existing resource group that holds all machines of the cluster."""
    # README of Azure/azhpc-images: the supported images.
    image: Name = "microsoft-dsvm:ubuntu-hpc:2404:latest"
    """The machine image: `publisher:offer:sku:version`, or an image's resource id."""
    image_proprietary: str = ""
    """The image for GPUs before Turing (V100). Empty: jobs get such a GPU only where `images` names an image for it."""
    images: dict[str, Name] = {}
    """Images by GPU type; they win over the two above."""
    subnets: dict[str, Name] = {}
    """Subnets' resource ids by region."""
    security_groups: dict[str, Name] = {}
    """Network security groups' resource ids by region."""
    identity: str = ""
    """Resource id of a managed identity of the nodes, for what jobs may do, such as read blobs. Empty: none."""
    dead_man_role: str = ""
    """Resource id of the role that lets a machine deallocate itself, and no other one: the dead-man switch
    (docs/permissions/azure-node-role.json). Empty: no such switch."""
    scale_sets: dict[str, Name] = {}
    """Existing Flexible scale sets with a single placement group, by zone, as resource ids. Azure connects InfiniBand
    within one scale set only; in zones without one NCCL does not use it."""
    capacity_reservations: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    """Capacity reservation groups for `market: reserved`, as `RESOURCE_GROUP/NAME`; those that another subscription
    shares, as resource ids."""
    accelerated_networking: bool = True
    """Ask for accelerated networking; the VM size must support it."""
    prices: Annotated[str, StringConstraints(pattern=r"^(https?://[^/\s]+)?$")] = "https://prices.azure.com"
    """URL of Azure's retail price service. Empty: no prices are asked for."""

    @field_validator("capacity_reservations")
    @classmethod
    def _groups(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if not _GROUP.fullmatch(each):
                raise ValueError(
                    f"{each!r} is neither RESOURCE_GROUP/NAME nor the resource id of a capacity reservation group"
                )
        return value

    @property
    def dead_man_after_s(self) -> float:
        """Return the dead-man switch's time in seconds. A machine that switches itself off goes on to cost: without a
        role there is no dead-man switch."""
        return self.dead_man_s if self.dead_man_role else 0.0

    @property
    def node_env(self) -> dict[str, str]:
        """As `Section` says. "InfiniBand … between VMs that occupy the same virtual machine scale set" (ND H100 v5
        series): between others NCCL would find the adapters, and hang or fail."""
        return {} if self.scale_sets else {"NCCL_IB_DISABLE": "1"}

    @property
    def node_role(self) -> tuple[str, str, str] | None:
        """As `Section` says."""
        return "identity", self.identity, "azure-checkpoints-role.json"
