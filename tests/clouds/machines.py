"""The machines behind a fake cloud: real sshd hosts of a local cloud, or, where only the API matters, paper ones.

A fake cloud passes a launch request's user data to the machine, as a real one does; host key and
authorized key are read from there, as cloud-init would. Machines go by the fake cloud's ids.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import yaml
from pydantic import TypeAdapter

from provisioners.base import InstanceState, Market
from provisioners.localcloud.client import Answer, call
from provisioners.localcloud.machine.spec import Folder
from provisioners.localcloud.models import LOCAL_SMALL, REGION, LaunchBody, NoticeBody, SettingsPatch, View
from tests.support.programs import LocalCloud, free_ports, running_local_cloud

_ZONE = "local-a"
_TIMEOUT_S = 20.0
_VIEWS = TypeAdapter(list[View])


@dataclass(frozen=True, slots=True)
class FirstBoot:
    """The contents of user data."""

    user: str
    authorized_keys: tuple[str, ...]
    host_key_public: str
    host_key_private: str


@dataclass(frozen=True, slots=True)
class Look:
    """A machine's current state. `address` is "" until it has one; `state` is never STOPPING."""

    state: InstanceState
    address: str = ""
    ssh_port: int = 0
    metadata_url: str = ""


class Machines(Protocol):
    """The machines of one fake cloud. Every call may come from any thread; unknown ids are KeyError."""

    def boot(self, machine: str, user_data: str) -> None:
        """Start a machine; returns before it runs. Raises ValueError for invalid user data."""
        ...

    def look(self, machine: str) -> Look:
        """Its current state."""
        ...

    def preempt(self, machine: str, notice_s: float) -> None:
        """Announce the end in its metadata service; the machine ends after `notice_s`."""
        ...

    def end(self, machine: str) -> None:
        """End it now; idempotent."""
        ...

    def console(self, machine: str) -> str:
        """Its console output."""
        ...


def read_user_data(text: str) -> FirstBoot:
    """Read user data as cloud-init does. Raises ValueError where no login would be possible."""
    if not text.startswith("#cloud-config\n"):
        raise ValueError(f"user data begins with {text[:20]!r}, not with #cloud-config")
    config = yaml.load(text, Loader=yaml.CSafeLoader)
    try:
        (user,) = config["users"]
        lines = tuple(user["ssh_authorized_keys"])
        keys = config["ssh_keys"]
        return FirstBoot(user["name"], lines, keys["ed25519_public"], keys["ed25519_private"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"user data gives no access: {error!r}") from error


class RealMachines:
    """Machines with a real sshd, all at `ssh_port` of their own addresses."""

    def __init__(self, cloud: LocalCloud, ssh_port: int) -> None:
        self.ssh_port = ssh_port
        self._cloud = cloud
        self._ids: dict[str, str] = {}

    def boot(self, machine: str, user_data: str) -> None:
        """As the protocol says."""
        boot = read_user_data(user_data)
        body = LaunchBody(
            token=machine,
            cluster="fake",
            key_mark="fake",
            node=machine,
            region=REGION,
            zone=_ZONE,
            instance_type=LOCAL_SMALL.name,
            market=Market.SPOT,  # only these can be preempted, whatever the fake cloud calls them
            host_key_public=boot.host_key_public,
            host_key_private=boot.host_key_private,
            authorized_keys=boot.authorized_keys,
        )
        answer = self._call("POST", "/v1/launch", body.model_dump_json())
        self._ids[machine] = View.model_validate_json(answer.content).id

    def look(self, machine: str) -> Look:
        """As the protocol says."""
        wanted = self._ids[machine]
        views = _VIEWS.validate_json(self._call("GET", "/v1/admin/machines").content)
        view = next(each for each in views if each.id == wanted)
        state = InstanceState.RUNNING if view.state is InstanceState.STOPPING else view.state
        return Look(state, view.ssh_host, view.ssh_port, view.metadata_url)

    def preempt(self, machine: str, notice_s: float) -> None:
        """As the protocol says."""
        body = NoticeBody(notice_s=notice_s).model_dump_json()
        self._call("POST", f"/v1/admin/machines/{self._ids[machine]}/preempt", body)

    def end(self, machine: str) -> None:
        """As the protocol says."""
        self._call("POST", f"/v1/machines/{self._ids[machine]}/terminate")

    def console(self, machine: str) -> str:
        """As the protocol says."""
        log = Folder(self._cloud.directory / "machines" / self._ids[machine]).log
        return log.read_text(errors="replace") if log.exists() else ""

    def reuse_addresses(self) -> None:
        """From now on a new machine gets the address of one that ended."""
        self._set(SettingsPatch(reuse_addresses=True))

    def _set(self, patch: SettingsPatch) -> None:
        self._call("PATCH", "/v1/admin/settings", patch.model_dump_json(exclude_unset=True))

    def _call(self, method: str, path: str, body: str | None = None) -> Answer:
        answer = call(self._cloud.directory, method, path, timeout_s=_TIMEOUT_S, body=body)
        assert answer.status == 200, answer.text
        return answer


@contextmanager
def real_machines(directory: Path, *, launch_delay_s: float = 0.0) -> Iterator[RealMachines]:
    """Machines of a local cloud in `directory`; at the end all are gone, or this fails."""
    (ssh_port,) = free_ports(1)
    with running_local_cloud(directory, launch_delay_s=launch_delay_s) as cloud:
        machines = RealMachines(cloud, ssh_port)
        machines._set(SettingsPatch(ssh_port=ssh_port, capacity={_ZONE: 4096}))
        yield machines


class PaperMachines:
    """Machines that run at once and do nothing, until they end: for thousands of launches."""

    ssh_port = 22

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}
        self._ends_at: dict[str, float] = {}  # by time.monotonic()
        self._lock = threading.Lock()

    def boot(self, machine: str, user_data: str) -> None:
        """As the protocol says."""
        read_user_data(user_data)
        with self._lock:
            number = len(self._looks) + 1
            address = f"127.{64 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
            self._looks[machine] = Look(InstanceState.RUNNING, address, 22)

    def look(self, machine: str) -> Look:
        """As the protocol says."""
        with self._lock:
            look = self._looks[machine]
            ended = machine in self._ends_at and time.monotonic() >= self._ends_at[machine]
            return replace(look, state=InstanceState.TERMINATED) if ended else look

    def preempt(self, machine: str, notice_s: float) -> None:
        """As the protocol says; there is no metadata service."""
        self.look(machine)
        with self._lock:
            self._ends_at[machine] = min(time.monotonic() + notice_s, self._ends_at.get(machine, math.inf))

    def end(self, machine: str) -> None:
        """As the protocol says."""
        self.preempt(machine, 0.0)

    def console(self, machine: str) -> str:
        """As the protocol says."""
        return f"{machine}: a machine on paper\n"


@contextmanager
def machines_for(folder: Path, *, light: bool) -> Iterator[PaperMachines | RealMachines]:
    """Machines on paper, or such as take logins, below `folder`."""
    if light:
        yield PaperMachines()
        return
    with real_machines(folder / "machines") as machines:
        yield machines
