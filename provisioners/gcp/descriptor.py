"""Google Compute Engine, without its SDK."""

from __future__ import annotations

from pathlib import Path

from provisioners.base import Provisioner
from provisioners.descriptor import Descriptor
from provisioners.gcp.settings import GcpSettings
from provisioners.host import FastNetwork, HostTraits


def _provisioner(settings: GcpSettings, _state: Path) -> Provisioner:
    from provisioners.gcp.provisioner import GcpProvisioner

    return GcpProvisioner(settings)


GCP = Descriptor(
    name="gcp",
    settings=GcpSettings,
    factory=_provisioner,
    metadata="gcp",
    notice_s=30.0,
    host=HostTraits(
        cloud="gcp",
        rented=True,
        ubuntu="22.04",
        adapter="gve",
        kernel_package="linux-image-gcp",
        has_docker=False,
        fast_network=FastNetwork("gVNIC", frozenset({"gve"}), "`gcp.gvnic` asks for it where the image supports it"),
    ),
)
