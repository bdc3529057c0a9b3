"""Fixtures that start real programs. Each test gets its own, and each is gone when the test ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# torch's TCPStore looks up the name of whoever connects, for a log line; on a computer without a name server each
# look-up would stall it for many seconds. `make test` sets it, too: libc reads it once, at its first look-up.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

from tests.support.programs import LocalCloud, running_etcd, running_local_cloud


@pytest.fixture
def etcd_endpoint(tmp_path: Path) -> Iterator[str]:
    """The endpoint of a real, empty etcd."""
    with running_etcd(tmp_path / "etcd") as endpoint:
        yield endpoint


@pytest.fixture
def local_cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    """A real local cloud that launches at once; its directory has a space, as a user's may."""
    with running_local_cloud(tmp_path / "a cloud") as cloud:
        yield cloud
