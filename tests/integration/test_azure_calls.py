"""Azure by its real SDK: what test_cloud_calls.py does not hold for all clouds."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from provisioners.azure import history
from provisioners.azure.provisioner import AzureProvisioner
from provisioners.base import (
    BY_THE_HOUR,
    Denied,
    DeniedError,
    EndCause,
    Fatal,
    InstanceState,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Market,
    NoCapacity,
    OfferQuery,
    ProvisionerError,
    Scope,
    Throttled,
    Transient,
    Unknown,
)
from tests.clouds import azure
from tests.clouds.azure_arm import open_rule
from tests.clouds.azure_machines import GALLERY_IMAGE, GALLERY_VERSION, IMAGE, ROOT, SCALE_SET
from tests.integration.cloud_names import T4, Api
from tests.support.machines import OWNER, TIMEOUT_S, launched_by, wait_for, wait_state

pytestmark = pytest.mark.long

# -- launches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest"])
def test_a_launch_that_fails_after_acceptance_is_no_capacity_and_leaves_nothing(arm: Api, code: str) -> None:
    arm.cloud.fail_allocation(code, 0.2)
    outcome = arm.launch("n1")
    assert isinstance(outcome, NoCapacity)
    assert "eastus-1" in outcome.message
    assert not arm.cloud.fleet.records
    assert not arm.listed()
    assert not arm.provisioner.leftovers(OWNER, TIMEOUT_S)
    assert arm.launched("n1").state is InstanceState.PENDING  # a machine that never ran does not use up a token


def test_a_launch_that_fails_later_is_listed_as_stopped_and_can_be_ended(arm: Api) -> None:
    arm = replace(arm, provisioner=AzureProvisioner(arm.server.settings(), looks_s=()))
    arm.cloud.fail_allocation("AllocationFailed", 2.0)
    machine = arm.launched("n1")
    assert machine.state is InstanceState.PENDING
    wait_for(lambda: arm.found("n1").state is not InstanceState.PENDING, "the allocation fails")
    failed = arm.found("n1")
    assert (failed.state, failed.end_cause, failed.node) == (InstanceState.STOPPED, EndCause.FAILED, "n1")
    # As the launch would have said: the next request goes elsewhere.
    (listed,) = arm.listed()
    assert isinstance(listed.refused, NoCapacity)
    assert (listed.refused.scope, listed.refused.memory_s) == (Scope.TYPE_IN_ZONE, 600.0)
    assert listed.end_message.startswith("AllocationFailed: ")
    # A daemon that was killed in between retries: the failure is reported, and the failed machine is deleted.
    assert isinstance(arm.launch("n1"), NoCapacity)
    assert not arm.cloud.fleet.records


def test_a_throttled_launch_waits_as_long_as_the_answer_says(arm: Api) -> None:
    arm.cloud.fail_next(azure.LAUNCH, "throttled")
    outcome = arm.launch("n1")
    assert isinstance(outcome, Throttled)
    assert outcome.retry_after_s == 1.0  # by the answer's Retry-After


def test_an_unknown_failure_is_reported_and_leaves_nothing(arm: Api) -> None:
    arm.cloud.fail_allocation("SomethingElse")
    outcome = arm.launch("n1")
    assert isinstance(outcome, Transient)
    assert outcome.unknown_code == "SomethingElse"
    assert not arm.cloud.fleet.records


def test_a_failed_launch_that_cannot_be_deleted_is_unknown_where_it_would_be_retried(arm: Api) -> None:
    arm.cloud.fail_allocation("SomethingElse")
    arm.cloud.fail_next(azure.DELETE, "internal", times=9)
    assert isinstance(arm.launch("n1"), Unknown)
    assert arm.found("n1").state is InstanceState.STOPPED


def test_a_token_that_azure_forgot_launches_another_machine(arm: Api) -> None:
    """Azure forgets names, and its log lags: the token then gets a second machine, after the first one's end."""
    machine = arm.launched("n1")
    arm.terminate(machine)
    ended = arm.launch("n1")
    assert isinstance(ended, Launched)
    assert ended.instance.state is InstanceState.TERMINATED
    arm.cloud.fleet.lag_s = 3600.0
    assert arm.launched("n1").state is not InstanceState.TERMINATED
    assert len(arm.cloud.fleet.records) == 1


def test_the_settings_reach_the_machine(arm: Api) -> None:
    arm = arm.with_settings(tags={"team": "vision"}, regions=("eastus", "northcentralus"))
    arm.launched("n1", "northcentralus", Market.ON_DEMAND)
    (record,) = arm.cloud.fleet.records.values()
    assert record.body["tags"]["team"] == "vision"
    assert "zones" not in record.body
    assert "priority" not in record.body["properties"]
    machine = arm.found("n1")
    assert (machine.region, machine.zone) == ("northcentralus", "northcentralus")


def test_machines_of_private_addresses_have_no_public_one(arm: Api) -> None:
    arm = arm.with_settings(public_address=False)
    arm.launched("n1")
    arm.cloud.calls.clear()
    machine = arm.found("n1")
    assert machine.ssh_host == machine.private_address != ""
    assert "Microsoft.Network/publicIPAddresses/read" not in arm.cloud.counted()


def test_an_image_for_other_processors_is_named_before_and_after_a_launch(arm: Api) -> None:
    arm = arm.with_settings(image="Canonical:ubuntu-24_04-lts:server-arm64:latest")
    assert "is for arm64, and the machines for x86_64: set azure.image" in arm.complaints()["eastus image"]
    refused = arm.launch("n1")
    assert isinstance(refused, Fatal)
    assert "but an image or disk with CPU Architecture 'Arm64' was given" in refused.message
    assert refused.message.endswith("azure.image or, by GPU, in azure.images")


def test_a_disk_that_is_too_small_for_the_image_is_named(arm: Api) -> None:
    refused = arm.with_settings(disk_gb=60).launch("n1")
    assert isinstance(refused, Fatal)
    assert (
        "The specified disk size 60 GB is smaller than the size of the corresponding disk in the VM" in refused.message
    )
    assert refused.message.endswith(
        "; set azure.disk_gb to what the image needs, and disk_gb in the job's resources, if it is there"
    )


def test_images_of_ones_own_are_looked_at(arm: Api) -> None:
    own = (IMAGE, GALLERY_VERSION, GALLERY_IMAGE, f"{GALLERY_IMAGE}/versions/latest")
    for image in own:
        assert "eastus image" not in arm.with_settings(image=image).complaints(), image
    arm.cloud.arm.images.clear()
    for image in own:
        assert "set azure.image to" in arm.with_settings(image=image).complaints()["eastus image"], image
    arm.cloud.denied = {"Microsoft.Compute/galleries/images/versions/read"}
    refused = arm.with_settings(image=GALLERY_VERSION).complaints()["eastus image"]
    assert "perform action 'Microsoft.Compute/galleries/images/versions/read' over scope" in refused
    assert refused.endswith("give the daemon what docs/permissions/azure-*.json list, where the image is, too")


# -- reading -------------------------------------------------------------------------------------------------


def test_messages_contain_no_secret(arm: Api) -> None:
    arm.cloud.credentials = "wrong"
    with pytest.raises(DeniedError) as raised:
        arm.listed()
    assert arm.server.environ["AZURE_CLIENT_SECRET"] not in str(raised.value)


def test_an_untrusted_cloud_is_not_called(arm: Api) -> None:
    arm = arm.with_settings(endpoint_ca="")
    outcome = arm.launch("n1")
    assert isinstance(outcome, Denied), "no request is to blame: jobs wait"
    assert outcome.scope is Scope.GLOBAL
    assert "certificate verify failed" in outcome.message
    assert not arm.cloud.calls


def test_machines_are_listed_without_the_log(arm: Api) -> None:
    arm.cloud.denied.add(azure.LOG)
    machine = arm.launched("n1")
    assert arm.found("n1").state is InstanceState.RUNNING
    arm.terminate(machine)
    assert arm.provisioner.find(OWNER, "token-n1", TIMEOUT_S) is None
    arm.cloud.denied.clear()
    for how in ("hang", "garbage", "throttled"):
        arm.cloud.fail_next(azure.LOG, how)
        assert not arm.provisioner.instances(OWNER, 3.0)


def test_more_than_a_page_is_read_page_by_page(arm: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    arm.cloud.arm.page = 5
    for number in range(12):
        arm.launched(f"n{number}", f"eastus-{1 + number % 3}")
    arm.cloud.calls.clear()
    arm.cloud.fail_next(azure.LISTING, "pass")
    arm.cloud.fail_next(azure.LISTING, "transient")  # in the middle
    machines = arm.listed()
    assert {machine.node for machine in machines} == {f"n{number}" for number in range(12)}
    assert all(machine.ssh_host for machine in machines)
    assert arm.cloud.counted()[azure.LISTING] == 7
    monkeypatch.setattr("provisioners.azure.client.MAX_PAGES", 2)
    with pytest.raises(ProvisionerError, match="Azure has more than 2 pages of"):
        arm.listed()


def test_without_machines_few_calls_are_made(arm: Api) -> None:
    assert not arm.listed()
    assert arm.cloud.counted() == {azure.LISTING: 1, azure.LOG: 1}


def test_a_log_without_end_does_not_hold_a_listing(arm: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MAX_PAGES", 100_000)
    arm.cloud.arm.page = 1
    arm.launched("n1")
    log = arm.cloud.fleet.log
    log.extend(log[-1:] * 50_000)
    began = time.monotonic()
    assert len(arm.provisioner.instances(OWNER, 3.0)) == 1
    assert time.monotonic() - began < 30.0  # the whole log takes minutes


# -- ends ----------------------------------------------------------------------------------------------------


def test_a_machine_that_switched_itself_off_still_costs(arm: Api) -> None:
    machine = arm.launched("n1")
    assert arm.found("n1").state is InstanceState.RUNNING
    arm.cloud.stop(machine.id)
    off = arm.found("n1")
    assert (off.state, off.end_cause) == (InstanceState.STOPPED, EndCause.UNKNOWN)


def test_a_disk_of_the_user_is_not_left_over(arm: Api) -> None:
    arm.cloud.fleet.loose[f"{ROOT}/Microsoft.Compute/disks/of-the-user"] = {
        "location": "eastus",
        "properties": {"creationData": {"createOption": "Empty"}, "diskState": "Unattached"},
    }
    assert not arm.provisioner.leftovers(OWNER, TIMEOUT_S)


# -- offers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("market", BY_THE_HOUR)
def test_prices_are_live_and_of_linux(arm: Api, market: Market) -> None:
    offers = arm.offers(replace(T4, market=market))
    (source,) = {each.price_source for each in offers}
    assert source.startswith("Azure retail prices, read 20")
    spot, on_demand = arm.cloud.arm.prices["Standard_NC4as_T4_v3"]
    assert offers[0].usd_per_hour == (spot if market is Market.SPOT else on_demand)
    assert {each.zone for each in offers} == {"eastus-1", "eastus-2", "eastus-3"}
    assert len({(each.instance_type, each.zone) for each in offers}) == len(offers)


def test_offers_do_not_need_prices(arm: Api) -> None:
    arm.cloud.fail_next("prices", "internal", times=9)
    assert {(each.usd_per_hour, each.price_source) for each in arm.offers()} == {(None, "")}
    nowhere = arm.with_settings(prices="")
    first, *_ = nowhere.offers(replace(T4, market=Market.ON_DEMAND))
    assert (first.instance_type, first.usd_per_hour) == ("Standard_NC4as_T4_v3", 0.526)
    assert first.price_source == "catalog: karpenter-provider-azure, price table generated 2023-12-18"


def test_restricted_sizes_are_not_offered(arm: Api) -> None:
    arm.cloud.arm.restrictions |= {("Standard_NC4as_T4_v3", "eastus"), ("Standard_NC8as_T4_v3", "eastus-2")}
    places = {(each.instance_type, each.zone) for each in arm.offers()}
    assert not [zone for size, zone in places if size == "Standard_NC4as_T4_v3"]
    assert {zone for size, zone in places if size == "Standard_NC8as_T4_v3"} == {"eastus-1", "eastus-3"}


def test_sizes_without_spot_are_offered_on_demand_only(arm: Api) -> None:
    query = OfferQuery(gpu="V100")
    with pytest.raises(ProvisionerError, match="none of Standard_ND40rs_v2 is offered"):
        arm.offers(query)
    assert arm.offers(replace(query, market=Market.ON_DEMAND))


def test_without_a_quota_there_is_no_offer(arm: Api) -> None:
    arm.cloud.arm.quotas["lowPriorityCores"] = 4
    assert {each.instance_type for each in arm.offers()} == {"Standard_NC4as_T4_v3"}
    arm.cloud.arm.quotas["lowPriorityCores"] = 0
    with pytest.raises(
        ProvisionerError, match=r"lowPriorityCores in eastus is 0 vCPUs, and Standard_NC4as_T4_v3 needs 4"
    ):
        arm.offers()
    arm.cloud.arm.quotas["NC4as_T4_v3Family"] = 0
    on_demand = {each.instance_type for each in arm.offers(replace(T4, market=Market.ON_DEMAND))}
    assert on_demand
    assert "Standard_NC4as_T4_v3" not in on_demand
    arm.cloud.denied.add("Microsoft.Compute/locations/usages/read")
    assert arm.offers()


# -- check ---------------------------------------------------------------------------------------------------


def test_a_role_that_does_not_suffice_is_found_before_anything_is_launched(arm: Api) -> None:
    arm.cloud.arm.granted = [
        {"actions": ["Microsoft.Compute/*", "*/read"], "notActions": ["Microsoft.Compute/disks/delete"]}
    ]
    found = arm.complaints()["launching"]
    assert "Microsoft.Compute/disks/delete, Microsoft.Network/networkInterfaces/write" in found
    assert "docs/permissions" in found
    assert azure.LAUNCH not in arm.cloud.counted()


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
def test_a_group_without_needed_rules_is_reported(arm: Api, rules: list[dict[str, Any]], fine: bool) -> None:
    arm.cloud.arm.rules = rules
    assert ("eastus network" not in arm.complaints()) is fine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"orchestrationMode": "Uniform"}, "is not Flexible"),
        ({"singlePlacementGroup": False}, "several placement groups"),
    ],
)
def test_a_scale_set_that_connects_no_infiniband_is_reported(arm: Api, change: dict[str, Any], message: str) -> None:
    arm = arm.with_settings(scale_sets={"eastus-1": SCALE_SET})
    assert not arm.complaints()
    arm.cloud.arm.scale_set |= change
    assert message in arm.complaints()["eastus-1 scale set"]
    elsewhere = arm.with_settings(scale_sets={"eastus-2": SCALE_SET})
    arm.cloud.arm.scale_set = {"orchestrationMode": "Flexible", "singlePlacementGroup": True}
    assert "nd is in eastus-1, not in eastus-2" in elsewhere.complaints()["eastus-2 scale set"]


# -- what machines may do, and when they run ------------------------------------------------------------------


def switched(arm: Api, node: str) -> LaunchRequest:
    """With a dead-man switch."""
    return replace(arm.request(node), dead_man_s=3600.0)


def test_a_machine_may_end_itself_and_no_other(arm: Api) -> None:
    one, two = (launched_by(arm.provisioner, switched(arm, name)) for name in ("n1", "n2"))
    scopes = [path.partition("/providers/microsoft.authorization")[0] for path in arm.cloud.arm.assignments]
    assert [scope.rpartition("/")[2] for scope in scopes] == [one.id, two.id]
    assert launched_by(arm.provisioner, switched(arm, "n1")).id == one.id
    assert len(arm.cloud.arm.assignments) == 2


def test_without_the_permission_to_assign_the_role_nothing_is_left(arm: Api) -> None:
    arm.cloud.denied.add("Microsoft.Authorization/roleAssignments/write")
    outcome = arm.provisioner.launch(switched(arm, "n1"), TIMEOUT_S)
    assert isinstance(outcome, Denied)
    assert "roleAssignments/write" in outcome.message
    assert arm.cloud.fleet.left() == []
    arm.launched("n2")  # without a switch


def test_a_machine_that_runs_is_used_while_azure_still_calls_it_creating(arm: Api) -> None:
    machine = arm.launched("n1")
    assert machine.state is InstanceState.PENDING
    running = wait_state(arm.provisioner, "token-n1", InstanceState.RUNNING)
    assert running.ssh_host
    (record,) = arm.cloud.fleet.alive()
    assert record.now.made == "Creating"


def test_secure_boot_is_not_on_by_default(arm: Api) -> None:
    arm.launched("n1")
    (record,) = arm.cloud.fleet.alive()
    assert "securityProfile" not in record.body["properties"]


def test_the_sizes_of_a_region_are_read_once_an_hour(arm: Api) -> None:
    now = [1e9]
    many = AzureProvisioner(arm.server.settings(regions=("eastus", "westus2", "northcentralus")), now=lambda: now[0])
    for _ in range(3):
        assert {each.region for each in many.offers(T4, TIMEOUT_S)} == {"eastus", "westus2", "northcentralus"}
    assert arm.cloud.counted()["Microsoft.Compute/skus/read"] == 3
    now[0] += 3601.0
    many.offers(T4, TIMEOUT_S)
    assert arm.cloud.counted()["Microsoft.Compute/skus/read"] == 6


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_the_log_is_asked_for_by_azures_clock(arm: Api, ahead_s: float) -> None:
    machine = arm.launched("n1")
    wait_state(arm.provisioner, "token-n1", InstanceState.RUNNING)
    arm.cloud.fleet.ahead_s = ahead_s
    arm.terminate(machine)
    fresh = arm.with_settings()
    assert fresh.found("n1").state is InstanceState.TERMINATED
    assert fresh.launched("n1").state is InstanceState.TERMINATED, "a second machine of the token"


def test_prices_are_read_once_an_hour_for_both_markets(arm: Api) -> None:
    now = [1e9]
    cloud = AzureProvisioner(arm.server.settings(), now=lambda: now[0])
    first = {market: cloud.offers(replace(T4, market=market), TIMEOUT_S) for market in BY_THE_HOUR}
    arm.cloud.arm.prices = dict.fromkeys(arm.cloud.arm.prices, (7.0, 8.0))
    for market in BY_THE_HOUR:
        assert cloud.offers(replace(T4, market=market), TIMEOUT_S) == first[market]
    now[0] += 3601.0
    for market, price in ((Market.SPOT, 7.0), (Market.ON_DEMAND, 8.0)):
        assert {each.usd_per_hour for each in cloud.offers(replace(T4, market=market), TIMEOUT_S)} == {price}


def test_a_cap_below_the_spot_price_is_refused_for_that_request_and_one_above_takes_the_machine_once_it_is_dearer(
    arm: Api,
) -> None:
    size = arm.names.instance_type
    price = arm.cloud.arm.prices[size][0]

    def launch(usd_per_hour: float) -> LaunchOutcome:
        request = replace(arm.request("n1"), max_usd_per_hour=usd_per_hour)
        return arm.provisioner.launch(request, TIMEOUT_S)

    refused = launch(price - 0.01)
    assert isinstance(refused, NoCapacity)
    assert (refused.above_cap, refused.scope) == (True, Scope.TYPE_IN_ZONE)
    assert "SpotPriceGreaterThanProvidedMaxPrice" in refused.message
    machine = launch(price + 0.010001)
    assert isinstance(machine, Launched)
    again = launch(price + 0.010001)
    assert isinstance(again, Launched)
    assert again.instance.id == machine.instance.id
    arm.cloud.arm.set_spot_price(size, price + 0.02)
    ended = wait_state(arm.provisioner, "token-n1", InstanceState.TERMINATED)
    assert ended.end_cause is EndCause.PREEMPTED
