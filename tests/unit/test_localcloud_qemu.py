"""Virtual machines of the local cloud: QEMU's command line, what they read at first boot, how they are listed."""

from __future__ import annotations

import json
import platform
import stat
from pathlib import Path

import pytest

from provisioners.base import Market, Offer
from provisioners.localcloud import rules
from provisioners.localcloud.machine import qemu
from provisioners.localcloud.machine.spec import Folder, Spec
from provisioners.localcloud.settings import LocalSettings
from supervisor.config import Config
from supervisor.model import NodeRecord
from supervisor.nodes.prepare import has_dead_man, user_of
from tests.unit.test_localcloud_rules import machine

SPEC = Spec("local-0a1b2c3d-0001", "local-a", "local.small", "127.70.3.4", "", (9, 2), "", image="/images/a,b")


@pytest.mark.parametrize(("tsc_khz", "accel"), [(0, ["kvm", "host"]), (2_500_000, ["tcg,thread=multi", "Nehalem"])])
def test_the_command_line(tsc_khz: int, accel: list[str]) -> None:
    line = qemu.command(SPEC, Folder(Path("/cloud/m")), 2200, tsc_khz)
    assert [line[line.index("-accel") + 1], line[line.index("-cpu") + 1]] == accel
    # Its disk is the image below a nameless file; a comma of a path is doubled.
    assert "file=/images/a,,b/disk.raw,format=raw,if=virtio,snapshot=on" in line
    assert "file.driver=vvfat,file.dir=/cloud/m/seed,file.label=CIDATA,format=raw,if=virtio,readonly=on" in line
    # On loopback alone: SSH at the machine's address, the machines' own network by multicast.
    assert "user,id=host,hostfwd=tcp:127.70.3.4:2200-:22" in line
    assert "socket,id=lan,mcast=239.27.44.61:10010,localaddr=127.0.0.1" in line
    assert line[line.index("-append") + 1].endswith(" ip=10.70.3.4:::255.192.0.0::enp0s8:off")
    assert ("tsc_early_khz=2500000" in line[line.index("-append") + 1]) is bool(tsc_khz)
    assert "virtio-net-pci,netdev=lan,addr=8,mac=02:54:00:46:03:04" in line


def test_kvm_needs_a_processor_with_virtualization() -> None:
    assert qemu.has_virtualization("processor\t: 0\nflags\t\t: fpu vmx cx16\n")
    assert qemu.has_virtualization("flags\t\t: fpu svm\n")
    assert not qemu.has_virtualization("flags\t\t: fpu cx16 vmx_fake\nvmx flags\t: vnmi\n")
    assert not qemu.has_virtualization("")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no time stamp counter")
def test_the_counter_is_measured_the_same_twice() -> None:
    first, second = qemu.measured_tsc_khz(), qemu.measured_tsc_khz()
    assert first > 100_000
    assert abs(first - second) < first / 100


def test_machines_of_one_cloud_share_a_network_and_those_of_two_do_not() -> None:
    assert qemu.group("local-0a1b2c3d-0001") == qemu.group("local-0a1b2c3d-0417")
    assert qemu.group("local-0a1b2c3d-0001") != qemu.group("local-0a1b2c3e-0001")
    assert qemu.group("local-0a1b2c3d-0001") != qemu.group("local-0b1b2c3d-0001")


def test_what_a_machine_finds_at_its_first_boot_is_for_nobody_else(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write_seed(SPEC.id, "#cloud-config\n")
    assert stat.S_IMODE(folder.seed.stat().st_mode) == 0o700
    assert (folder.seed / "user-data").read_text() == "#cloud-config\n"
    assert json.loads((folder.seed / "meta-data").read_text())["instance-id"] == SPEC.id


def test_a_listing_says_where_it_is_reached_from_here_and_from_others() -> None:
    running = machine(address=SPEC.address, running_at=110.0, ssh_port=2200, metadata_port=8000)
    seen = rules.view(running.model_copy(update={"virtual": True}), 111.0)
    assert seen is not None
    assert (seen.ssh_host, seen.ssh_port) == ("127.70.3.4", 2200)
    assert seen.private_address == "10.70.3.4"
    assert seen.metadata_url == "http://10.0.2.2:8000"
    plain = rules.view(running, 111.0)
    assert plain is not None
    assert plain.private_address == "127.70.3.4"


def test_nodes_are_logged_in_to_as_their_user_data_says() -> None:
    virtual = Config.model_validate({"local": LocalSettings(image="/image")})
    node = NodeRecord("n-1", "job", "", Offer("local", "local", "local-a", "local.small", Market.SPOT, 0.1), 0.0)
    assert user_of(virtual, node) == "spotsup"
    assert has_dead_man(virtual, node)
    assert not has_dead_man(Config(), node)
