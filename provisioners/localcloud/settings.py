"""The [local] section of the configuration."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from provisioners.localcloud.machine import qemu
from provisioners.settings import Reach, Section

DEAD_MAN_S = 1800.0
"""After how long a virtual machine that hears nothing from its cluster switches itself off."""


class LocalSettings(Section):
    """The local cloud: machines on the daemon's own computer, for trying things out."""

    enabled: Annotated[
        bool | None, Field(json_schema_extra={"x-default": "true where no other cloud is configured"})
    ] = None
    """Whether jobs may use `cloud: local`. They run as the daemon's user, beside its key and its credentials: with a
    rented cloud configured only where this is true."""
    dir: str = ""
    """Folder of the local cloud's server. Empty: `localcloud` in the state folder."""
    image: str = ""
    """Folder of a machine image, as `make acceptance` builds one: machines are then virtual machines (QEMU). Empty:
    machines are `sshd` processes."""

    reach: Reach = "direct"
    """How nodes reach etcd: `direct`, or `ssh`, through the daemon's SSH connection to each node."""

    def folder(self, state: Path) -> Path:
        """Return the folder of its server. `state`: the daemon's state folder."""
        return Path(self.dir) if self.dir else state / "localcloud"

    def in_use(self, *, alone: bool) -> bool:
        """As `Section` says."""
        return alone if self.enabled is None else self.enabled

    @property
    def etcd_by_ssh(self) -> bool:
        """As `Section` says."""
        return self.reach == "ssh"

    @property
    def login_user(self) -> str:
        """Machines run as the daemon's own user; virtual ones have one from user data."""
        return qemu.USER if self.image else getpass.getuser()

    @property
    def dead_man_after_s(self) -> float:
        """Virtual machines alone have the switch."""
        return DEAD_MAN_S if self.image else 0.0

    @property
    def node_env(self) -> dict[str, str]:
        """Return the nodes' variables. All machines share the host's loopback interface, and gloo would guess by host
        name."""
        return {"GLOO_SOCKET_IFNAME": qemu.INTERFACE if self.image else "lo"}

    @property
    def on_this_host(self) -> bool:
        """As `Section` says."""
        return not self.image

    @property
    def away(self) -> bool:
        """Return False: a virtual machine, too, is on this computer and reaches nothing else of it than what it was
        given."""
        return False

    def shared_folder(self, state: Path) -> Path:
        """As `Section` says."""
        return self.folder(state).absolute() / "shared"
