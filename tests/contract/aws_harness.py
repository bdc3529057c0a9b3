"""EC2's harness."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioners.aws.provisioner import AwsProvisioner
from provisioners.aws.settings import AwsSettings
from provisioners.base import Provisioner
from tests.clouds import aws
from tests.clouds.machines import Machines, RealMachines, machines_for


@dataclass(frozen=True, slots=True)
class AwsHarness:
    """EC2's test cloud, in this process; its machines are real ones, or on paper."""

    server: aws.AwsServer
    provisioner: Provisioner
    machines: Machines
    zone: str = "us-east-1a"

    def exhaust(self, zone: str) -> None:
        """InsufficientInstanceCapacity."""
        self.server.cloud.exhaust(zone)

    def limit(self, zone: str, machines: int) -> None:
        """The same, once they are there."""
        self.server.cloud.limit(zone, machines)

    def fail_next_launch(self, how: str) -> None:
        """The cloud knows these faults by their names."""
        self.server.cloud.fail_next("RunInstances", how)

    def lag(self, seconds: float) -> None:
        """Of DescribeInstances."""
        self.server.cloud.lag(seconds)

    def skew(self, ahead_s: float) -> None:
        """Of launch times, and of spot requests. AWS takes no signature that is minutes off: test_refusals.py."""
        self.server.cloud.ec2.ahead_s = ahead_s

    def be_terse(self) -> None:
        """Tags come with the machine: where they are late it is not among what is filtered by them at all."""
        lacking = {"ipAddress", "privateIpAddress", "launchTime", "placement", "instanceType", "stateReason"}
        self.server.cloud.ec2.missing = lacking

    def reuse_addresses(self) -> None:
        """The machines' own setting."""
        assert isinstance(self.machines, RealMachines)
        self.machines.reuse_addresses()

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """EC2's notice is two minutes."""
        return self.server.cloud.preempt(_ec2_id(instance_id), notice_s)

    def alarm(self, instance_id: str) -> None:
        """marked-for-termination, for longer than two minutes."""
        self.server.cloud.alarm(_ec2_id(instance_id))

    def withdraw(self, instance_id: str) -> None:
        """fulfilled, as before."""
        self.server.cloud.withdraw(_ec2_id(instance_id))

    def stop(self, instance_id: str) -> None:
        """As an interruption does whose behaviour is stop."""
        self.server.cloud.preempt(_ec2_id(instance_id), 0.0, stop=True)

    def vanish(self, instance_id: str) -> None:
        """A fault of EC2's own."""
        self.server.cloud.lose(_ec2_id(instance_id))

    def cut_off(self) -> None:
        """Nothing listens at the endpoint."""
        self.server.stop()


def _ec2_id(instance_id: str) -> str:
    return instance_id.rpartition(":")[2]


@contextmanager
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, *, light: bool) -> Iterator[AwsHarness]:
    """`light`: its machines are on paper."""
    with machines_for(folder, light=light) as machines, aws.aws_cloud(machines) as server:
        for name, value in aws.ENVIRON.items():
            monkeypatch.setenv(name, value)
        settings = AwsSettings(
            regions=("us-east-1",), ssh_user=getpass.getuser(), ssh_port=machines.ssh_port, endpoint=server.url
        )
        yield AwsHarness(server, AwsProvisioner(settings), machines)
