"""The test beds, one per provider."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioners.aws import AwsProvisioner
from provisioners.base import Provisioner
from provisioners.settings import AwsSettings
from tests.clouds import aws
from tests.clouds.machines import real_machines
from tests.contract.azure_bed import azure_bed
from tests.contract.bed import Bed
from tests.contract.gcp_bed import gcp_bed
from tests.programs import LocalCloud

__all__ = ["azure_bed", "gcp_bed"]  # fixtures of other modules


@dataclass(frozen=True, slots=True)
class LocalBed:
    """The local cloud: its own command line is the hand on it."""

    cloud: LocalCloud
    zone: str = "local-a"

    @property
    def provisioner(self) -> Provisioner:
        """As the daemon sees it."""
        return self.cloud.provisioner

    def exhaust(self, zone: str) -> None:
        """Room for none."""
        self.cloud.set("--capacity", f"{zone}=0")

    def fail_next_launch(self, how: str) -> None:
        """The cloud knows these faults by their names."""
        self.cloud.set("--fault", how)

    def lag(self, seconds: float) -> None:
        """Its own setting."""
        self.cloud.set("--listing-lag", str(seconds))

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Its own verb."""
        done = self.cloud.cli("preempt", instance_id, "--notice", str(notice_s), "-o", "json")
        assert done.returncode == 0, done.stderr
        return float(json.loads(done.stdout)["preempt_at"])

    def vanish(self, instance_id: str) -> None:
        """Its own verb."""
        assert self.cloud.cli("kill", instance_id).returncode == 0

    def cut_off(self) -> None:
        """kill -9."""
        self.cloud.kill_server()


@dataclass(frozen=True, slots=True)
class AwsBed:
    """EC2's test cloud, in this process; its machines are real ones."""

    server: aws.AwsServer
    provisioner: Provisioner
    zone: str = "us-east-1a"

    def exhaust(self, zone: str) -> None:
        """InsufficientInstanceCapacity."""
        self.server.cloud.exhaust(zone)

    def fail_next_launch(self, how: str) -> None:
        """The cloud knows these faults by their names."""
        self.server.cloud.fail_next("RunInstances", how)

    def lag(self, seconds: float) -> None:
        """Of DescribeInstances."""
        self.server.cloud.lag(seconds)

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """EC2 tells two minutes."""
        return self.server.cloud.preempt(_ec2_id(instance_id), notice_s)

    def vanish(self, instance_id: str) -> None:
        """A fault of EC2's own."""
        self.server.cloud.lose(_ec2_id(instance_id))

    def cut_off(self) -> None:
        """Nobody listens."""
        self.server.stop()


def _ec2_id(instance_id: str) -> str:
    return instance_id.rpartition(":")[2]


@pytest.fixture
def aws_bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsBed]:
    """A provisioner over EC2's test cloud."""
    for name, value in aws.ENVIRON.items():
        monkeypatch.setenv(name, value)
    with real_machines(tmp_path / "machines") as machines, aws.aws_cloud(machines) as server:
        settings = AwsSettings(
            regions=("us-east-1",), ssh_user=getpass.getuser(), ssh_port=machines.ssh_port, endpoint=server.url
        )
        yield AwsBed(server, AwsProvisioner(settings))


@pytest.fixture
def local_bed(local_cloud: LocalCloud) -> LocalBed:
    """The local cloud's provisioner."""
    return LocalBed(local_cloud)


# `make contract-real` brings the fixture `real_bed` with it; see real.py.
BEDS = ["real"] if "SPOTSUP_CONTRACT_REAL" in os.environ else ["local", "aws", "gcp", "azure"]


@pytest.fixture(params=BEDS)
def bed(request: pytest.FixtureRequest) -> Bed:
    """Each provider's test bed in turn."""
    found: Bed = request.getfixturevalue(f"{request.param}_bed")
    return found
