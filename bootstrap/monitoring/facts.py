"""Which exporters of metrics the image brought, and whether they run. Empty where the machine is not ours."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bootstrap.model import Setup
from bootstrap.system.facts import BORN_FILE
from bootstrap.templates import fill

EXPORTERS = ("node_exporter", "prometheus-node-exporter", "nvidia-dcgm", "dcgm-exporter")
"""Units, in the order in which they are started: dcgm-exporter asks nvidia-dcgm where that is installed."""


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The exporters that the image brought."""

    units: Mapping[str, str] = field(default_factory=dict)
    """The ActiveState of each of EXPORTERS that is installed."""


def monitoring_script(setup: Setup) -> str:
    """Prints one JSON string: systemctl's output in base64. Empty where nothing would be started."""
    return fill("monitoring/facts.sh", born=BORN_FILE, node=setup.machine_name, units=EXPORTERS)


def monitoring_facts(value: Any) -> dict[str, Any]:
    """The field of Facts that this section fills. Raises ValueError, TypeError."""
    return {"monitoring": Monitoring(read_units(b64decode(value).decode(errors="replace")))}


def read_units(text: str) -> dict[str, str]:
    """Unit -> ActiveState of those that are installed, from `systemctl show` of several."""
    units = {}
    for block in text.split("\n\n"):
        properties = dict(line.partition("=")[::2] for line in block.splitlines())
        if properties.get("LoadState") == "loaded":
            units[properties.get("Id", "").removesuffix(".service")] = properties.get("ActiveState", "")
    return units
