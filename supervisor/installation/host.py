"""This computer: what is there, and carrying out the steps of a plan. Each step is complete, or has not happened."""

from __future__ import annotations

import contextlib
import grp
import ipaddress
import os
import pwd
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import StartError
from supervisor.installation.plan import (
    Account,
    Admit,
    Facts,
    File,
    Folder,
    Found,
    Item,
    Keep,
    Make,
    Replace,
    Step,
)

COMMAND_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Host:
    """The file system below `root`, which stands for "/"."""

    root: Path = Path("/")

    def facts(self, items: Iterable[Item]) -> Facts:
        """Return what there is of `items`. Raises StartError where it cannot be read."""
        users, paths = set(), {}
        for item in items:
            if isinstance(item, Account):
                with contextlib.suppress(KeyError):
                    users.add(pwd.getpwnam(item.name).pw_name)
            elif (found := self._found(item)) is not None:
                paths[item.path] = found
        return Facts(frozenset(users), paths)

    def _found(self, item: Folder | File) -> Found | None:
        path = self._at(item.path)
        try:
            status = path.stat()
            is_folder = stat.S_ISDIR(status.st_mode)
            reads = isinstance(item, File) and not item.seed and not is_folder
            data = path.read_bytes() if reads else None
        except (FileNotFoundError, NotADirectoryError):  # a file where its folder should be is found by itself
            return None
        except OSError as error:
            raise StartError(f"{item.path} cannot be read ({error.strerror}): run this as root") from error
        return Found(stat.S_IMODE(status.st_mode), user_name(status.st_uid), group_name(status.st_gid), is_folder, data)

    def take(self, step: Step) -> None:
        """Carry out one step. Raises StartError."""
        try:
            match step:
                case Keep():
                    pass
                case Make(Account(name, home)):
                    self.run("useradd", "--system", "--user-group", "--home-dir", str(home), *_NO_LOGIN, name)
                case Make(Folder() as folder):
                    self._make_folder(folder)
                case Make(File() as file):
                    self._write(file)
                case Replace(file):
                    path = self._at(file.path)
                    shutil.copy2(path, path.with_name(f"{path.name}.old"))
                    self._write(file)
                case Admit(item):
                    self._admit(self._at(item.path), item)
        except OSError as error:
            raise StartError(f"could not {step}: {error.strerror}; repeat the command to go on") from error

    def run(self, *command: str) -> str:
        """Run a program to its end; what it prints. Raises StartError."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StartError(f"`{' '.join(command)}` did not run ({error}): fix that, and repeat") from error
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())[-500:]
            raise StartError(f"`{' '.join(command)}` failed ({said}): fix that, and repeat")
        return done.stdout

    def succeeds(self, *command: str) -> bool:
        """True if a program ends with status 0."""
        try:
            self.run(*command)
        except StartError:
            return False
        return True

    def own(self, folder: Path, owner: str) -> None:
        """Give what is in a folder to a user."""
        for path in sorted(self._at(folder).iterdir()):
            shutil.chown(path, owner, owner)

    def _at(self, path: Path) -> Path:
        return self.root / path.relative_to("/") if self.root != Path("/") else path

    def _make_folder(self, folder: Folder) -> None:
        path = self._at(folder.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
        self._admit(path, folder)

    def _write(self, file: File) -> None:
        """Write the file so that it appears complete, with its owner and mode: it may be a secret."""
        path = self._at(file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.init")
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
            new.write(file.data)
            new.flush()
            os.fsync(new.fileno())
        self._admit(temporary, file)
        temporary.replace(path)

    def _admit(self, path: Path, item: Folder | File) -> None:
        if (user_name(os.geteuid()), group_name(os.getegid())) != (item.owner, item.group):
            shutil.chown(path, item.owner, item.group)
        path.chmod(item.mode)


_NO_LOGIN = ("--shell", "/usr/sbin/nologin")


def user_name(uid: int) -> str:
    """Return a user's name, or number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """Return a group's name, or number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def listens(port: int) -> bool:
    """True if something on this computer takes connections at a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(2.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def has_address(name: str) -> bool:
    """True if this computer can listen at an address; True for a DNS name."""
    try:
        parsed = ipaddress.ip_address(name)
    except ValueError:
        return True
    with socket.socket(socket.AF_INET6 if parsed.version == 6 else socket.AF_INET) as probe:
        try:
            probe.bind((name, 0))
        except OSError:
            return False
    return True


def guess_address() -> str:
    """This computer's address on its default route, "" without one. Connecting a UDP socket sends nothing; the other
    end is of TEST-NET-1 (RFC 5737)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])
