"""What is set about each cloud from outside: strict, frozen, and without any SDK."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

OWN_TAG_PREFIX = "spotsup-"

Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
DiskGb = Annotated[int, Field(ge=30, le=16384)]


class CloudSettings(BaseModel):
    """What all clouds share.

    `disk_gb`: the boot disk where a job does not say. `dead_man_s`: a machine that hears nothing from its cluster for
    so long, and whose round makes no progress, ends its own billing; 0 for never. `catalog`: a TOML file that adds to
    catalog.toml. `endpoint`: an address instead of the cloud's own, `endpoint_ca` the certificate to trust there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    regions: Annotated[tuple[Name, ...], Field(min_length=1, max_length=32)]
    ssh_user: Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "ubuntu"
    ssh_port: Annotated[int, Field(ge=1, le=65535)] = 22
    public_address: bool = True
    disk_gb: DiskGb = 100
    dead_man_s: Annotated[float, Field(ge=0, le=7 * 86400)] = 3600.0
    tags: Annotated[dict[str, str], Field(max_length=20)] = {}
    catalog: str = ""
    endpoint: Annotated[str, StringConstraints(pattern=r"^(https?://[^/\s]+)?$")] = ""
    endpoint_ca: str = ""

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
    """EC2. Credentials come from the SDK's own chain (environment, profile, instance role), `profile` names one.

    `image`, `image_proprietary` (for GPUs before Turing, which NVIDIA's open kernel modules do not drive) and `images`
    (by GPU) are an AMI's id, or the SSM parameter that holds one, beginning with "/". By zone: `subnets` (none: the
    default VPC's), `placement_groups` (existing cluster placement groups). By region: `security_groups`. `efa`: network
    interfaces with EFA on types that have it. `log_group`: where in CloudWatch nodes' logs go, "" for nowhere.
    """

    profile: str = ""
    image: Name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    image_proprietary: Name = (
        "/aws/service/deeplearning/ami/x86_64/base-proprietary-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    )
    images: dict[str, Name] = {}
    instance_profile: str = ""
    subnets: dict[str, Name] = {}
    security_groups: dict[str, tuple[Name, ...]] = {}
    placement_groups: dict[str, Name] = {}
    efa: bool = False
    log_group: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/#-]{0,512}$")] = ""

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
    """Compute Engine. Credentials are the application default ones.

    `image`, `image_proprietary`, `images` (by GPU): "projects/P/global/images/family/F" or an image's own path.
    `network` and, by region, `subnetworks`: names, or paths. `tags` become labels: lower case only. `service_account`:
    the nodes', with which a forgotten machine deletes itself; without it, it switches itself off. `notice_s`: by how
    much a preemption is told on the machine before Google's own half minute. `gvnic`: ask for Google's own network
    adapter, which the image has to know. `ops_agent`: nodes' logs go to Cloud Logging by Google's agent.
    """

    project: Name
    image: Name = (
        "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2204-amd64-with-nvidia-580"
    )
    image_proprietary: str = ""
    images: dict[str, Name] = {}
    network: str = ""
    subnetworks: dict[str, Name] = {}
    network_tags: tuple[Name, ...] = ()
    service_account: str = ""
    notice_s: Annotated[int, Field(ge=0, le=120)] = 0
    gvnic: bool = True
    ops_agent: bool = False


class AzureSettings(CloudSettings):
    """Azure. Credentials are azure-identity's default ones.

    One resource group holds the cluster. `image`, `image_proprietary`, `images` (by GPU): "publisher:offer:sku:version"
    or an image's resource id. By region: `subnets`, `security_groups` (resource ids). `identity`: resource id of the
    managed identity with which a machine may delete itself; without it there is no dead-man switch. `prices`: where
    Azure's retail prices are asked for, "" for nowhere. `accelerated_networking`: which the size has to know.
    """

    subscription: Name
    resource_group: Name
    image: Name = "microsoft-dsvm:ubuntu-hpc:2204:latest"
    image_proprietary: str = ""
    images: dict[str, Name] = {}
    subnets: dict[str, Name] = {}
    security_groups: dict[str, Name] = {}
    identity: str = ""
    accelerated_networking: bool = True
    prices: Annotated[str, StringConstraints(pattern=r"^(https?://[^/\s]+)?$")] = "https://prices.azure.com"
