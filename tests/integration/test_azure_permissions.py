"""Each permission of the daemon's roles on Azure, taken away alone: `spotsupd check` names it."""

from __future__ import annotations

import pytest

from tests.clouds.base import wire_cloud
from tests.integration.test_permissions import EVERYTHING_ON_AZURE, granted_on_azure

GRANTED = {file: granted_on_azure(file) for file in ("azure-role.json", "azure-subscription-role.json")}


@pytest.mark.nightly
@pytest.mark.parametrize("action", sorted(set().union(*GRANTED.values())))
def test_each_permission_that_the_daemon_lacks_is_named_before_anything_is_launched(action: str) -> None:
    with wire_cloud("azure") as server:
        server.cloud.denied = {action}
        server.cloud.arm.granted = [{"actions": ["*"], "notActions": [action]}]
        cloud = server.provisioner(**EVERYTHING_ON_AZURE)
        wrong = [each.message for each in cloud.check(30.0) if not each.ok]
        assert wrong
        for message in wrong:
            assert action in message
            assert "docs/permissions/azure-" in message
            assert "\n" not in message
        assert not server.cloud.fleet.born()


def test_of_a_subnet_elsewhere_the_right_to_join_is_not_looked_for_here() -> None:
    """The permissions of one resource group say nothing of another."""
    joins = ["Microsoft.Network/virtualNetworks/subnets/join/action"]
    with wire_cloud("azure") as server:
        server.cloud.arm.granted = [{"actions": ["*"], "notActions": joins}]
        subnets = {"eastus": server.settings().subnets["eastus"].replace("/spotsup-test/", "/net/")}
        found = {each.what: each for each in server.provisioner(subnets=subnets).check(30.0)}
        assert found["launching"].ok
        found = {each.what: each for each in server.provisioner().check(30.0)}
        assert joins[0] in found["launching"].message
