"""The files in a machine's folder through which the cloud and the machine talk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

MARKER_VARIABLE = "SPOTSUP_MACHINE"
"""Every process of a machine carries this in its environment: how the cloud finds what left the process tree."""

EXIT_ALREADY_RUNNING = 75

_SPEC = "machine.json"
_REPORT = "init.json"
_PREEMPTION = "preemption.json"


class Spec(NamedTuple):
    """What the cloud decided about a machine before it exists. Programs are absolute paths, "" where not needed;
    `ssh_port` is 0 for any port. `image`: the folder of a machine image where it is a virtual machine, else "".
    """

    id: str
    zone: str
    instance_type: str
    address: str
    sshd: str
    sshd_version: tuple[int, int]
    sftp_server: str
    libraries: str = ""
    sshd_session: str = ""
    sshd_auth: str = ""
    ssh_port: int = 0
    image: str = ""


class Report(NamedTuple):
    """The machine's report once its sshd answers, or why it never will (`error`).

    `started` is the init's start time in clock ticks since boot: with the pid it names one process for ever.
    """

    pid: int
    started: int
    ssh_port: int = 0
    metadata_port: int = 0
    error: str = ""


class Folder(NamedTuple):
    """A machine's folder."""

    path: Path

    @property
    def home(self) -> Path:
        """Return the HOME of those who log in."""
        return self.path / "home"

    @property
    def host_key(self) -> Path:
        """Return the private host key."""
        return self.path / "host_key"

    @property
    def authorized_keys(self) -> Path:
        """Return who may log in."""
        return self.path / "authorized_keys"

    @property
    def seed(self) -> Path:
        """Return what cloud-init finds in a virtual machine (NoCloud): user-data, meta-data."""
        return self.path / "seed"

    @property
    def log(self) -> Path:
        """Return the log of init and sshd."""
        return self.path / "machine.log"

    def write_seed(self, machine: str, user_data: str) -> None:
        """Write it by the cloud, before a virtual machine starts. Holds the host key, as user data does everywhere."""
        self.seed.mkdir(mode=0o700)
        (self.seed / "user-data").write_text(user_data, encoding="utf-8")
        meta_data = {"instance-id": machine, "local-hostname": machine}
        (self.seed / "meta-data").write_text(json.dumps(meta_data), encoding="utf-8")

    def write_spec(self, spec: Spec) -> None:
        """Write it by the cloud, before the machine starts."""
        write_json(self.path / _SPEC, spec._asdict())

    def read_spec(self) -> Spec:
        """Read it by the machine, once."""
        values = read_json(self.path / _SPEC)
        if values is None:
            raise FileNotFoundError(f"{self.path / _SPEC} is not there")
        values["sshd_version"] = tuple(values["sshd_version"])
        return Spec(**values)

    def write_report(self, report: Report) -> None:
        """Write it by the machine, once."""
        write_json(self.path / _REPORT, report._asdict())

    def read_report(self) -> Report | None:
        """Read it by the cloud; None while the machine boots."""
        values = read_json(self.path / _REPORT)
        return None if values is None else Report(**values)

    def write_preemption(self, deadline: float) -> None:
        """Written by the cloud; SIGUSR1 makes the machine read it. `deadline` in UNIX seconds."""
        write_json(self.path / _PREEMPTION, {"deadline": deadline})

    def remove_preemption(self) -> None:
        """Written by the cloud to withdraw a preemption; SIGUSR1 makes the machine read it."""
        (self.path / _PREEMPTION).unlink(missing_ok=True)

    def read_preemption(self) -> float | None:
        """Read it by the machine: the deadline, None where no preemption is announced."""
        values = read_json(self.path / _PREEMPTION)
        return None if values is None else float(values["deadline"])


def write_json(path: Path, value: object, *, durable: bool = False) -> None:
    """Replace `path` at once: a reader sees the old or the new, a crash leaves one of them.

    `durable`: also a crash of the whole computer. No machine outlives that, but what is noted of it may have to.
    """
    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    with scratch.open("w", encoding="utf-8") as file:
        json.dump(value, file, sort_keys=True)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    scratch.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in `path`; None where there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise TypeError(f"{path} holds {type(parsed).__name__}, expected an object")
    return parsed
