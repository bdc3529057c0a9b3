"""The harnesses, one per provider: the module `NAME_harness.py` of each registered cloud."""

from __future__ import annotations

import os
from importlib import import_module

import pytest

from provisioners.registry import CLOUDS
from tests.contract.harness import Harness

# `make contract-real` brings the fixture `real_harness` with it; see real.py.
REAL = "SPOTSUP_CONTRACT_REAL" in os.environ
HARNESSES = ["real"] if REAL else list(CLOUDS)

for _name in CLOUDS:
    _module = import_module(f"tests.contract.{_name}_harness")
    for _fixture in (f"{_name}_harness", f"light_{_name}_harness"):
        globals()[_fixture] = getattr(_module, _fixture)


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest) -> Harness:
    """Each provider's harness in turn."""
    found: Harness = request.getfixturevalue(f"{request.param}_harness")
    return found


@pytest.fixture(params=HARNESSES)
def light_harness(request: pytest.FixtureRequest) -> Harness:
    """The same for tests without a login: the machines of the test clouds exist on paper only."""
    light = "" if request.param == "real" else "light_"
    found: Harness = request.getfixturevalue(f"{light}{request.param}_harness")
    return found
