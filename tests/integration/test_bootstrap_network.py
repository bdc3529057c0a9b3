"""The network step: golden files `{texts of a machine, what was asked for -> plan, environment}`.

No machine with EFA or InfiniBand was at hand: the texts are put together by hand. To write all plans anew:
SPOTSUP_WRITE_GOLDEN=1 pytest tests/integration/test_bootstrap_network.py
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootstrap.decision import env_script
from bootstrap.facts import Facts, System
from bootstrap.model import Reboot, Run
from bootstrap.network.env import network_env
from bootstrap.network.facts import NetworkFacts, network_facts, network_script, read_default_route, read_network
from bootstrap.steps import agent_key, plan
from tests.integration.test_bootstrap_gpu import a_bus, a_program, read, texts_of
from tests.integration.test_bootstrap_steps import FRESH, a_setup, told
from tests.support.hosts import host_on

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bootstrap" / "network"
CASES = sorted(GOLDEN.glob("*.json"))


def facts_of(case: Any) -> Facts:
    return replace(FRESH, system=System(**case["system"]), network=read_network(texts_of(case)))


def test_there_are_golden_files() -> None:
    assert len(CASES) >= 10


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    case = read(path)
    facts, host = facts_of(case), host_on(**case["host"])
    planned = plan(facts, a_setup(host=host))
    found = {
        "env": network_env(facts.network, host),
        "plan": {step.name: told(step.decision) for step in planned if step.name == "network"},
    }
    if os.environ.get("SPOTSUP_WRITE_GOLDEN"):
        path.write_text(json.dumps({**case, **found}, indent=2) + "\n", encoding="utf-8")
        return
    assert found == {"env": case["env"], "plan": case["plan"]}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_machine_that_was_not_made_for_the_node_is_never_changed(path: Path) -> None:
    case = read(path)
    for born in ("", "another"):
        facts = replace(facts_of(case), system=replace(System(**case["system"]), born=born))
        for step in plan(facts, a_setup(host=host_on(**case["host"]))):
            commands = step.decision if isinstance(step.decision, tuple) else ()
            assert not any(isinstance(each, Reboot) or (isinstance(each, Run) and each.as_root) for each in commands)


def test_the_agent_gets_it_and_the_job_has_the_last_word() -> None:
    facts = facts_of(read(GOLDEN / "aws_image_efa.json"))
    host = host_on("aws", "A100-40GB", 8)
    text = env_script(facts, a_setup(host=host, env={"NCCL_SOCKET_IFNAME": "mine", "LR": "0.1"})).decode()
    assert "export FI_PROVIDER=efa\n" in text
    assert "export NCCL_SOCKET_IFNAME=mine\n" in text
    assert "export LR=0.1\n" in text
    on_another = replace(facts, network=replace(facts.network, interface="ens6"))
    assert agent_key(facts, a_setup(host=host)) != agent_key(on_another, a_setup(host=host))


def test_the_default_route_is_the_one_with_the_least_metric() -> None:
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    rows = "ens6 00000000 01101FAC 0003 0 0 200 00000000 0 0 0\nens5 00000000 01101FAC 0003 0 0 100 00000000 0 0 0\n"
    assert read_default_route(head + rows) == "ens5"
    assert read_default_route(head + "ens5 00101FAC 00000000 0001 0 0 100 00F0FFFF 0 0 0\n") == ""
    assert read_default_route("") == ""


def gathered(tmp_path: Path) -> NetworkFacts:
    places = [str(tmp_path / "a sys"), str(tmp_path / "proc"), str(tmp_path / "opt")]
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": "/nowhere"}
    command = ["/bin/sh", "-c", network_script(a_setup(host=host_on("aws")), *places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: NetworkFacts = network_facts(json.loads(done.stdout))["network"]
    return found


def test_an_empty_machine_is_read(tmp_path: Path) -> None:
    a_program(tmp_path / "bin", "ldconfig", "exit 0")
    assert gathered(tmp_path) == NetworkFacts()


def test_machines_of_the_local_cloud_are_asked_nothing() -> None:
    done = subprocess.run(["/bin/sh", "-c", network_script(a_setup())], capture_output=True, text=True, check=True)
    assert network_facts(json.loads(done.stdout)) == {"network": NetworkFacts()}


def test_what_a_machine_has_is_read(tmp_path: Path) -> None:
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
