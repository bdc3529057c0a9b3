"""The machine's way to its peers: interfaces and their drivers, EFA, InfiniBand, and NCCL's plugins."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bootstrap.model import Setup
from bootstrap.templates import fill

EFA_FILE = "/etc/spotsup/efa"
"""Says for which kernel our step has installed EFA's software. Written as root."""


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """The machine's network devices, and the software that NCCL needs for them."""

    interface: str = ""
    """The interface of the default route, "" for none."""
    drivers: frozenset[str] = frozenset()
    """Of all interfaces that have a device."""
    efa_devices: int = 0
    """How many Elastic Fabric Adapters are on the PCI bus."""
    efa_module: bool = False
    """Whether their kernel module is loaded."""
    efa_version: str = ""
    """The EFA installer's version, "" where libfabric is not installed."""
    nccl_plugin: bool = False
    """Whether the linker finds a network plugin for NCCL."""
    infiniband: int = 0
    """How many InfiniBand devices there are."""
    topologies: tuple[str, ...] = ()
    """Names of the files with which Azure's images describe their machines to NCCL."""
    efa_installed: str = ""
    """The content of EFA_FILE."""


def network_script(setup: Setup, sys: str = "/sys", proc: str = "/proc", opt: str = "/opt") -> str:
    """Return a script that prints one JSON object: name -> text in base64. An empty one on the local cloud."""
    if not setup.host.traits.rented:
        return "echo '{}'\n"
    return fill("network/facts.sh", sys=sys, proc=proc, opt=opt, installed=EFA_FILE)


def network_facts(value: Any) -> dict[str, Any]:
    """Return the field of Facts that this section fills. Raises ValueError, KeyError, TypeError."""
    texts = {str(name): b64decode(text).decode(errors="replace") for name, text in value.items()}
    return {"network": read_network(texts)}


def read_network(texts: Mapping[str, str]) -> NetworkFacts:
    """Read what the script printed."""
    version = re.search(r"\d[\d.]*", texts.get("efa_version", ""))
    topologies = tuple(name for name in texts.get("topologies", "").split() if "*" not in name)
    return NetworkFacts(
        interface=read_default_route(texts.get("routes", "")),
        drivers=frozenset(texts.get("drivers", "").split()),
        efa_devices=len(texts.get("efa", "").split()),
        efa_module="efa_module" in texts,
        efa_version=version[0] if version else "unknown" if "efa_version" in texts else "",
        nccl_plugin=bool(texts.get("nccl_plugin", "").strip()),
        infiniband=len(texts.get("infiniband", "").splitlines()),
        topologies=topologies,
        efa_installed=texts.get("efa_installed", "").strip(),
    )


def read_default_route(text: str) -> str:
    """Return the interface of the default route with the lowest metric in /proc/net/route, "" where there is none."""
    rows = [line.split() for line in text.splitlines()[1:]]
    found = [(int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000"]
    return min(found)[1] if found else ""
