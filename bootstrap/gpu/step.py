"""The GPUs: the right driver, everything else that they need, and whether they compute.

None of this has run on a machine with a GPU yet: docs/nodes.md. Sources: NVIDIA's driver installation guide (which
kernel modules drive which GPU; packages for Debian), Ubuntu's package names, NVIDIA's list of Xid errors, its user
guide of the fabric manager, "Install NVIDIA public drivers" of EC2's guide (what P6-B200 and P6-B300 need).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from bootstrap.decision import Decision, env_script, ours, paths_on
from bootstrap.environment.step import prepared_name, python_of
from bootstrap.facts import Facts
from bootstrap.gpu.facts import CHECKED_FILE, INSTALLED_FILE, SMI_TRIES_S, Flavour, GpuFacts
from bootstrap.model import Command, Host, Paths, Reboot, Run, Setup, Skip, Unfit, Upload
from bootstrap.templates import fill
from provisioners.gpu_names import is_named

# The long-term branch that drives every GPU in the catalog: the last one for Volta and before, new enough for Blackwell
# and for CUDA 13.
BRANCH = 580
BRANCH_MIN = 525  # the oldest for CUDA 12, which every maintained torch needs or exceeds

INSTALL_TIMEOUT_S = 1500.0  # building the kernel modules takes minutes
REBOOT_TIMEOUT_S = 600.0
TUNE_TIMEOUT_S = 300.0
CHECK_TIMEOUT_S = 240.0  # torch's first import from a cold disk, and a context on each of eight GPUs

# PCI device ids ascend with the generations, as pci.ids has them.
_TURING = 0x1E00
_BLACKWELL = 0x2900
# B200, B100 and B300 on a baseboard of eight. GB200 (0x2941) and GB300 (0x31c2) are not: their switches are apart.
_HGX_NVLINK5 = frozenset({0x2901, 0x2920, 0x3182})
_HGX_GPUS = 8

# Errors of the hardware, or after which only a reset helps, by NVIDIA's Xid catalog; the agent has the same table
# (gpu_verdict.py in the trainer). Errors that a program can cause (13, 31, 43, 45) are not among them: on a machine
# that was used before, they mean nothing.
UNHEALTHY_XIDS = {
    46: "stopped processing for good",
    48: "uncorrectable memory error",
    62: "internal micro-controller halted",
    64: "memory row remapping failed",
    74: "NVLink error",
    79: "fell off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timed out",
    110: "security fault",
    119: "GPU system processor timed out",
    120: "GPU system processor error",
    136: "NVLink training failed",
    140: "unrecovered memory error",
    143: "initialization failed",
    158: "fatal timeout",
}

_NOTHING_FOUND = "No devices were found"
_MISMATCH = "Driver/library version mismatch"
_LOST = 15  # nvidia-smi's status for a GPU that has fallen off the bus


class Condition(StrEnum):
    """The state of a machine's driver and GPUs."""

    WORKS = "works"
    INSTALL = "install"
    RESTART = "restart"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`reason`: one clause for people."""

    condition: Condition
    reason: str


def gpu(facts: Facts, setup: Setup) -> Decision:
    """Return the driver, and what else the GPUs need. Unfit where a GPU is wanted and cannot work."""
    host, found = setup.host, facts.gpu
    if not host.gpus:
        return Skip("no GPU is wanted")
    if stand_in(facts, setup):
        return Skip(f"this machine has no GPU and was not made for {setup.node}: it stands in for one that has")
    if len(found.devices) < host.gpus:
        there = len(found.devices) or "none"
        return Unfit(f"{_wanted(host)} wanted, {there} on the PCI bus; the cloud gave another kind of machine")
    diagnosis = diagnose(found)
    match diagnosis.condition:
        case Condition.UNHEALTHY:
            return Unfit(f"{diagnosis.reason}; another machine is needed")
        case Condition.RESTART:
            return _restart(facts, setup, diagnosis.reason)
        case Condition.INSTALL:
            return _install(facts, setup, diagnosis.reason)
        case Condition.WORKS:
            return _fault(found, host) or _tune(facts, setup)


def gpu_check(facts: Facts, setup: Setup) -> Decision:
    """Once the environment is complete, the job's own interpreter computes on each GPU, once per boot."""
    if not setup.host.gpus:
        return Skip("no GPU is wanted")
    if stand_in(facts, setup):
        return Skip("this machine has no GPU to compute on")
    key = check_key(facts, setup)
    if facts.gpu.checked == key:
        return Skip(f"{python_of(facts, setup)} has computed on {_wanted(setup.host)} since the last boot")
    paths = paths_on(facts, setup)
    script = check_gpus(paths, python_of(facts, setup), setup.host.gpus, key, CHECK_TIMEOUT_S)
    return (
        Upload("the environment", paths.env, 0o600, env_script(facts, setup)),
        Run(f"compute on {_wanted(setup.host)}", script, CHECK_TIMEOUT_S + 30),
    )


def check_gpus(paths: Paths, python: str, gpus: int, key: str, limit_s: float) -> str:
    """Have torch compute on each GPU, `gpus` at least, in a process that can be killed; then note `key`."""
    return fill("gpu/check.sh", own=paths.own, python=python, gpus=gpus, key=key, limit_s=limit_s, checked=CHECKED_FILE)


def stand_in(facts: Facts, setup: Setup) -> bool:
    """True if this is a computer behind a test cloud, which offers GPUs that it does not have."""
    return not facts.gpu.devices and not ours(facts, setup)


def check_key(facts: Facts, setup: Setup) -> str:
    """Return what an earlier check depends on: the boot, the interpreter and how it was prepared."""
    parts = (facts.boot_id, python_of(facts, setup), prepared_name(setup), str(setup.host.gpus))
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def flavour_for(devices: tuple[int, ...]) -> Flavour:
    """Return the kernel modules that drive all of them: open ones need Turing or newer."""
    return "proprietary" if any(device < _TURING for device in devices) else "open"


def diagnose(found: GpuFacts) -> Diagnosis:
    """Return the state of the driver, on any kind of machine; `found` has GPUs on its bus."""
    if found.smi_hung:
        return Diagnosis(
            Condition.UNHEALTHY,
            f"nvidia-smi did not end at the second try within {SMI_TRIES_S[1]} s: a GPU or its driver hangs",
        )
    if found.smi is None:
        return Diagnosis(Condition.INSTALL, "there is no NVIDIA driver")
    if unhealthy := _unhealthy_xid(found):
        return Diagnosis(Condition.UNHEALTHY, unhealthy)
    if _MISMATCH in found.complaint:
        return Diagnosis(Condition.RESTART, "the driver was updated, and its old kernel module is still loaded")
    if found.smi == 0 and found.gpus:
        if found.branch < BRANCH_MIN:
            reason = f"driver {found.version or 'of an unknown version'} is too old: CUDA 12 needs {BRANCH_MIN}"
            return Diagnosis(Condition.INSTALL, reason)
        return Diagnosis(Condition.WORKS, f"driver {found.version}")
    if found.smi == _LOST or "Unable to determine the device handle" in found.complaint:
        return Diagnosis(Condition.UNHEALTHY, f"a GPU is lost (nvidia-smi: {found.complaint})")
    if wrong := _wrong_driver(found):
        return Diagnosis(Condition.INSTALL, wrong)
    if _NOTHING_FOUND in found.complaint:
        return Diagnosis(Condition.UNHEALTHY, f"driver {found.version} finds none of the GPUs on the bus")
    complaint = found.complaint.partition(". ")[0] or f"status {found.smi}"
    return Diagnosis(Condition.INSTALL, f"the driver does not work (nvidia-smi: {complaint})")


def _wrong_driver(found: GpuFacts) -> str:
    """Return why the loaded kernel module can never drive these GPUs, "" where it could."""
    old = flavour_for(found.devices) == "proprietary"
    if found.flavour == "open" and old:
        return "NVIDIA's open kernel modules do not drive GPUs older than Turing"
    if found.branch > BRANCH and old:
        return f"driver {found.version} does not drive GPUs older than Turing any more"
    if found.flavour == "proprietary" and max(found.devices) >= _BLACKWELL:
        return "NVIDIA's proprietary kernel modules do not drive Blackwell"
    return ""


def _unhealthy_xid(found: GpuFacts) -> str:
    for address, number in found.xids:
        if number in UNHEALTHY_XIDS:
            return f"the GPU at {address} is unhealthy: Xid {number}, {UNHEALTHY_XIDS[number]}"
    return ""


def _fault(found: GpuFacts, host: Host) -> Unfit | None:
    """Return why these GPUs are not what was asked for, or not healthy; None where they are both."""
    if len(found.gpus) < host.gpus:
        return Unfit(f"{_wanted(host)} wanted, nvidia-smi finds {len(found.gpus)}; one may be unhealthy")
    for each in found.gpus:
        if each.problem:
            return Unfit(f"GPU {each.index} ({each.name}) is unhealthy: nvidia-smi says {each.problem}")
        if each.ecc_errors:
            return Unfit(f"GPU {each.index} ({each.name}) is unhealthy: {each.ecc_errors} uncorrected memory errors")
        if not is_named(each.name, each.memory_mib, host.gpu):
            return Unfit(f"GPU {each.index} is {each.name} with {each.memory_mib} MiB, {host.gpu} was asked for")
    return None


def _restart(facts: Facts, setup: Setup, reason: str) -> Decision:
    if not ours(facts, setup):
        return Unfit(f"{reason}; reboot the machine")
    return (Reboot(reason, REBOOT_TIMEOUT_S),)


def _install(facts: Facts, setup: Setup, reason: str) -> Decision:
    flavour = flavour_for(facts.gpu.devices)
    system, key = facts.system, f"{BRANCH} {flavour} {facts.system.kernel}"
    if not ours(facts, setup):
        return Unfit(
            f"{reason}; this machine was not made for {setup.node}: install driver {BRANCH} ({flavour}) yourself"
        )
    if facts.gpu.installed == key:
        return Unfit(f"{reason}, although driver {BRANCH} ({flavour}) was installed for this kernel")
    if setup.host.gpu in setup.host.traits.grid_gpus:
        cloud, gpu = setup.host.traits.cloud, setup.host.gpu
        return Unfit(
            f"{reason}; {gpu} on {cloud} needs NVIDIA's GRID driver: name an image that has it in {cloud}.images"
        )
    match system.os, system.version:
        case "ubuntu", "22.04" | "24.04":
            driver = f"{BRANCH}-server{'-open' if flavour == 'open' else ''}"
            template, more = "gpu/install_ubuntu.sh", {"driver": driver}
        case "debian", "12":
            modules = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
            template, more = "gpu/install_debian.sh", {"modules": modules}
        case _:
            name = f"{system.os} {system.version}".strip() or "this system"
            return Unfit(f"{reason}, and none can be installed on {name}; use Ubuntu 22.04, Ubuntu 24.04 or Debian 12")
    script = fill(template, **more, branch=BRANCH, kernel=system.kernel, file=INSTALLED_FILE, key=key)
    what = f"install NVIDIA driver {BRANCH} ({flavour} kernel modules): {reason}"
    return (
        Run(what, script, INSTALL_TIMEOUT_S, as_root=True),
        Reboot(f"load NVIDIA driver {BRANCH}", REBOOT_TIMEOUT_S),
    )


def has_nvlink5_switches(found: GpuFacts) -> bool:
    """True if the machine itself has to set up NVSwitches that are not on its PCI bus.

    Google's A4 has such GPUs and no function to manage the switches: they are set up outside the machine.
    """
    return bool(found.bridges) and sum(device in _HGX_NVLINK5 for device in found.devices) == _HGX_GPUS


def _tune(facts: Facts, setup: Setup) -> Decision:
    """Return the fabric manager where there are NVSwitches, and persistence mode."""
    found = facts.gpu
    commands: list[Command] = []
    nvlink5 = has_nvlink5_switches(found)
    if (found.switches or nvlink5) and found.fabric_manager != "active":
        if not ours(facts, setup):
            needed = f"nvidia-fabricmanager {found.version}{' and nvlsm' if nvlink5 else ''}"
            return Unfit(f"the NVSwitches need {needed}, and the fabric manager does not run")
        if nvlink5:
            distribution = facts.system.os + facts.system.version.replace(".", "")
            script = fill("gpu/install_nvlink5.sh", distribution=distribution, kernel=facts.system.kernel)
            commands.append(Run("install the NVLink subnet manager", script, TUNE_TIMEOUT_S, as_root=True))
        installed = bool(found.fabric_manager)
        if installed:
            what, script = "start the fabric manager", fill("gpu/start_fabric_manager.sh")
        else:
            what = "install and start the fabric manager"
            script = fill("gpu/install_fabric_manager.sh", version=found.version)
        commands.append(Run(what, script, TUNE_TIMEOUT_S, as_root=True))
    if not all(each.persistence for each in found.gpus) and ours(facts, setup):
        commands.append(
            Run("keep the driver loaded (persistence mode)", "nvidia-smi -pm 1\n", float(SMI_TRIES_S[1]), as_root=True)
        )
    if commands:
        return tuple(commands)
    return Skip(f"{len(found.gpus)} {found.gpus[0].name}, driver {found.version} ({found.flavour}), no errors")


def _wanted(host: Host) -> str:
    return f"{host.gpus} {host.gpu or 'GPU'}"
