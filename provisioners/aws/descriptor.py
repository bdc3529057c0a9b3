"""Amazon EC2, without its SDK."""

from __future__ import annotations

from pathlib import Path

from provisioners.aws.settings import AwsSettings
from provisioners.base import Provisioner
from provisioners.descriptor import Descriptor
from provisioners.host import HostTraits


def _provisioner(settings: AwsSettings, _state: Path) -> Provisioner:
    from provisioners.aws.provisioner import AwsProvisioner

    return AwsProvisioner(settings)


AWS = Descriptor(
    name="aws",
    settings=AwsSettings,
    factory=_provisioner,
    metadata="aws",
    notice_s=120.0,
    host=HostTraits(
        cloud="aws",
        rented=True,
        ubuntu="24.04",
        adapter="ena",
        kernel_package="linux-image-aws",
        fsx_client=True,
    ),
)
