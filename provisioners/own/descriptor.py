"""Machines that you already have, without what reaches them."""

from __future__ import annotations

from pathlib import Path

from provisioners.base import Provisioner
from provisioners.descriptor import Descriptor
from provisioners.host import HostTraits
from provisioners.own.hours import NOTICE_S
from provisioners.own.settings import OwnSettings


def _provisioner(settings: OwnSettings, _state: Path) -> Provisioner:
    from provisioners.own.provisioner import OwnProvisioner

    return OwnProvisioner(settings)


OWN = Descriptor(
    name="own",
    settings=OwnSettings,
    factory=_provisioner,
    metadata="none",  # notices come from the hours of a host, and from people
    host=HostTraits(cloud="own", rented=True),
    has_catalog=False,
    bills=False,
    notice_s=NOTICE_S,
)
