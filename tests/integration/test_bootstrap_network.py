"""The script that gathers the facts of the network."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from bootstrap.network.facts import NetworkFacts, network_facts, network_script
from tests.support import plans
from tests.support.hosts import host_on
from tests.support.plans import a_bus, a_program, a_setup, read

GOLDEN = plans.GOLDEN / "network"


def gathered(tmp_path: Path) -> NetworkFacts:
    places = [str(tmp_path / "a sys"), str(tmp_path / "proc"), str(tmp_path / "opt")]
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": "/nowhere"}
    command = ["/bin/sh", "-c", network_script(a_setup(host=host_on("aws")), *places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: NetworkFacts = network_facts(json.loads(done.stdout))["network"]
    return found


def test_the_facts_of_a_machine_without_any_device_are_gathered(tmp_path: Path) -> None:
    a_program(tmp_path / "bin", "ldconfig", "exit 0")
    assert gathered(tmp_path) == NetworkFacts()


def test_no_network_facts_are_gathered_on_the_local_cloud() -> None:
    done = subprocess.run(["/bin/sh", "-c", network_script(a_setup())], capture_output=True, text=True, check=True)
    assert network_facts(json.loads(done.stdout)) == {"network": NetworkFacts()}


def test_the_facts_of_a_machine_with_all_devices_are_gathered(tmp_path: Path) -> None:
    sys = tmp_path / "a sys"
    a_bus(sys, ("0x1d0f", "0xec20", "0x020000"), ("0x1d0f", "0xefa1", "0x020000"), ("0x10de", "0xefa1", "0x030200"))
    (sys / "module" / "efa").mkdir(parents=True)
    device = sys / "devices" / "pci0"
    device.mkdir(parents=True)
    (sys / "drivers" / "ena").mkdir(parents=True)
    (device / "driver").symlink_to(sys / "drivers" / "ena")
    for name in ("ens5", "lo"):
        (sys / "class" / "net" / name).mkdir(parents=True)
    (sys / "class" / "net" / "ens5" / "device").symlink_to(device)
    for name, layer in (("mlx5_0", "Ethernet"), ("mlx5_ib0", "InfiniBand")):
        port = sys / "class" / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
    (tmp_path / "proc" / "net").mkdir(parents=True)
    case = read(GOLDEN / "aws_image_efa.json")
    (tmp_path / "proc" / "net" / "route").write_text("\n".join(case["texts"]["routes"]) + "\n")
    a_program(tmp_path / "bin", "ldconfig", "echo '\tlibnccl-net-ofi.so (libc6,x86-64) => /opt/amazon/ofi-nccl/lib/x'")
    (tmp_path / "opt" / "amazon" / "efa").mkdir(parents=True)
    a_program(tmp_path / "opt" / "amazon" / "efa" / "bin", "fi_info", "exit 0")
    (tmp_path / "opt" / "amazon" / "efa_installed_packages").write_text("# EFA installer version: 1.50.0\n# more\n")
    (tmp_path / "opt" / "microsoft").mkdir()
    (tmp_path / "opt" / "microsoft" / "ndv5-topo.xml").write_text("")
    assert gathered(tmp_path) == NetworkFacts(
        interface="ens5",
        drivers=frozenset({"ena"}),
        efa_devices=1,
        efa_module=True,
        efa_version="1.50.0",
        nccl_plugin=True,
        infiniband=1,
        topologies=("ndv5-topo.xml",),
    )
