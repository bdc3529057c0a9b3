"""A job on Azure: the real daemon, SDK, user data and agent, on its test cloud with real machines."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.stack import Stack
from tests.clouds import azure
from tests.clouds.machines import RealMachines, real_machines

pytestmark = pytest.mark.e2e

JOB = """\
name: sleeper
nodes: {min: 1, desired: 2, max: 2}
resources: {gpu: T4, gpus_per_node: 1}
placement: {cloud: azure}
run: train.py
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """A daemon that knows Azure alone."""

    stack: Stack
    server: azure.AzureServer
    machines: RealMachines

    def nodes(self, *states: str) -> list[dict[str, Any]]:
        """The job's nodes that are in one of these states."""
        found: list[dict[str, Any]] = self.stack.ask("nodes")
        return [node for node in found if node["state"] in states]

    def alive(self) -> list[str]:
        """Azure's machines that still cost money."""
        return sorted(self.server.cloud.arm.fleet.records)

    def machine_of(self, node: str) -> str:
        """As the machines behind know it."""
        records = self.server.cloud.arm.fleet.records.values()
        return next(each.machine for each in records if each.body["tags"]["spotsup-node"] == node)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with real_machines(tmp_path / "machines") as machines, azure.azure_cloud(machines) as server:
        stack = Stack(tmp_path / "stack", cluster="test", environ=server.environ)
        stack.prepare()
        settings = server.settings(ssh_user=getpass.getuser(), ssh_port=machines.ssh_port).model_dump(
            mode="json", exclude_defaults=True
        )
        tables = {name: value for name, value in settings.items() if isinstance(value, dict)}
        sections: dict[str, dict[str, Any]] = {
            "local": {"enabled": False},
            "azure": {name: value for name, value in settings.items() if name not in tables},
            **{f"azure.{name}": value for name, value in tables.items()},
            "node.env": {"GLOO_SOCKET_IFNAME": "lo"},
        }
        with (stack.folder / "spotsupd.toml").open("a") as file:
            for section, values in sections.items():
                lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
                file.write("".join([f"[{section}]\n", *lines]))
        stack.start_daemon()
        yield Installation(stack, server, machines)
        assert stack.close().processes == ()


def test_a_node_that_azure_takes_is_replaced_and_all_is_released(installation: Installation, tmp_path: Path) -> None:
    stack, cloud = installation.stack, installation.server.cloud
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("import time\ntime.sleep(3600)\n")
    (tmp_path / "code" / "job.yaml").write_text(JOB)
    cloud.fail_next(azure.LAUNCH, "drop-reply")
    assert stack.ctl("submit", str(tmp_path / "code" / "job.yaml")).returncode == 0
    stack.wait_for(lambda: len(installation.nodes("member")) == 2, 120.0, "two members")
    assert len(installation.alive()) == 2
    doomed = installation.nodes("member")[0]["id"]
    # On the machine alone, not in the API: the agent has to read it. Afterwards the machine is off, and still costs.
    installation.machines.preempt(installation.machine_of(doomed), 20.0)

    def is_replaced() -> bool:
        members = {node["id"] for node in installation.nodes("member")}
        return len(members) == 2 and doomed not in members

    stack.wait_for(is_replaced, 120.0, "a replacement")
    events = [event["text"] for event in stack.ask("events", "sleeper")]
    assert any(doomed in text and "will be taken" in text and "(azure)" in text for text in events), events
    assert stack.ctl("cancel", "sleeper").returncode == 0
    stack.wait_for(lambda: not installation.alive(), 60.0, "all machines to be deleted")
    assert not cloud.arm.fleet.loose
    assert set(cloud.counted()) >= {azure.LAUNCH, azure.LISTING, azure.LOG}
