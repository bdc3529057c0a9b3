"""How the rows of tools/broken_setups/own.py are broken."""

from __future__ import annotations

from typing import Any

from supervisor.identity import Identity
from tests.support.broken_setups import Setup, breaks, closed_port
from tests.support.own_hosts import OwnHosts, own_hosts


def host(setup: Setup, **more: Any) -> OwnHosts:
    """A host of one's own, with sshd; `more`: of its entry."""
    hosts = setup.stack.enter_context(own_hosts(setup.folder, ["box1"]))
    settings = hosts.settings()
    entry = settings.hosts["box1"].model_dump(exclude_defaults=True) | more
    setup.values |= {"address": entry["address"], "port": str(entry["port"])}
    setup.config["own"] = settings.model_dump(exclude_defaults=True) | {"hosts": {"box1": entry}}
    setup.config["local"] = {"enabled": False}
    return hosts


def nvidia_smi(setup: Setup, hosts: OwnHosts, answer: str) -> None:
    """Give the host a program that is called so."""
    setup.write("bin/nvidia-smi", f"#!/bin/sh\n{answer}\n", 0o700)
    python = hosts.python.read_text()
    hosts.python.write_text(python.replace("#!/bin/sh\n", f"#!/bin/sh\nPATH='{setup.folder}/bin':$PATH\nexport PATH\n"))


@breaks("own-silent")
def _(setup: Setup) -> None:
    host(setup, address="127.0.0.1", port=closed_port(setup))


@breaks("own-key-not-known")
def _(setup: Setup) -> None:
    host(setup)
    setup.config["own"]["known_hosts"] = str(setup.folder / "none")


@breaks("own-another-key")
def _(setup: Setup) -> None:
    known = host(setup).known_hosts
    name, _, _ = known.read_text().partition(" ")
    known.write_text(f"{name} {Identity(bytes(32)).host_key('another').public}\n")


@breaks("own-not-let-in")
def _(setup: Setup) -> None:
    another = setup.write("another", Identity(bytes([1] * 32)).client_key().private_openssh)
    host(setup, key_file=another, user="ann")


@breaks("own-no-python")
def _(setup: Setup) -> None:
    host(setup)
    setup.config["own"]["python"] = "/no/python"


@breaks("own-missing-gpu")
def _(setup: Setup) -> None:
    nvidia_smi(setup, host(setup, gpus="7"), "echo '0, GPU-0, 24564, NVIDIA GeForce RTX 4090'")


@breaks("own-broken-driver")
def _(setup: Setup) -> None:
    why = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    nvidia_smi(setup, host(setup), f'echo "{why}"; exit 9')


@breaks("own-several-gpus")
def _(setup: Setup) -> None:
    rows = ("0, GPU-0, 24564, NVIDIA GeForce RTX 4090", "1, GPU-1, 15360, Tesla T4")
    nvidia_smi(setup, host(setup), "; ".join(f"echo '{row}'" for row in rows))


@breaks("own-same-gpus")
def _(setup: Setup) -> None:
    setup.config["own"] = {"hosts": {"box1": {"address": "box.lab"}, "box2": {"address": "box.lab", "gpus": "1"}}}


@breaks("own-hours")
def _(setup: Setup) -> None:
    setup.config["own"] = {"hosts": {"box1": {"address": "box.lab", "available": "mon,wed 18:00-08:00"}}}
