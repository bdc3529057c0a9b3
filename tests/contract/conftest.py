"""The test beds, one per provider."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from provisioners.base import Provisioner
from tests.contract.bed import Bed
from tests.programs import LocalCloud


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

    def preempt(self, instance_id: str, notice_s: float) -> None:
        """Its own verb."""
        assert self.cloud.cli("preempt", instance_id, "--notice", str(notice_s)).returncode == 0

    def vanish(self, instance_id: str) -> None:
        """Its own verb."""
        assert self.cloud.cli("kill", instance_id).returncode == 0

    def cut_off(self) -> None:
        """kill -9."""
        self.cloud.kill_server()


@pytest.fixture(params=["local"])
def bed(request: pytest.FixtureRequest) -> Bed:
    """Each provider's test bed in turn."""
    return LocalBed(request.getfixturevalue(f"{request.param}_cloud"))
