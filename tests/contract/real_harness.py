"""The harness on a real account. It takes the cloud as it is: what a test needs to go wrong there is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import pytest

from provisioners.base import Provisioner
from tests.contract.harness import cannot
from tests.contract.metered import Run

FAULTS = (
    *("exhaust", "limit", "fail_next_launch", "lag", "skew", "be_terse", "reuse_addresses"),
    *("preempt", "alarm", "withdraw", "stop", "vanish", "cut_off"),
)


def _cannot(what: str) -> NoReturn:
    cannot(f"a real cloud cannot be made to {what.replace('_', ' ')}")


@dataclass(frozen=True, slots=True)
class RealHarness:
    """As tests.contract.harness.Harness."""

    provisioner: Provisioner
    zone: str

    def exhaust(self, zone: str) -> None:
        _cannot("exhaust")

    def fail_next_launch(self, how: str) -> None:
        _cannot("fail_next_launch")

    def lag(self, seconds: float) -> None:
        _cannot("lag")

    def limit(self, zone: str, machines: int) -> None:
        _cannot("limit")

    def skew(self, ahead_s: float) -> None:
        _cannot("skew")

    def be_terse(self) -> None:
        _cannot("be_terse")

    def reuse_addresses(self) -> None:
        _cannot("reuse_addresses")

    def alarm(self, instance_id: str) -> None:
        _cannot("alarm")

    def withdraw(self, instance_id: str) -> None:
        _cannot("withdraw")

    def stop(self, instance_id: str) -> None:
        _cannot("stop")

    def preempt(self, instance_id: str, notice_s: float) -> float:
        _cannot("preempt")

    def vanish(self, instance_id: str) -> None:
        _cannot("vanish")

    def cut_off(self) -> None:
        _cannot("cut_off")


class RealHarnesses:
    """A plugin for pytest: the fixture `real_harness`, over one run."""

    def __init__(self, run: Run, zone: str) -> None:
        self._run = run
        self._zone = zone

    @pytest.fixture
    def real_harness(self, request: pytest.FixtureRequest) -> Iterator[RealHarness]:
        """A fresh cluster on the account. Skips before money is spent what would be skipped after."""
        for name in FAULTS:
            if name in request.function.__code__.co_names:
                _cannot(name)
        if self._run.ledger.refusal:
            pytest.fail(self._run.ledger.refusal, pytrace=False)
        with self._run.test() as provisioner:
            yield RealHarness(provisioner, self._zone)
