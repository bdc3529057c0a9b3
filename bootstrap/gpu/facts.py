"""The machine's GPUs: what is on the PCI bus, which driver is loaded, what nvidia-smi and the kernel's log say.

The script prints texts as it found them; reading them is pure. Where no NVIDIA device is on the bus, nothing more is
asked; where the machine is not ours, sudo is not tried.
"""

from __future__ import annotations

import re
import shlex
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bootstrap.model import Paths, Setup, shell_path
from bootstrap.system.facts import BORN_FILE
from bootstrap.templates import fill

SMI_LIMIT_S = 30  # without persistence the first call wakes each GPU: seconds for each
INSTALLED_FILE = "/etc/spotsup/gpu-driver"
"""Which driver our own step has installed, written as root."""

CHECKED_FILE = "gpu-checked"
"""In the node's folder: which interpreter has computed on all GPUs, in which boot."""

Flavour: TypeAlias = Literal["open", "proprietary"]

_QUERY = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "memory.total",
    "ecc.errors.uncorrected.volatile.total",
    "persistence_mode",
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi tells. `ecc_errors`: uncorrected since the driver was loaded, None where none are counted.

    `trouble`: what stands where a value should, such as "[GPU requires reset]".
    """

    index: int
    name: str
    uuid: str
    memory_mib: int = 0
    ecc_errors: int | None = None
    persistence: bool = False
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """`devices`: PCI device ids of NVIDIA's GPUs; `switches`: how many NVSwitches.

    `flavour`, `version`: of the kernel module that is loaded, None and "" where none is. `smi`: nvidia-smi's exit
    status, None where there is no such program; `said`: its first line where it complained. `xids`: (PCI address,
    number) from the kernel's log of this boot. `fabric_manager`: its unit's state, "" where there is none. `installed`:
    which driver we have installed, for which kernel; `checked`: what our own check was made for.
    """

    devices: tuple[int, ...] = ()
    switches: int = 0
    flavour: Flavour | None = None
    version: str = ""
    smi: int | None = None
    smi_hung: bool = False
    said: str = ""
    gpus: tuple[Gpu, ...] = ()
    xids: tuple[tuple[str, int], ...] = ()
    fabric_manager: str = ""
    installed: str = ""
    checked: str = ""

    @property
    def branch(self) -> int:
        """The loaded driver's branch, 580 for 580.95.05; 0 where none is loaded."""
        return int(self.version.partition(".")[0] or 0)


# A process that a unhealthy driver holds in the kernel cannot be killed: it is left behind, and nobody waits for it.
_SCRIPT = r"""
sys=@sys@ proc=@proc@ own=@own@
as_root() { [ "$(head -n 1 @born@)" = @node@ ] && timeout -k 1 10 sudo -n "$@"; }
field() { printf '"%s":"%s",' "$1" "$(printf %s "$2" | base64 -w0)"; }
work=
limited() {
    limit=$1
    shift
    {
        timeout -k 1 "$limit" "$@" >"$work/said" 2>&1
        echo $? >"$work/status"
    } >/dev/null 2>&1 </dev/null &
    left=$((limit * 10 + 20))
    while [ ! -s "$work/status" ] && [ "$left" -gt 0 ]; do
        sleep 0.1
        left=$((left - 1))
    done
}
pci=
for device in "$sys"/bus/pci/devices/*; do
    read -r vendor <"$device/vendor" && [ "$vendor" = 0x10de ] || continue
    read -r id <"$device/device" && read -r class <"$device/class" || continue
    pci="$pci${device##*/} $id $class
"
done 2>/dev/null
printf '{'
if [ -n "$pci" ]; then
    field pci "$pci"
    field version "$(cat "$proc/driver/nvidia/version" 2>/dev/null)"
    if command -v nvidia-smi >/dev/null && work=$(mktemp -d); then
        trap 'rm -rf "$work"' EXIT
        limited @limit_s@ nvidia-smi --query-gpu=@query@ --format=csv,noheader,nounits
        field smi "$(cat "$work/said")"
        field smi_status "$(cat "$work/status" 2>/dev/null || echo hung)"
    fi
    field xids "$({ dmesg || as_root dmesg; } 2>/dev/null | grep -a 'NVRM: Xid' | tail -n 50)"
    field fabric_manager "$(systemctl show -p LoadState -p ActiveState nvidia-fabricmanager 2>/dev/null)"
    field installed "$(cat @installed@ 2>/dev/null)"
    field checked "$(cat "$own/@checked@" 2>/dev/null)"
fi
printf '"":""}\n'
"""


def gpu_script(setup: Setup, sys: str = "/sys", proc: str = "/proc") -> str:
    """Prints one JSON object: name -> text in base64. Nothing is asked for whoever wants no GPU."""
    if not setup.host.gpus:
        return "echo '{}'\n"
    values = {
        "sys": shell_path(sys),
        "proc": shell_path(proc),
        "own": shell_path(Paths(setup.root, setup.node).own),
        "limit_s": str(SMI_LIMIT_S),
        "query": ",".join(_QUERY),
        "born": shlex.quote(BORN_FILE),
        "node": shlex.quote(setup.node),
        "installed": shlex.quote(INSTALLED_FILE),
        "checked": CHECKED_FILE,
    }
    return fill(_SCRIPT, **values)


def gpu_facts(value: Any) -> dict[str, Any]:
    """The fields of Facts that this section knows. Raises ValueError, KeyError, TypeError."""
    return {"gpu": read_gpu({str(name): b64decode(text).decode(errors="replace") for name, text in value.items()})}


def read_gpu(texts: Mapping[str, str]) -> GpuFacts:
    """The facts in what the script found. Raises ValueError."""
    devices, switches = read_pci(texts.get("pci", ""))
    flavour, version = read_version(texts.get("version", ""))
    status = texts.get("smi_status", "").strip()
    answered = status.isdigit() and status not in ("124", "137")  # timeout's own: it had to end it
    lines = [line.strip() for line in texts.get("smi", "").splitlines() if line.strip()]
    rows = [line for line in lines if line.count(",") == len(_QUERY) - 1]
    complaints = [line for line in lines if line not in rows]
    return GpuFacts(
        devices=devices,
        switches=switches,
        flavour=flavour,
        version=version,
        smi=int(status) if answered else None,
        smi_hung=bool(status) and not answered,
        said=complaints[0] if complaints else "",
        gpus=tuple(read_row(row) for row in rows),
        xids=read_xids(texts.get("xids", "")),
        fabric_manager=read_unit(texts.get("fabric_manager", "")),
        installed=texts.get("installed", "").strip(),
        checked=texts.get("checked", "").strip(),
    )


def read_pci(text: str) -> tuple[tuple[int, ...], int]:
    """Lines `address device class` of NVIDIA's devices: (the GPUs' device ids, how many NVSwitches)."""
    found = [line.split() for line in text.splitlines() if line.strip()]
    # Display controllers (3D ones: 0302) are GPUs, bridges of class 0680 NVSwitches; a card's sound is neither.
    gpus = tuple(int(device, 16) for _, device, kind in found if kind.startswith("0x03"))
    return gpus, sum(kind.startswith("0x0680") for _, _, kind in found)


def read_version(text: str) -> tuple[Flavour | None, str]:
    """Flavour and version in /proc/driver/nvidia/version."""
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    # "NVIDIA UNIX Open Kernel Module for x86_64  580.95.05" or "NVIDIA UNIX x86_64 Kernel Module  535.183.01".
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", f"{line} ")
    if version is None:
        return None, ""
    return ("open" if "Open Kernel Module" in line else "proprietary"), version[1]


def read_row(row: str) -> Gpu:
    """One GPU's line of `nvidia-smi --query-gpu`. Raises ValueError."""
    index, name, uuid, _, memory, ecc, persistence = (part.strip() for part in row.split(","))
    not_counted = ("[N/A]", "N/A", "[Not Supported]")
    troubled = [part for part in (name, uuid, memory, ecc) if part.startswith("[") and part not in not_counted]
    return Gpu(
        index=int(index),
        name=name,
        uuid=uuid,
        memory_mib=int(memory) if memory.isdigit() else 0,
        ecc_errors=int(ecc) if ecc.isdigit() else None,
        persistence=persistence == "Enabled",
        trouble=troubled[0] if troubled else "",
    )


def read_xids(text: str) -> tuple[tuple[str, int], ...]:
    """(PCI address, number) of lines such as `NVRM: Xid (PCI:0000:00:1e): 79, pid=...`, each once."""
    found = re.findall(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)", text)
    return tuple(dict.fromkeys((address.lower(), int(number)) for address, number in found))


def read_unit(text: str) -> str:
    """A unit's ActiveState, "" where it is not installed: what `systemctl show` says."""
    told = dict(line.partition("=")[::2] for line in text.splitlines())
    return told.get("ActiveState", "") if told.get("LoadState") in ("loaded", "masked") else ""
