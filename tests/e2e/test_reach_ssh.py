"""`reach = "ssh"`: nodes use etcd through the daemon's SSH connections. Training outlives these, and their daemon."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.testbed import open_testbed
from tests.e2e.ticking import code_in, went_on
from tests.support.etcd_members import Members
from tools.stack import Stack

# httpcore leaves the socket of a connection that was refused to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

NODES = "{min: 2, desired: 2, max: 3}"
LEASE_S = 4.0


def members(stack: Stack) -> list[dict[str, Any]]:
    return [each for each in stack.ask("status", "ticker")["node_list"] if each["state"] == "member"]


@pytest.mark.nightly
def test_training_goes_on_without_its_daemon_and_the_next_one_carries_etcd_again(tmp_path: Path) -> None:
    file = code_in(tmp_path, NODES)
    stack = Stack(tmp_path / "a stack", cluster="test", lease_ttl_s=LEASE_S, secure=True)
    stack.prepare()
    stack.configure('[local]\nreach = "ssh"\n', os.environ)
    try:
        stack.start_daemon()
        stack.ask("submit", str(file))
        stack.wait_for(lambda: stack.ask("status", "ticker")["state"] == "running", 150.0, "two nodes to train")
        configs = [json.loads(path.read_text()) for path in stack.cloud_dir.rglob("agent.json")]
        assert {len(each["etcd_endpoints"]) for each in configs} == {1}
        ports = {each["etcd_endpoints"][0].rpartition(":")[2] for each in configs}
        assert len(configs) == len(ports) == 2
        assert all(each["etcd_endpoints"][0].startswith("https://127.0.0.1:2") for each in configs)

        began = time.time()
        round_before = stack.ask("status", "ticker")["round"]
        stack.kill_daemon()
        until(lambda: time.time() > began + 3 * LEASE_S)  # their leases end
        stack.start_daemon()
        stack.wait_for(lambda: len(members(stack)) == 2, 90.0, "the nodes to be heard again")
        assert stack.ask("status", "ticker")["round"] == round_before
        went_on(tmp_path, began)

        # and what a node has to be told arrives: the round with a third one
        assert stack.ctl("scale", "ticker", "3").returncode == 0
        stack.wait_for(lambda: len(members(stack)) == 3, 150.0, "three nodes to train")
        assert stack.ctl("cancel", "ticker").returncode == 0
        stack.wait_for(lambda: not stack.machines(), 150.0, "the machines to be released")
    finally:
        left = stack.close()
    assert left.processes == ()


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.1)


@pytest.mark.nightly
def test_a_standby_carries_etcd_on_also_while_the_frozen_leader_still_holds_the_ports(tmp_path: Path) -> None:
    file = code_in(tmp_path, NODES)
    etcd = Members(tmp_path / "testbed" / "etcd")
    with open_testbed(tmp_path / "testbed", etcd, leader_ttl_s=3.0, reach="ssh") as cluster:
        assert cluster.wait_for_leader().ctl("submit", str(file)).returncode == 0
        cluster.wait_for(lambda: cluster.job("ticker")["state"] == "running", 150.0, "two nodes to train")
        began, formed = time.time(), cluster.job("ticker")["round"]

        first = cluster.wait_for_leader()
        first.send(signal.SIGSTOP)  # its connections stay open, and carry nothing
        cluster.wait_for_takeover(first)
        carried = "etcd is carried to a node"
        second = cluster.wait_for_leader()
        cluster.wait_for(lambda: second.log.read_text().count(carried) >= 2, 90.0, "the standby's tunnels")
        first.send(signal.SIGCONT)
        cluster.wait_for_step_down(first)

        second.kill()
        cluster.wait_for_takeover(second)
        cluster.wait_for(lambda: heard(cluster) == 2, 90.0, "the nodes to be heard by the first daemon again")
        assert cluster.job("ticker")["round"] == formed
        went_on(tmp_path, began)
        assert first.ctl("cancel", "ticker").returncode == 0
        cluster.wait_for(lambda: not cluster.machines(), 150.0, "the machines to be released")


def heard(cluster: Any) -> int:
    return [each["state"] for each in cluster.job("ticker")["node_list"]].count("member")
