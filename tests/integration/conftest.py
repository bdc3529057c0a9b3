"""The three clouds by their real SDKs, with machines on paper; a machine of the local cloud."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from provisioners.base import Instance
from tests.clouds.base import wire_cloud
from tests.integration.cloud_names import NAMES, Api
from tests.support.machines import launch_running
from tests.support.programs import LocalCloud


@pytest.fixture
def collected_garbage() -> Iterator[None]:
    """What a test leaves to the garbage collection is collected at its end: no later test is blamed for it."""
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
