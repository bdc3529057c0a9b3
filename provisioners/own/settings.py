"""The [own] section of the configuration: machines that you already have."""

from __future__ import annotations

import math
import os
import pwd
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from provisioners.own.hours import available_for, parse_hours
from provisioners.settings import Name, Reach, Section

HostName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
User = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_.-]{0,31})?$")]
_GPUS = re.compile(r"\d{1,2}(-\d{1,2})?(,\d{1,2}(-\d{1,2})?)*")


def host_named(text: str) -> tuple[str, dict[str, str | int]]:
    """Return a host's name and table from `USER@HOST:PORT`, of which the user and the port may be missing. Raises
    ValueError."""
    found = re.fullmatch(r"((?P<user>[^@]+)@)?(?P<host>[^@:\s]+|\[[0-9a-fA-F:]+\])(:(?P<port>\d{1,5}))?", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no host: write USER@HOST or USER@HOST:PORT")
    address = found["host"].strip("[]")
    is_number = ":" in address or address.replace(".", "").isdigit()
    name = re.sub(r"[^a-z0-9]+", "-", (address if is_number else address.partition(".")[0]).lower()).strip("-")
    table: dict[str, str | int] = {"address": address}
    table |= {"user": found["user"]} if found["user"] else {}
    table |= {"port": int(found["port"])} if found["port"] else {}
    return (name if name[:1].isalpha() else f"host-{name}")[:31], table


class OwnHost(BaseModel):
    """One host, or some of its GPUs."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    address: Name
    """Its name or address, as the daemon reaches it by SSH."""
    user: User = ""
    """The user to log in as, and to train as. Empty: the daemon's own user."""
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    """The TCP port of its SSH server."""
    key_file: str = ""
    """File with the private key to log in with. Empty: the SSH agent and the keys in `~/.ssh` of the daemon's user."""
    private_address: str = ""
    """Its address in the network that the hosts share, where that is another one."""
    gpus: Annotated[str, StringConstraints(pattern=rf"^({_GPUS.pattern})?$")] = ""
    """Which of its GPUs, such as `0-3`, by nvidia-smi's numbers; one host may have several entries. Empty: all."""
    available: str = ""
    """When it may be used, in the daemon's local time, such as `18:00-08:00, weekends` or `mon-fri 20:00-07:00`. Ten
    minutes before the end its node gets a notice. Empty: always."""
    usd_per_hour: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """What an hour counts as in reports, budgets and limits."""

    @field_validator("available")
    @classmethod
    def _readable(cls, value: str) -> str:
        parse_hours(value)
        return value

    @field_validator("gpus")
    @classmethod
    def _some(cls, value: str) -> str:
        for part in filter(None, value.split(",")):
            if not _numbers(part):
                raise ValueError(f"{part} names no GPU: write the smaller number first, such as `0-3`")
        return value

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """Return the numbers of its GPUs; None for all."""
        return _numbers(self.gpus) if self.gpus else None

    def until(self, now: float) -> float | None:
        """Return when it may be used no more (UNIX seconds; infinity for never); None where it may not be now."""
        here = datetime.fromtimestamp(now)  # noqa: DTZ006 - local time
        found = available_for(parse_hours(self.available), here)
        if found is None:
            return None
        return math.inf if found == timedelta.max else (here + found).timestamp()  # the clock may be set meanwhile


class OwnSettings(Section):
    """Machines that you already have: hosts that are reached by SSH. They are claimed for a node and given back clean,
    never rebooted, and nothing is installed on them outside of one folder of the user's home."""

    hosts: Annotated[dict[HostName, OwnHost], Field(min_length=1, max_length=256)]
    """The hosts, by the names that job files and tables have for them: `[own.hosts.NAME]`."""
    known_hosts: str = ""
    """File with the hosts' SSH keys, as `ssh-keyscan` prints them. Empty: `~/.ssh/known_hosts` of the daemon's user,
    and `/etc/ssh/ssh_known_hosts`."""
    folder: Annotated[str, StringConstraints(pattern=r"^(~/|/)[A-Za-z0-9._/+-]+$")] = "~/.spotsup-own"
    """The folder on each host that all of spotsup is in."""
    python: Name = "python3"
    """The interpreter on the hosts that claims them: Python 3.9 or newer."""
    shared: Annotated[str, StringConstraints(pattern=r"^(/.*)?$")] = ""
    """A folder that all hosts have in common, such as one on NFS: checkpoints of jobs that name no other place go
    there. Empty: such jobs are refused."""
    ports: Annotated[str, StringConstraints(pattern=r"^(\d{1,5}-\d{1,5})?$")] = ""
    """TCP ports of the hosts at which the daemon logs in to claimed nodes, such as `2200-2299`; a firewall has to let
    it in. Empty: any free port."""
    reach: Reach = "ssh"
    """How nodes reach etcd: `ssh`, through the daemon's SSH connection to a node, or `direct` over the network."""

    @classmethod
    def written(cls, section: Mapping[str, Any]) -> dict[str, Any]:
        """As `Section` says: hosts in a list, each as `USER@HOST:PORT`, become tables."""
        hosts = section.get("hosts")
        if not isinstance(hosts, str):
            return dict(section)
        named = [host_named(each) for each in hosts.split(",") if each.strip()]
        tables = {name: {"user": _this_user(), **table} for name, table in named}
        if len(tables) < len(named):
            raise ValueError(f"{hosts} would give two hosts one name: take one, and `spotsupd machine add` the others")
        return {**section, "hosts": tables}

    @field_validator("ports")
    @classmethod
    def _a_range(cls, value: str) -> str:
        first, _, last = value.partition("-")
        if value and not 1 <= int(first) <= int(last) <= 65535:
            raise ValueError(f"{value} is no range of ports: write `2200-2299`")
        return value

    @model_validator(mode="after")
    def _apart(self) -> OwnSettings:
        """Two entries of one host have to have different GPUs."""
        seen: dict[tuple[str, int], dict[int | None, str]] = {}
        for name, host in self.hosts.items():
            taken = seen.setdefault((host.address, host.port), {})
            numbers: tuple[int | None, ...] = (None,) if host.numbers is None else host.numbers
            for number in numbers:
                other = taken.get(number) or taken.get(None) or (number is None and next(iter(taken.values()), ""))
                if other:
                    raise ValueError(f"{name} and {other} share GPUs of {host.address}: give each `gpus` of its own")
                taken[number] = name
        return self

    @property
    def port_range(self) -> tuple[int, int] | None:
        """Return the first and the last of `ports`; None for any."""
        first, _, last = self.ports.partition("-")
        return (int(first), int(last)) if self.ports else None

    @property
    def login_user(self) -> str:
        """As `Section` says, for hosts that name none."""
        return _this_user()

    def user_in(self, region: str) -> str:
        """As `Section` says: each host is a region."""
        host = self.hosts.get(region)
        return host.user if host and host.user else self.login_user

    @property
    def shares_folder(self) -> bool:
        """As `Section` says."""
        return bool(self.shared)

    def shared_folder(self, state: Path) -> Path:
        """As `Section` says."""
        return Path(self.shared) if self.shared else super().shared_folder(state)

    @property
    def etcd_by_ssh(self) -> bool:
        """As `Section` says."""
        return self.reach == "ssh"

    @property
    def away(self) -> bool:
        """As `Section` says. Hosts that are all at this computer's loopback are those of a test."""
        return not all(each.address.startswith("127.") for each in self.hosts.values())


def _this_user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _numbers(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
