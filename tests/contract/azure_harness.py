"""Azure's harness."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioners.azure.provisioner import AzureProvisioner
from provisioners.base import Provisioner
from tests.clouds import azure
from tests.clouds.machines import Machines, RealMachines, machines_for


@dataclass(frozen=True, slots=True)
class AzureHarness:
    """Azure's test cloud, in this process; its machines are real ones, or on paper. Its log reports events at
    once, which the real one does some minutes late.
    """

    server: azure.AzureServer
    provisioner: Provisioner
    machines: Machines
    zone: str = "eastus-1"

    def exhaust(self, zone: str) -> None:
        """SkuNotAvailable."""
        self.server.cloud.exhaust(zone)

    def limit(self, zone: str, machines: int) -> None:
        """The same, once they are there."""
        self.server.cloud.limit(zone, machines)

    def fail_next_launch(self, how: str) -> None:
        """The cloud knows these faults by their names."""
        self.server.cloud.fail_next(azure.LAUNCH, how)

    def lag(self, seconds: float) -> None:
        """Of listings, and of the log."""
        self.server.cloud.lag(seconds)

    def skew(self, ahead_s: float) -> None:
        """Of machines, and of the log."""
        self.server.cloud.skew(ahead_s)

    def be_terse(self) -> None:
        """The network's listings lag behind: they do not have its interface yet. Tags come with the machine."""
        self.server.cloud.arm.missing = {"networkInterfaces", "networkProfile", "timeCreated", "hardwareProfile"}

    def reuse_addresses(self) -> None:
        """The machines' own setting."""
        assert isinstance(self.machines, RealMachines)
        self.machines.reuse_addresses()

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Azure's API has no deadline: the log's entry is read as a notice of 30 s."""
        return self.server.cloud.preempt(instance_id, notice_s)

    def alarm(self, instance_id: str) -> None:
        """An eviction that was logged as begun."""
        self.server.cloud.alarm(instance_id)

    def withdraw(self, instance_id: str) -> None:
        """An eviction that is logged as failed."""
        self.server.cloud.withdraw(instance_id)

    def stop(self, instance_id: str) -> None:
        """Its guest switches it off: it stays allocated, and is billed in full."""
        self.server.cloud.halt(instance_id)

    def vanish(self, instance_id: str) -> None:
        """Its dead-man switch: of a machine that is simply lost Azure says that it is stopped, and bills it."""
        self.server.cloud.end_itself(instance_id)

    def cut_off(self) -> None:
        """Nothing listens at the endpoint."""
        self.server.stop()


@contextmanager
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, *, light: bool) -> Iterator[AzureHarness]:
    """`light`: its machines are on paper."""
    with machines_for(folder, light=light) as machines, azure.azure_cloud(machines) as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        settings = server.settings(ssh_user=getpass.getuser(), ssh_port=machines.ssh_port)
        yield AzureHarness(server, AzureProvisioner(settings), machines)
