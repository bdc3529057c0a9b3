"""The [azure] section of the configuration. The text below each key is its entry in docs/reference/spotsupd-toml.md."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from provisioners.settings import CloudSettings, Name


class AzureSettings(CloudSettings):
    """Microsoft Azure. Credentials are azure-identity's default ones."""

    subscription: Name
    """The subscription's id."""
    resource_group: Name
    """The existing resource group that holds all machines of the cluster."""
    image: Name = "microsoft-dsvm:ubuntu-hpc:2204:latest"
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
    """Resource id of the managed identity with which the dead-man switch deletes a machine. Empty: no such switch."""
    accelerated_networking: bool = True
    """Ask for accelerated networking; the VM size must support it."""
    prices: Annotated[str, StringConstraints(pattern=r"^(https?://[^/\s]+)?$")] = "https://prices.azure.com"
    """URL of Azure's retail price service. Empty: no prices are asked for."""

    @property
    def dead_man_after_s(self) -> float:
        """A machine that switches itself off goes on to cost: without an identity there is no dead-man switch."""
        return self.dead_man_s if self.identity else 0.0
