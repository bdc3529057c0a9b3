"""The [gcp] section of the configuration. The text below each key is its entry in docs/reference/spotsupd-toml.md."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from provisioners.gcp.disks import DiskType
from provisioners.settings import CloudSettings, LogAgentKind, Name

FURTHER = {
    "a3-highgpu-8g": ("GVNIC",) * 4,
    "a3-megagpu-8g": ("GVNIC",) * 8,
    "a3-ultragpu-8g": ("GVNIC", *("MRDMA",) * 8),
    "a4-highgpu-8g": ("GVNIC", *("MRDMA",) * 8),
}
"""The kinds of the interfaces that a type may have beside the first (interfaces.py has the source)."""
RESERVATION = re.compile(
    r"(?:projects/(?P<project>[^/\s]+)/zones/)?(?P<zone>[a-z]+-[a-z0-9]+-[a-z0-9]+)/(?(project)reservations/)(?P<name>[^/\s]+)"
)
"""An entry of `reservations`."""


class GcpSettings(CloudSettings):
    """Google Compute Engine. Credentials are the application default ones."""

    project: Name
    """The project in which machines are created."""
    # Families as `gcloud compute images list` shows them (2026-04): Ubuntu 22.04 and 24.04 with drivers 570 and 580.
    image: Name = (
        "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580"
    )
    """The machine image: `projects/P/global/images/family/F`, or an image's own path."""
    image_proprietary: str = ""
    """The image for GPUs before Turing (V100). Empty: jobs get such a GPU only where `images` names an image for it."""
    images: dict[str, Name] = {}
    """Images by GPU type; they win over the two above."""
    disk_type: Literal["", DiskType] = ""
    """Type of the boot disks, for all machine types. Empty: by the type's family, `pd-balanced` for those that take
    Persistent Disks, `hyperdisk-balanced` for all others."""
    network: str = ""
    """VPC network, by name or path. Empty: the project's default."""
    subnetworks: dict[str, Name] = {}
    """Subnetworks by region, by name or path."""
    further_subnetworks: dict[str, tuple[Name, ...]] = {}
    """Subnetworks of the further network interfaces of types with eight GPUs, by zone and type, in order: as
    `"us-central1-a/a3-ultragpu-8g" = [...]`. A3 High takes 4, A3 Mega 8, A3 Ultra and A4 one and 8 of a RoCE
    network."""
    placement_policies: dict[str, Name] = {}
    """Compact placement policies by region, by name or path, for machines with GPUs (not N1)."""
    network_tags: tuple[Name, ...] = ()
    """Network tags of the machines, which firewall rules can name."""
    service_account: str = ""
    """Service account of the nodes, for what jobs may do in the project, such as read buckets. Empty: none."""
    reservations: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    """What jobs with `market: reserved` may use: `ZONE/NAME`, or `projects/P/zones/ZONE/reservations/NAME` for one that
    another project shares. Reservations that are targeted only (`--require-specific-reservation`)."""
    flex_days: Annotated[float, Field(ge=0.1, le=7)] = 7.0
    """After how many days Google ends a machine of a job with `market: flex`; 7 at most."""
    notice_s: Annotated[int, Field(ge=0, le=120)] = 0
    """Seconds of preemption notice to ask for in addition to Google's own 30, for spot machines."""
    gvnic: bool = True
    """Use Google's gVNIC network adapter; the image must support it."""
    ops_agent: bool = False
    """Send nodes' logs to Cloud Logging with Google's Ops Agent."""

    @field_validator("further_subnetworks")
    @classmethod
    def _as_many_as_the_type_has(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for place, names in value.items():
            zone, _, machine = place.partition("/")
            if not zone or machine not in FURTHER:
                raise ValueError(f"{place!r} is no ZONE/TYPE with a type of {', '.join(FURTHER)}")
            if len(names) != len(FURTHER[machine]):
                raise ValueError(
                    f"{place!r}: {machine} has {len(FURTHER[machine])} further interfaces, not {len(names)}"
                )
        return value

    @field_validator("reservations")
    @classmethod
    def _places_of_reservations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if not RESERVATION.fullmatch(each):
                raise ValueError(f"{each!r} is neither ZONE/NAME nor projects/P/zones/ZONE/reservations/NAME")
        return value

    @property
    def log_agent(self) -> tuple[LogAgentKind, str] | None:
        """Return the Ops Agent, where it is asked for."""
        return ("ops", "") if self.ops_agent else None

    @property
    def node_role(self) -> tuple[str, str, str] | None:
        """As `Section` says."""
        return "service_account", self.service_account, "gcp-checkpoints-role.yaml"
