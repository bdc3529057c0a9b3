"""Each cloud's settings: strict, frozen, and without any SDK.

The text below each key is its entry in docs/reference/spotsupd-toml.md.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

OWN_TAG_PREFIX = "spotsup-"

Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
DiskGb = Annotated[int, Field(ge=30, le=16384)]


class CloudSettings(BaseModel):
    """The keys that all rented clouds share."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    regions: Annotated[tuple[Name, ...], Field(min_length=1, max_length=32)]
    """Regions in which jobs may run."""
    ssh_user: Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "ubuntu"
    """The user of the image that the daemon logs in as."""
    ssh_port: Annotated[int, Field(ge=1, le=65535)] = 22
    """The TCP port of the machines' SSH server."""
    public_address: bool = True
    """Whether machines get a public IP address. With false, the daemon must reach their private addresses."""
    disk_gb: DiskGb = 100
    """Size of the boot disk, in GB."""
    dead_man_s: Annotated[float, Field(ge=0, le=7 * 86400)] = 3600.0
    """Dead-man switch: a machine that hears nothing from etcd and makes no progress for this long, in seconds, ends its
    own billing. At least 1800; 0: never."""
    tags: Annotated[dict[str, str], Field(max_length=20)] = {}
    """Further tags (labels) for everything that is created. Keys that begin with `spotsup-` are reserved."""
    catalog: str = ""
    """A TOML file that adds instance types and prices to the built-in catalog."""
    endpoint: Annotated[str, StringConstraints(pattern=r"^(https?://[^/\s]+)?$")] = ""
    """URL to use in place of the cloud's own API, for tests and private endpoints."""
    endpoint_ca: str = ""
    """File with the CA certificate to trust at `endpoint`."""

    @field_validator("dead_man_s")
    @classmethod
    def _patient(cls, value: float) -> float:
        # A bootstrap alone may take 15 minutes, and an outage of etcd must not cost a machine.
        if 0 < value < 1800:
            raise ValueError("a dead-man switch needs at least 1800 s, or 0 for none")
        return value

    @field_validator("tags")
    @classmethod
    def _not_ours(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if key.startswith(OWN_TAG_PREFIX):
                raise ValueError(f"tag {key!r}: tags that begin with {OWN_TAG_PREFIX!r} are spotsup's own")
        return value


class AwsSettings(CloudSettings):
    """Amazon EC2. Credentials come from the SDK's own chain: environment, profile, instance role."""

    profile: str = ""
    """A profile of `~/.aws/config` to take credentials from."""
    image: Name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    """The machine image: an AMI's id (only with one region), or an SSM parameter that holds one (`/…`)."""
    image_proprietary: Name = (
        "/aws/service/deeplearning/ami/x86_64/base-proprietary-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    )
    """The image for GPUs before Turing (V100), which NVIDIA's open kernel modules do not drive."""
    images: dict[str, Name] = {}
    """Images by GPU type, such as `H100 = "ami-…"`; they win over the two above."""
    instance_profile: str = ""
    """IAM instance profile of the nodes, for what they may do in the account."""
    subnets: dict[str, Name] = {}
    """Subnets by zone. Without an entry: the default VPC's subnet of the zone."""
    security_groups: dict[str, tuple[Name, ...]] = {}
    """Security groups by region. Nodes must reach each other, and the daemon must reach `ssh_port`."""
    placement_groups: dict[str, Name] = {}
    """Existing cluster placement groups by zone."""
    efa: bool = False
    """Attach EFA network interfaces on instance types that have them."""
    log_group: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/#-]{0,512}$")] = ""
    """CloudWatch log group that nodes send their logs to. Empty: none."""

    @model_validator(mode="after")
    def _images_are_regional(self) -> AwsSettings:
        for value in (self.image, self.image_proprietary, *self.images.values()):
            if value.startswith("/"):
                continue
            if not value.startswith("ami-"):
                raise ValueError(f"image {value!r} is neither an AMI (ami-…) nor an SSM parameter (/…)")
            if len(self.regions) > 1:
                raise ValueError(
                    f"image {value!r} exists in one region only, and there are {len(self.regions)}: "
                    "name an SSM parameter that each region has"
                )
        return self


class GcpSettings(CloudSettings):
    """Google Compute Engine. Credentials are the application default ones."""

    project: Name
    """The project in which machines are created."""
    image: Name = (
        "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2204-amd64-with-nvidia-580"
    )
    """The machine image: `projects/P/global/images/family/F`, or an image's own path."""
    image_proprietary: str = ""
    """The image for GPUs before Turing (V100). Empty: jobs get such a GPU only where `images` names an image for it."""
    images: dict[str, Name] = {}
    """Images by GPU type; they win over the two above."""
    network: str = ""
    """VPC network, by name or path. Empty: the project's default."""
    subnetworks: dict[str, Name] = {}
    """Subnetworks by region, by name or path."""
    network_tags: tuple[Name, ...] = ()
    """Network tags of the machines, which firewall rules can name."""
    service_account: str = ""
    """Service account of the nodes, with which the dead-man switch deletes a machine. Empty: it only shuts down."""
    notice_s: Annotated[int, Field(ge=0, le=120)] = 0
    """Seconds of preemption notice to ask for in addition to Google's own 30."""
    gvnic: bool = True
    """Use Google's gVNIC network adapter; the image must support it."""
    ops_agent: bool = False
    """Send nodes' logs to Cloud Logging with Google's Ops Agent."""


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
