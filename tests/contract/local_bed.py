"""The local cloud's test bed."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from provisioners.base import Provisioner
from provisioners.localcloud.client import call
from provisioners.localcloud.models import SettingsPatch
from tests.contract.bed import cannot
from tests.programs import LocalCloud, free_ports


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
        self.limit(zone, 0)

    def limit(self, zone: str, machines: int) -> None:
        """Its own setting."""
        self.cloud.set("--capacity", f"{zone}={machines}")

    def fail_next_launch(self, how: str) -> None:
        """The cloud knows these faults by their names."""
        self.cloud.set("--fault", how)

    def lag(self, seconds: float) -> None:
        """Its own setting."""
        self.cloud.set("--listing-lag", str(seconds))

    def skew(self, ahead_s: float) -> None:
        """Its own setting, of launch times."""
        self.cloud.set("--clock-ahead", str(ahead_s))

    def be_terse(self) -> None:
        """It knows all but the addresses from the first moment; those it has when the machine runs."""
        self.cloud.set("--launch-delay", "3600")

    def reuse_addresses(self) -> None:
        """With one port for all, as elsewhere."""
        patch = SettingsPatch(reuse_addresses=True, ssh_port=free_ports(1)[0]).model_dump_json(exclude_unset=True)
        answer = call(self.cloud.directory, "PATCH", "/v1/admin/settings", timeout_s=20.0, body=patch)
        assert answer.status == 200, answer.text

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Its own verb."""
        return self._announce(instance_id, notice_s)

    def alarm(self, instance_id: str) -> None:
        """Its own option."""
        self._announce(instance_id, 0.0, "--false-alarm")

    def withdraw(self, instance_id: str) -> None:
        """Its own verb."""
        assert self.cloud.cli("withdraw", instance_id).returncode == 0

    def stop(self, instance_id: str) -> None:
        """Decision 7: a machine is a tree of processes."""
        cannot("a machine of the local cloud that does not run is nothing, and has nothing that goes on to cost")

    def vanish(self, instance_id: str) -> None:
        """Its own verb."""
        assert self.cloud.cli("kill", instance_id).returncode == 0

    def cut_off(self) -> None:
        """kill -9."""
        self.cloud.kill_server()

    def _announce(self, instance_id: str, notice_s: float, *more: str) -> float:
        done = self.cloud.cli("preempt", instance_id, "--notice", str(notice_s), *more, "-o", "json")
        assert done.returncode == 0, done.stderr
        return float(json.loads(done.stdout)["preempt_at"])


@pytest.fixture
def local_bed(local_cloud: LocalCloud) -> LocalBed:
    """The local cloud's provisioner."""
    return LocalBed(local_cloud)
