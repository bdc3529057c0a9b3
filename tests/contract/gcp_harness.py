"""Compute Engine's harness."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioners.base import Provisioner
from provisioners.gcp.provisioner import GcpProvisioner
from provisioners.gcp.settings import GcpSettings
from tests.clouds import gcp
from tests.clouds.machines import Machines, RealMachines, machines_for


@dataclass(frozen=True, slots=True)
class GcpHarness:
    """Compute Engine's test cloud, in this process; its machines are real ones, or on paper."""

    server: gcp.GcpServer
    provisioner: Provisioner
    machines: Machines
    zone: str = "us-central1-a"

    def exhaust(self, zone: str) -> None:
        """Insertions are taken, and fail with ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS."""
        self.server.cloud.exhaust(zone)

    def limit(self, zone: str, machines: int) -> None:
        """The same, once they are there."""
        self.server.cloud.limit(zone, machines)

    def fail_next_launch(self, how: str) -> None:
        """The cloud knows these faults by their names; transient and quota fail later, in the operation."""
        self.server.cloud.fail_next("instances.insert", how)

    def lag(self, seconds: float) -> None:
        """Of machines and of operations alike."""
        self.server.cloud.lag(seconds)

    def skew(self, ahead_s: float) -> None:
        """Of machines and operations. Google gives no token to what was signed minutes off: test_gcp_calls.py."""
        self.server.cloud.skew(ahead_s)

    def be_terse(self) -> None:
        """Labels come with the machine; where metadata are held back, its name shows its cluster."""
        self.server.cloud.compute.missing = {"networkInterfaces", "creationTimestamp", "machineType", "metadata"}

    def reuse_addresses(self) -> None:
        """The machines' own setting."""
        assert isinstance(self.machines, RealMachines)
        self.machines.reuse_addresses()

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Google reports the beginning; the end is half a minute later."""
        return self.server.cloud.preempt(_name(instance_id), notice_s)

    def alarm(self, instance_id: str) -> None:
        """A preemption that has begun, and gets no further."""
        self.server.cloud.alarm(_name(instance_id))

    def withdraw(self, instance_id: str) -> None:
        """Its operation fails."""
        self.server.cloud.withdraw(_name(instance_id))

    def stop(self, instance_id: str) -> None:
        """Its guest switches it off: Google says TERMINATED of that, and bills the disk."""
        self.server.cloud.lose(_name(instance_id), "compute.instances.guestTerminate", stop=True)

    def vanish(self, instance_id: str) -> None:
        """Its host breaks, and it is gone. Most such machines stay, stopped: test_gcp_calls.py."""
        self.server.cloud.lose(_name(instance_id))

    def cut_off(self) -> None:
        """Nothing listens at the endpoint."""
        self.server.stop()


def _name(instance_id: str) -> str:
    return instance_id.rpartition(":")[2]


@contextmanager
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, *, light: bool) -> Iterator[GcpHarness]:
    """`light`: its machines are on paper."""
    with machines_for(folder, light=light) as machines, gcp.gcp_cloud(machines) as server:
        for name, value in server.environ(folder / "key").items():
            monkeypatch.setenv(name, value)
        settings = GcpSettings(
            project=gcp.PROJECT,
            regions=("us-central1",),
            ssh_user=getpass.getuser(),
            ssh_port=machines.ssh_port,
            endpoint=server.url,
        )
        yield GcpHarness(server, GcpProvisioner(settings), machines)
