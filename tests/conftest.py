"""Fixtures that start real programs: one etcd per worker, empty for each test; a local cloud of its own per test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# torch's TCPStore looks up the name of whoever connects, for a log line; on a computer without a name server each
# look-up would stall it for many seconds. `make test` sets it, too: libc reads it once, at its first look-up.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

from hypothesis import HealthCheck, settings

from tests.support.programs import LocalCloud, empty_etcd, running_etcd, running_local_cloud
from tools.landing.flaky import read_flaky
from tools.stack import ROOT

if TYPE_CHECKING:
    from tests.support.lanes import Lanes

# A busy machine stops a test for seconds at any moment. The same commit gets the same answer: what is new is looked for
# by `make explore`, with other examples each time and far more of them.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("explore", settings.get_profile("busy"), derandomize=False, max_examples=3000)
settings.load_profile("busy")


def pytest_configure() -> None:
    """Let whole jobs in other workers have the CPU first."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests.support.lanes import yield_cpu_to_whole_jobs

        yield_cpu_to_whole_jobs()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> Lanes:
    """Distribute tests so that two whole jobs run at a time, and other tests beside them."""
    from tests.support.lanes import Lanes  # `make test-frameworks` has no xdist

    return Lanes(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests that are in quarantine to `make nightly`."""
    quarantined = {each.test for each in read_flaky(ROOT / "tests" / "flaky.toml").quarantined}
    for item in items:
        if item.nodeid in quarantined:
            item.add_marker(pytest.mark.nightly)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Look for no garbage while tests are collected: there is hardly any, and it would take half of the CPU time."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Look for garbage from now on, and no more among the modules and tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def worker_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a real etcd that all tests of a worker share."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as endpoint:
        yield endpoint


@pytest.fixture
def etcd_endpoint(worker_etcd: str) -> str:
    """The endpoint of a real etcd without keys and leases. A test that stops or breaks etcd starts one of its own."""
    empty_etcd(worker_etcd)
    return worker_etcd


@pytest.fixture
def local_cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    """A real local cloud that launches at once; its directory has a space, as a user's may."""
    with running_local_cloud(tmp_path / "a cloud") as cloud:
        yield cloud
