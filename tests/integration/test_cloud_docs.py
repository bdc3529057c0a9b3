"""What is written about the clouds: tables of codes, configuration, permissions."""

from __future__ import annotations

from tests.clouds import aws
from tests.unit.test_cloud_docs import NEEDS_NO_PERMISSION, do_everything, granted


def test_the_policy_grants_what_is_called_and_no_more(server: aws.AwsServer) -> None:
    do_everything(server)
    assert granted() == server.cloud.used() - NEEDS_NO_PERMISSION
