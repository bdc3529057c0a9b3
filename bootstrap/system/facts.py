"""The operating system, and whether the machine was made for this node alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bootstrap.model import Setup
from bootstrap.templates import fill

BORN_FILE = "/etc/spotsup/born"
"""Holds the id of the node that the machine was made for. Our user data writes it as root at the first boot:
provisioners/userdata.py.
"""

HEARD_FILE = ".spotsup-heard"
"""In the user's home. The agent touches it, and the dead-man switch reads its time."""

SWITCH_TIMER = "spotsup-dead-man.timer"

UPDATE_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "apt-daily.service",
    "apt-daily-upgrade.service",
    "unattended-upgrades.service",
)


@dataclass(frozen=True, slots=True)
class System:
    """The operating system. Only `born` to `vendor` are known where the machine was not made for this node."""

    born: str = ""
    """The node that this machine was made for, "" for none."""
    os: str = ""
    """ID of os-release."""
    version: str = ""
    """VERSION_ID of os-release."""
    kernel: str = ""
    systemd: str = ""
    """The state of the systemd that is PID 1 (running, degraded, starting, …), "" where there is none."""
    vendor: str = ""
    """By DMI, such as "Amazon EC2"."""
    root: bool = False
    """Whether we are root, or become root without a password."""
    cloud_init: str = "absent"
    """done, running, disabled or absent."""
    locks: tuple[str, ...] = ()
    """Which processes hold locks of apt or dpkg, as sentences."""
    updaters: tuple[str, ...] = ()
    """Units that update packages by themselves and are not masked."""
    unheld: tuple[str, ...] = ()
    """Kernels, and packages that name the newest of them, that are not held. All other packages that bring a kernel
    depend on these."""
    clock: str = "unknown"
    """synchronized, waiting (a time service runs), none (no such service), or unknown."""
    dead_man: bool = False
    """Whether the dead-man switch is armed."""
    lingers: bool = True
    """False where logind removes the user's shared memory when his last session ends, whatever services run as him:
    logind.conf(5), RemoveIPC."""


def system_script(setup: Setup) -> str:
    """Return a script that prints one JSON object."""
    return fill(
        "system/facts.sh",
        born=BORN_FILE,
        node=setup.machine_name,
        units=UPDATE_UNITS,
        dead_man_file=HEARD_FILE,
        timer=SWITCH_TIMER,
    )


def system_facts(value: Any) -> dict[str, Any]:
    """Return the field of Facts that this section fills. Raises ValueError, KeyError, TypeError."""
    lists = {name: tuple(map(str, value.get(name, ()))) for name in ("locks", "updaters", "unheld")}
    return {"system": System(**(value | lists))}
