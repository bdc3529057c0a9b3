"""What only root has: small file systems that fill up, and networks of their own for etcd's members, on one bridge.

Each says why it cannot be had here. Machines of the local cloud are not moved into such networks: their addresses are
those of the loopback device.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_TIMEOUT_S = 30.0
_RATE = ("tbf", "rate", "256kbit", "burst", "8kb", "latency", "40ms")


class NotHereError(Exception):
    """This computer cannot do it; says why."""


def run(*command: str) -> str:
    """What it said. Raises NotHereError where it fails."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    program = shutil.which(command[0], path=path)
    if program is None:
        raise NotHereError(f"there is no program {command[0]}")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise NotHereError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A file system of so many MiB at `folder`. Raises NotHereError."""
    if os.geteuid() != 0:
        raise NotHereError("only root can mount a file system")
    folder.mkdir(parents=True)
    run("mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        with contextlib.suppress(NotHereError):
            run("umount", str(folder))
        if os.path.ismount(folder):
            run("umount", "--lazy", str(folder))


class Rooms:
    """Networks, one per member. Use `rooms`. `each`: (namespace, address)."""

    def __init__(self, count: int, tag: str) -> None:
        self._bridge = f"su{tag}"
        self._net = f"10.213.{os.getpid() % 250}"
        self.each = [(f"su{tag}-{n}", f"{self._net}.{n + 2}") for n in range(count)]
        self._made: list[tuple[str, ...]] = []

    def open(self) -> None:
        """Raises NotHereError."""
        if os.geteuid() != 0:
            raise NotHereError("only root has networks of its own")
        self._do(("ip", "link", "add", self._bridge, "type", "bridge"), ("ip", "link", "del", self._bridge))
        run("ip", "addr", "add", f"{self._net}.1/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")
        for number, (name, address) in enumerate(self.each):
            self._do(("ip", "netns", "add", name), ("ip", "netns", "del", name))
            cable = self._cable(number)
            run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", cable, "master", self._bridge, "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", name, "link", "set", device, "up")

    def cut(self, number: int) -> None:
        """Nothing comes through to a member any more, nor from it; nobody is told."""
        run("ip", "link", "set", self._cable(number), "nomaster")

    def narrow(self, number: int) -> None:
        """Little comes through, late, and what is too much is lost, in both directions."""
        run("tc", "qdisc", "add", "dev", self._cable(number), "root", *_RATE)
        run("tc", "-n", self.each[number][0], "qdisc", "add", "dev", "eth0", "root", *_RATE)

    def mend(self, number: int) -> None:
        """As it was."""
        run("ip", "link", "set", self._cable(number), "master", self._bridge)
        for where in (("tc",), ("tc", "-n", self.each[number][0])):
            device = self._cable(number) if where == ("tc",) else "eth0"
            with contextlib.suppress(NotHereError):
                run(*where, "qdisc", "del", "dev", device, "root")

    def close(self) -> None:
        """Nothing is left."""
        for undo in reversed(self._made):
            with contextlib.suppress(NotHereError):
                run(*undo)
        self._made.clear()

    def _cable(self, number: int) -> str:
        return f"{self._bridge}{number}"

    def _do(self, command: Sequence[str], undo: tuple[str, ...]) -> None:
        run(*command)
        self._made.append(undo)


@contextmanager
def rooms(count: int, tag: str) -> Iterator[Rooms]:
    """Networks for `count` members; `tag`: a few letters, to tell them from others'. Raises NotHereError."""
    made = Rooms(count, tag)
    try:
        made.open()
        yield made
    finally:
        made.close()
