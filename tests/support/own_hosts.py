"""Hosts of one's own for tests: machines of a local cloud, each with its own loopback address, sshd and home."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioners.base import Instance, InstanceState, LaunchRequest, OfferQuery, Owner
from provisioners.localcloud.programs import TOOLS_VARIABLE, tools_root
from provisioners.own.login import ask
from provisioners.own.settings import OwnSettings
from supervisor.identity import Identity
from tests.support.machines import wait_for
from tests.support.programs import LocalCloud, running_local_cloud

_OWNER = Owner("hosts", "0" * 16)


@dataclass(frozen=True, slots=True)
class OwnHosts:
    """The hosts by name, the cloud that they are machines of, and the login to them."""

    cloud: LocalCloud
    machines: Mapping[str, Instance]
    key_file: Path
    known_hosts: Path
    python: Path

    def settings(self, names: Sequence[str] = (), **more: Any) -> OwnSettings:
        """Return the configuration of some of the hosts, of all by default."""
        hosts = {
            name: {"address": each.ssh_host, "port": each.ssh_port, "key_file": str(self.key_file)}
            for name, each in self.machines.items()
            if not names or name in names
        }
        known = {"known_hosts": str(self.known_hosts), "python": str(self.python)}
        return OwnSettings.model_validate({"hosts": hosts, **known, **more})

    def home(self, name: str) -> Path:
        """Return the home of who logs in to a host."""
        return self.cloud.directory / "machines" / self.machines[name].id / "home"

    def claims(self, name: str) -> list[dict[str, Any]]:
        """Return what a host has been claimed for."""
        found: list[dict[str, Any]] = ask(name, self.settings(), {"do": "look"}, 20.0)["claims"]
        return found

    def end(self, name: str) -> None:
        """Let a host be gone."""
        self.cloud.provisioner.terminate(self.machines[name].id, 20.0)


@contextmanager
def own_hosts(folder: Path, names: Sequence[str]) -> Iterator[OwnHosts]:
    """Hosts that answer; at the end they and all that runs on them are gone."""
    identity = Identity(bytes(32))
    with running_local_cloud(folder / "hosts") as cloud:
        offer = cloud.provisioner.offers(OfferQuery(), 20.0)[0]
        for name in names:
            key = identity.host_key(name)
            request = LaunchRequest(name, _OWNER, name, offer, key, (identity.client_key().public,))
            cloud.provisioner.launch(request, 20.0)

        def running() -> dict[str, Instance] | None:
            found = {each.node: each for each in cloud.provisioner.instances(_OWNER, 20.0)}
            ready = [name for name in names if name in found and found[name].state is InstanceState.RUNNING]
            return found if len(ready) == len(names) else None

        machines = wait_for(running, "the hosts answer")
        key_file, known_hosts = folder / "id_ed25519", folder / "known_hosts"
        key_file.write_text(identity.client_key().private_openssh)
        key_file.chmod(0o600)
        lines = [
            f"[{each.ssh_host}]:{each.ssh_port} {identity.host_key(name).public}" for name, each in machines.items()
        ]
        known_hosts.write_text("".join(f"{line}\n" for line in lines))
        yield OwnHosts(cloud, machines, key_file, known_hosts, _python(folder / "python"))


def _python(path: Path) -> Path:
    """The hosts' interpreter, which knows where this clone's sshd is where the system has none."""
    tools = tools_root()
    known = f"{TOOLS_VARIABLE}={shlex.quote(str(tools))} " if tools else ""
    path.write_text(f'#!/bin/sh\n{known}exec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return path
