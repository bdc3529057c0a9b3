"""The three clouds by their real SDKs, with machines on paper; a machine of the local cloud."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing

import pytest
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Keys

from provisioners.base import Instance
from supervisor.journal.journal import Journal
from supervisor.journal.store import EtcdStore
from tests.clouds.base import wire_cloud
from tests.integration.cloud_names import NAMES, Api
from tests.support.machines import launch_running
from tests.support.programs import LocalCloud


@pytest.fixture
def collected_garbage() -> Iterator[None]:
    """What a test leaves to the garbage collection is collected at its end: no later test is blamed for it."""
    gc.freeze()  # a large heap takes a second to look through
    yield
    gc.collect()


@pytest.fixture(params=NAMES)
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """Each cloud in turn."""
    with wire_cloud(request.param) as server:
        yield Api(request.param, server, server.provisioner())


@pytest.fixture
def aws() -> Iterator[Api]:
    """EC2."""
    with wire_cloud("aws") as server:
        yield Api("aws", server, server.provisioner())


@pytest.fixture
def gcp() -> Iterator[Api]:
    """Compute Engine."""
    with wire_cloud("gcp") as server:
        yield Api("gcp", server, server.provisioner())


@pytest.fixture
def arm() -> Iterator[Api]:
    """Azure."""
    with wire_cloud("azure") as server:
        yield Api("azure", server, server.provisioner())


@pytest.fixture
def machine(local_cloud: LocalCloud) -> Instance:
    """A machine that runs, with a metadata service of its own."""
    return launch_running(local_cloud.provisioner, "n1")


@pytest.fixture
def etcd(etcd_endpoint: str) -> Iterator[Etcd]:
    """A client of an etcd that is empty."""
    with closing(Etcd([etcd_endpoint], timeout_s=10.0)) as etcd:
        yield etcd


@pytest.fixture
def journal(etcd: Etcd) -> Iterator[Journal]:
    """The journal of the cluster `test` in it."""
    keys = Keys("test")
    with closing(EtcdStore(etcd, keys.world)) as store:
        store.start(10.0)
        yield Journal(store, keys)
