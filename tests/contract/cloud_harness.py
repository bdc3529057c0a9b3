"""The harness of a cloud whose API a test cloud speaks, in this process; its machines are real ones, or on paper."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioners.base import Owner, Provisioner
from tests.clouds.base import CloudServer, bare, wire_cloud
from tests.clouds.machines import Machines, RealMachines, machines_for

ZONES = {"aws": "us-east-1a", "gcp": "us-central1-a", "azure": "eastus-1"}


@dataclass(frozen=True, slots=True)
class CloudHarness:
    """What the test cloud does: see its `Fleet`."""

    server: CloudServer
    provisioner: Provisioner
    machines: Machines
    zone: str

    def exhaust(self, zone: str) -> None:
        """The cloud's own error for it."""
        self.server.cloud.exhaust(zone)

    def limit(self, zone: str, machines: int) -> None:
        """The same, once they are there."""
        self.server.cloud.fleet.room[zone] = machines

    def fail_next_launch(self, how: str) -> None:
        """The clouds know these faults by their names. Google's transient and quota come later, in the operation."""
        self.server.cloud.fail_next(self.server.cloud.launch, how)

    def lag(self, seconds: float) -> None:
        """Of machines, and of Google's operations and Azure's log."""
        self.server.cloud.fleet.lag_s = seconds

    def skew(self, ahead_s: float) -> None:
        """Of machines, spot requests, operations, the log. Signatures are taken nevertheless: see test_refusals.py."""
        self.server.cloud.fleet.ahead_s = ahead_s

    def be_terse(self) -> None:
        """Tags and labels come with the machine on all clouds."""
        self.server.cloud.fleet.missing = set(self.server.cloud.young)

    def reuse_addresses(self) -> None:
        """The machines' own setting."""
        assert isinstance(self.machines, RealMachines)
        self.machines.reuse_addresses()

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """The deadline is by each cloud's usual notice."""
        return float(self.server.cloud.preempt(instance_id, notice_s))

    def alarm(self, instance_id: str) -> None:
        """A preemption that has begun, and gets no further."""
        with self.server.cloud.fleet.lock:
            self.server.cloud.fleet.alarm(bare(instance_id))

    def withdraw(self, instance_id: str) -> None:
        """A preemption that fails."""
        with self.server.cloud.fleet.lock:
            self.server.cloud.fleet.withdraw(bare(instance_id))

    def stop(self, instance_id: str) -> None:
        """An interruption that stops the machine, or its guest's shutdown."""
        self.server.cloud.stop(instance_id)

    def vanish(self, instance_id: str) -> None:
        """The cloud's fault, or the machine's own end."""
        self.server.cloud.lose(instance_id)

    def leave_behind(self, owner: Owner, node: str) -> bool:
        """Without a machine that left it."""
        self.server.cloud.fleet.leave_behind(owner, node)
        return True

    def cut_off(self) -> None:
        """Nothing listens at the endpoint."""
        self.server.stop()


@contextmanager
def opened(name: str, folder: Path, _monkeypatch: pytest.MonkeyPatch, *, light: bool) -> Iterator[CloudHarness]:
    """`light`: its machines are on paper."""
    with machines_for(folder, light=light) as machines, wire_cloud(name, machines) as server:
        server.cloud.let_daemon_in()
        provisioner = server.provisioner(ssh_user=getpass.getuser(), ssh_port=machines.ssh_port)
        yield CloudHarness(server, provisioner, machines, ZONES[name])
