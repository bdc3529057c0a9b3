"""The machine's CPU, memory, disks and network for Prometheus, where no node_exporter has them: at its port, under its
names, from /proc. Of its many metrics these are the ones that say what a training job lacks.

Network file systems are not asked how full they are: a server that does not answer would hold the page up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import TCPServer

from spotsup_trainer.agent.exporter import Sample, family, serve

PORT = 9100
"""node_exporter's own default."""

_CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own are
_MAX_DEVICES = 256
_SKIPPED_DISKS = ("loop", "ram", "zram", "sr", "fd")


def start_host_metrics(address: str) -> None:
    """Serve them until the process ends, on its own daemon thread."""
    threading.Thread(target=serve_host_metrics, args=(address,), name="host-metrics", daemon=True).start()


def serve_host_metrics(
    address: str, *, port: int = PORT, proc: Path = Path("/proc"), ready: Callable[[TCPServer], None] = lambda _: None
) -> None:
    """Serve them until `shutdown` of the server that `ready` gets. Returns at once without a free port."""
    serve("machine's", address, port, lambda: exposition(proc), ready)


def exposition(proc: Path = Path("/proc")) -> str:
    """Prometheus' text format 0.0.4. What cannot be read is left out."""
    parts = (_cpus, _memory, _disks, _filesystems, _network)
    return "".join(f"{line}\n" for part in parts for line in part(proc))


def _read(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _cpus(proc: Path) -> Iterator[str]:
    ticks = os.sysconf("SC_CLK_TCK")
    samples, booted = [], []
    for line in _read(proc / "stat"):
        name, *rest = line.split()
        if name.startswith("cpu") and name != "cpu":
            for mode, value in zip(_CPU_MODES, rest):
                samples.append(Sample({"cpu": name[3:], "mode": mode}, int(value) / ticks))
        elif name == "btime":
            booted.append(Sample({}, int(rest[0])))
    yield from family("node_cpu_seconds_total", "counter", "Seconds the CPUs spent in each mode.", samples)
    yield from family("node_boot_time_seconds", "gauge", "Node boot time, in unixtime.", booted)
    yield from family("node_time_seconds", "gauge", "System time in seconds since epoch.", [Sample({}, time.time())])
    load = next(iter(_read(proc / "loadavg")), "").split()
    for minutes, value in zip((1, 5, 15), load):
        yield from family(f"node_load{minutes}", "gauge", f"{minutes}m load average.", [Sample({}, float(value))])


def _memory(proc: Path) -> Iterator[str]:
    for line in _read(proc / "meminfo"):
        name, _, rest = line.partition(":")
        value, _, unit = rest.strip().partition(" ")
        if unit != "kB" or not value.isdecimal():
            continue
        name = name.replace("(", "_").replace(")", "")
        what = f"Memory information field {name}_bytes."
        yield from family(f"node_memory_{name}_bytes", "gauge", what, [Sample({}, int(value) * 1024)])


def _disks(proc: Path) -> Iterator[str]:
    read, written, busy = [], [], []
    for line in _read(proc / "diskstats")[:_MAX_DEVICES]:
        fields = line.split()
        if len(fields) < 13 or fields[2].startswith(_SKIPPED_DISKS):
            continue
        device = {"device": fields[2]}
        read.append(Sample(device, int(fields[5]) * _SECTOR_BYTES))
        written.append(Sample(device, int(fields[9]) * _SECTOR_BYTES))
        busy.append(Sample(device, int(fields[12]) / 1000))
    yield from family("node_disk_read_bytes_total", "counter", "Bytes read from the disk.", read)
    yield from family("node_disk_written_bytes_total", "counter", "Bytes written to the disk.", written)
    yield from family("node_disk_io_time_seconds_total", "counter", "Seconds spent doing I/Os.", busy)


def _filesystems(proc: Path) -> Iterator[str]:
    size, free = [], []
    for device, mountpoint, fstype in _mounts(proc):
        try:
            found = os.statvfs(mountpoint)
        except OSError:
            continue
        labels = {"device": device, "mountpoint": mountpoint, "fstype": fstype}
        size.append(Sample(labels, found.f_blocks * found.f_frsize))
        free.append(Sample(labels, found.f_bavail * found.f_frsize))
    yield from family("node_filesystem_size_bytes", "gauge", "Filesystem size in bytes.", size)
    yield from family("node_filesystem_avail_bytes", "gauge", "Space available to non-root users in bytes.", free)


def _mounts(proc: Path) -> Iterator[tuple[str, str, str]]:
    """Yield those of disks, each disk once, and the root."""
    seen: set[str] = set()
    for line in _read(proc / "self" / "mounts"):
        device, mountpoint, fstype, *_ = [*line.split(), "", "", ""]
        local = device.startswith("/dev/") or mountpoint == "/"
        if local and device not in seen and len(seen) < _MAX_DEVICES:
            seen.add(device)
            yield device, mountpoint.replace("\\040", " "), fstype


def _network(proc: Path) -> Iterator[str]:
    columns = (
        ("receive_bytes", 0, "bytes received"),
        ("receive_errs", 2, "errors in receiving"),
        ("receive_drop", 3, "packets dropped in receiving"),
        ("transmit_bytes", 8, "bytes sent"),
        ("transmit_errs", 10, "errors in sending"),
        ("transmit_drop", 11, "packets dropped in sending"),
    )
    found = {}
    for line in _read(proc / "net" / "dev")[: _MAX_DEVICES + 2]:
        name, colon, rest = line.partition(":")
        if colon and len(rest.split()) >= 12:
            found[name.strip()] = [int(each) for each in rest.split()]
    for name, column, what in columns:
        samples = [Sample({"device": device}, values[column]) for device, values in found.items()]
        yield from family(f"node_network_{name}_total", "counter", f"Network device: {what}.", samples)
