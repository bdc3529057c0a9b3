"""A network namespace per etcd member, all on one bridge: needs root.

Machines of the local cloud stay outside of it: their addresses are those of the loopback device.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.disks import attempt

_RATE = ("tbf", "rate", "256kbit", "burst", "8kb", "latency", "40ms")


class UnavailableError(Exception):
    """This computer cannot do it, and why."""


def run(*command: str) -> str:
    """Run a command; returns its output. Raises UnavailableError if it fails."""
    done = attempt(*command)
    if done.returncode:
        raise UnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Networks:
    """Network namespaces, one per member; see `networks`. `each`: (namespace, address)."""

    def __init__(self, count: int, tag: str) -> None:
        self._bridge = f"su{tag}"
        self._net = f"10.213.{os.getpid() % 250}"
        self.each = [(f"su{tag}-{n}", f"{self._net}.{n + 2}") for n in range(count)]
        self._made: list[tuple[str, ...]] = []

    def open(self) -> None:
        """Raises UnavailableError."""
        if os.geteuid() != 0:
            raise UnavailableError("only root can make network namespaces")
        self._do(("ip", "link", "add", self._bridge, "type", "bridge"), ("ip", "link", "del", self._bridge))
        run("ip", "addr", "add", f"{self._net}.1/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")
        for number, (name, address) in enumerate(self.each):
            self._do(("ip", "netns", "add", name), ("ip", "netns", "del", name))
            device = self._device(number)
            run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", device, "master", self._bridge, "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", name, "link", "set", device, "up")

    def cut(self, number: int) -> None:
        """Drop everything to and from a member, silently."""
        run("ip", "link", "set", self._device(number), "nomaster")

    def narrow(self, number: int) -> None:
        """Limit the rate in both directions: packets are late, and some are lost."""
        run("tc", "qdisc", "add", "dev", self._device(number), "root", *_RATE)
        run("tc", "-n", self.each[number][0], "qdisc", "add", "dev", "eth0", "root", *_RATE)

    def repair(self, number: int) -> None:
        """Undo `cut` and `narrow`."""
        run("ip", "link", "set", self._device(number), "master", self._bridge)
        for where in (("tc",), ("tc", "-n", self.each[number][0])):
            device = self._device(number) if where == ("tc",) else "eth0"
            with contextlib.suppress(UnavailableError):
                run(*where, "qdisc", "del", "dev", device, "root")

    def close(self) -> None:
        """Remove everything that `open` made."""
        for undo in reversed(self._made):
            with contextlib.suppress(UnavailableError):
                run(*undo)
        self._made.clear()

    def _device(self, number: int) -> str:
        return f"{self._bridge}{number}"

    def _do(self, command: Sequence[str], undo: tuple[str, ...]) -> None:
        run(*command)
        self._made.append(undo)


@contextmanager
def networks(count: int, tag: str) -> Iterator[Networks]:
    """Network namespaces for `count` members; `tag` makes their names unique. Raises UnavailableError."""
    made = Networks(count, tag)
    try:
        made.open()
        yield made
    finally:
        made.close()
