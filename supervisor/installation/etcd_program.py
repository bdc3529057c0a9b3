"""An etcd that a person has fetched: whether it keeps to its users, whether it may follow the one that runs, and where
it is put. Distributions bring versions whose users can be passed by (docs/decisions/0036-an-etcd-that-is-closed.md)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.errors import StartError, UsageError
from supervisor.installation.layout import ETCD_PROGRAM
from supervisor.journal.users import SAFE_VERSIONS

MAX_BYTES = 256 << 20  # etcd 3.6 has 25 MB
_VERSION_S = 10.0
_NOBODY = 65534
_VERSION = re.compile(r"^etcd Version: (\d+)\.(\d+)\.(\d+)(\S*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Of etcd."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @staticmethod
    def of(text: str) -> Version | None:
        """From `3.5.33`, or `3.5.33+ds1` of a distribution; None for anything else."""
        found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:[+-]\S*)?", text)
        return Version(*map(int, found.groups())) if found else None

    @property
    def keeps_users(self) -> bool:
        """Whether no way around its users is known."""
        first = _first_safe().get((self.major, self.minor))
        return self >= (first or max(_first_safe().values()))


def _first_safe() -> dict[tuple[int, int], Version]:
    """The first version of each minor one without a known way around its users."""
    found = (Version(*map(int, each.split("."))) for each in SAFE_VERSIONS.split(", "))
    return {(each.major, each.minor): each for each in found}


@dataclass(frozen=True, slots=True)
class Program:
    """A program that was looked at."""

    version: Version
    data: bytes = field(repr=False)


def refusal(new: Version, running: Version | None) -> str:
    """Why etcd may not become `new`, "" if it may. `running`: the version that its data are of, None without data."""
    if not new.keeps_users:
        return f"users of etcd {new} can be passed by: take {SAFE_VERSIONS} or newer of each"
    if running is None:
        return ""
    if (new.major, new.minor) < (running.major, running.minor):
        return f"etcd {running} runs here, and etcd cannot go back to {new}"
    # "Upgrade etcd", etcd.io: only from one minor version to the next, and back to none.
    if (new.major, new.minor) > (running.major, running.minor + 1):
        step = _first_safe().get((running.major, running.minor + 1), f"{running.major}.{running.minor + 1}")
        return f"etcd {running} runs here, and goes to {new} by way of {step}: take that one first, on all hosts"
    return ""


def too_old(new: Version, others: Sequence[Version]) -> str:
    """Why etcd of a version cannot join others, "" if it can: a cluster is of the oldest minor version in it, and never
    goes back."""
    oldest = min(others, default=new)
    if (new.major, new.minor) >= (oldest.major, oldest.minor):
        return ""
    return f"etcd here is {new}, and the other hosts' is {oldest}: give --etcd the same release as there"


def inspect(path: Path, folder: Path = ETCD_PROGRAM.parent) -> Program:
    """The program in a file: a release's archive, or the program itself. It is asked for its version, as a user without
    rights, in `folder`. Raises UsageError, StartError."""
    data = _content(path)
    trial, is_new = folder / ".etcd.new", not folder.exists()
    try:
        _make(folder)
        _write(trial, data)
        said = _said(trial, path)
    except OSError as error:
        raise StartError(f"{path} cannot be tried in {folder}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()
            if is_new:
                folder.rmdir()
    return Program(_version(said, path), data)


def version_of_program(path: Path) -> Version:
    """Of a program that is in its place. Raises UsageError."""
    return _version(_said(path, path), path)


def install(program: Program, path: Path = ETCD_PROGRAM) -> None:
    """Put it in its place, complete or not at all; the one before stays as `etcd.old`. Raises StartError."""
    try:
        _make(path.parent)
        new = path.with_name(".etcd.new")
        _write(new, program.data)
        if path.exists():
            old = path.with_name(f"{path.name}.old")
            old.unlink(missing_ok=True)
            os.link(path, old)
        new.replace(path)
    except OSError as error:
        raise StartError(f"etcd cannot be put at {path}: {error.strerror}") from error


def _version(said: str, path: Path) -> Version:
    found = _VERSION.search(said)
    version = Version.of(".".join(found.group(1, 2, 3))) if found else None
    if found is None or version is None:
        raise UsageError(f"{path} is no etcd: asked for its version, it says {said[:100]!r}")
    if found[4].startswith("-"):
        raise UsageError(f"{path} is etcd {version}{found[4]}, which is no release: take {SAFE_VERSIONS} or newer")
    return version


def _content(path: Path) -> bytes:
    try:
        if not tarfile.is_tarfile(path):
            with path.open("rb") as file:
                return file.read(MAX_BYTES)
        with tarfile.open(path) as archive:
            for each in archive:
                if each.isreg() and Path(each.name).name == "etcd" and (file_ := archive.extractfile(each)):
                    return file_.read(MAX_BYTES)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UsageError(f"--etcd {path} cannot be read: {getattr(error, 'strerror', '') or error}") from error
    raise UsageError(f"--etcd {path}: there is no program etcd in this archive")


def _make(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o755)  # whatever the umask is


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o755)


def _said(program: Path, given: Path) -> str:
    root = os.geteuid() == 0
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_S,
            check=False,
            env={},
            cwd="/",
            user=_NOBODY if root else None,
            group=_NOBODY if root else None,
            extra_groups=[] if root else None,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", "") or "it does not end"
        raise UsageError(f"{given} does not run on this computer ({why}): is it for another processor?") from error
    return done.stdout.strip() or done.stderr.strip()
