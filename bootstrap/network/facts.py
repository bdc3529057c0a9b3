"""What the machine talks to its peers through: interfaces and their drivers, EFA, InfiniBand, and NCCL's plugins."""

from __future__ import annotations

import re
import shlex
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bootstrap.model import Setup, shell_path
from bootstrap.templates import fill

EFA_FILE = "/etc/spotsup/efa"
"""For which kernel our own step has installed EFA's software, written as root."""


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """`interface`: the one of the default route, "" for none. `drivers`: of all interfaces that have a device.

    `efa_devices`: Elastic Fabric Adapters on the PCI bus; `efa_module`: whether their kernel module is loaded;
    `efa_version`: the EFA installer's, "" where libfabric is not there. `nccl_plugin`: whether the linker finds a
    network plugin for NCCL. `infiniband`: how many InfiniBand devices. `topologies`: names of the files with which
    Azure's images describe their machines to NCCL. `efa_installed`: as EFA_FILE says.
    """

    interface: str = ""
    drivers: frozenset[str] = frozenset()
    efa_devices: int = 0
    efa_module: bool = False
    efa_version: str = ""
    nccl_plugin: bool = False
    infiniband: int = 0
    topologies: tuple[str, ...] = ()
    efa_installed: str = ""


# Only files are read, and one cache: nothing here can hang.
_SCRIPT = r"""
sys=@sys@ proc=@proc@ opt=@opt@
field() { printf '"%s":"%s",' "$1" "$(printf %s "$2" | base64 -w0)"; }
drivers() {
    for interface in "$sys"/class/net/*; do
        [ ! -e "$interface/device/driver" ] || basename "$(readlink -f "$interface/device/driver")"
    done
}
efa() {
    for device in "$sys"/bus/pci/devices/*; do
        read -r vendor <"$device/vendor" && [ "$vendor" = 0x1d0f ] || continue
        read -r id <"$device/device" && case $id in 0xefa*) echo "$id" ;; esac
    done
}
infiniband() {
    for device in "$sys"/class/infiniband/*/ports/*/link_layer; do
        read -r layer <"$device" && [ "$layer" = InfiniBand ] && echo "$device"
    done
}
topologies() { cd "$opt/microsoft" && echo *-topo.xml; }
printf '{'
field routes "$(cat "$proc/net/route" 2>/dev/null)"
field drivers "$(drivers 2>/dev/null)"
field efa "$(efa 2>/dev/null)"
[ ! -d "$sys/module/efa" ] || field efa_module yes
[ ! -x "$opt/amazon/efa/bin/fi_info" ] || field efa_version "$(head -n 1 "$opt/amazon/efa_installed_packages")"
field nccl_plugin "$({ ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -o 'libnccl-net[a-z-]*\.so' | head -n 1)"
field infiniband "$(infiniband 2>/dev/null)"
field topologies "$(topologies 2>/dev/null)"
field efa_installed "$(cat @installed@ 2>/dev/null)"
printf '"":""}\n'
"""


def network_script(setup: Setup, sys: str = "/sys", proc: str = "/proc", opt: str = "/opt") -> str:
    """Prints one JSON object: name -> text in base64. Nothing is asked of the local cloud's machines."""
    if not setup.host.traits.rented:
        return "echo '{}'\n"
    places = {"sys": sys, "proc": proc, "opt": opt}
    values = {name: shell_path(place) for name, place in places.items()} | {"installed": shlex.quote(EFA_FILE)}
    return fill(_SCRIPT, **values)


def network_facts(value: Any) -> dict[str, Any]:
    """The field of Facts that this section knows. Raises ValueError, KeyError, TypeError."""
    texts = {str(name): b64decode(text).decode(errors="replace") for name, text in value.items()}
    return {"network": read_network(texts)}


def read_network(texts: Mapping[str, str]) -> NetworkFacts:
    """The facts in what the script found."""
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
    """The interface of the default route with the least metric in /proc/net/route, "" where there is none."""
    rows = [line.split() for line in text.splitlines()[1:]]
    found = [(int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000"]
    return min(found)[1] if found else ""
