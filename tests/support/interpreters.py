"""The interpreters that nodes may bring, as far as this computer has them: on the PATH, or pyenv's."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

INTERPRETERS = ("3.9", "3.10", "3.11", "3.12", "3.13")
# For tests that take a second each: those between are for `make ci`.
OLDEST_AND_NEWEST_FIRST = [
    pytest.param(version, marks=[] if version in {INTERPRETERS[0], INTERPRETERS[-1]} else [pytest.mark.long])
    for version in INTERPRETERS
]


def interpreter(version: str) -> Path:
    """The newest of a version such as "3.9"; skips the test where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python"))
    if found:
        return found[-1]
    on_path = shutil.which(f"python{version}")
    if on_path is None or _is_shim(on_path):
        pytest.skip(f"there is no python{version} on this computer")
    return Path(on_path)


def _is_shim(path: str) -> bool:
    """pyenv has one for every version that any of its interpreters has, and it may not run."""
    return "shims" in Path(path).parts


def relocatable(python: Path, folder: Path) -> Path:
    """A copy of an interpreter's own program that finds its library beside it, wherever its tree lies.

    One that was built with a shared library, as pyenv's are here, names the folder of its build.
    """
    program = python.resolve()
    data = program.read_bytes()
    built_for = str(program.parent.parent / "lib").encode() + b"\0"
    found = data.count(built_for)
    if found:  # in place: no offset may change
        data = data.replace(built_for, b"$ORIGIN/../lib".ljust(len(built_for), b"\0"))
    copy = folder / program.name
    copy.write_bytes(data)
    copy.chmod(0o755)
    return copy


def archive_of(python: Path, path: Path) -> None:
    """A .tar.gz of an interpreter as python-build-standalone publishes them ("install only"), for uv to install."""
    prefix = python.resolve().parent.parent

    def kept(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(info.name).parts
        unwanted = {"__pycache__", "test", "idlelib", "ensurepip", "site-packages"} & set(parts)
        if unwanted or any(part.startswith("config-") for part in parts) or info.name.endswith(".a"):
            return None
        info.uid = info.gid = 0
        return info

    with tempfile.TemporaryDirectory() as scratch, tarfile.open(path, "w:gz", compresslevel=1) as tar:
        program = relocatable(python, Path(scratch))
        tar.add(program, f"python/bin/{program.name}", filter=kept)
        for name in ("python", "python3"):
            link = tarfile.TarInfo(f"python/bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, program.name
            tar.addfile(link)
        tar.add(prefix / "lib", "python/lib", filter=kept)
        tar.add(prefix / "include", "python/include", filter=kept)


def list_of(version: str, url: str, archive: Path) -> str:
    """The list of interpreters that uv reads with UV_PYTHON_DOWNLOADS_JSON_URL: this one alone, at `url`.

    uv's own list names checksums of python-build-standalone's archives, so a mirror of other archives needs its own.
    """
    major, minor, patch = (int(part) for part in version.split("."))
    machine = platform.machine()
    entry = {
        "name": "cpython",
        "arch": {"family": machine, "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": url,
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "variant": None,
        "build": "20260101",
    }
    return json.dumps({f"cpython-{version}-linux-{machine}-gnu": entry})
