"""Facts for a dry run, before a machine exists; and the assumptions behind them, as sentences.

Pure. Sources: the default image of each cloud (docs/clouds.md), pci.ids for the GPUs. Bootstrap itself never acts on
assumed facts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from bootstrap.environment.interpreter import dotted
from bootstrap.facts import Containers, Environments, Facts, Gpu, GpuFacts, NetworkFacts, System
from bootstrap.gpu.step import BRANCH, flavour_for
from bootstrap.model import Host, Setup, expand
from bootstrap.system.facts import UPDATE_UNITS

_FREE_MB = 50_000

# /usr/bin/python3 of each release: packages.ubuntu.com/jammy/python3, packages.ubuntu.com/noble/python3. Neither brings
# pip or the venv module.
UBUNTU_PYTHON = {"22.04": (3, 10), "24.04": (3, 12)}

# PCI device ids by the catalogue's name. All others count as newer than Turing, as those in the catalogue are.
_DEVICES = {"P100": 0x15F8, "V100": 0x1DB1, "T4": 0x1EB8}
_NEWER = 0x2330


@dataclass(frozen=True, slots=True)
class Assumed:
    """Facts of a machine that does not exist yet."""

    facts: Facts
    assumptions: tuple[str, ...]
    """One sentence each."""


def assumed(setup: Setup, user: str, home: str) -> Assumed:
    """Return a machine of `setup.host` after its first boot, from its cloud's default image.

    On the local cloud it is this computer, left as it is.
    """
    python, traits = expand(setup.python, home), setup.host.traits
    version = UBUNTU_PYTHON[traits.ubuntu] if traits.ubuntu else sys.version_info[:2]
    facts = Facts(
        user=user,
        home=home,
        boot_id="assumed",
        free_mb=_FREE_MB,
        python=python if python.startswith("/") else f"/usr/bin/{python}",
        python_version=(*version, 0),
        torch=setup.lock is None and setup.image is None and not setup.setup,
        environments=Environments(machine="x86_64"),
    )
    assumptions = [f"{setup.python} is Python {dotted(version)}{' and has torch' if facts.torch else ''}"]
    if setup.image is not None:
        facts = replace(facts, containers=_containers(setup.host))
        works = facts.containers.docker == "works"
        assumptions.append(
            f"Docker is installed, {user} has access to it, and it does not have the image yet"
            if works
            else "Docker is not installed"
        )
    if setup.lock is not None:
        assumptions.append("the cache has no environment and no uv yet")
    if not setup.host.traits.ubuntu:
        of_whom = "the machine is one of your own" if traits.rented else "the machine is this computer"
        return Assumed(facts, (f"{of_whom}, whose system is left as it is", *assumptions))
    return Assumed(_on_a_cloud(facts, setup), (*_assumptions(setup.host), *assumptions))


def _on_a_cloud(facts: Facts, setup: Setup) -> Facts:
    host = setup.host
    system = System(
        born=setup.node,
        os="ubuntu",
        version=host.traits.ubuntu,
        kernel="assumed",
        systemd="running",
        root=True,
        cloud_init="done",
        updaters=UPDATE_UNITS,
        unheld=(host.traits.kernel_package,),
        clock="synchronized",
    )
    network = NetworkFacts(interface="eth0", drivers=frozenset({host.traits.adapter}))
    gpu = _gpus(host) if host.gpus else GpuFacts()
    return replace(facts, system=system, network=network, gpu=gpu)


def _containers(host: Host) -> Containers:
    if not host.traits.has_docker:
        return Containers()
    return Containers("works", member=True, nvidia=True)


def _gpus(host: Host) -> GpuFacts:
    devices = (_DEVICES.get(host.gpu, _NEWER),) * host.gpus
    named = f"NVIDIA {host.gpu or 'GPU'}"
    return GpuFacts(
        devices=devices,
        flavour=flavour_for(devices),
        version=f"{BRANCH}.0",
        smi=0,
        gpus=tuple(Gpu(index, named, f"GPU-{index}") for index in range(host.gpus)),
    )


def _assumptions(host: Host) -> tuple[str, ...]:
    assumptions = [f"a new machine from an image of Ubuntu {host.traits.ubuntu} with systemd, after its first boot"]
    if host.gpus:
        assumptions.append(f"the image has NVIDIA driver {BRANCH}, and {host.gpus} healthy {host.gpu or 'GPU'}")
    return tuple(assumptions)
