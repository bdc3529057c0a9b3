"""Which exporters of metrics the image brought, and whether they run. Known only where the machine is ours."""

from __future__ import annotations

import shlex
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bootstrap.model import Setup
from bootstrap.system.facts import BORN_FILE

EXPORTERS = ("node_exporter", "prometheus-node-exporter", "nvidia-dcgm", "dcgm-exporter")
"""Units, in the order in which they are started: dcgm-exporter asks nvidia-dcgm where that is there."""


@dataclass(frozen=True, slots=True)
class Monitoring:
    """`units`: the ActiveState of each of EXPORTERS that is installed."""

    units: Mapping[str, str] = field(default_factory=dict)


def monitoring_script(setup: Setup) -> str:
    """Prints one JSON string: what systemctl says, in base64. Nothing is asked where nothing would be started."""
    return f"""
units=
[ "$(head -n 1 {shlex.quote(BORN_FILE)} 2>/dev/null)" != {shlex.quote(setup.node)} ] || [ ! -d /run/systemd/system ] ||
    units=$(timeout -k 1 5 systemctl show -p Id -p LoadState -p ActiveState {" ".join(EXPORTERS)} 2>/dev/null)
printf '"%s"\\n' "$(printf %s "$units" | base64 -w0)"
"""


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
