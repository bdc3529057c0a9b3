"""A node's own metrics, where it has no node_exporter: under its names, from /proc, and nothing waits for a server."""

from __future__ import annotations

import queue
import threading
import urllib.request
from pathlib import Path
from socketserver import TCPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families
from spotsup_trainer.agent.host_metrics import exposition, serve_host_metrics

STAT = """cpu  300 0 100 600 0 0 0 0 0 0
cpu0 100 1 50 300 7 0 2 3 0 0
cpu1 200 0 50 300 0 0 0 0 0 0
btime 1700000000
"""
MEMINFO = "MemTotal: 1000 kB\nMemAvailable: 250 kB\nActive(anon): 5 kB\nHugePages_Total: 0\n"
DISKS = """ 252 0 vda 10 0 2000 5 20 0 4000 9 0 1500 14 0 0 0 0
 7 0 loop0 1 0 8 0 0 0 0 0 0 0 0 0 0 0 0
 252 1 short
"""
NETWORK = """Inter-| Receive                                          | Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
  eth0: 1000 10 1 2 0 0 0 0 3000 20 4 5 0 0 0 0
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine of two CPUs, one disk, and a share whose server is away."""
    folder = tmp_path / "proc"
    (folder / "net").mkdir(parents=True)
    (folder / "self").mkdir()
    disk = tmp_path / "a disk"
    disk.mkdir()
    (folder / "stat").write_text(STAT)
    (folder / "meminfo").write_text(MEMINFO)
    (folder / "diskstats").write_text(DISKS)
    (folder / "loadavg").write_text("1.5 0.7 0.1 3/200 4242\n")
    (folder / "net" / "dev").write_text(NETWORK)
    mounts = [f"/dev/vda1 {str(disk).replace(' ', chr(92) + '040')} ext4 rw 0 0", "server:/ /mnt/share nfs4 rw 0 0"]
    mounts += ["/dev/vda1 /again ext4 rw 0 0", "/dev/vdb /not/there ext4 rw 0 0", "proc /proc proc rw 0 0"]
    (folder / "self" / "mounts").write_text("\n".join(mounts))
    return folder


def found(proc: Path) -> dict[tuple[str, ...], float]:
    """Value by name and labels, as Prometheus' own parser reads the page."""
    families = text_string_to_metric_families(exposition(proc))
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_they_have_the_names_and_units_of_node_exporter(proc: Path) -> None:
    values = found(proc)
    assert values["node_cpu_seconds_total", "0", "user"] == 1.0
    assert values["node_cpu_seconds_total", "1", "user"] == 2.0
    assert values["node_cpu_seconds_total", "0", "iowait"] == 0.07
    assert ("node_cpu_seconds_total", "", "user") not in values, "the sum is no CPU"
    assert values["node_boot_time_seconds",] == 1700000000
    assert values["node_load1",] == 1.5
    assert values["node_memory_MemTotal_bytes",] == 1000 * 1024
    assert values["node_memory_MemAvailable_bytes",] == 250 * 1024
    assert values["node_memory_Active_anon_bytes",] == 5 * 1024
    assert values["node_disk_read_bytes_total", "vda"] == 2000 * 512
    assert values["node_disk_written_bytes_total", "vda"] == 4000 * 512
    assert values["node_disk_io_time_seconds_total", "vda"] == 1.5
    assert values["node_network_receive_bytes_total", "eth0"] == 1000
    assert values["node_network_transmit_bytes_total", "eth0"] == 3000
    assert values["node_network_transmit_drop_total", "eth0"] == 5
    assert not [key for key in values if "loop0" in key or "short" in key]


def test_disks_are_asked_once_and_network_file_systems_never(proc: Path, tmp_path: Path) -> None:
    sizes = [key for key in found(proc) if key[0] == "node_filesystem_size_bytes"]
    assert sizes == [("node_filesystem_size_bytes", "/dev/vda1", str(tmp_path / "a disk"), "ext4")]


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert {key[0] for key in found(tmp_path)} == {"node_time_seconds"}


def test_this_machine_has_them_and_serves_them_where_the_port_is_free() -> None:
    servers = queue.SimpleQueue[TCPServer]()
    thread = threading.Thread(target=serve_host_metrics, args=("127.0.0.1",), kwargs={"port": 0, "ready": servers.put})
    thread.start()
    server = servers.get(timeout=30)
    port = int(server.server_address[1])
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        names = {each.name for family in text_string_to_metric_families(text) for each in family.samples}
        assert {"node_cpu_seconds_total", "node_memory_MemTotal_bytes", "node_network_receive_bytes_total"} <= names
        serve_host_metrics("127.0.0.1", port=port)  # as where a node_exporter is: it returns
    finally:
        server.shutdown()
        thread.join()
