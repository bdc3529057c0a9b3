"""The harness on a real account. It takes the cloud as it is: what a test needs to go wrong there is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import NoReturn, cast

import pytest

from provisioners.base import Provisioner
from tests.contract.harness import Harness, cannot
from tests.contract.metered import Run

FAULTS = frozenset(name for name, value in vars(Harness).items() if isinstance(value, FunctionType) and name[0] != "_")


def _cannot(fault: str) -> NoReturn:
    cannot(f"a real cloud cannot be made to {fault.replace('_', ' ')}")


class RealHarness:
    """As tests.contract.harness.Harness; each of its faults skips the test."""

    def __init__(self, provisioner: Provisioner, zone: str) -> None:
        self.provisioner, self.zone = provisioner, zone

    def __getattr__(self, name: str) -> NoReturn:
        if name not in FAULTS:
            raise AttributeError(name)
        _cannot(name)


class RealHarnesses:
    """A plugin for pytest: the fixture `real_harness`, over one run."""

    def __init__(self, run: Run, zone: str) -> None:
        self._run = run
        self._zone = zone

    @pytest.fixture
    def real_harness(self, request: pytest.FixtureRequest) -> Iterator[Harness]:
        """A fresh cluster on the account. Skips before money is spent what would be skipped after."""
        for name in FAULTS.intersection(request.function.__code__.co_names):
            _cannot(name)
        if self._run.ledger.refusal:
            pytest.fail(self._run.ledger.refusal, pytrace=False)
        with self._run.test() as provisioner:
            yield cast("Harness", RealHarness(provisioner, self._zone))
