"""The [aws] section of the configuration. The text below each key is its entry in docs/reference/spotsupd-toml.md."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from provisioners.settings import CloudSettings, LogAgentKind, Name

# By botocore's partitions.json: aws-cn, aws-us-gov, aws-iso and its kin, aws-eusc.
_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-iso", "eusc-")


class AwsSettings(CloudSettings):
    """Amazon EC2. Credentials come from the SDK's own chain: environment, profile, instance role. Regions of GovCloud,
    China and other partitions of their own are refused."""

    profile: str = ""
    """A profile of `~/.aws/config` to take credentials from."""
    image: Name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
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
    reservations: tuple[Annotated[str, Field(pattern=r"^cr-[0-9a-z]+$")], ...] = ()
    """Capacity Reservations and Capacity Blocks (`cr-…`) in `regions`, your own or shared with you, in which jobs with
    `market: reserved` run."""
    efa: bool = False
    """Attach EFA network interfaces on instance types that have them."""
    log_group: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/#-]{0,512}$")] = ""
    """CloudWatch log group that nodes send their logs to. Empty: none."""

    @field_validator("regions")
    @classmethod
    def _in_the_common_partition(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for region in value:
            if region.startswith(_OTHER_PARTITIONS):
                raise ValueError(
                    f"{region} is in a partition of AWS of its own, with other accounts and names of resources than "
                    "those that spotsup's policies have (arn:aws:): name regions of the common partition"
                )
        return value

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

    @property
    def log_agent(self) -> tuple[LogAgentKind, str] | None:
        """Return the CloudWatch agent, where a log group is set."""
        return ("cloudwatch", self.log_group) if self.log_group else None

    @property
    def node_role(self) -> tuple[str, str, str] | None:
        """As `Section` says."""
        return "instance_profile", self.instance_profile, "aws-checkpoints-policy.json"
