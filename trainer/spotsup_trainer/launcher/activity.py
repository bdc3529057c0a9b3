"""Whether processes work: they use a processor, read, write, send or receive, or wait in the kernel for a disk.

A rank that writes a large file to a throttled file server uses 3 % of a processor; one that uploads it from another
thread writes nothing to a file. Only one that does none of this stands still.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from spotsup_trainer.launcher import processes

# Less is what idle programs do: a monitor that looks at its store, a progress bar.
IDLE_SHARE = 0.05  # of one processor
IDLE_BYTES_PER_S = 4096.0
SAMPLE_S = 5.0

# netlink's sock_diag: <linux/sock_diag.h>, <linux/inet_diag.h>, struct tcp_info of <linux/tcp.h>.
_SOCK_DIAG = 4
_BY_FAMILY, _DUMP, _DONE, _ERROR = 20, 0x301, 3, 2
_TCP_INFO = 2
_ALL_STATES = 0xFFFFFFFF
_INODE_AT, _ATTRIBUTES_AT = 68, 72  # behind the start of struct inet_diag_msg
_BYTES_AT = 120  # tcpi_bytes_acked and tcpi_bytes_received, since Linux 4.1
_NETLINK_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Sample:
    """What processes have used so far, and whether one of them waits in the kernel now."""

    processor_s: float
    bytes_moved: int
    in_kernel: bool


class Idleness:
    """Since when workers stand still, each with its whole process group. Times are monotonic."""

    def __init__(self, pids: Collection[int], now: float) -> None:
        self._pids = pids
        self._at, self._last = now, sample(pids)
        # Since when none of them has worked; None while one does.
        self.since: float | None = None

    def update(self, now: float) -> None:
        """Compare with the last sample, once that is a few seconds old."""
        if now < self._at + SAMPLE_S:
            return
        found = sample(self._pids)
        began = self._at if self.since is None else self.since
        self.since = None if works(self._last, found, now - self._at) else began
        self._at, self._last = now, found


def works(before: Sample, after: Sample, passed_s: float) -> bool:
    """Return whether processes worked between two samples. A child that has ended takes what it used along."""
    processor_s = abs(after.processor_s - before.processor_s)
    moved = abs(after.bytes_moved - before.bytes_moved)
    return after.in_kernel or processor_s >= IDLE_SHARE * passed_s or moved >= IDLE_BYTES_PER_S * passed_s


def sample(groups: Collection[int]) -> Sample:
    """Return what the living processes of these groups have used. What cannot be read counts as nothing."""
    processor_s, moved, in_kernel, inodes = 0.0, 0, False, set[int]()
    for pid, process in processes.snapshot().items():
        if process.group in groups:
            processor_s += process.processor_s
            in_kernel |= process.state == "D"
            try:
                moved += _file_bytes(Path(f"/proc/{pid}"))
                inodes |= _sockets(Path(f"/proc/{pid}"))
            except OSError:
                continue  # it has ended
    return Sample(processor_s, moved + _network_bytes(inodes), in_kernel)


def _file_bytes(folder: Path) -> int:
    found = re.findall(r"^[rw]char: (\d+)$", (folder / "io").read_text(), re.MULTILINE)
    return sum(map(int, found))


def _sockets(folder: Path) -> set[int]:
    links = []
    for descriptor in (folder / "fd").iterdir():
        try:
            links.append(str(descriptor.readlink()))
        except OSError:
            continue  # closed meanwhile
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def _network_bytes(inodes: Collection[int]) -> int:
    """Return the bytes that these TCP sockets have sent and received: what read(2) does not do, /proc/PID/io lacks."""
    if not inodes:
        return 0
    total = 0
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            total += sum(moved for inode, moved in _tcp_sockets(family) if inode in inodes)
        except OSError:
            continue  # a kernel, or a sandbox, without it
    return total


def _tcp_sockets(family: int) -> Iterable[tuple[int, int]]:
    """Yield the inode of each TCP socket and its bytes. Raises OSError."""
    query = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), _ALL_STATES)
    header = struct.pack("=IHHII", 16 + len(query), _BY_FAMILY, _DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(_NETLINK_TIMEOUT_S)
        netlink.sendto(header + query, (0, 0))
        while True:
            data = netlink.recv(1 << 18)
            while len(data) >= 16:
                length, kind = struct.unpack_from("=IH", data)
                if kind == _DONE:
                    return
                if kind == _ERROR or length < 16:
                    raise OSError("netlink refuses")
                yield _socket_of(data[16:length])
                data = data[(length + 3) & ~3 :]


def _socket_of(message: bytes) -> tuple[int, int]:
    (inode,) = struct.unpack_from("=I", message, _INODE_AT)
    at = _ATTRIBUTES_AT
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _TCP_INFO and length >= 4 + _BYTES_AT + 16:
            acked, received = struct.unpack_from("=QQ", message, at + 4 + _BYTES_AT)
            return inode, acked + received
        at += max(4, (length + 3) & ~3)
    return inode, 0
