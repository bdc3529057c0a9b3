"""Compute Engine's test bed."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioners.base import Provisioner
from provisioners.gcp import GcpProvisioner
from provisioners.settings import GcpSettings
from tests.clouds import gcp
from tests.clouds.machines import real_machines


@dataclass(frozen=True, slots=True)
class GcpBed:
    """Compute Engine's test cloud, in this process; its machines are real ones."""

    server: gcp.GcpServer
    provisioner: Provisioner
    zone: str = "us-central1-a"

    def exhaust(self, zone: str) -> None:
        """Insertions are taken, and fail with ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS."""
        self.server.cloud.exhaust(zone)

    def fail_next_launch(self, how: str) -> None:
        """The cloud knows these faults by their names; transient and quota fail later, in the operation."""
        self.server.cloud.fail_next("instances.insert", how)

    def lag(self, seconds: float) -> None:
        """Of machines and of operations alike."""
        self.server.cloud.lag(seconds)

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Google tells the beginning; the end is half a minute later."""
        return self.server.cloud.preempt(_name(instance_id), notice_s)

    def vanish(self, instance_id: str) -> None:
        """Its host breaks, and it is gone. Most such machines stay, stopped: test_gcp_calls.py."""
        self.server.cloud.lose(_name(instance_id))

    def cut_off(self) -> None:
        """Nobody listens."""
        self.server.stop()


def _name(instance_id: str) -> str:
    return instance_id.rpartition(":")[2]


@pytest.fixture
def gcp_bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpBed]:
    """A provisioner over Compute Engine's test cloud."""
    with real_machines(tmp_path / "machines") as machines, gcp.gcp_cloud(machines) as server:
        for name, value in server.environ(tmp_path / "key").items():
            monkeypatch.setenv(name, value)
        settings = GcpSettings(
            project=gcp.PROJECT,
            regions=("us-central1",),
            ssh_user=getpass.getuser(),
            ssh_port=machines.ssh_port,
            endpoint=server.url,
        )
        yield GcpBed(server, GcpProvisioner(settings))
