"""The storage that `spotsupd init --account` makes in an Azure subscription, by the SDK's real pipeline."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from provisioners.account import NotYetError
from provisioners.azure.account.wanted import files_name, subnet_id
from provisioners.base import OfferQuery, Owner, ProvisionerError
from supervisor.spec import Storage
from tests.clouds.azure_machines import ROOT
from tests.clouds.azure_requests import SUBNETS
from tests.clouds.base import wire_cloud
from tests.integration.test_azure_account import FULL, NODE, NODES, REGION, account, changes, granted, opened
from tests.support.accounts import deleted, made
from tests.support.combinations import diagonal_first
from tests.support.machines import OTHER, OWNER

pytestmark = pytest.mark.nightly

BLOBS = "visionruns"
CONTAINER = f"{ROOT}/Microsoft.Storage/storageAccounts/{BLOBS}/blobServices/default/containers/runs"


@pytest.fixture
def server() -> Iterator[Any]:
    with wire_cloud("azure") as server:
        yield server


def storage(server: Any) -> Any:
    return account(server).storage


def files(server: Any) -> str:
    return files_name(server.settings(), OWNER, REGION)


def source(opening: Any) -> str:
    """As the job file that a person is told to write has it."""
    (line,) = [each for each in opening.made().todo if "in job files" in each]
    found = re.search(r'nfs: "([^"]+)"', line)
    assert found is not None
    return found[1]


def why_not(server: Any, opening: Any, subnet: str = "") -> str:
    found: str = storage(server).why_not_mounted(source(opening), subnet or subnet_id(server.settings(), NODES))
    return found


def test_a_share_and_a_container_are_made_that_nodes_can_use(server: Any) -> None:
    opening = opened(server, FULL)
    plan = opening.missing()
    assert changes(server) == ["POST Microsoft.Storage/checknameavailability/read"] * 2
    assert made(opening) == [str(step) for step in plan.steps]
    assert {step.cost.split(" bill")[0] for step in plan.steps if step.cost} == {"Azure", "Azure Files"}
    count = len(changes(server))
    assert made(opened(server, FULL)) == []
    assert len(changes(server)) == count
    assert {*storage(server).left()} == {BLOBS, files(server)}
    for name in storage(server).left():
        assert storage(server).accounts[name]["tags"].items() >= OWNER.tags.items()
        assert storage(server).accounts[name]["properties"]["allowSharedKeyAccess"] is False
    assert why_not(server, opening) == ""
    assert why_not(server, opening, SUBNETS[REGION]) == "the subnet is not admitted"
    assert Storage(mount="/mnt/shared", nfs=source(opening)).as_mount().kind == "azure-files"
    (role,) = granted(server, NODE).values()
    assert role["scope"] == CONTAINER


def test_a_share_is_admitted_from_a_subnet_that_is_named(server: Any) -> None:
    wish = replace(FULL, checkpoints="")
    with pytest.raises(ProvisionerError, match=r"--service-endpoints Microsoft\.Storage`") as caught:
        made(opened(server, wish, subnets=SUBNETS, reach="direct"))
    assert "az network vnet subnet update --ids" in str(caught.value)
    assert storage(server).left() == []
    server.cloud.arm.endpoints = {"Microsoft.Storage"}
    opening = opened(server, wish, subnets=SUBNETS, reach="direct")
    made(opening)
    assert why_not(server, opening, SUBNETS[REGION]) == ""


@pytest.mark.parametrize(
    ("action", "how"),
    diagonal_first(
        [
            "Microsoft.Storage/storageAccounts/write",
            "Microsoft.Storage/storageAccounts/fileServices/shares/write",
            "Microsoft.Storage/storageAccounts/blobServices/containers/write",
            "Microsoft.Storage/storageAccounts/delete",
            "Microsoft.Storage/storageAccounts/read",
            "Microsoft.Storage/checknameavailability/read",
            "Microsoft.Storage/storageAccounts/fileServices/shares/read",
            "Microsoft.Storage/storageAccounts/blobServices/containers/read",
            "Microsoft.Storage/locations/asyncoperations/read",
            "Microsoft.Network/virtualNetworks/subnets/read",
        ],
        ["drop-reply", "done-but-error", "throttled", "twice", "empty", "garbage"],
    ),
)
def test_a_lost_or_doubled_answer_makes_nothing_twice(server: Any, action: str, how: str) -> None:
    account(server).late = 1
    server.cloud.fail_next(action, how)
    opening = opened(server, FULL)
    made(opening)
    assert why_not(server, opening) == ""
    assert {*storage(server).left()} == {BLOBS, files(server)}
    server.cloud.fail_next(action, how)
    deleted(opened(server))
    assert account(server).left() == []


@pytest.mark.long
def test_who_is_interrupted_after_any_step_goes_on(server: Any) -> None:
    """A new process each time, which knows nothing of the last, while Azure is late."""
    account(server).late = 1
    for count in itertools.count():
        opening = opened(server, FULL)
        steps = opening.missing().steps
        if not steps:
            break
        made_one(opening, steps)
        assert count < 60
    for count in itertools.count():
        opening = opened(server)
        steps = opening.remaining(with_data=True).steps
        if not steps:
            break
        made_one(opening, steps)
        assert count < 60
    assert account(server).left() == []


def made_one(opening: Any, steps: Any) -> None:
    """The first step that can be taken now."""
    for step in steps:
        with suppress(NotYetError):
            opening.take(step)
            return


@pytest.mark.parametrize("hidden", [False, True], ids=["said before", "looked free"])
@pytest.mark.parametrize("what", ["share", "container"])
def test_a_name_that_someone_else_has_is_one_sentence(server: Any, what: str, hidden: bool) -> None:
    name = files(server) if what == "share" else BLOBS
    storage(server).taken = {name}
    storage(server).hidden = {name} if hidden else set()
    with pytest.raises(ProvisionerError, match=f"someone else has a storage account {name}, and names are") as caught:
        made(opened(server, FULL))
    assert ("--cluster another name" if what == "share" else "--checkpoints another one") in str(caught.value)
    assert "\n" not in str(caught.value)
    if not hidden:
        assert account(server).left() == []


def test_an_account_that_fails_after_its_acceptance_is_one_sentence(server: Any) -> None:
    storage(server).failure = ("MaxStorageAccountsCountPerSubscriptionExceeded", "There are 250 already.")
    with pytest.raises(ProvisionerError, match=r"could not make the storage account .*: There are 250 already") as c:
        made(opened(server, FULL))
    assert "\n" not in str(c.value)
    made(opened(server, FULL))
    assert opened(server, FULL).missing().steps == ()


def test_without_a_permission_to_follow_the_operation_the_account_is_waited_for(server: Any) -> None:
    account(server).late = 2
    server.cloud.fail_next("Microsoft.Storage/locations/asyncoperations/read", "denied", 5)
    made(opened(server, FULL))
    assert opened(server, FULL).missing().steps == ()


@pytest.mark.parametrize("whose", [OTHER, None], ids=["another installation", "nobody"])
def test_an_account_of_someone_else_is_never_changed(server: Any, whose: Owner | None) -> None:
    made(opened(server, FULL))
    name, tags = files(server), whose.tags if whose else {}
    storage(server).accounts[name]["tags"] = tags
    before = len(changes(server))
    with pytest.raises(ProvisionerError, match="nothing was made: give --cluster another name, or delete it"):
        made(opened(server, FULL))
    assert len(changes(server)) == before
    deleted(opened(server))
    assert storage(server).left() == [name]


def test_a_container_in_an_account_of_someone_else_is_used_and_stays(server: Any) -> None:
    """As a person has made it; even in the resource group, and listed late."""
    storage(server).late = 3
    made(opened(server, replace(FULL, checkpoints="abfs://runs@models.dfs.core.windows.net")))
    assert storage(server).left() == [files(server)]
    deleted(opened(server))
    assert "models" in storage(server).accounts


def test_data_stays_and_is_taken_again_also_in_a_new_network_of_the_same_name(server: Any) -> None:
    made(opened(server, FULL))
    _, plan = deleted(opened(server), with_data=False)
    assert [each for each in plan.left if "--with-data deletes it for ever" in each] == list(plan.left)
    assert {*account(server).left()} == {BLOBS, files(server)}
    opening = opened(server, FULL)
    said = made(opening)
    assert any(each.startswith("let nodes in ") for each in said)
    assert not any("make the storage account" in each for each in said)
    assert why_not(server, opening) == ""
    deleted(opened(server))
    assert account(server).left() == []


def test_what_someone_changed_is_put_right_and_other_rules_stay(server: Any) -> None:
    made(opened(server, FULL))
    properties = storage(server).accounts[files(server)]["properties"]
    properties["supportsHttpsTrafficOnly"] = True
    server.cloud.arm.endpoints = {"Microsoft.Storage"}
    theirs = {"id": SUBNETS["westus2"], "action": "Allow", "state": "Succeeded"}
    properties["networkAcls"]["virtualNetworkRules"] = [theirs]
    properties["networkAcls"]["ipRules"] = [{"value": "203.0.113.5"}]
    opening = opened(server, FULL)
    assert len(made(opening)) == 1
    assert why_not(server, opening) == ""
    acls = storage(server).accounts[files(server)]["properties"]["networkAcls"]
    assert {each["id"] for each in acls["virtualNetworkRules"]} > {SUBNETS["westus2"]}
    assert acls["ipRules"] == [{"value": "203.0.113.5"}]


def test_a_share_whose_name_is_not_free_yet_is_waited_for(server: Any) -> None:
    """Someone has deleted it: it is kept for some days, and its name for some seconds."""
    made(opened(server, FULL))
    account(server).late = 2
    for name, inside in ((files(server), "share"), (BLOBS, "runs")):
        storage(server).lose_inside(name, inside)
    opening = opened(server, FULL)
    assert len(made(opening)) == 2
    assert why_not(server, opening) == ""


def test_without_the_storage_provider_all_else_is_deleted(server: Any) -> None:
    made(opened(server, replace(FULL, shared_storage=False, checkpoints="")))
    account(server).unregistered = {"Microsoft.Storage"}
    deleted(opened(server))
    assert account(server).left() == []


def test_a_subnet_that_is_not_there_is_one_sentence(server: Any) -> None:
    wrong = {REGION: f"{SUBNETS[REGION]}-gone"}
    with pytest.raises(ProvisionerError, match=r"is not there: look at azure\.subnets\.eastus"):
        made(opened(server, FULL, subnets=wrong, reach="direct"))


def offers(server: Any, opening: Any, *regions: str) -> set[str]:
    """The regions of the offers for a job that mounts the share that was made."""
    settings = opening.made().settings
    subnets = {**SUBNETS, **settings.get("subnets", {})}
    cloud = server.provisioner(regions=regions or (REGION,), subnets=subnets, security_groups={})
    query = OfferQuery(gpu="T4", file_servers=(source(opening).partition(":")[0], "10.0.0.5"))
    return {each.region for each in cloud.offers(query, 30.0)}


def test_a_job_gets_machines_only_where_they_can_mount_its_share(server: Any) -> None:
    opening = opened(server, FULL)
    made(opening)
    assert offers(server, opening, REGION, "westus2") == {REGION}
    with pytest.raises(ProvisionerError, match=r"admits no subnet of nodes in westus2: ask for its region, or az"):
        offers(server, opening, "westus2")
    server.cloud.denied = {"Microsoft.Storage/storageAccounts/read"}
    assert offers(server, opening, REGION, "westus2") == {REGION, "westus2"}, "not known is no reason"
    server.cloud.denied = set()
    storage(server).accounts[files(server)]["properties"]["supportsHttpsTrafficOnly"] = True
    with pytest.raises(ProvisionerError, match=r"NFS needs an account without secure transfer.*--https-only false"):
        offers(server, opening)
    storage(server).accounts.pop(files(server))
    assert offers(server, opening) == {REGION}, "it may be in another resource group"


@pytest.mark.parametrize("how", ["drop-reply", "throttled", "done-but-error", "empty", "garbage"])
def test_a_lost_listing_of_accounts_is_asked_for_again(server: Any, how: str) -> None:
    opening = opened(server, FULL)
    made(opening)
    server.cloud.fail_next("Microsoft.Storage/storageAccounts/read", how)
    assert offers(server, opening, REGION, "westus2") == {REGION}


def test_an_account_of_someone_else_that_is_listed_late_is_not_taken_over(server: Any) -> None:
    """A PUT would write its tags anew."""
    made(opened(server, FULL))
    name = files(server)
    storage(server).accounts[name]["tags"] = {}
    storage(server).hide(name, 50)
    with pytest.raises(ProvisionerError, match="nothing was made: give --cluster another name, or delete it"):
        made(opened(server, FULL))
    assert storage(server).accounts[name]["tags"] == {}
