"""Azure's requests, and the reading of its answers: pure functions."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioners.azure import checks, describe, history, launch, offers
from provisioners.azure.errors import ERRORS, AzureErrorReply
from provisioners.azure.settings import AzureSettings
from provisioners.base import (
    EndCause,
    Fatal,
    InstanceState,
    LaunchRequest,
    LeftoverKind,
    Market,
    Offer,
    Owner,
    ProvisionerError,
)
from tests.clouds.azure_requests import check
from tests.clouds.azure_wire import FakeAzureError
from tests.unit.launching import OTHERS, TEAM, abridged, assert_reviewed, machine_of, request_for, request_on

SPOT = Offer("azure", "eastus", "eastus-1", "Standard_NC4as_T4_v3", Market.SPOT, None, "T4", 1)
REQUEST, asking = request_for(SPOT), partial(request_on, SPOT)
SUBNET = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v/subnets/nodes"
GROUP = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkSecurityGroups/nodes"
ROLE = "/subscriptions/s/providers/Microsoft.Authorization/roleDefinitions/node"
SCALE_SET = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/nd"
IDENTITY = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/node"
RESERVED = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/capacityReservationGroups/reserved"
PLAIN = AzureSettings(regions=("eastus",), subscription="s", resource_group="g", subnets={"eastus": SUBNET})
FULL = AzureSettings(
    regions=("eastus",),
    subscription="s",
    resource_group="g",
    subnets={"eastus": SUBNET},
    security_groups={"eastus": GROUP},
    public_address=False,
    disk_gb=200,
    tags={"team": "vision"},
    images={"A100": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/images/a100"},
    identity=IDENTITY,
    dead_man_role=ROLE,
    scale_sets={"eastus-1": SCALE_SET},
)


def body(request: LaunchRequest, settings: AzureSettings) -> dict[str, Any]:
    return launch.virtual_machine(request, settings, *machine_of(request))


CASES: Mapping[str, tuple[LaunchRequest, AzureSettings]] = {
    "azure_spot": (REQUEST, PLAIN),
    "azure_on_demand_with_everything": (
        asking("Standard_NC24ads_A100_v4", Market.ON_DEMAND, tags={"job": "resnet"}, disk_gb=500),
        FULL,
    ),
    "azure_reserved": (
        request_on(replace(SPOT, reservation=RESERVED), "Standard_NC24ads_A100_v4", Market.RESERVED),
        FULL,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_launch_request_matches_the_reviewed_one(name: str) -> None:
    asked = body(*CASES[name])
    system = asked["properties"]["osProfile"]
    system["customData"] = abridged(system["customData"])
    assert_reviewed(name, asked)


@pytest.mark.parametrize("market", Market)
@pytest.mark.parametrize("settings", [PLAIN, FULL], ids=["plain", "full"])
def test_all_resources_are_tagged_and_deleted_with_their_machine(market: Market, settings: AzureSettings) -> None:
    asked = body(asking("Standard_NC4as_T4_v3", market), settings)
    text = json.dumps(asked)
    assert text.count('"deleteOption": "Delete"') == (3 if settings.public_address else 2)
    assert "Detach" not in text
    assert text.count('"spotsup-token": "token-1"') == (3 if settings.public_address else 2)
    assert asked["properties"]["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
    assert asked["properties"].get("evictionPolicy") == ("Delete" if market is Market.SPOT else None)
    assert ("billingProfile" in asked["properties"]) is (market is Market.SPOT)


def test_our_own_tags_win_and_azures_rules_hold() -> None:
    asked = body(replace(REQUEST, tags={"spotsup-cluster": "somebody-else"}), PLAIN)
    assert asked["tags"]["spotsup-cluster"] == "team-a"
    for tags in ({"a/b": "c"}, {"a": "c" * 257}, {f"tag-{number}": "" for number in range(50)}):
        with pytest.raises(ProvisionerError, match=r"Azure (does not allow|allows)"):
            body(replace(REQUEST, tags=tags), PLAIN)


def test_cloud_init_creates_the_daemons_user_and_azures_administrator_is_unused() -> None:
    system = body(REQUEST, PLAIN.model_copy(update={"ssh_user": "root"}))["properties"]["osProfile"]
    assert system["adminUsername"] == launch.ADMIN
    config = base64.b64decode(system["customData"]).decode()
    assert config.startswith("#cloud-config\n")
    assert json.loads(config.partition("\n")[2])["users"][0]["name"] == "root"


@pytest.mark.parametrize(
    ("request_", "settings", "message"),
    [
        (REQUEST, PLAIN.model_copy(update={"subnets": {}}), r"set azure\.subnets\.eastus"),
        (REQUEST, PLAIN.model_copy(update={"image": "ubuntu"}), "neither publisher:offer:sku:version"),
        (asking("Standard_ND40rs_v2"), PLAIN, r"V100.*set azure\.image_proprietary"),
        (replace(REQUEST, offer=replace(SPOT, zone="westus2-1")), PLAIN, "is not a zone of eastus"),
        (replace(REQUEST, offer=replace(SPOT, zone="eastus-a")), PLAIN, "is not a zone of eastus"),
    ],
)
def test_requests_that_azure_would_refuse_unhelpfully_are_refused_first(
    request_: LaunchRequest, settings: AzureSettings, message: str
) -> None:
    with pytest.raises(ProvisionerError, match=message):
        body(request_, settings)


def test_the_image_depends_on_the_gpu() -> None:
    assert body(asking("Standard_NC24ads_A100_v4"), FULL)["properties"]["storageProfile"]["imageReference"] == {
        "id": FULL.images["A100"]
    }
    reference = body(REQUEST, FULL)["properties"]["storageProfile"]["imageReference"]
    assert ":".join(reference.values()) == "microsoft-dsvm:ubuntu-hpc:2404:latest"


# -- names ---------------------------------------------------------------------------------------------------

SIMPLE = st.from_regex(r"[a-z0-9-]{1,40}", fullmatch=True)


@given(cluster=st.text() | SIMPLE, token=st.text() | SIMPLE)
def test_a_name_is_valid_in_azure_and_shows_its_owner(cluster: str, token: str) -> None:
    owner = Owner(cluster, TEAM.key_mark)
    name = launch.vm_name(owner, token)
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,61}[a-z0-9]", name)
    assert launch.is_named_by(owner, name)
    assert not launch.is_named_by(replace(owner, key_mark="other"), name)
    assert not launch.is_named_by(replace(owner, cluster=f"{cluster}x"), name)
    assert launch.token_in(name) in {"", token}


@given(one=SIMPLE | st.text(), other=SIMPLE | st.text())
def test_two_tokens_have_two_names(one: str, other: str) -> None:
    assert (launch.vm_name(TEAM, one) == launch.vm_name(TEAM, other)) is (one == other)


def test_similar_names_stay_distinct() -> None:
    near = ["b-c", "B-c", "b--c", "b-c-", "-b-c", launch.vm_name(TEAM, "B").removeprefix(f"spotsup-{TEAM.digest}-")]
    assert len({launch.vm_name(TEAM, each) for each in [*near, "B"]}) == len(near) + 1
    assert launch.token_in(VM) == "token-1"
    assert launch.token_in(launch.vm_name(TEAM, "Token")) == ""
    assert not launch.is_named_by(TEAM, "somebody-elses")
    assert launch.token_in("somebody-elses") == ""


# -- the dead-man switch -------------------------------------------------------------------------------------


def test_without_a_role_there_is_no_switch() -> None:
    assert launch.dead_man("m", PLAIN, 3600.0) is None
    assert launch.dead_man("m", FULL, 0.0) is None
    assert (
        "spotsup-dead-man"
        not in base64.b64decode(body(REQUEST, PLAIN)["properties"]["osProfile"]["customData"]).decode()
    )


def test_a_machines_right_to_end_itself_is_for_that_machine_alone() -> None:
    vm = {"id": f"/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/{VM}"}
    assert launch.role_assignment(vm, FULL) is None
    assigned = launch.role_assignment({**vm, "identity": {"principalId": "p-1"}}, FULL)
    assert assigned is not None
    path, asked = assigned
    assert path.startswith(f"{vm['id']}/providers/Microsoft.Authorization/roleAssignments/")
    assert asked["properties"]["roleDefinitionId"] == ROLE
    assert launch.role_assignment({**vm, "identity": {"principalId": "p-1"}}, FULL) == assigned
    assert launch.role_assignment({**vm, "identity": {"principalId": "p-1"}}, PLAIN) is None


def test_nccl_uses_infiniband_only_within_a_scale_set() -> None:
    assert PLAIN.node_env == {"NCCL_IB_DISABLE": "1"}
    assert FULL.node_env == {}
    asked = body(asking("Standard_ND96isr_H100_v5"), FULL)
    zone = asked.get("zones", ["none"])[0]
    there = FULL.model_copy(update={"scale_sets": {f"eastus-{zone}": SCALE_SET}})
    assert body(asking("Standard_ND96isr_H100_v5"), there)["properties"]["virtualMachineScaleSet"] == {"id": SCALE_SET}
    elsewhere = FULL.model_copy(update={"scale_sets": {"eastus-9": SCALE_SET}})
    assert "virtualMachineScaleSet" not in body(asking("Standard_ND96isr_H100_v5"), elsewhere)["properties"]


# -- answers -------------------------------------------------------------------------------------------------

VM = launch.vm_name(TEAM, "token-1")
RAW: Mapping[str, Any] = {
    "id": f"/subscriptions/s/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/{VM}",
    "name": VM,
    "location": "eastus",
    "zones": ["2"],
    "tags": {**TEAM.tags, "spotsup-node": "node-1", "spotsup-token": "token-1"},
    "properties": {
        "provisioningState": "Succeeded",
        "timeCreated": "2026-11-21T00:00:00.1234567+00:00",
        "hardwareProfile": {"vmSize": "Standard_NC4as_T4_v3"},
    },
}
ADDRESSES = describe.Addresses("10.0.0.1", "20.1.2.3")


def made(state: str) -> dict[str, Any]:
    return {**RAW, "properties": {**RAW["properties"], "provisioningState": state}}


def test_a_description_becomes_an_instance() -> None:
    read = describe.instance(RAW, PLAIN, "running", ADDRESSES)
    assert (read.id, read.region, read.zone) == (VM, "eastus", "eastus-2")
    assert (read.owner, read.node, read.token) == (TEAM, "node-1", "token-1")
    assert (read.ssh_host, read.private_address, read.ssh_port) == ("20.1.2.3", "10.0.0.1", 22)
    assert (read.state, read.end_cause, read.preempt_at) == (InstanceState.RUNNING, None, None)
    assert read.launched_at == pytest.approx(1795219200.123)
    assert describe.instance(RAW, FULL, "running", ADDRESSES).ssh_host == "10.0.0.1"


EVICTED = history.Past(cause=EndCause.PREEMPTED, evicted_at=1000.0)


@pytest.mark.parametrize(
    ("state", "power", "past", "expected", "cause"),
    [
        ("Creating", "", None, InstanceState.PENDING, None),
        ("Creating", "running", None, InstanceState.RUNNING, None),
        ("Creating", "starting", None, InstanceState.PENDING, None),
        ("Succeeded", "running", None, InstanceState.RUNNING, None),
        ("Succeeded", "", None, InstanceState.RUNNING, None),
        ("Updating", "running", None, InstanceState.RUNNING, None),
        ("Succeeded", "starting", None, InstanceState.PENDING, None),
        ("Succeeded", "stopped", None, InstanceState.STOPPED, EndCause.UNKNOWN),
        ("Succeeded", "stopped", history.Past(stopped_by=EndCause.USER), InstanceState.STOPPED, EndCause.USER),
        ("Succeeded", "deallocated", EVICTED, InstanceState.STOPPED, EndCause.PREEMPTED),
        ("Deleting", "running", None, InstanceState.STOPPING, None),
        ("Deleting", "running", history.Past(cause=EndCause.USER), InstanceState.STOPPING, EndCause.USER),
        ("Failed", "", None, InstanceState.STOPPED, EndCause.FAILED),
        ("Failed", "running", None, InstanceState.RUNNING, None),
        ("NeverHeardOf", "running", None, InstanceState.RUNNING, None),
    ],
)
def test_states_and_their_reasons(
    state: str, power: str, past: history.Past | None, expected: InstanceState, cause: EndCause | None
) -> None:
    read = describe.instance(made(state), PLAIN, power, None, past)
    assert (read.state, read.end_cause) == (expected, cause)


def test_an_eviction_in_the_log_of_a_running_machine_is_a_notice() -> None:
    assert describe.instance(RAW, PLAIN, "running", None, EVICTED).preempt_at == 1030.0
    assert describe.instance(made("Deleting"), PLAIN, "running", None, EVICTED).preempt_at is None
    assert describe.instance(RAW, PLAIN, "running", None, EVICTED, now=900.0).preempt_at == 930.0


@pytest.mark.parametrize("missing", ["name", "provisioningState"])
def test_a_missing_required_field_is_an_error(missing: str) -> None:
    properties = {key: value for key, value in RAW["properties"].items() if key != missing}
    raw = {key: value for key, value in RAW.items() if key != missing}
    with pytest.raises(ProvisionerError, match="without a required field"):
        describe.instance({**raw, "properties": properties}, PLAIN)


def test_addresses_are_found_over_the_interface() -> None:
    nic = {
        "id": "/NIC/1",
        "properties": {
            "virtualMachine": {"id": "/VM/1"},
            "ipConfigurations": [{"properties": {"privateIPAddress": "10.0.0.4", "publicIPAddress": {"id": "/IP/1"}}}],
        },
    }
    ip = {"id": "/ip/1", "properties": {"ipAddress": "20.0.0.1"}}
    loose: dict[str, Any] = {"id": "/nic/2", "properties": {}}
    assert describe.addresses_of([nic, loose], [ip]) == {"/vm/1": describe.Addresses("10.0.0.4", "20.0.0.1")}
    assert describe.addresses_of([nic], []) == {"/vm/1": describe.Addresses("10.0.0.4", "")}


def test_a_disk_without_tags_is_known_by_its_name() -> None:
    name = f"spotsup-{TEAM.digest}-n1"
    for tags in ({}, {"cost-center": "set by a policy"}):
        left = describe.leftover({"name": f"{name}-disk", "tags": tags}, LeftoverKind.DISK, name, TEAM)
        assert (left.owner, left.node) == (TEAM, "n1")
    for other in OTHERS:
        assert describe.leftover({"name": f"{name}-disk"}, LeftoverKind.DISK, name, other).owner == Owner("", "")


# -- the log -------------------------------------------------------------------------------------------------


def entry(at: int, operation: str, status: str = "Succeeded", machine: str = "m", **more: Any) -> dict[str, Any]:
    return {
        "eventTimestamp": f"2026-11-21T00:00:{at:02d}.0000000Z",
        "operationName": {"value": f"Microsoft.Compute/virtualMachines/{operation}"},
        "status": {"value": status},
        "resourceId": f"/subscriptions/s/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/{machine}",
        **more,
    }


def past(*entries: dict[str, Any]) -> history.Past:
    return history.pasts(history.events(entries, "g"))["m"]


BORN = entry(1, "write", "Accepted", properties={"responseBody": json.dumps(RAW)})


@pytest.mark.parametrize(
    ("entries", "cause", "is_gone"),
    [
        ([entry(2, "write")], None, False),
        ([entry(5, "delete", "Accepted")], EndCause.USER, False),
        ([entry(5, "delete", "Accepted"), entry(6, "delete")], EndCause.USER, True),
        ([entry(5, "delete", "Failed")], None, False),
        ([entry(5, "evictSpotVM/action", "Started")], EndCause.PREEMPTED, False),
        ([entry(5, "EVICTSPOTVM/ACTION")], EndCause.PREEMPTED, True),
        ([entry(5, "evictSpotVM/action"), entry(6, "delete")], EndCause.PREEMPTED, True),
        ([entry(5, "evictSpotVM/action", "Started"), entry(6, "evictSpotVM/action", "Failed")], None, False),
        ([entry(5, "simulateEviction/action"), entry(7, "delete")], EndCause.PREEMPTED, True),
        ([entry(5, "delete"), entry(9, "write", "Accepted")], None, False),
        ([entry(5, "redeploy/action")], None, False),
    ],
)
def test_the_log_shows_the_cause_of_an_end(
    entries: list[dict[str, Any]], cause: EndCause | None, is_gone: bool
) -> None:
    for each in ([BORN, *entries], [*reversed(entries), BORN]):
        read = past(*each)
        assert (read.cause, read.gone_at is not None) == (cause, is_gone)


def test_a_machine_that_deallocates_itself_was_forgotten_and_any_other_was_stopped() -> None:
    its_own = {"xms_mirid": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/M"}
    assert past(BORN, entry(5, "deallocate/action", claims=its_own)).stopped_by is EndCause.FAILED
    assert past(BORN, entry(5, "deallocate/action", claims={"xms_mirid": IDENTITY})).stopped_by is EndCause.USER
    assert past(BORN, entry(5, "deallocate/action")).stopped_by is EndCause.USER


def test_a_launch_that_failed_never_was_and_one_that_ran_stays_so() -> None:
    assert past(BORN, entry(2, "write", "Failed"), entry(3, "delete")).failed
    assert not past(BORN, entry(2, "write"), entry(3, "write", "Failed"), entry(4, "delete")).failed
    assert not past(BORN, entry(2, "write", "Failed"), entry(3, "delete"), entry(4, "write", "Accepted")).failed


def test_an_ended_machine_is_described_by_its_launch() -> None:
    read = describe.gone(VM, past(BORN, entry(5, "evictSpotVM/action")), PLAIN, TEAM)
    assert (read.id, read.node, read.zone) == (VM, "node-1", "eastus-2")
    assert (read.state, read.end_cause) == (InstanceState.TERMINATED, EndCause.PREEMPTED)
    # A launch before the log's window: the name is the only source.
    old = describe.gone(VM, past(entry(5, "delete")), PLAIN, TEAM)
    assert (old.owner, old.node, old.token, old.region) == (TEAM, "", "token-1", "eastus")


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {**BORN, "resourceId": None},
        {**BORN, "resourceId": f"{BORN['resourceId']}/extensions/x"},
        {**BORN, "resourceId": BORN["resourceId"].replace("/G/", "/other/")},
        {**BORN, "eventTimestamp": "soon"},
        {**BORN, "operationName": "Microsoft.Compute/disks/write"},
    ],
)
def test_entries_about_other_resources_are_left_out(entry: dict[str, Any]) -> None:
    assert history.events([entry], "g") == []


def test_an_unreadable_body_is_empty() -> None:
    assert past({**BORN, "properties": {"responseBody": "{"}}).body == {}
    assert past({**BORN, "properties": None}).body == {}


# -- prices, sizes, rules ------------------------------------------------------------------------------------


def price(sku: str, usd: float, **more: Any) -> dict[str, Any]:
    known = {"armSkuName": "Standard_X", "skuName": sku, "retailPrice": usd, "currencyCode": "USD"}
    known |= {"type": "Consumption", "unitOfMeasure": "1 Hour", "productName": "Virtual Machines X Series"}
    return {**known, **more}


def test_prices_are_of_linux_by_the_hour() -> None:
    items = [
        price("X Spot", 0.1),
        price("X Spot", 0.3, productName="Virtual Machines X Series Windows"),
        price("X Low Priority", 0.01),
        price("X", 1.0),
        price("X", 0.5, type="Reservation"),
        price("X", 9.0, currencyCode="EUR"),
        price("X Spot", 0.0),
    ]
    assert offers.prices_of(items, Market.SPOT) == {"standard_x": 0.1}
    assert offers.prices_of(items, Market.ON_DEMAND) == {"standard_x": 1.0}


def test_a_restriction_closes_a_zone_or_a_region() -> None:
    sku = {
        "resourceType": "virtualMachines",
        "name": "Standard_X",
        "locationInfo": [{"location": "EastUS", "zones": ["2", "1"]}],
        "capabilities": [{"name": "LowPriorityCapable", "value": "True"}],
    }
    assert [(each.zone, each.spot) for each in offers.places_of(sku, "eastus")] == [
        ("eastus-1", True),
        ("eastus-2", True),
    ]
    zone = {"type": "Zone", "restrictionInfo": {"zones": ["1"]}}
    assert [each.zone for each in offers.places_of({**sku, "restrictions": [zone]}, "eastus")] == ["eastus-2"]
    assert offers.places_of({**sku, "restrictions": [{"type": "Location"}]}, "eastus") == []
    flat = {**sku, "locationInfo": [{"location": "eastus", "zones": []}], "capabilities": []}
    assert [(each.zone, each.spot) for each in offers.places_of(flat, "eastus")] == [("eastus", False)]


def test_permissions_have_wildcards_and_exceptions() -> None:
    assert checks.allows({"actions": ["microsoft.compute/*/write"]}, "Microsoft.Compute/virtualMachines/write")
    assert not checks.allows({"actions": ["*/read"]}, "Microsoft.Compute/virtualMachines/write")
    assert not checks.allows({"actions": ["*"], "notActions": ["*/delete"]}, "Microsoft.Compute/disks/delete")
    assert not checks.allows({}, "Microsoft.Compute/disks/delete")


@pytest.mark.parametrize(
    ("cap", "asked"), [(None, -1), (1.8, 1.8), (0.123456, 0.12345), (0.1, 0.1), (0.00123, 0.00123)]
)
def test_a_cap_goes_with_a_spot_request_with_five_decimals_and_never_above(cap: float | None, asked: float) -> None:
    made = body(replace(REQUEST, max_usd_per_hour=cap), PLAIN)
    assert made["properties"]["billingProfile"] == {"maxPrice": asked}
    check("spotsup-1", made, {SPOT.instance_type: machine_of(REQUEST)[0]}, lambda _: True)
    on_demand = body(replace(asking("Standard_NC4as_T4_v3", Market.ON_DEMAND), max_usd_per_hour=cap), PLAIN)
    assert "billingProfile" not in on_demand["properties"]


@pytest.mark.parametrize("price", [0.123456, 0, -2, 0.000001])
def test_the_test_cloud_takes_no_cap_that_azure_does_not(price: float) -> None:
    made = body(REQUEST, PLAIN)
    made["properties"]["billingProfile"] = {"maxPrice": price}
    with pytest.raises(FakeAzureError) as refused:
        check("spotsup-1", made, {SPOT.instance_type: machine_of(REQUEST)[0]}, lambda _: True)
    outcome = ERRORS.launch_outcome(AzureErrorReply("a launch", 400, refused.value.code, str(refused.value)), "eastus")
    assert isinstance(outcome, Fatal)
    assert "MaxPriceValueInvalid" in outcome.message


# -- reserved capacity ---------------------------------------------------------------------------------------


def test_a_capacity_reservation_group_is_named_by_its_resource_group_or_its_id() -> None:
    assert AzureSettings(**{**PLAIN.model_dump(), "capacity_reservations": ("g/reserved", RESERVED)})
    for wrong in ("reserved", "/g/reserved", f"{RESERVED}/capacityReservations/one", SCALE_SET):
        with pytest.raises(ValueError, match="neither RESOURCE_GROUP/NAME nor the resource id of a capacity res"):
            AzureSettings(**{**PLAIN.model_dump(), "capacity_reservations": (wrong,)})
