"""The local cloud's harness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioners.base import Owner, Provisioner
from provisioners.localcloud.client import call
from provisioners.localcloud.models import Fault, NoticeBody, SettingsPatch, View
from tests.contract.harness import cannot
from tests.support.programs import LocalCloud, free_ports, running_local_cloud


@dataclass(frozen=True, slots=True)
class LocalHarness:
    """The local cloud: what its command line calls is the hand on it, without a process for each call."""

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
        self._set(capacity={zone: machines})

    def fail_next_launch(self, how: str) -> None:
        """The cloud knows these faults by their names."""
        self._set(next_launch_faults=(Fault(how),))

    def lag(self, seconds: float) -> None:
        """Its own setting."""
        self._set(listing_lag_s=seconds)

    def skew(self, ahead_s: float) -> None:
        """Its own setting, of launch times."""
        self._set(clock_ahead_s=ahead_s)

    def be_terse(self) -> None:
        """It knows all but the addresses from the first moment; those it has when the machine runs."""
        self._set(launch_delay_s=3600.0)

    def reuse_addresses(self) -> None:
        """With one port for all, as elsewhere."""
        self._set(reuse_addresses=True, ssh_port=free_ports(1)[0])

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Its own verb."""
        preempt_at = self._do(instance_id, "preempt", NoticeBody(notice_s=notice_s)).preempt_at
        assert preempt_at is not None
        return preempt_at

    def alarm(self, instance_id: str) -> None:
        """Its own option."""
        self._do(instance_id, "preempt", NoticeBody(notice_s=0.0, false_alarm=True))

    def withdraw(self, instance_id: str) -> None:
        """Its own verb."""
        self._do(instance_id, "withdraw")

    def stop(self, instance_id: str) -> None:
        """Decision 7: a machine is a tree of processes."""
        cannot("a machine of the local cloud that does not run is nothing, and has nothing that goes on to cost")

    def vanish(self, instance_id: str) -> None:
        """Its own verb."""
        self._do(instance_id, "kill")

    def leave_behind(self, owner: Owner, node: str) -> bool:
        """A machine here takes all it has with it."""
        return False

    def cut_off(self) -> None:
        """kill -9."""
        self.cloud.kill_server()

    def _set(self, **change: Any) -> None:
        self._call("PATCH", "/v1/admin/settings", SettingsPatch(**change).model_dump_json(exclude_unset=True))

    def _do(self, instance_id: str, verb: str, body: NoticeBody | None = None) -> View:
        text = body.model_dump_json() if body else None
        return View.model_validate_json(self._call("POST", f"/v1/admin/machines/{instance_id}/{verb}", text))

    def _call(self, method: str, path: str, body: str | None) -> bytes:
        answer = call(self.cloud.directory, method, path, timeout_s=20.0, body=body)
        assert answer.status == 200, answer.text
        return answer.content


@contextmanager
def opened(folder: Path, _monkeypatch: pytest.MonkeyPatch, *, light: bool) -> Iterator[LocalHarness]:
    """Its machines are always real ones, whether or not `light`."""
    with running_local_cloud(folder / "a cloud") as cloud:
        yield LocalHarness(cloud)
