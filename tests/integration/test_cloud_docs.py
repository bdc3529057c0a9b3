"""The permissions in docs/permissions against the calls that the daemon makes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clouds import aws
from tests.clouds.machines import PaperMachines
from tests.unit.test_cloud_docs import NEEDS_NO_PERMISSION, do_everything, granted


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[aws.AwsServer]:
    for name, value in aws.ENVIRON.items():
        monkeypatch.setenv(name, value)
    with aws.aws_cloud(PaperMachines()) as running:
        yield running


def test_the_policy_grants_what_is_called_and_no_more(server: aws.AwsServer) -> None:
    do_everything(server)
    assert granted() == server.cloud.used() - NEEDS_NO_PERMISSION
