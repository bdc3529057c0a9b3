"""Whether a node's GPUs can train, by what the kernel's log and nvidia-smi say. Pure.

Not yet run on a machine with a broken GPU. Sources: NVIDIA's Xid catalog (its column "Immediate Action"), its guide to
GPU memory errors, and nvidia-smi's texts in public logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

# application: the program did it, or its restart is enough. reset: the GPU has to be reset, which we cannot do under a
# driver in use. machine: the GPU is gone until the machine is another one. Numbers that are not here are no evidence.
Effect = Literal["application", "reset", "machine"]
XIDS: Mapping[int, tuple[Effect, str]] = {
    13: ("application", "graphics engine exception"),
    31: ("application", "memory page fault"),
    32: ("application", "invalid push buffer stream"),
    43: ("application", "stopped processing"),
    45: ("application", "preemptive cleanup"),
    46: ("reset", "stopped processing for good"),
    48: ("reset", "uncorrectable memory error"),
    62: ("reset", "internal micro-controller halted"),
    63: ("application", "memory row remapped"),
    64: ("reset", "memory row remapping failed"),
    68: ("application", "video decoder exception"),
    69: ("application", "graphics engine class error"),
    74: ("reset", "NVLink error"),
    79: ("machine", "fell off the bus"),
    92: ("application", "many corrected memory errors"),
    94: ("reset", "contained memory error"),
    95: ("reset", "uncontained memory error"),
    109: ("reset", "context switch timed out"),
    110: ("reset", "security fault"),
    119: ("reset", "GPU system processor timed out"),
    120: ("reset", "GPU system processor error"),
    136: ("reset", "NVLink training failed"),
    137: ("application", "NVLink privilege error"),
    140: ("reset", "unrecovered memory error"),
    143: ("reset", "initialization failed"),
    158: ("reset", "fatal timeout"),
}
# The driver's own summary of what an error needs, in words: "GPU recovery action changed from 0x0 (None) to 0x1 (…)".
RECOVERY_XID = 154

MAX_REASON_CHARACTERS = 200
# Of nvidia-smi; the first three are what a node must have one of each per GPU.
QUERY = ("index", "pci.bus_id", "ecc.errors.uncorrected.volatile.total")
ROWS_QUERY = ("gpu_bus_id", "remapped_rows.pending", "remapped_rows.failure")

_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, *(.*))?")
_RECOVERY = re.compile(r" to 0x[0-9a-fA-F]+ \((.*?)\)")
_LOST_STATUS = 15
# What nvidia-smi says instead of an answer -> whether a GPU is gone for good.
_COMPLAINTS: tuple[tuple[str, bool], ...] = (
    ("GPU is lost", True),
    ("Unable to determine the device handle", False),
    ("No devices were found", False),
    ("couldn't communicate with the NVIDIA driver", False),
    ("Driver/library version mismatch", False),
    ("Failed to initialize NVML: Unknown Error", False),
)
_NOT_REPORTED = ("[N/A]", "N/A", "[Not Supported]", "")


@dataclass(frozen=True)
class Xid:
    """One error of a GPU in the kernel's log."""

    address: str
    number: int
    text: str = ""


@dataclass(frozen=True)
class Answer:
    """What a program printed before it ended by itself."""

    status: int
    output: str


@dataclass(frozen=True)
class Verdict:
    """Whether the GPUs can train. `reason`: one clause for people; `fatal`: a GPU is gone, nothing can go on."""

    healthy: bool
    reason: str = ""
    xid: int = 0
    fatal: bool = False


HEALTHY = Verdict(healthy=True)


def read_xids(text: str) -> tuple[Xid, ...]:
    """Return the errors in lines of the kernel's log, each once."""
    found = (Xid(address.lower(), int(number), more.strip()) for address, number, more in _LINE.findall(text))
    return tuple(dict.fromkeys(found))


def judge_xids(xids: Iterable[Xid]) -> Verdict:
    """Return the worst of these errors."""
    worst = HEALTHY
    for each in xids:
        effect, meaning = _effect(each)
        if effect == "application" or (not worst.healthy and effect == "reset"):
            continue
        worst = _unhealthy(f"the GPU at {each.address}: Xid {each.number}, {meaning}", each.number, effect == "machine")
        if worst.fatal:
            break
    return worst


def judge_smi(gpus: int, smi: Answer) -> Verdict | None:
    """Return the verdict by `nvidia-smi --query-gpu=QUERY`, on a machine with so many GPUs; None where it says nothing
    about them."""
    lines = [line.strip() for line in smi.output.splitlines() if line.strip()]
    rows = [_cells(line) for line in lines if re.match(rf"\d+(,[^,]*){{{len(QUERY) - 1}}}$", line)]
    for text, fatal in _COMPLAINTS:
        if line := next((line for line in lines if text in line), ""):
            return _unhealthy(f"nvidia-smi: {line}", fatal=fatal)
    if smi.status == _LOST_STATUS:
        return _unhealthy(f"a GPU is lost (nvidia-smi ended with status {smi.status})", fatal=True)
    for index, address, ecc in rows:
        for value in (address, ecc):
            if value not in _NOT_REPORTED and (value.startswith("[") or "ERR!" in value):
                return _unhealthy(f"GPU {index}: nvidia-smi says {value}", fatal="lost" in value)
        if ecc.isdigit() and int(ecc):
            return _unhealthy(f"GPU {index}: {ecc} uncorrected memory errors")
    if smi.status != 0:
        return None
    return HEALTHY if len(rows) >= gpus else _unhealthy(f"nvidia-smi finds {len(rows)} of {gpus} GPUs")


def judge_rows(smi: Answer) -> Verdict:
    """Return the verdict by `nvidia-smi --query-remapped-rows=ROWS_QUERY`, which older GPUs do not know."""
    for line in smi.output.splitlines() if smi.status == 0 else ():
        cells = _cells(line)
        if len(cells) != len(ROWS_QUERY):
            continue
        address, pending, failed = cells
        if _is_set(pending) or _is_set(failed):
            what = "failed" if _is_set(failed) else "waits for a reset"
            return _unhealthy(f"the GPU at {address.lower()}: remapping of a memory row {what}")
    return HEALTHY


def judge_hangs(tries: int) -> Verdict:
    """So many tries of nvidia-smi in a row did not end. One is no evidence: it may only be slow."""
    return HEALTHY if tries < 2 else _unhealthy("nvidia-smi hangs: a GPU or its driver does")


def _effect(xid: Xid) -> tuple[Effect, str]:
    if xid.number != RECOVERY_XID:
        return XIDS.get(xid.number, ("application", "unknown"))
    wanted = _RECOVERY.search(xid.text)
    action = wanted[1] if wanted else "None"
    if action == "None":
        return "application", action
    return ("machine" if "Reboot" in action else "reset"), action


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _is_set(value: str) -> bool:
    return value.lower() in ("yes", "1")


def _unhealthy(reason: str, xid: int = 0, fatal: bool = False) -> Verdict:
    return Verdict(healthy=False, reason=reason[:MAX_REASON_CHARACTERS], xid=xid, fatal=fatal)
