"""What `spotsupd init --account` makes in an Azure subscription, and `destroy` deletes: by the SDK's real pipeline."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from provisioners.account import Account, Wish, described
from provisioners.azure.account.wanted import called, role_id
from provisioners.base import Owner, ProvisionerError
from supervisor.cli.account import permissions
from tests.clouds.azure_machines import GROUP, ROOT, SUBSCRIPTION
from tests.clouds.azure_storage import STORAGE_ACCOUNT
from tests.clouds.base import wire_cloud
from tests.support.accounts import account_of, deleted, made
from tests.support.machines import OTHER, OWNER

pytestmark = pytest.mark.nightly  # CI has test_aws_account

REGION = "eastus"
WISH = Wish(
    OWNER,
    ssh_from=("198.51.100.7", "2001:db8::7", "10.1.2.3/16"),
    checkpoints="abfs://runs@models.dfs.core.windows.net/vision",
    permissions=permissions(),
)
NODES, DAEMON, NODE = (called(OWNER.cluster, use) for use in (REGION, "daemon", "node"))
# A cloud whose subnets and groups are to be made.
BARE: dict[str, Any] = {"subnets": {}, "security_groups": {}, "dead_man_role": "", "reach": "ssh"}


@pytest.fixture
def server() -> Iterator[Any]:
    with wire_cloud("azure") as server:
        yield server


def opened(server: Any, wish: Wish = WISH, **settings: Any) -> Account:
    return account_of("azure", server.settings(**{**BARE, **settings}), wish)


def account(server: Any) -> Any:
    return server.cloud.arm.account


def thing(server: Any, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = account(server).things[f"{ROOT}/{kind}/{name}"]
    return found


def group(server: Any) -> dict[str, Any]:
    return thing(server, "Microsoft.Network/networkSecurityGroups", NODES)


def rules(server: Any) -> dict[str, list[str]]:
    found = group(server)["properties"]["securityRules"]
    return {each["name"]: each["properties"]["sourceAddressPrefixes"] for each in found}


def changes(server: Any) -> list[str]:
    return [f"{call.method} {call.action}" for call in server.cloud.calls if call.method != "GET"]


def granted(server: Any, identity: str) -> dict[str, dict[str, Any]]:
    """What an identity may do: by the role's id."""
    principal = thing(server, "Microsoft.ManagedIdentity/userAssignedIdentities", identity)["properties"]["principalId"]
    found = [each for each in account(server).assignments.values() if each["principalId"] == principal]
    return {each["roleDefinitionId"]: each for each in found}


def test_all_is_made_and_nothing_is_made_twice(server: Any) -> None:
    opening = opened(server)
    plan = opening.missing()
    assert changes(server) == []
    assert made(opening) == [str(step) for step in plan.steps]
    count = len(changes(server))
    assert made(opened(server)) == []
    assert len(changes(server)) == count
    assert rules(server) == {
        "spotsup-ssh": ["198.51.100.7/32", "10.1.0.0/16"],
        "spotsup-ssh6": ["2001:db8::7/128"],
    }
    for each in account(server).things.values():
        assert each["tags"].items() >= OWNER.tags.items()
    for each in account(server).roles.values():
        assert each["properties"]["description"] == described(OWNER)
    settings = opening.made().settings
    assert settings == {
        "security_groups": {REGION: f"{ROOT}/Microsoft.Network/networkSecurityGroups/{NODES}"},
        "subnets": {REGION: f"{ROOT}/Microsoft.Network/virtualNetworks/{NODES}/subnets/nodes"},
        "dead_man_role": role_id(server.settings(), OWNER, "node"),
        "identity": f"{ROOT}/Microsoft.ManagedIdentity/userAssignedIdentities/{NODE}",
    }
    assert made(opened(server, **settings)) == []


def test_what_is_made_is_what_check_asks_for(server: Any) -> None:
    opening = opened(server)
    made(opening)
    cloud = server.provisioner(**{**BARE, **opening.made().settings})
    found = {each.what: each for each in cloud.check(30.0)}
    assert found[f"{REGION} network"].ok, found
    assert f"{NODES} lets the daemon in" in found[f"{REGION} network"].message


def test_each_identity_has_exactly_the_roles_that_are_documented(server: Any) -> None:
    made(opened(server))
    ids = {use: role_id(server.settings(), OWNER, use) for use in ("daemon", "reading", "node", "checkpoints")}
    files = {
        "daemon": "azure-role.json",
        "reading": "azure-subscription-role.json",
        "node": "azure-node-role.json",
        "checkpoints": "azure-checkpoints-role.json",
    }
    for use, file in files.items():
        (permission,) = account(server).roles[ids[use].rpartition("/")[2]]["properties"]["permissions"]
        text = json.loads(permissions()[file])
        assert sorted(permission["actions"]) == sorted(text["Actions"])
        assert sorted(permission["dataActions"]) == sorted(text.get("DataActions", []))
    daemon, node = granted(server, DAEMON), granted(server, NODE)
    subscription = f"/subscriptions/{SUBSCRIPTION}"
    assert {role: each["scope"] for role, each in daemon.items()} == {
        ids["daemon"]: f"{subscription}/resourceGroups/{GROUP}",
        ids["reading"]: subscription,
    }
    # It may assign the role of a node, and no other one.
    assert ids["node"].rpartition("/")[2] in daemon[ids["daemon"]]["condition"]
    assert "Microsoft.Authorization/roleAssignments/write" in daemon[ids["daemon"]]["condition"]
    container = f"{STORAGE_ACCOUNT}/blobServices/default/containers/runs"
    assert {role: each["scope"] for role, each in node.items()} == {ids["checkpoints"]: container}


def test_who_has_credentials_of_their_own_needs_no_identity(server: Any) -> None:
    opening = opened(server, Wish(OWNER, ssh_from=("198.51.100.7",), host_identity=False))
    made(opening)
    assert account(server).left() == [NODES, NODES]
    assert set(opening.made().settings) == {"security_groups", "subnets"}


def test_a_subnet_that_is_named_stays_and_no_network_is_made(server: Any) -> None:
    subnets = server.settings().subnets
    opening = opened(server, subnets=subnets, reach="direct")
    made(opening)
    assert not any("virtualNetworks" in each for each in account(server).things)
    assert "subnets" not in opening.made().settings


def test_what_azure_knows_late_is_waited_for(server: Any) -> None:
    account(server).late = 2
    opening = opened(server)
    expected = [str(step) for step in opening.missing().steps]
    assert sorted(made(opening)) == sorted(expected)
    assert opened(server).missing().steps == ()
    deleted(opened(server))
    assert account(server).left() == []


@pytest.mark.parametrize("how", ["drop-reply", "done-but-error", "throttled", "twice", "empty", "garbage"])
def test_a_lost_or_doubled_answer_makes_nothing_twice(server: Any, how: str) -> None:
    network, authorization = "Microsoft.Network", "Microsoft.Authorization"
    groups = f"{network}/networkSecurityGroups"
    for action in (
        *(f"{groups}/write", f"{groups}/securityRules/write", f"{network}/virtualNetworks/write"),
        *(f"{authorization}/roleDefinitions/write", f"{authorization}/roleAssignments/write"),
        "Microsoft.ManagedIdentity/userAssignedIdentities/write",
    ):
        server.cloud.fail_next(action, how)
    made(opened(server))
    assert opened(server).missing().steps == ()
    assert len(account(server).things) == 4
    assert len(account(server).assignments) == 3
    for action in (
        *(f"{groups}/delete", f"{network}/virtualNetworks/delete", f"{authorization}/roleAssignments/delete"),
        *(f"{authorization}/roleDefinitions/delete", "Microsoft.ManagedIdentity/userAssignedIdentities/delete"),
    ):
        server.cloud.fail_next(action, how)
    deleted(opened(server))
    assert account(server).left() == []


def test_who_is_interrupted_after_any_step_goes_on(server: Any) -> None:
    """A new process each time, which knows nothing of the last."""
    for count in itertools.count():
        opening = opened(server)
        steps = opening.missing().steps
        if not steps:
            break
        opening.take(steps[0])
        assert count < 30
    for count in itertools.count():
        opening = opened(server)
        steps = opening.remaining(with_data=True).steps
        if not steps:
            break
        opening.take(steps[0])
        assert count < 30
    assert account(server).left() == []


@pytest.mark.parametrize("whose", [OTHER, None], ids=["another installation", "nobody"])
@pytest.mark.parametrize(
    "what", ["networkSecurityGroups", "virtualNetworks", "userAssignedIdentities", "roleDefinitions"]
)
def test_what_is_there_without_our_tags_is_refused_and_never_touched(
    server: Any, what: str, whose: Owner | None
) -> None:
    tags, cloud = whose.tags if whose else {}, account(server)
    if what == "roleDefinitions":
        name = role_id(server.settings(), OWNER, "daemon").rpartition("/")[2]
        text = described(whose) if whose else "mine"
        cloud.roles[name] = {"properties": {"roleName": "mine", "description": text, "permissions": []}}
    else:
        kind, name = ("ManagedIdentity", DAEMON) if what == "userAssignedIdentities" else ("Network", NODES)
        key = f"{ROOT}/Microsoft.{kind}/{what}/{name}"
        cloud.things[key] = {"id": key, "name": name, "location": REGION, "tags": tags, "properties": {}}
    before, changed = cloud.left(), changes(server)
    with pytest.raises(ProvisionerError, match="nothing was made: give --cluster another name, or delete it"):
        made(opened(server))
    _, plan = deleted(opened(server))
    assert any("stays: it does not have this installation's tags" in each for each in plan.left)
    assert (cloud.left(), changes(server)) == (before, changed)


def test_two_installations_share_a_resource_group(server: Any) -> None:
    made(opened(server))
    other = replace(WISH, owner=Owner("other", OTHER.key_mark))
    made(opened(server, other))
    deleted(opened(server, other))
    assert opened(server).missing().steps == ()


def test_what_someone_added_stays_and_what_differs_is_put_right(server: Any) -> None:
    made(opened(server))
    found = group(server)["properties"]["securityRules"]
    found[0]["properties"] |= {"sourceAddressPrefixes": ["192.0.2.0/24"], "access": "Deny"}
    theirs = {"direction": "Inbound", "priority": 202, "access": "Allow", "protocol": "Tcp", "sourceAddressPrefix": "*"}
    found.append({"name": "web", "properties": {**theirs, "destinationPortRanges": ["80", "443"]}})
    del found[1]
    said = made(opened(server))
    begin = f"let the network security group {NODES} ({REGION}) admit TCP port 22 from"
    assert said == [f"{begin} 192.0.2.0/24, 198.51.100.7/32, 10.1.0.0/16", f"{begin} 2001:db8::7/128"]
    priorities = [each["properties"]["priority"] for each in group(server)["properties"]["securityRules"]]
    assert sorted(priorities) == [200, 201, 202]
    assert opened(server).missing().steps == ()


def test_an_identity_that_was_made_anew_gets_its_roles_again(server: Any) -> None:
    """Its principal is another one, which Azure puts into no old assignment."""
    made(opened(server))
    del account(server).things[f"{ROOT}/Microsoft.ManagedIdentity/userAssignedIdentities/{DAEMON}"]
    made(opened(server))
    assert len(granted(server, DAEMON)) == 2


def test_what_is_in_use_is_left_after_a_while_in_one_sentence(server: Any) -> None:
    made(opened(server))
    account(server).used = {NODES}
    with pytest.raises(ProvisionerError, match="not done after 60 s: could not delete the network security group") as c:
        deleted(opened(server), limit_s=60.0)
    assert "InUseNetworkSecurityGroupCannotBeDeleted" in str(c.value)


ALLOWED = json.loads(permissions()["azure-account-role.json"])["Actions"]


# With a share, and an account of its own for checkpoints.
FULL = replace(WISH, shared_storage=True, checkpoints="abfs://runs@visionruns.dfs.core.windows.net")


def everything(server: Any) -> None:
    opened(server).whose()
    made(opened(server, FULL))
    opened(server).rented(server.provisioner(), 60.0)
    deleted(opened(server))


@pytest.mark.parametrize("action", sorted({*ALLOWED} - {"Microsoft.Insights/eventtypes/values/read"}))
def test_a_missing_permission_is_one_sentence_that_names_it(server: Any, action: str) -> None:
    server.cloud.denied = {action}
    with pytest.raises(ProvisionerError) as caught:
        everything(server)
    assert action in str(caught.value)
    assert "docs/permissions/azure-account-role.json has all" in str(caught.value)
    assert "\n" not in str(caught.value)
    server.cloud.denied = set()
    made(opened(server, FULL))
    assert opened(server, FULL).missing().steps == ()


@pytest.mark.parametrize("namespace", ["Microsoft.ManagedIdentity", "Microsoft.Network", "Microsoft.Storage"])
def test_a_provider_that_is_not_registered_is_one_sentence_with_the_command(server: Any, namespace: str) -> None:
    account(server).unregistered = {namespace}
    with pytest.raises(ProvisionerError, match=f"az provider register --wait --namespace {namespace}") as caught:
        made(opened(server))
    assert "\n" not in str(caught.value)
    account(server).unregistered = set()
    made(opened(server))


@pytest.mark.parametrize(
    ("wish", "settings", "message"),
    [
        ({"ssh_from": ("the office",)}, {}, "'the office' is neither an address"),
        ({"ssh_from": ()}, {}, "nothing says from where"),
        ({"checkpoints": "s3://models"}, {}, "'s3://models' is no container of Azure"),
        ({"checkpoints": "abfs://nothing@models.dfs.core.windows.net"}, {}, "has no container nothing"),
        ({}, {"identity": f"{ROOT}/x/mine"}, "nodes have the identity .*mine already"),
        ({}, {"dead_man_role": "/x/mine"}, "azure.dead_man_role is /x/mine already"),
        ({}, {"reach": "direct"}, "azure.subnets.eastus names no subnet"),
        ({}, {"public_address": False}, "azure.subnets.eastus names no subnet"),
        ({}, {"resource_group": "nowhere"}, "create it, or set azure.resource_group"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_is_refused_before_anything_is_made(
    server: Any, wish: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProvisionerError, match=message):
        made(opened(server, replace(WISH, **wish), **settings))
    assert changes(server) == []


def test_who_runs_this_is_said(server: Any) -> None:
    said = opened(server).whose()
    assert said == f"the resource group {GROUP} of the Azure subscription {SUBSCRIPTION}, as spotsupd"


@pytest.mark.parametrize("credentials", ["wrong", "refused"])
def test_wrong_credentials_are_one_sentence(server: Any, credentials: str) -> None:
    server.cloud.credentials = credentials
    with pytest.raises(ProvisionerError, match="credentials") as caught:
        opened(server).whose()
    assert "\n" not in str(caught.value)
