"""The machine's GPUs: what is on the PCI bus, which driver is loaded, what nvidia-smi and the kernel's log say.

The script prints texts as it found them; reading them is pure. It stops early where no NVIDIA device is on the bus, and
does not try sudo where the machine is not ours.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bootstrap.model import Paths, Setup, shell_path
from bootstrap.system.facts import BORN_FILE
from bootstrap.templates import fill

# Of two tries of nvidia-smi; the second also of turning on persistence mode before it: without that, each call wakes
# all GPUs of a cold machine.
SMI_TRIES_S = (30, 180)
INSTALLED_FILE = "/etc/spotsup/gpu-driver"
"""Says which driver our step has installed. Written as root."""

CHECKED_FILE = "gpu-checked"
"""In the node's folder. Says which interpreter has computed on all GPUs, and in which boot."""

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
    """One GPU as nvidia-smi reports it."""

    index: int
    name: str
    uuid: str
    memory_mib: int = 0
    ecc_errors: int | None = None
    """Uncorrected errors since the driver was loaded; None where they are not counted."""
    persistence: bool = False
    problem: str = ""
    """What nvidia-smi prints instead of a value, such as "[GPU requires reset]"."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPUs of a machine, and their driver."""

    devices: tuple[int, ...] = ()
    """PCI device ids of NVIDIA's GPUs."""
    switches: int = 0
    """How many NVSwitches are on the PCI bus: those of NVLink 5 are not."""
    bridges: int = 0
    """How many ConnectX-7 functions are on the PCI bus: NVSwitches of NVLink 5 are managed through such ones."""
    flavour: Flavour | None = None
    """Of the loaded kernel module; None where none is loaded."""
    version: str = ""
    """Of the loaded kernel module; "" where none is loaded."""
    smi: int | None = None
    """nvidia-smi's exit status; None where there is no such program, or where it was killed."""
    smi_hung: bool = False
    complaint: str = ""
    """nvidia-smi's first line that is not about a GPU."""
    gpus: tuple[Gpu, ...] = ()
    xids: tuple[tuple[str, int], ...] = ()
    """(PCI address, number) from the kernel's log of this boot."""
    fabric_manager: str = ""
    """The state of its unit, "" where it is not installed."""
    installed: str = ""
    """Which driver our step has installed, and for which kernel."""
    checked: str = ""
    """What our check was made for: `check_key`."""

    @property
    def branch(self) -> int:
        """Return the loaded driver's branch, 580 for 580.95.05; 0 where none is loaded."""
        return int(self.version.partition(".")[0] or 0)


def gpu_script(setup: Setup, sys: str = "/sys", proc: str = "/proc") -> str:
    """Return a script that prints one JSON object: name -> text in base64. An empty one where no GPU is wanted."""
    if not setup.host.gpus:
        return "echo '{}'\n"
    return fill(
        "gpu/facts.sh",
        sys=sys,
        proc=proc,
        own=shell_path(Paths(setup.root, setup.node).own),
        limit_s=SMI_TRIES_S[0],
        patience_s=SMI_TRIES_S[1],
        query=",".join(_QUERY),
        born=BORN_FILE,
        node=setup.machine_name,
        installed=INSTALLED_FILE,
        checked=CHECKED_FILE,
    )


def gpu_facts(value: Any) -> dict[str, Any]:
    """Return the field of Facts that this section fills. Raises ValueError, KeyError, TypeError."""
    return {"gpu": read_gpu({str(name): b64decode(text).decode(errors="replace") for name, text in value.items()})}


def read_gpu(texts: Mapping[str, str]) -> GpuFacts:
    """Read what the script printed. Raises ValueError."""
    devices, switches = read_pci(texts.get("pci", ""))
    flavour, version = read_version(texts.get("version", ""))
    status = texts.get("smi_status", "").strip()
    answered = status.isdecimal() and status not in ("124", "137")  # `timeout` had to end it
    lines = [line.strip() for line in texts.get("smi", "").splitlines() if line.strip()]
    rows = [line for line in lines if line.count(",") == len(_QUERY) - 1]
    complaints = [line for line in lines if line not in rows]
    return GpuFacts(
        devices=devices,
        switches=switches,
        bridges=read_bridges(texts.get("mellanox", "")),
        flavour=flavour,
        version=version,
        smi=int(status) if answered else None,
        smi_hung=bool(status) and not answered,
        complaint=complaints[0] if complaints else "",
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


def read_bridges(text: str) -> int:
    """Return how many of Mellanox's devices, lines `address device class`, are ConnectX-7. Their virtual functions,
    which clouds give machines as network adapters, have another id (0x101e)."""
    return sum(line.split()[1] == "0x1021" for line in text.splitlines() if line.strip())


def read_version(text: str) -> tuple[Flavour | None, str]:
    """Flavour and version in /proc/driver/nvidia/version."""
    line = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    # "NVIDIA UNIX Open Kernel Module for x86_64  580.95.05" or "NVIDIA UNIX x86_64 Kernel Module  535.183.01".
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", f"{line} ")
    if version is None:
        return None, ""
    return ("open" if "Open Kernel Module" in line else "proprietary"), version[1]


def read_row(row: str) -> Gpu:
    """Return one GPU's line of `nvidia-smi --query-gpu`. Raises ValueError."""
    index, name, uuid, _, memory, ecc, persistence = (part.strip() for part in row.split(","))
    not_counted = ("[N/A]", "N/A", "[Not Supported]")
    problems = [part for part in (name, uuid, memory, ecc) if part.startswith("[") and part not in not_counted]
    return Gpu(
        index=int(index),
        name=name,
        uuid=uuid,
        memory_mib=int(memory) if memory.isdecimal() else 0,
        ecc_errors=int(ecc) if ecc.isdecimal() else None,
        persistence=persistence == "Enabled",
        problem=problems[0] if problems else "",
    )


def read_xids(text: str) -> tuple[tuple[str, int], ...]:
    """(PCI address, number) of lines such as `NVRM: Xid (PCI:0000:00:1e): 79, pid=...`, each once."""
    found = re.findall(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)", text)
    return tuple(dict.fromkeys((address.lower(), int(number)) for address, number in found))


def read_unit(text: str) -> str:
    """Return a unit's ActiveState, "" where it is not installed: what `systemctl show` says."""
    properties = dict(line.partition("=")[::2] for line in text.splitlines())
    return properties.get("ActiveState", "") if properties.get("LoadState") in ("loaded", "masked") else ""
