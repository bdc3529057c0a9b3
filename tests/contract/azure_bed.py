"""Azure's test bed."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioners.azure import AzureProvisioner
from provisioners.base import Provisioner
from tests.clouds import azure
from tests.clouds.machines import real_machines


@dataclass(frozen=True, slots=True)
class AzureBed:
    """Azure's test cloud, in this process; its machines are real ones. What its log tells it tells at once, which the
    real one does some minutes late.
    """

    server: azure.AzureServer
    provisioner: Provisioner
    zone: str = "eastus-1"

    def exhaust(self, zone: str) -> None:
        """SkuNotAvailable."""
        self.server.cloud.exhaust(zone)

    def fail_next_launch(self, how: str) -> None:
        """The cloud knows these faults by their names."""
        self.server.cloud.fail_next(azure.LAUNCH, how)

    def lag(self, seconds: float) -> None:
        """Of listings, and of the log."""
        self.server.cloud.lag(seconds)

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Nothing in Azure's API tells the moment: the log's entry is read as a notice of 30 s."""
        return self.server.cloud.preempt(instance_id, notice_s)

    def vanish(self, instance_id: str) -> None:
        """Its dead-man switch: of a machine that is simply lost Azure says that it is stopped, and bills it."""
        self.server.cloud.end_itself(instance_id)

    def cut_off(self) -> None:
        """Nobody listens."""
        self.server.stop()


@pytest.fixture
def azure_bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureBed]:
    """A provisioner over Azure's test cloud."""
    with real_machines(tmp_path / "machines") as machines, azure.azure_cloud(machines) as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        settings = server.settings(ssh_user=getpass.getuser(), ssh_port=machines.ssh_port)
        yield AzureBed(server, AzureProvisioner(settings))
