"""The harnesses, one per provider: `opened` of the module `NAME_harness.py` of each registered cloud."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from provisioners.registry import CLOUDS
from tests.contract.harness import Harness

# `make contract-real` brings the fixture `real_harness` with it; see real.py.
REAL = "SPOTSUP_CONTRACT_REAL" in os.environ
HARNESSES = ["real"] if REAL else list(CLOUDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave each test of test_provisioner_faults with one provider in CI; `make nightly` has all of them."""
    functions = (each for each in items if isinstance(each, pytest.Function))
    faults = [each for each in functions if each.path.stem == "test_provisioner_faults"]
    names = list(dict.fromkeys(each.originalname for each in faults))
    for item in faults:
        provider = str(next(iter(item.callspec.params.values())))
        if HARNESSES.index(provider) != names.index(item.originalname) % len(HARNESSES):
            item.add_marker(pytest.mark.nightly)


def _opened(request: pytest.FixtureRequest, *, light: bool) -> Iterator[Harness]:
    if request.param == "real":
        yield request.getfixturevalue("real_harness")
        return
    folder: Path = request.getfixturevalue("tmp_path")
    module = import_module(f"tests.contract.{request.param}_harness")
    with module.opened(folder, request.getfixturevalue("monkeypatch"), light=light) as found:
        yield found


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """Each provider's harness in turn; the machines of the test clouds exist on paper only."""
    yield from _opened(request, light=True)


@pytest.fixture(params=HARNESSES)
def login_harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The same with machines that take a login."""
    yield from _opened(request, light=False)
