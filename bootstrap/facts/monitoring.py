"""Which exporters of metrics the image brought, and whether they run."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bootstrap.model import Setup

EXPORTERS = ("node_exporter", "prometheus-node-exporter", "nvidia-dcgm", "dcgm-exporter")
"""Units, in the order in which they are started: dcgm-exporter asks nvidia-dcgm where that is there."""


@dataclass(frozen=True, slots=True)
class Monitoring:
    """`units`: the ActiveState of each of EXPORTERS that is installed."""

    units: Mapping[str, str] = field(default_factory=dict)


_SCRIPT = f"""
units=
[ ! -d /run/systemd/system ] ||
    units=$(timeout -k 1 5 systemctl show -p Id -p LoadState -p ActiveState {" ".join(EXPORTERS)} 2>/dev/null)
printf '"%s"\\n' "$(printf %s "$units" | base64 -w0)"
"""


def monitoring_script(_: Setup) -> str:
    """Prints one JSON string: what systemctl says, in base64."""
    return _SCRIPT


def monitoring_facts(value: Any) -> dict[str, Any]:
    """The field of Facts that this section knows. Raises ValueError, TypeError."""
    return {"monitoring": Monitoring(read_units(b64decode(value).decode(errors="replace")))}


def read_units(text: str) -> dict[str, str]:
    """Unit -> ActiveState of those that are installed, from `systemctl show` of several."""
    units = {}
    for block in text.split("\n\n"):
        told = dict(line.partition("=")[::2] for line in block.splitlines())
        if told.get("LoadState") == "loaded":
            units[told.get("Id", "").removesuffix(".service")] = told.get("ActiveState", "")
    return units
