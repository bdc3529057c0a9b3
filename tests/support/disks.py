"""Disks that are full, refuse, or hang. Where it takes a file system of its own, root mounts one on a loop device."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

_SIZE_MIB = 16
_FILLS = 100


class Fault(Protocol):
    """Something wrong with a disk."""

    def inject(self) -> None:
        """Let it happen. Call it again and again, until it is seen."""

    def repair(self) -> None:
        """End it. Nothing happens where it has not struck."""


class Full:
    """Not a byte is left on a file system."""

    def __init__(self, disk: Path) -> None:
        self._disk, self._ballast = disk, disk / "ballast"

    def inject(self) -> None:
        """See Fault."""
        for _ in range(_FILLS):
            with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
                for size in (2**16, 2**10, 1):
                    with contextlib.suppress(OSError):
                        while file.write(bytes(size)) == size:
                            pass
            # what is half written now will be removed, and leave room
            if not any(self._disk.rglob("*.tmp")):
                return
            time.sleep(0.01)

    def repair(self) -> None:
        """See Fault."""
        self._ballast.unlink(missing_ok=True)


class ReadOnly:
    """A file system that is mounted so, as kernels do it when a disk fails."""

    def __init__(self, disk: Path) -> None:
        self._disk, self._struck = disk, False

    def inject(self) -> None:
        """See Fault. The kernel refuses while a file is open for writing."""
        self._struck = self._struck or attempt("mount", "-o", "remount,ro", str(self._disk)).returncode == 0

    def repair(self) -> None:
        """See Fault."""
        if self._struck:
            assert attempt("mount", "-o", "remount,rw", str(self._disk)).returncode == 0


class Frozen:
    """A file system on which every write blocks, and a blocked process cannot be killed."""

    def __init__(self, disk: Path) -> None:
        self._disk, self._struck = disk, False

    def inject(self) -> None:
        """See Fault."""
        if not self._struck:
            done = attempt("fsfreeze", "--freeze", str(self._disk))
            assert done.returncode == 0, done.stderr
            self._struck = True

    def repair(self) -> None:
        """See Fault."""
        if self._struck:
            self._struck = False
            assert attempt("fsfreeze", "--unfreeze", str(self._disk)).returncode == 0


class HangingFile:
    """A file whose readers hang until it is repaired. Needs no root."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: bytes | None = None

    def inject(self) -> None:
        """See Fault."""
        if self._content is None and self._path.exists():
            pipe = self._path.with_name("pipe")
            os.mkfifo(pipe)
            self._content = self._path.read_bytes()
            pipe.replace(self._path)

    def repair(self) -> None:
        """See Fault."""
        if self._content is None:
            return
        pipe = os.open(self._path, os.O_RDWR)  # unlike others, this does not wait
        whole = self._path.with_name("whole")
        whole.write_bytes(self._content)
        whole.replace(self._path)
        os.write(pipe, self._content)
        os.close(pipe)
        self._content = None


@contextmanager
def file_system(folder: Path) -> Iterator[Path]:
    """An ext4 of its own below `folder`. Skips the test where that cannot be had."""
    image, disk = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate(_SIZE_MIB * 2**20)
    make = ("mkfs.ext4", "-q", "-m", "0", str(image))
    with _mounted(disk, make, ("mount", "-o", "loop", str(image), str(disk))):
        yield disk


@contextmanager
def memory(folder: Path, size_mib: int) -> Iterator[Path]:
    """As `file_system`, in memory: fast, and neither fails nor hangs."""
    disk = folder / "disk"
    with _mounted(disk, ("mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=700", "tmpfs", str(disk))):
        yield disk


@contextmanager
def _mounted(disk: Path, *commands: tuple[str, ...]) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    disk.mkdir(parents=True)
    for command in commands:
        done = attempt(*command)
        if done.returncode != 0:
            pytest.skip(f"no file system of its own can be had here: {command[0]}: {done.stderr.strip()}")
    try:
        yield
    finally:
        done = attempt("umount", str(disk))
        if done.returncode != 0:
            attempt("umount", "--lazy", str(disk))
        assert done.returncode == 0, done.stderr


def attempt(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the system, if it is installed."""
    path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        return subprocess.CompletedProcess([program], errno.ENOENT, "", f"{program} is not installed")
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, check=False)
