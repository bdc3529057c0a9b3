"""Azure by its real SDK, against the test cloud with machines on paper: faults, time limits, numbers of calls."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioners.azure import history, provisioner
from provisioners.azure.provisioner import AzureProvisioner
from provisioners.base import (
    DeniedError,
    EndCause,
    Fatal,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    LeftoverKind,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    ProvisionerError,
    Quota,
    Scope,
    Throttled,
    Transient,
    Unknown,
)
from tests.clouds import azure
from tests.clouds.azure_arm import open_rule
from tests.clouds.azure_machines import ROOT
from tests.clouds.machines import PaperMachines
from tests.support.machines import CLUSTER, TIMEOUT_S, found_by, launched_by, request_at

T4 = OfferQuery(gpu="T4", gpus_per_node=1)
PERMISSIONS = Path(__file__).resolve().parents[2] / "docs" / "permissions"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[azure.AzureServer]:
    with azure.azure_cloud(PaperMachines()) as running:
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def arm(server: azure.AzureServer) -> AzureProvisioner:
    return AzureProvisioner(server.settings())


def offer(zone: str = "eastus-1", region: str = "eastus", market: Market = Market.SPOT) -> Offer:
    return Offer("azure", region, zone, "Standard_NC4as_T4_v3", market, None, "T4", 1)


def request(node: str, place: Offer | None = None) -> LaunchRequest:
    return request_at(place or offer(), node)


def launched(arm: AzureProvisioner, node: str, place: Offer | None = None) -> Instance:
    return launched_by(arm, request(node, place))


# -- launches ------------------------------------------------------------------------------------------------


def test_a_launch_is_sent_once_even_where_the_sdk_would_retry(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.exhaust("eastus-1", "Standard_NC4as_T4_v3")
    outcome = arm.launch(request("n1"), TIMEOUT_S)
    assert isinstance(outcome, NoCapacity)
    assert (outcome.scope, outcome.memory_s) == (Scope.TYPE_IN_ZONE, 3600.0)
    server.cloud.fail_next(azure.LAUNCH, "throttled")
    throttled = arm.launch(request("n1"), TIMEOUT_S)
    assert isinstance(throttled, Throttled)
    assert throttled.retry_after_s == 1.0  # by the answer's Retry-After
    assert server.cloud.counted()[azure.LAUNCH] == 2
    launched(arm, "n2", offer("eastus-2"))
    server.cloud.make_room("eastus-1", "Standard_NC4as_T4_v3")
    launched(arm, "n1")


def test_a_fault_inside_the_cloud_is_unknown(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.fail_next(azure.LAUNCH, "internal")
    assert isinstance(arm.launch(request("n1"), TIMEOUT_S), Unknown)
    assert arm.find("token-n1", TIMEOUT_S) is None


@pytest.mark.parametrize("code", ["AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest"])
def test_a_launch_that_fails_after_acceptance_is_no_capacity_and_leaves_nothing(
    server: azure.AzureServer, arm: AzureProvisioner, code: str
) -> None:
    server.cloud.fail_allocation(code, 0.2)
    outcome = arm.launch(request("n1"), TIMEOUT_S)
    assert isinstance(outcome, NoCapacity)
    assert "eastus-1" in outcome.message
    assert not server.cloud.arm.fleet.records
    assert not arm.instances(CLUSTER, TIMEOUT_S)
    assert not arm.leftovers(CLUSTER, TIMEOUT_S)
    assert launched(arm, "n1").state is InstanceState.PENDING  # a machine that never ran does not use up a token


def test_a_launch_that_fails_later_is_listed_as_stopped_and_can_be_ended(
    server: azure.AzureServer, arm: AzureProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provisioner, "_LOOKS_S", (0.0,))
    server.cloud.fail_allocation("AllocationFailed", 0.3)
    machine = launched(arm, "n1")
    assert machine.state is InstanceState.PENDING
    time.sleep(0.4)
    failed = found_by(arm, "n1")
    assert (failed.state, failed.end_cause, failed.node) == (InstanceState.STOPPED, EndCause.FAILED, "n1")
    # A daemon that was killed in between retries: the failure is reported, and the failed machine is deleted.
    assert isinstance(arm.launch(request("n1"), TIMEOUT_S), NoCapacity)
    assert not server.cloud.arm.fleet.records


def test_an_unknown_failure_is_reported_and_leaves_nothing(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.fail_allocation("SomethingElse")
    outcome = arm.launch(request("n1"), TIMEOUT_S)
    assert isinstance(outcome, Transient)
    assert outcome.unknown_code == "SomethingElse"
    assert not server.cloud.arm.fleet.records


def test_a_failed_launch_that_cannot_be_deleted_is_unknown_where_it_would_be_retried(
    server: azure.AzureServer, arm: AzureProvisioner
) -> None:
    server.cloud.fail_allocation("SomethingElse")
    server.cloud.fail_next("Microsoft.Compute/virtualMachines/delete", "internal", times=9)
    assert isinstance(arm.launch(request("n1"), TIMEOUT_S), Unknown)
    assert found_by(arm, "n1").state is InstanceState.STOPPED


def test_the_subscriptions_limit_is_a_quota_of_the_region(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.arm.most_machines = 1
    launched(arm, "n1")
    for market in Market:
        outcome = arm.launch(request("n2", offer(market=market)), TIMEOUT_S)
        assert isinstance(outcome, Quota), outcome
        assert outcome.scope is Scope.REGION


def test_an_existing_machine_is_never_changed(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    machine = launched(arm, "n1")
    changed = AzureProvisioner(server.settings(disk_gb=200))
    assert launched(changed, "n1").id == machine.id
    stolen = changed.launch(replace(request("n1"), node="n2"), TIMEOUT_S)
    assert isinstance(stolen, Fatal)
    assert "one request" in stolen.message
    (record,) = server.cloud.arm.fleet.records.values()
    assert record.body["properties"]["storageProfile"]["osDisk"]["diskSizeGB"] == 100
    assert record.body["tags"]["spotsup-node"] == "n1"


def test_a_token_that_azure_forgot_launches_another_machine(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    """Azure forgets names, and its log lags: the token then gets a second machine, after the first one's end."""
    machine = launched(arm, "n1")
    arm.terminate(machine.id, TIMEOUT_S)
    ended = arm.launch(request("n1"), TIMEOUT_S)
    assert isinstance(ended, Launched)
    assert ended.instance.state is InstanceState.TERMINATED
    server.cloud.lag(3600.0)
    assert launched(arm, "n1").state is not InstanceState.TERMINATED
    assert len(server.cloud.arm.fleet.records) == 1


def test_the_settings_reach_the_machine(server: azure.AzureServer) -> None:
    arm = AzureProvisioner(server.settings(tags={"team": "vision"}, regions=("eastus", "northcentralus")))
    launched(arm, "n1", offer("northcentralus", "northcentralus", Market.ON_DEMAND))
    (record,) = server.cloud.arm.fleet.records.values()
    assert record.body["tags"]["team"] == "vision"
    assert "zones" not in record.body
    assert "priority" not in record.body["properties"]
    machine = found_by(arm, "n1")
    assert (machine.region, machine.zone) == ("northcentralus", "northcentralus")


def test_machines_of_private_addresses_have_no_public_one(server: azure.AzureServer) -> None:
    arm = AzureProvisioner(server.settings(public_address=False))
    launched(arm, "n1")
    server.cloud.calls.clear()
    machine = found_by(arm, "n1")
    assert machine.ssh_host == machine.private_address != ""
    assert "Microsoft.Network/publicIPAddresses/read" not in server.cloud.counted()


# -- reading -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("credentials", "message"),
    [
        ("wrong", "AADSTS7000215"),
        ("refused", "InvalidAuthenticationToken.*renew the daemon's Azure credentials"),
        ("expired", "ExpiredAuthenticationToken.*renew the daemon's Azure credentials"),
    ],
)
def test_invalid_credentials_are_reported_by_every_call(
    server: azure.AzureServer, arm: AzureProvisioner, credentials: str, message: str
) -> None:
    server.cloud.credentials = credentials
    for ask in (
        lambda: arm.offers(T4, TIMEOUT_S),
        lambda: arm.instances(CLUSTER, TIMEOUT_S),
        lambda: arm.find("token", TIMEOUT_S),
        lambda: arm.terminate("spotsup-1-c-n", TIMEOUT_S),
        lambda: arm.leftovers(CLUSTER, TIMEOUT_S),
        lambda: arm.console("spotsup-1-c-n", TIMEOUT_S),
    ):
        with pytest.raises(DeniedError, match=message):
            ask()
    assert isinstance(arm.launch(request("n1"), TIMEOUT_S), Fatal)
    server.cloud.credentials = "good"
    launched(arm, "n1")  # corrected credentials are used


def test_missing_credentials_are_reported(arm: AzureProvisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    with pytest.raises(DeniedError, match=r"no valid Azure credentials.*set them up for the daemon's user"):
        arm.instances(CLUSTER, TIMEOUT_S)
    assert isinstance(arm.launch(request("n1"), TIMEOUT_S), Fatal)


def test_messages_contain_no_secret(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.credentials = "wrong"
    with pytest.raises(DeniedError) as raised:
        arm.instances(CLUSTER, TIMEOUT_S)
    assert server.environ["AZURE_CLIENT_SECRET"] not in str(raised.value)


def test_an_untrusted_cloud_is_not_called(server: azure.AzureServer) -> None:
    arm = AzureProvisioner(server.settings(endpoint_ca=""))
    assert isinstance(arm.launch(request("n1"), TIMEOUT_S), Transient | Fatal)
    assert not server.cloud.calls


def test_machines_are_listed_without_the_log(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.denied.add(azure.LOG)
    machine = launched(arm, "n1")
    assert found_by(arm, "n1").state is InstanceState.RUNNING
    arm.terminate(machine.id, TIMEOUT_S)
    assert arm.find("token-n1", TIMEOUT_S) is None
    server.cloud.denied.clear()
    for how in ("hang", "garbage", "throttled"):
        server.cloud.fail_next(azure.LOG, how)
        assert not arm.instances(CLUSTER, 3.0)


def test_descriptions_may_lack_fields(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    launched(arm, "n1")
    server.cloud.arm.missing = {"hardwareProfile", "zones", "networkProfile"}
    (machine,) = arm.instances(CLUSTER, TIMEOUT_S)
    assert (machine.zone, machine.instance_type) == ("eastus", "")
    server.cloud.arm.missing = {"provisioningState"}
    with pytest.raises(ProvisionerError, match=r"describes a machine .* without a required field"):
        arm.instances(CLUSTER, TIMEOUT_S)


def test_more_than_a_page_is_read_page_by_page(
    server: azure.AzureServer, arm: AzureProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.cloud.arm.page = 5
    for number in range(12):
        launched(arm, f"n{number}", offer(f"eastus-{1 + number % 3}"))
    server.cloud.calls.clear()
    server.cloud.fail_next(azure.LISTING, "pass")
    server.cloud.fail_next(azure.LISTING, "transient")  # in the middle
    machines = arm.instances(CLUSTER, TIMEOUT_S)
    assert {machine.node for machine in machines} == {f"n{number}" for number in range(12)}
    assert all(machine.ssh_host for machine in machines)
    assert server.cloud.counted()[azure.LISTING] == 7
    monkeypatch.setattr("provisioners.azure.client.MAX_PAGES", 2)
    with pytest.raises(ProvisionerError, match="Azure has more than 2 pages of"):
        arm.instances(CLUSTER, TIMEOUT_S)


def test_without_machines_few_calls_are_made(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    assert not arm.instances(CLUSTER, TIMEOUT_S)
    assert server.cloud.counted() == {azure.LISTING: 1, azure.LOG: 1}


def test_a_log_without_end_does_not_hold_a_listing(
    server: azure.AzureServer, arm: AzureProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_MAX_PAGES", 100_000)
    server.cloud.arm.page = 1
    launched(arm, "n1")
    log = server.cloud.arm.fleet.log
    log.extend(log[-1:] * 50_000)
    began = time.monotonic()
    assert len(arm.instances(CLUSTER, 3.0)) == 1
    assert time.monotonic() - began < 4.0


# -- ends ----------------------------------------------------------------------------------------------------


def test_an_eviction_may_deallocate_a_machine_which_then_still_costs(
    server: azure.AzureServer, arm: AzureProvisioner
) -> None:
    machine = launched(arm, "n1")
    server.cloud.preempt(machine.id, 0.0, deallocate=True)
    stopped = found_by(arm, "n1")
    assert (stopped.state, stopped.end_cause) == (InstanceState.STOPPED, EndCause.PREEMPTED)
    arm.terminate(machine.id, TIMEOUT_S)
    assert found_by(arm, "n1").state is InstanceState.TERMINATED


def test_a_gone_machine_is_listed_with_its_cause(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    machine = launched(arm, "n1")
    server.cloud.preempt(machine.id, 0.0)
    gone = found_by(arm, "n1")
    assert (gone.state, gone.end_cause) == (InstanceState.TERMINATED, EndCause.PREEMPTED)
    assert (gone.cluster, gone.node, gone.zone) == (CLUSTER, "n1", "eastus-1")
    assert not arm.leftovers(CLUSTER, TIMEOUT_S)


def test_a_machine_that_deleted_itself_has_that_cause(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    machine = launched(arm, "n1")
    server.cloud.end_itself(machine.id)
    gone = found_by(arm, "n1")
    assert (gone.state, gone.end_cause) == (InstanceState.TERMINATED, EndCause.FAILED)


def test_a_machine_that_switched_itself_off_still_costs(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    machine = launched(arm, "n1")
    assert found_by(arm, "n1").state is InstanceState.RUNNING
    server.cloud.halt(machine.id)
    off = found_by(arm, "n1")
    assert (off.state, off.end_cause) == (InstanceState.STOPPED, EndCause.UNKNOWN)


def test_a_console_is_shown_and_none_is_empty(arm: AzureProvisioner) -> None:
    machine = launched(arm, "n1")
    assert arm.console(machine.id, TIMEOUT_S).endswith(": a machine on paper\n")
    assert arm.console("no-such-machine", TIMEOUT_S) == ""


def test_leftovers_are_found_by_tag_or_name_and_removed(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    launched(arm, "n1")  # its resources are in use
    for cluster in ("another", CLUSTER):
        name = f"spotsup-{len(cluster)}-{cluster}-gone"
        server.cloud.leave_behind({"spotsup-cluster": cluster, "spotsup-node": "gone"}, name)
    server.cloud.arm.fleet.loose[f"{ROOT}/Microsoft.Compute/disks/of-the-user"] = {
        "location": "eastus",
        "properties": {"diskState": "Unattached"},
    }
    left = arm.leftovers(CLUSTER, TIMEOUT_S)
    assert sorted(each.kind for each in left) == sorted(set(LeftoverKind) - {LeftoverKind.SPOT_REQUEST})
    assert {(each.cluster, each.node, each.region) for each in left} == {(CLUSTER, "gone", "eastus")}
    for each in [*left, *left]:
        arm.remove(each, TIMEOUT_S)
    assert not arm.leftovers(CLUSTER, TIMEOUT_S)
    assert len(arm.leftovers("another", TIMEOUT_S)) == 3
    assert len(server.cloud.arm.fleet.loose) == 4
    assert found_by(arm, "n1").state is InstanceState.RUNNING


# -- offers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("market", Market)
def test_prices_are_live_and_of_linux(server: azure.AzureServer, arm: AzureProvisioner, market: Market) -> None:
    offers = arm.offers(replace(T4, market=market), TIMEOUT_S)
    assert {each.price_source for each in offers} == {"Azure retail prices, live"}
    spot, on_demand = server.cloud.arm.prices["Standard_NC4as_T4_v3"]
    assert offers[0].usd_per_hour == (spot if market is Market.SPOT else on_demand)
    assert {each.zone for each in offers} == {"eastus-1", "eastus-2", "eastus-3"}
    assert len({(each.instance_type, each.zone) for each in offers}) == len(offers)


def test_offers_do_not_need_prices(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.fail_next("prices", "internal", times=9)
    assert {(each.usd_per_hour, each.price_source) for each in arm.offers(T4, TIMEOUT_S)} == {(None, "")}
    nowhere = AzureProvisioner(server.settings(prices=""))
    first, *_ = nowhere.offers(replace(T4, market=Market.ON_DEMAND), TIMEOUT_S)
    assert (first.instance_type, first.usd_per_hour) == ("Standard_NC4as_T4_v3", 0.526)
    assert first.price_source == "catalog: karpenter-provider-azure, price table generated 2023-12-18"


def test_restricted_sizes_are_not_offered(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.arm.restrictions |= {("Standard_NC4as_T4_v3", "eastus"), ("Standard_NC8as_T4_v3", "eastus-2")}
    places = {(each.instance_type, each.zone) for each in arm.offers(T4, TIMEOUT_S)}
    assert not [zone for size, zone in places if size == "Standard_NC4as_T4_v3"]
    assert {zone for size, zone in places if size == "Standard_NC8as_T4_v3"} == {"eastus-1", "eastus-3"}


def test_sizes_without_spot_are_offered_on_demand_only(arm: AzureProvisioner) -> None:
    query = OfferQuery(gpu="V100")
    with pytest.raises(ProvisionerError, match="none of Standard_ND40rs_v2 is offered"):
        arm.offers(query, TIMEOUT_S)
    assert arm.offers(replace(query, market=Market.ON_DEMAND), TIMEOUT_S)


def test_without_a_quota_there_is_no_offer(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.arm.quotas["lowPriorityCores"] = 4
    assert {each.instance_type for each in arm.offers(T4, TIMEOUT_S)} == {"Standard_NC4as_T4_v3"}
    server.cloud.arm.quotas["lowPriorityCores"] = 0
    with pytest.raises(
        ProvisionerError, match=r"lowPriorityCores in eastus is 0 vCPUs, and Standard_NC4as_T4_v3 needs 4"
    ):
        arm.offers(T4, TIMEOUT_S)
    server.cloud.arm.quotas["NC4as_T4_v3Family"] = 0
    on_demand = {each.instance_type for each in arm.offers(replace(T4, market=Market.ON_DEMAND), TIMEOUT_S)}
    assert on_demand
    assert "Standard_NC4as_T4_v3" not in on_demand
    server.cloud.denied.add("Microsoft.Compute/locations/usages/read")
    assert arm.offers(T4, TIMEOUT_S)


# -- check ---------------------------------------------------------------------------------------------------


def complaints(arm: AzureProvisioner) -> dict[str, str]:
    return {each.what: each.message for each in arm.check(30.0) if not each.ok}


def test_correct_settings_have_no_complaint(arm: AzureProvisioner) -> None:
    assert complaints(arm) == {}
    wanted = {
        "credentials",
        "reading",
        "launching",
        "dead-man switch",
        "eastus image",
        "eastus network",
        "eastus sizes",
        "eastus quota",
    }
    assert {each.what for each in arm.check(30.0)} == wanted


@pytest.mark.parametrize(
    ("given", "what", "message"),
    [
        ({"identity": ""}, "dead-man switch", "set azure.identity, or azure.dead_man_s = 0"),
        ({"image": "microsoft-dsvm:ubuntu-hpc:1404:latest"}, "eastus image", "set azure.image to one that eastus has"),
        ({"image": "microsoft-dsvm:ubuntu-hpc:2204:1.2.3"}, "eastus image", "has no image"),
        ({"image": "ubuntu"}, "eastus image", "neither publisher:offer:sku:version"),
        ({"subnets": {}}, "eastus network", "set azure.subnets.eastus"),
        ({"subnets": {"eastus": "my-subnet"}}, "eastus network", "is not the resource id of one of Azure's subnets"),
        ({"security_groups": {}}, "eastus network", "a public address without an inbound rule"),
        ({"resource_group": "elsewhere"}, "credentials", "ResourceGroupNotFound"),
        ({"subscription": "0"}, "credentials", "SubscriptionNotFound"),
    ],
)
def test_wrong_settings_are_reported(server: azure.AzureServer, given: dict[str, Any], what: str, message: str) -> None:
    assert message in complaints(AzureProvisioner(server.settings(**given)))[what]


def test_missing_permissions_are_found_before_anything_is_launched(
    server: azure.AzureServer, arm: AzureProvisioner
) -> None:
    server.cloud.denied |= {"Microsoft.Compute/disks/read", azure.LOG}
    server.cloud.arm.granted = [
        {"actions": ["Microsoft.Compute/*", "*/read"], "notActions": ["Microsoft.Compute/disks/delete"]}
    ]
    found = complaints(arm)
    assert "may not read disks, the activity log" in found["reading"]
    assert "Microsoft.Compute/disks/delete, Microsoft.Network/networkInterfaces/write" in found["launching"]
    assert "docs/permissions" in found["launching"]
    assert azure.LAUNCH not in server.cloud.counted()


@pytest.mark.parametrize(
    ("rules", "fine"),
    [
        ([], False),
        ([open_rule("443")], False),
        ([open_rule("20-30")], True),
        ([open_rule("*")], True),
        ([open_rule("22", "Deny", 90), open_rule()], False),
        ([open_rule("22", "Deny", 110), open_rule()], True),
    ],
)
def test_a_group_without_needed_rules_is_reported(
    server: azure.AzureServer, arm: AzureProvisioner, rules: list[dict[str, Any]], fine: bool
) -> None:
    server.cloud.arm.rules = rules
    assert ("eastus network" not in complaints(arm)) is fine


def test_no_quota_for_spot_machines_is_a_complaint(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    server.cloud.arm.quotas["lowPriorityCores"] = 0
    assert "the quota of eastus allows no spot instance" in complaints(arm)["eastus quota"]


# -- permissions ---------------------------------------------------------------------------------------------


def test_the_roles_grant_exactly_the_actions_that_are_called(server: azure.AzureServer, arm: AzureProvisioner) -> None:
    """All actions that the daemon calls on Azure, by scope: the resource group or the subscription."""
    arm.check(30.0)
    arm.offers(OfferQuery(), TIMEOUT_S)
    machine = launched(arm, "n1")
    arm.instances(CLUSTER, TIMEOUT_S)
    launched(arm, "n1")
    arm.console(machine.id, TIMEOUT_S)
    arm.terminate(machine.id, TIMEOUT_S)
    server.cloud.leave_behind({"spotsup-cluster": CLUSTER}, "spotsup-12-test-cluster-gone")
    for each in arm.leftovers(CLUSTER, TIMEOUT_S):
        arm.remove(each, TIMEOUT_S)
    used: dict[str, set[str]] = {"azure-role.json": set(), "azure-subscription-role.json": set()}
    for call in server.cloud.calls:
        inside = "/resourcegroups/" in call.path.lower()
        used["azure-role.json" if inside else "azure-subscription-role.json"] |= set(azure.needed(call))
    granted = {name: set(json.loads((PERMISSIONS / name).read_text())["Actions"]) for name in used}
    assert granted == used
    assert not any("*" in action for actions in granted.values() for action in actions)


def test_a_nodes_role_allows_only_its_own_deletion(server: azure.AzureServer) -> None:
    granted = set(json.loads((PERMISSIONS / "azure-node-role.json").read_text())["Actions"])
    assert granted == {
        "Microsoft.Compute/virtualMachines/delete",
        "Microsoft.Compute/disks/delete",
        "Microsoft.Network/networkInterfaces/delete",
        "Microsoft.Network/publicIPAddresses/delete",
    }
