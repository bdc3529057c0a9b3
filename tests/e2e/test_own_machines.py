"""Machines that one has already: a real daemon, hosts that are reached by SSH, real torch processes."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioners.base import InstanceState
from provisioners.localcloud.processes import Identity, send
from provisioners.own.provisioner import OwnProvisioner
from provisioners.own.settings import OwnSettings
from tests.support.own_hosts import OwnHosts, own_hosts
from tools.stack import ROOT, Stack

JOB = """\
name: {name}
nodes: {{min: 1, desired: {nodes}, max: 2}}
placement: {places}
code: {code}
run: worker.py --session --marks {marks} --checkpoint-every 25
{more}
env: {{OMP_NUM_THREADS: "1"}}
"""


def toml(settings: OwnSettings) -> str:
    """The section of the configuration."""
    lines = ["[own]"]
    for key, value in settings.model_dump(exclude_defaults=True).items():
        if key != "hosts":
            lines.append(f"{key} = {json.dumps(value)}")
    for name, host in settings.hosts.items():
        lines += [
            f"[own.hosts.{name}]",
            *(f"{k} = {json.dumps(v)}" for k, v in host.model_dump(exclude_defaults=True).items()),
        ]
    return "\n".join([*lines, ""])


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[OwnHosts]:
    with own_hosts(tmp_path, ["box1", "box2", "box3"]) as found:
        yield found


@pytest.fixture
def stack(tmp_path: Path, hosts: OwnHosts) -> Iterator[Stack]:
    stack = Stack(tmp_path / "a stack", cluster="test")
    stack.prepare()
    try:
        shared = tmp_path / "shared"
        shared.mkdir()
        python = f"python = {json.dumps(sys.executable)}\n"
        local = "[local]\nenabled = true\n"
        stack.configure(local + toml(hosts.settings(shared=str(shared))), stack.environ, node=python)
        stack.start_daemon()
        yield stack
    finally:
        stack.close()


def submit(stack: Stack, name: str, nodes: int = 2, places: str = "{cloud: own}", more: str = "") -> None:
    file = stack.folder / f"{name}.yaml"
    marks = stack.folder / "marks"
    marks.mkdir(exist_ok=True)
    code = json.dumps(str(ROOT / "benchmarks" / "recovery"))
    file.write_text(JOB.format(name=name, nodes=nodes, places=places, more=more, code=code, marks=f"'{marks}'"))
    stack.ask("submit", str(file))


def nodes_of(status: dict[str, Any]) -> dict[str, str]:
    """The nodes that train, by host."""
    return {each["instance_type"]: each["id"] for each in status["node_list"] if each["state"] == "member"}


def training_on(stack: Stack, name: str, hosts: set[str], within_s: float = 180.0) -> dict[str, str]:
    """Until nodes train on these hosts and on no other: the nodes by host."""
    found: dict[str, str] = {}

    def all_do() -> bool:
        status = stack.ask("status", name)
        assert status["state"] != "failed", status["reason"]
        found.clear()
        found.update(nodes_of(status))
        return set(found) == hosts and status["nodes"]["training"] == len(hosts)

    stack.wait_for(all_do, within_s, f"training on {sorted(hosts)}")
    return dict(found)


def left_on(hosts: OwnHosts, name: str) -> list[str]:
    """What is in a host's home, without what is said to stay there: the program, notes of claims, a lock, a cache."""
    home = hosts.home(name)
    stays = re.compile(
        r"\.spotsup-own(/program-[^/]+|/[0-9a-f]{8}(/(lock|closed\.json|machines|(cache|ended)(/.+)?))?)?"
    )
    found = (str(each.relative_to(home)) for each in home.rglob("*"))
    return [each for each in found if not stays.fullmatch(each)]


def test_a_job_trains_on_two_hosts_and_leaves_one_that_its_people_want_and_nothing_on_any(
    stack: Stack, hosts: OwnHosts
) -> None:
    cloud = OwnProvisioner(hosts.settings())
    submit(stack, "mine")
    first = training_on(stack, "mine", {"box1", "box2"})
    cloud.close("box2", time.time() + 3600.0, 20.0)
    second = training_on(stack, "mine", {"box1", "box3"})
    assert second["box1"] == first["box1"]
    # One's own are all in use: another job goes to what is rented.
    submit(stack, "other", 1, "[{cloud: own}, {cloud: local}]", "checkpoints: none")
    stack.wait_for(lambda: stack.ask("status", "other")["nodes"]["training"] == 1, 180.0, "the other job to train")
    assert stack.ask("status", "other")["cloud"] == "local"
    # As where the host is restarted, for all that the daemon can see.
    (claim,) = [each for each in hosts.claims("box3") if each["state"] == "running"]
    send(Identity(claim["pid"], claim["started"]), signal.SIGKILL)
    stack.wait_for(lambda: training_on(stack, "mine", {"box1", "box3"}) != second, 180.0, "another node on box3")
    assert stack.ctl("cancel", "mine", "other").returncode == 0
    stack.wait_for(lambda: not alive(cloud), 60.0, "the hosts to be given back")
    assert {name: left_on(hosts, name) for name in ("box1", "box2", "box3")} == {"box1": [], "box2": [], "box3": []}


@pytest.mark.nightly  # minutes of silence, until which it may only be slow
def test_a_job_goes_on_without_a_host_that_is_unplugged(stack: Stack, hosts: OwnHosts) -> None:
    submit(stack, "mine")
    training_on(stack, "mine", {"box1", "box2"})
    hosts.end("box2")
    training_on(stack, "mine", {"box1", "box3"}, within_s=900.0)


def alive(cloud: OwnProvisioner) -> list[str]:
    """The machines that are claimed."""
    return [each.id for each in cloud.instances(None, 20.0) if each.state is not InstanceState.TERMINATED]
