"""The harness of machines that one has: hosts in this process, each a folder and a loopback address. No SSH."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from provisioners.base import Owner, Provisioner
from provisioners.calls import NoAnswerError, NotSentError
from provisioners.localcloud.processes import Identity, send
from provisioners.localcloud.programs import TOOLS_VARIABLE, tools_root
from provisioners.own import host
from provisioners.own.program import program
from provisioners.own.provisioner import ZONE, OwnProvisioner
from provisioners.own.settings import OwnSettings
from tests.contract.harness import cannot

HOSTS = 8
# Machines are known by their ids, which begin with the host's name: other tests of this computer have other names.
PREFIX = f"box{os.getpid()}-"


@dataclass(slots=True)
class OwnHarness:
    """`asked` stands where SSH is; all below it is what runs on a host."""

    folder: Path
    zone: str = ZONE
    hours: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    full: bool = False
    cut: bool = False
    ahead_s: float = 0.0

    @property
    def provisioner(self) -> Provisioner:
        """As the daemon makes it, but for SSH."""
        hosts = {
            f"{PREFIX}{number}": {"address": f"127.77.0.{number}", "available": self.hours.get(f"{PREFIX}{number}", "")}
            for number in range(1, HOSTS + 1)
        }
        return OwnProvisioner(OwnSettings.model_validate({"hosts": hosts}), self.asked)

    def asked(self, name: str, settings: OwnSettings, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """What the host answers, or how the connection fails."""
        if self.cut:
            raise NotSentError(f"{name} ({settings.hosts[name].address}) cannot be logged in to: it is switched off")
        fault, self.fault = (self.fault, "") if request["do"] == "claim" else ("", self.fault)
        if fault == "hang":
            time.sleep(timeout_s)
            raise NoAnswerError(f"{name} did not answer within {timeout_s:g} s")
        if fault == "fatal":
            return {"fatal": "its sshd is not installed"}
        if request["do"] == "claim" and self.full:
            return {"busy": "GPU 0 is used by another program: python, pid 1"}
        for _ in range(2 if fault == "twice" else 1):
            answer = self._answer(name, request)
        if fault in {"drop-reply", "done-but-error"}:
            raise NoAnswerError(f"{name} gave half an answer: '{{'")
        return answer

    def _answer(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        now, address = time.time() + self.ahead_s, f"127.77.0.{name.removeprefix(PREFIX)}"
        return host.answer(request, self.folder / name, str(self.folder / "program.zip"), now, address)

    def exhaust(self, zone: str) -> None:
        """Somebody computes on all hosts."""
        self.full = True

    def limit(self, zone: str, machines: int) -> None:
        """A host is a type of its own."""
        cannot("there is one of each host")

    def fail_next_launch(self, how: str) -> None:
        """A host knows no quotas, and counts no requests."""
        if how in {"throttled", "transient", "quota"}:
            cannot(f"no host answers {how}")
        self.fault = how

    def lag(self, seconds: float) -> None:
        """Each host says itself what runs on it."""
        cannot("a listing is of its own moment")

    def skew(self, ahead_s: float) -> None:
        """The hosts' clocks."""
        self.ahead_s = ahead_s

    def be_terse(self) -> None:
        """A claim is answered once its sshd takes logins."""
        cannot("a claim has all from its first moment")

    def reuse_addresses(self) -> None:
        """The address is the host's."""
        cannot("a port may come back, and each claim has a host key of its own")

    def preempt(self, instance_id: str, notice_s: float) -> float:
        """Its hours end: at a whole minute."""
        if notice_s < 120.0:
            cannot("hours end at whole minutes, and the daemon ends the machine then")
        name = self._name(instance_id)
        ends = datetime.fromtimestamp(time.time() + notice_s - 60.0).replace(second=0, microsecond=0)  # noqa: DTZ006
        self.hours[name] = f"{ends - timedelta(hours=2):%H:%M}-{ends:%H:%M}"
        return ends.timestamp()

    def alarm(self, instance_id: str) -> None:
        """It never is."""
        cannot("hours that end do end")

    def withdraw(self, instance_id: str) -> None:
        """The configuration is changed."""
        self.hours.clear()

    def stop(self, instance_id: str) -> None:
        """A claim is a tree of processes."""
        cannot("a claim that does not run is nothing, and has nothing that goes on to cost")

    def vanish(self, instance_id: str) -> None:
        """Somebody kills its first process."""
        made = self._claim(instance_id)
        send(Identity(made["pid"], made["started"]), signal.SIGKILL)

    def leave_behind(self, owner: Owner, node: str) -> bool:
        """A claim takes all it has with it."""
        return False

    def cut_off(self) -> None:
        """All hosts are switched off, as far as the daemon sees."""
        self.cut = True

    def _claim(self, instance_id: str) -> dict[str, Any]:
        claims = (
            each
            for name in self.provisioner.coverage(1.0).regions
            for each in self._answer(name, {"do": "look"})["claims"]
            if each["id"] == instance_id
        )
        return next(claims)

    def _name(self, instance_id: str) -> str:
        return str(self._claim(instance_id)["host"])

    def end(self) -> None:
        """Give all hosts back."""
        for name in self.provisioner.coverage(1.0).regions:
            for each in self._answer(name, {"do": "look"})["claims"]:
                assert self._answer(name, {"do": "release", "id": each["id"]}) == {"left": []}


@contextmanager
def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, *, light: bool) -> Iterator[OwnHarness]:
    """Its machines are always real ones, whether or not `light`."""
    if tools := tools_root():
        monkeypatch.setenv(TOOLS_VARIABLE, str(tools))
    harness = OwnHarness(folder / "hosts of one's own")
    harness.folder.mkdir()
    (harness.folder / "program.zip").write_bytes(program())
    try:
        yield harness
    finally:
        harness.end()
