"""Compute Engine by the real SDK: what test_cloud_calls.py does not hold for all clouds."""

from __future__ import annotations

import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from provisioners.base import (
    Denied,
    DeniedError,
    EndCause,
    Fatal,
    InstanceState,
    LeftoverKind,
    Market,
    NoCapacity,
    OfferQuery,
    PartialListingError,
    ProvisionerError,
    Quota,
    Scope,
    Transient,
    Unknown,
    UnreachableError,
)
from provisioners.catalog import load_catalog, merged
from provisioners.gcp.provisioner import GcpProvisioner
from tests.clouds.base import bare
from tests.clouds.gcp import Cloud, Server
from tests.clouds.gcp_compute import PROJECT, rule
from tests.clouds.machines import PaperMachines
from tests.integration.cloud_names import T4, Api
from tests.support.machines import OWNER, TIMEOUT_S, launched_by, wait_for

pytestmark = pytest.mark.long

NODES = f"nodes@{PROJECT}.iam.gserviceaccount.com"

# -- launches ------------------------------------------------------------------------------------------------


def test_an_instance_is_inserted_once_and_its_operation_is_polled(gcp: Api) -> None:
    gcp.launched("n1")
    counted = gcp.cloud.counted()
    assert counted.pop("zoneOperations.get") >= 1
    assert counted == {"zoneOperations.list": 1, "instances.insert": 1, "instances.get": 1}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("quota", Quota),
        ("transient", Transient),
        ("unheard-of", Transient),
        ("quota-at-once", Quota),
        ("proxy", Unknown),
    ],
)
def test_a_refused_insertion_is_not_repeated_here_and_can_be_later(gcp: Api, fault: str, kind: type) -> None:
    gcp.cloud.fail_next("instances.insert", fault)
    assert isinstance(gcp.launch("n1"), kind)
    assert gcp.cloud.counted()["instances.insert"] == 1
    assert gcp.provisioner.find(OWNER, "token-n1", TIMEOUT_S) is None
    gcp.launched("n1")


def test_after_a_failure_another_request_id_is_used_and_a_repetition_uses_the_same(gcp: Api) -> None:
    gcp.cloud.fail_next("instances.insert", "drop-reply")
    gcp.launch("n1")
    gcp.cloud.fleet.lag_s = 3600.0  # so that the operation is not seen
    gcp.launched("n1")
    gcp.cloud.fleet.lag_s = 0.0
    gcp.cloud.fail_next("instances.insert", "full")
    gcp.launch("n2")
    gcp.launched("n2")
    ids = [call.query["requestId"] for call in gcp.cloud.calls if call.action == "instances.insert"]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert len(gcp.cloud.fleet.alive()) == 2


def test_an_insertion_that_takes_too_long_is_unknown_and_can_be_waited_for_again(gcp: Api) -> None:
    gcp.cloud.fleet.op_s = 2.0
    outcome = gcp.provisioner.launch(gcp.request("n1"), 1.0)
    assert isinstance(outcome, Unknown)
    assert "did not finish in time" in outcome.message
    assert gcp.found("n1").state is InstanceState.PENDING
    gcp.launched("n1")
    assert gcp.cloud.counted()["instances.insert"] == 1


def test_a_stockout_that_comes_after_the_launch_is_read_from_its_operation(gcp: Api) -> None:
    gcp.cloud.fail_next("instances.insert", "full-late")
    assert isinstance(gcp.provisioner.launch(gcp.request("n1"), 1.0), Unknown)
    assert gcp.found("n1").state is InstanceState.PENDING
    (ended,) = wait_for(
        lambda: [each for each in gcp.listed() if each.state is InstanceState.TERMINATED], "the stockout", 10.0
    )
    assert (ended.node, ended.zone, ended.end_cause) == ("n1", "us-central1-a", EndCause.FAILED)
    assert ended.refused == NoCapacity(Scope.TYPE_IN_ZONE, 300.0, ended.refused.message if ended.refused else "")
    assert ended.end_message.startswith("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: The zone")
    assert gcp.provisioner.find(OWNER, "token-n1", TIMEOUT_S) is None, "there is none, and it may be asked for again"
    gcp.launched("n1")
    assert [each.state for each in gcp.listed()] != [InstanceState.TERMINATED]


def test_a_refused_launch_is_reported_as_such_until_it_is_repeated(gcp: Api) -> None:
    gcp.cloud.fail_next("instances.insert", "transient")
    assert isinstance(gcp.launch("n1"), Transient)
    assert gcp.listed() == [], "a fault of Google's says nothing about the next launch"
    gcp.cloud.fail_next("instances.insert", "quota")
    assert isinstance(gcp.launch("n1"), Quota)
    (refused,) = gcp.listed()
    assert isinstance(refused.refused, Quota)
    gcp.launched("n1")
    assert [each.refused for each in gcp.listed()] == [None]


def test_an_operation_that_cannot_be_read_continues(gcp: Api) -> None:
    for how in ("internal", "garbage", "drop-reply"):
        gcp.cloud.fail_next("zoneOperations.get", how)
    gcp.launched("n1")


def test_an_instance_preempted_during_its_creation_is_found_with_its_end(gcp: Api) -> None:
    gcp.cloud.fail_next("instances.insert", "taken-at-once")
    assert isinstance(gcp.launch("n1"), Unknown)
    gone = gcp.found("n1")
    assert (gone.state, gone.end_cause, gone.node) == (InstanceState.TERMINATED, EndCause.PREEMPTED, "n1")
    again = gcp.launched("n1")
    assert (again.state, again.owner, again.token) == (InstanceState.TERMINATED, OWNER, "token-n1")
    assert gcp.cloud.counted()["instances.insert"] == 1


def test_a_quota_of_all_regions_is_everywhere(gcp: Api) -> None:
    gcp.cloud.fail_next("instances.insert", "quota-everywhere")
    outcome = gcp.launch("n1")
    assert isinstance(outcome, Quota)
    assert outcome.scope is Scope.GLOBAL


def test_operations_of_others_are_not_taken_for_ours(gcp: Api) -> None:
    gcp.launched("n1")
    gcp.cloud.compute.filters = False
    gcp.launched("n2")
    assert len(gcp.listed()) == 2


def test_a_name_in_use_by_another_instance_is_not_ours(gcp: Api) -> None:
    gcp.launched("n1")
    record = gcp.cloud.fleet.alive()[0]
    for each in record.body["metadata"]["items"]:
        each["value"] = "stranger" if each["key"] == "spotsup-node" else each["value"]
    gcp.cloud.fleet.operations.clear()
    gcp.cloud.compute._requests.clear()
    outcome = gcp.launch("n1")
    assert isinstance(outcome, Fatal)
    assert "belongs to node 'stranger'" in outcome.message


def test_a_token_whose_machine_the_cloud_forgot_is_transient(gcp: Api) -> None:
    machine = gcp.launched("n1")
    gcp.terminate(machine)
    assert gcp.found("n1").state is InstanceState.TERMINATED
    operations = gcp.cloud.fleet.operations
    operations[:] = [each for each in operations if each.kind == "insert"]
    outcome = gcp.launch("n1")
    assert isinstance(outcome, Transient)
    assert "new token" in outcome.message


def test_text_that_fits_no_label_is_returned_unchanged(gcp: Api) -> None:
    team = replace(OWNER, cluster="Team A")
    odd = replace(gcp.request("n1"), node="Node №1 of the Big_Job", token="Token/1", owner=team)  # noqa: S106 - a name
    launched_by(gcp.provisioner, odd)
    (machine,) = gcp.provisioner.instances(team, TIMEOUT_S)
    assert (machine.node, machine.token, machine.owner) == (odd.node, odd.token, team)
    assert gcp.provisioner.find(team, "Token/1", TIMEOUT_S) == machine
    assert not gcp.provisioner.instances(replace(OWNER, cluster="team a"), TIMEOUT_S)
    gcp.terminate(machine)
    (gone,) = gcp.provisioner.instances(team, TIMEOUT_S)
    assert (gone.id, gone.node, gone.state) == (machine.id, "", InstanceState.TERMINATED)


def test_the_settings_reach_the_machine(gcp: Api) -> None:
    account = gcp.cloud.compute.account.know(NODES)
    gcp = gcp.with_settings(tags={"team": "vision"}, service_account=account, network_tags=("gpu",), notice_s=120)
    machine = gcp.launched("n1")
    body = gcp.cloud.fleet.record(bare(machine.id)).body
    assert body["labels"]["team"] == body["disks"][0]["initializeParams"]["labels"]["team"] == "vision"
    assert body["serviceAccounts"][0]["email"] == account
    assert body["tags"] == {"items": ["gpu"]}
    assert body["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    assert body["guestAccelerators"][0]["acceleratorCount"] == 1
    items = {each["key"]: each["value"] for each in body["metadata"]["items"]}
    assert items["spotsup-notice-s"] == "120"


def test_a_machine_with_ten_interfaces_is_reached_by_the_first(gcp: Api) -> None:
    names = ("nodes-2", *(f"rdma-{number}" for number in range(8)))
    place, kind = "us-central1-a/a4-highgpu-8g", "a4-highgpu-8g"
    gcp = gcp.with_settings(further_subnetworks={place: names}, placement_policies={"us-central1": "near"})
    assert "change it in gcp.further_subnetworks" in gcp.complaints()[f"{place} subnetworks"]
    request = gcp.request("n1")
    request = replace(request, offer=replace(request.offer, instance_type=kind, gpu="B200", gpus=8))
    refused = gcp.provisioner.launch(request, TIMEOUT_S)
    assert isinstance(refused, Fatal)
    assert "subnetworks/nodes-2" in refused.message
    gcp.cloud.compute.subnetworks |= {("us-central1", each) for each in names}
    assert f"{place} subnetworks" not in gcp.complaints()
    refused = gcp.provisioner.launch(request, TIMEOUT_S)
    assert isinstance(refused, Fatal)
    assert "resourcePolicies/near" in refused.message
    gcp.cloud.compute.placement_policies.add("near")
    machine = launched_by(gcp.provisioner, request)
    body = gcp.cloud.fleet.record(bare(machine.id)).body
    assert [each["nicType"] for each in body["networkInterfaces"]] == ["GVNIC"] * 2 + ["MRDMA"] * 8
    (found,) = gcp.listed()
    assert found.private_address not in {f"10.{number}.0.2" for number in range(1, 10)}


def test_a_service_account_that_nodes_cannot_have_is_named_before_and_after_a_launch(gcp: Api) -> None:
    gcp = gcp.with_settings(service_account=NODES)
    assert gcp.complaints()["service account"].startswith(f"the service account {NODES} does not exist")
    refused = gcp.launch("n1")
    assert isinstance(refused, Fatal)
    assert "of type 'serviceAccount' was not found; set gcp.service_account" in refused.message
    account = gcp.cloud.compute.account
    account.know(NODES, act_as=False)
    assert f"may not act as {NODES}" in gcp.complaints()["service account"]
    denied = gcp.launch("n2")
    assert isinstance(denied, Denied)
    assert "give the daemon's account roles/iam.serviceAccountUser" in denied.message
    account.others.clear()
    assert "service account" not in gcp.complaints()
    gcp.launched("n3")
    # Not known, and not wrong: the API is not enabled, or it is not an address.
    account.disabled.add("iam")
    assert "service account" not in gcp.complaints()
    assert "service account" not in gcp.with_settings(service_account="default").complaints()


# -- reading -------------------------------------------------------------------------------------------------


def test_a_listing_without_a_zone_is_no_listing(gcp: Api) -> None:
    gcp.launched("n1")
    gcp.cloud.compute.unreachable.add("us-central1-b")
    with pytest.raises(UnreachableError, match="listing lacks zones/us-central1-b"):
        gcp.listed()


def test_a_zone_that_cannot_be_read_hides_no_other_region(gcp: Api) -> None:
    gcp = gcp.with_settings(regions=("us-central1", "us-west1"), subnetworks={"us-west1": "default"})
    near, far = gcp.launched("n1", "us-central1-a"), gcp.launched("n2", "us-west1-a")
    gcp.cloud.compute.unreachable.add("us-west1-b")
    with pytest.raises(PartialListingError, match="us-west1 is not listed: a Compute Engine listing lacks") as raised:
        gcp.listed()
    assert {each.id for each in raised.value.found} == {near.id, far.id}, "what its other zones have is known, too"
    assert set(raised.value.silent) == {"us-west1"}
    assert gcp.found("n1").id == near.id
    with pytest.raises(PartialListingError):
        gcp.provisioner.find(OWNER, "token-n3", TIMEOUT_S)
    assert gcp.offers()


def test_a_zone_that_is_down_elsewhere_in_the_world_hides_nothing(gcp: Api) -> None:
    gcp.launched("n1")
    gcp.cloud.compute.unreachable |= {"us-west1-b", "europe-west4-a"}
    assert [each.node for each in gcp.listed()] == ["n1"]
    assert gcp.offers()
    assert gcp.provisioner.leftovers(OWNER, TIMEOUT_S) == []


def test_a_wrong_clock_is_named_in_the_error(gcp: Api) -> None:
    gcp.cloud.fleet.ahead_s, gcp.cloud.strict = 3700.0, True
    with pytest.raises(DeniedError, match=r"reasonable timeframe.*set this computer's clock"):
        gcp.listed()
    (finding,) = gcp.provisioner.check(TIMEOUT_S)
    assert finding.message.endswith("set this computer's clock: it differs from Google's by minutes")


@pytest.mark.parametrize("credentials", ["hang", "busy"])
def test_a_token_that_does_not_come_is_no_answer_in_time(gcp: Api, credentials: str) -> None:
    gcp.cloud.credentials = credentials
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="issued no access token"):
        gcp.provisioner.instances(OWNER, 1.0)
    assert isinstance(gcp.provisioner.launch(gcp.request("n1"), 1.0), Transient)
    assert time.monotonic() - began < 20.0  # 2 s, and what a busy machine adds
    assert not gcp.cloud.calls


def test_the_configured_certificate_is_trusted(gcp: Api, tmp_path: Path) -> None:
    """Tokens come from the other server, in plain HTTP."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    secure = Server(Cloud(PaperMachines()), tmp_path, tls)
    try:
        known, unknown = secure.provisioner(endpoint_ca=str(tmp_path / "ca.pem")), secure.provisioner()
        launched_by(known, gcp.request("n1"))
        with pytest.raises(UnreachableError, match="cannot be reached: "):
            unknown.instances(OWNER, TIMEOUT_S)
        assert isinstance(unknown.launch(gcp.request("n2"), TIMEOUT_S), Transient)
    finally:
        secure.stop()
    assert not gcp.cloud.calls


def test_a_listing_without_end_is_given_up(gcp: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provisioners.gcp.client.MAX_PAGES", 1)
    gcp.cloud.fleet.multiply(bare(gcp.launched("n1").id), 500)
    with pytest.raises(ProvisionerError, match="has more than 1 pages of instances"):
        gcp.provisioner.instances(OWNER, 60.0)


# -- ends ----------------------------------------------------------------------------------------------------


def test_ended_instances_are_listed_for_an_hour(gcp: Api) -> None:
    later = 0.0
    gcp = replace(gcp, provisioner=GcpProvisioner(gcp.server.settings(), now=lambda: time.time() + later))
    machine = gcp.launched("n1")
    gcp.terminate(machine)
    (gone,) = gcp.listed()
    assert (gone.id, gone.node, gone.owner) == (machine.id, "n1", OWNER)
    assert (gone.state, gone.end_cause) == (InstanceState.TERMINATED, EndCause.USER)
    assert gone.launched_at == pytest.approx(machine.launched_at, abs=1.0)
    later = 3700.0
    assert not gcp.listed()
    assert gcp.found("n1").id == machine.id


def test_a_preempted_instance_runs_for_another_half_minute(gcp: Api) -> None:
    later = 0.0
    gcp = replace(gcp, provisioner=GcpProvisioner(gcp.server.settings(), now=lambda: time.time() + later))
    machine = gcp.launched("n1")
    before = time.time()
    deadline = gcp.cloud.preempt(machine.id, 600.0)
    assert before + 29 < deadline < time.time() + 31
    noticed = gcp.found("n1")
    assert (noticed.state, noticed.end_cause) == (InstanceState.RUNNING, None)
    assert noticed.preempt_at == pytest.approx(deadline, abs=0.01)
    later = 31.0
    late = gcp.found("n1")
    assert (late.state, late.end_cause, late.preempt_at) == (InstanceState.STOPPING, EndCause.PREEMPTED, None)


@pytest.mark.parametrize("kind", ["compute.instances.hostError", "compute.instances.guestTerminate"])
def test_a_machine_that_fails_or_switches_itself_off_keeps_its_disk(gcp: Api, kind: str) -> None:
    machine = gcp.launched("n1")
    gcp.cloud.fleet.lose(bare(machine.id), kind, stop=True)
    off = gcp.found("n1")
    assert (off.state, off.end_cause) == (InstanceState.STOPPED, EndCause.FAILED)
    gcp.terminate(machine)
    assert gcp.found("n1").state is InstanceState.TERMINATED
    assert not gcp.cloud.fleet.disks


def test_a_disk_that_is_in_use_stays(gcp: Api) -> None:
    machine = gcp.launched("n1")
    gcp.cloud.fleet.leave_behind(OWNER, "gone")
    (left,) = gcp.provisioner.leftovers(OWNER, TIMEOUT_S)
    with pytest.raises(ProvisionerError, match="already being used"):
        gcp.provisioner.remove(replace(left, id=machine.id), TIMEOUT_S)
    with pytest.raises(ProvisionerError, match="leave only disks"):
        gcp.provisioner.remove(replace(left, kind=LeftoverKind.ADDRESS), TIMEOUT_S)


# -- offers --------------------------------------------------------------------------------------------------


def test_offers_are_what_zones_have(gcp: Api) -> None:
    offers = gcp.offers()
    assert {each.instance_type for each in offers} == {gcp.names.instance_type}
    assert {each.zone for each in offers} == {f"us-central1-{letter}" for letter in "abf"}
    assert {(each.usd_per_hour, each.price_source) for each in offers} == {(None, "")}
    counted = gcp.cloud.counted()
    assert (counted["machineTypes.aggregatedList"], counted["acceleratorTypes.aggregatedList"]) == (1, 1)


def test_without_spot_prices_the_order_is_that_of_prices_on_demand(gcp: Api) -> None:
    offers = gcp.offers(OfferQuery(gpus_per_node=1))
    assert offers[0].instance_type == "g2-standard-4"
    assert {each.usd_per_hour for each in offers} == {None}
    assert offers[-1].instance_type == gcp.names.instance_type
    on_demand = gcp.offers(OfferQuery(gpu="L4", market=Market.ON_DEMAND))
    assert on_demand[0].usd_per_hour == 0.706832
    assert on_demand[0].price_source.endswith("read 2026-11-21")


def test_of_another_projects_image_check_says_what_is_to_be_granted_there(gcp: Api) -> None:
    gcp.cloud.compute.images["shared"] = {"ours"}
    api = gcp.with_settings(image="projects/shared/global/images/ours")
    found = {each.what: each for each in api.provisioner.check(30.0)}["image"]
    granted = "give the daemon's account roles/compute.imageUser (compute.images.useReadOnly) in the project shared"
    assert (found.ok, found.message) == (
        True,
        f"projects/shared/global/images/ours is ours-v20261101; for launches, {granted}",
    )
    gcp.cloud.denied = {"compute.images.get"}
    refused = api.complaints()["image"]
    assert refused.endswith(f"; {granted}, or set gcp.image")
    assert "gcp-role.yaml" not in refused
    assert (
        "docs/permissions/gcp-role.yaml"
        in gcp.with_settings(image=f"projects/{PROJECT}/global/images/ours").complaints()["image"]
    )


def test_spot_prices_are_those_of_the_capacity_history(gcp: Api) -> None:
    known = {
        ("us-central1", "g2-standard-4"): 0.28,
        ("us-central1", "n1-standard-8"): 0.08,
        ("us-central1", "n1-standard-8+nvidia-tesla-t4"): 1.2345,
    }
    gcp.cloud.compute.spot_prices = known
    gcp.cloud.compute.quotas["us-central1"]["PREEMPTIBLE_NVIDIA_L4_GPUS"] = 8.0
    now = [1e9]
    cloud = GcpProvisioner(gcp.server.settings(), now=lambda: now[0])
    prices = {each.instance_type: each.usd_per_hour for each in cloud.offers(OfferQuery(), TIMEOUT_S)}
    assert (prices["g2-standard-4"], prices["n1-standard-8+t4x1"]) == (0.28, 1.2345)
    assert prices["g2-standard-8"] is None
    first, *_ = cloud.offers(OfferQuery(), TIMEOUT_S)
    assert (first.instance_type, first.price_source) == (
        "g2-standard-4",
        "Compute Engine capacity history, read 2001-09-09 01:46 UTC",
    )
    asked = gcp.cloud.counted()["advice.capacityHistory"]
    gcp.cloud.compute.spot_prices = dict.fromkeys(known, 2.0)
    assert cloud.offers(T4, TIMEOUT_S)[0].usd_per_hour == 1.2345
    assert gcp.cloud.counted()["advice.capacityHistory"] == asked
    now[0] += 3601.0
    assert cloud.offers(T4, TIMEOUT_S)[0].usd_per_hour == 2.0
    gcp.cloud.denied.add("compute.advice.capacityHistory")
    assert gcp.with_settings().offers()[0].usd_per_hour is None


def test_zones_of_one_price_are_asked_in_the_order_of_what_google_has(gcp: Api) -> None:
    gcp.cloud.compute.spot_prices = {("us-central1", "n1-standard-8+nvidia-tesla-t4"): 0.5}
    now = [1e9]
    cloud = GcpProvisioner(gcp.server.settings(), now=lambda: now[0])

    def zones() -> list[str]:
        found = cloud.offers(OfferQuery(instance_types=("n1-standard-8+t4x1",)), TIMEOUT_S)
        return [each.zone.rpartition("-")[2] for each in found]

    alphabetical = zones()
    assert alphabetical == sorted(alphabetical)
    first, *_, last = alphabetical
    scores = {(f"us-central1-{first}", "n1-standard-8"): 0.1, (f"us-central1-{last}", "n1-standard-8"): 0.9}
    gcp.cloud.compute.obtainability = scores
    assert zones() == alphabetical, "what is known is kept"
    asked = gcp.cloud.counted()["advice.capacity"]
    assert asked == len(alphabetical)
    now[0] += 601.0
    reordered = zones()
    assert (reordered[0], reordered[-1], sorted(reordered)) == (last, first, alphabetical)
    # A cheaper place stays first, however unlikely it is.
    cheapest = [each.usd_per_hour for each in cloud.offers(T4, TIMEOUT_S)]
    assert cheapest == sorted(cheapest, key=lambda price: (price is None, price))
    gcp.cloud.denied.add("compute.advice.capacity")
    now[0] += 601.0
    assert zones() == alphabetical


def test_the_users_prices_are_used_and_named(gcp: Api, tmp_path: Path) -> None:
    mine = tmp_path / "catalog.toml"
    mine.write_text(
        '[gcp.prices.us-central1]\nsource = "our contract, 2026"\nusd_per_hour = {"g2-standard-8" = 0.85}\n'
    )
    gcp = gcp.with_settings(catalog=str(mine))
    first, *rest = gcp.offers(OfferQuery(gpu="L4", gpus_per_node=1, market=Market.ON_DEMAND))
    assert (first.instance_type, first.usd_per_hour) == ("g2-standard-8", 0.85)
    assert first.price_source == "catalog: our contract, 2026"
    assert rest


def test_only_regions_with_a_subnetwork_are_offered(gcp: Api) -> None:
    gcp = gcp.with_settings(regions=("us-central1", "us-west1"), subnetworks={"us-west1": "default"})
    assert {each.region for each in gcp.offers()} == {"us-west1"}
    gcp.launched("n1", "us-west1-b")


def test_without_a_quota_there_is_no_offer(gcp: Api) -> None:
    quotas = gcp.cloud.compute.quotas
    quotas["us-central1"] |= {"PREEMPTIBLE_NVIDIA_T4_GPUS": 0, "NVIDIA_T4_GPUS": 2}
    assert gcp.offers()
    with pytest.raises(ProvisionerError, match=r"NVIDIA_T4_GPUS of us-central1 is 2 GPUs, and .* has 4: request more"):
        gcp.offers(replace(T4, gpus_per_node=4))
    quotas[""]["GPUS_ALL_REGIONS"] = 0
    with pytest.raises(ProvisionerError, match="GPUS_ALL_REGIONS of the project is 0"):
        gcp.offers()
    gcp.cloud.denied |= {"compute.projects.get", "compute.regions.get"}
    assert gcp.offers()


@pytest.mark.parametrize(
    ("quotas", "message"),
    [
        ({"SSD_TOTAL_GB": 50.0}, "SSD_TOTAL_GB for us-central1 is 50, and .* has a disk of 100 GB: request more"),
        ({"IN_USE_ADDRESSES": 0.0}, "IN_USE_ADDRESSES for us-central1 is 0, and .* has a public address"),
        ({"CPUS_ALL_REGIONS": 4.0}, "CPUS_ALL_REGIONS for us-central1 is 4, and .* has 8 vCPUs"),
    ],
)
def test_quotas_besides_gpus_are_read_too(gcp: Api, quotas: dict[str, float], message: str) -> None:
    where = "" if "CPUS_ALL_REGIONS" in quotas else "us-central1"
    gcp.cloud.compute.quotas[where] |= quotas
    with pytest.raises(ProvisionerError, match=message):
        gcp.offers()
    if where:
        assert next(iter(quotas)) in gcp.complaints()["us-central1 quota"]


def test_a_hyperdisk_counts_towards_its_own_quota(gcp: Api) -> None:
    b200 = OfferQuery(gpu="B200", gpus_per_node=8)
    gcp.cloud.compute.quotas["us-central1"] |= {"SSD_TOTAL_GB": 50.0, "HDB_TOTAL_GB": 500.0}
    assert gcp.offers(b200)
    gcp.cloud.compute.quotas["us-central1"] |= {"SSD_TOTAL_GB": 500.0, "HDB_TOTAL_GB": 50.0}
    assert gcp.offers()
    with pytest.raises(ProvisionerError, match="HDB_TOTAL_GB for us-central1 is 50, and a4-highgpu-8g has a disk of"):
        gcp.offers(b200)
    (quota,) = (each for each in gcp.provisioner.check(30.0) if each.what == "us-central1 quota")
    assert quota.ok
    assert quota.message.endswith("; none of a type that takes Hyperdisk only: the quota HDB_TOTAL_GB is 50")
    named = gcp.with_settings(disk_type="pd-standard")
    named.cloud.compute.quotas["us-central1"] |= {"DISKS_TOTAL_GB": 99.0}
    assert "DISKS_TOTAL_GB for us-central1 is 99" in named.complaints()["us-central1 quota"]


def test_what_is_not_sold_on_demand_is_not_offered_so(gcp: Api) -> None:
    with pytest.raises(ProvisionerError, match="does not sell a4-highgpu-8g as on-demand machines"):
        gcp.offers(OfferQuery(gpu="B200", gpus_per_node=8, market=Market.ON_DEMAND))
    assert gcp.offers(OfferQuery(gpu="B200", gpus_per_node=8))
    h100 = gcp.offers(OfferQuery(gpu="H100", market=Market.ON_DEMAND))
    assert {each.instance_type for each in h100} == {"a3-highgpu-8g", "a3-megagpu-8g"}


def test_the_users_catalog_is_used(gcp: Api) -> None:
    compute = GcpProvisioner(gcp.server.settings(), catalog=merged(load_catalog(), load_catalog()))
    assert compute.offers(T4, TIMEOUT_S)


# -- check ---------------------------------------------------------------------------------------------------


def test_a_network_without_the_needed_rules_is_reported(gcp: Api) -> None:
    with_tag = gcp.with_settings(network_tags=("gpu",))
    gcp.cloud.compute.firewalls = [rule("inside", ports=("1-21",)), rule("web", ports=("80", "443"))]
    assert "allows port 22" in gcp.complaints()["network"]
    gcp.cloud.compute.firewalls = [rule("ssh", ports=("20-30",), tags=("gpu",))]
    assert "allows port 22" in gcp.complaints()["network"]
    assert "reach each other" in with_tag.complaints()["network"]
    gcp.cloud.compute.firewalls.append(rule("inside", tags=("gpu",)))
    assert "network" not in with_tag.complaints()


def test_a_disk_that_is_too_small_for_the_image_is_named_before_and_after_a_launch(gcp: Api) -> None:
    assert "image" not in gcp.complaints()
    gcp.cloud.compute.image_gb = 110
    complaint = gcp.complaints()["image"]
    assert complaint.endswith("needs a disk of 110 GB, and gcp.disk_gb is 100: set gcp.disk_gb = 110, or more")
    refused = gcp.launch("n1")
    assert isinstance(refused, Fatal)
    assert "Requested disk size cannot be smaller than the image size (110 GB)" in refused.message
    assert refused.message.endswith(
        "; set gcp.disk_gb to what the image needs, and disk_gb in the job's resources, if it is there"
    )


def test_a_disk_that_the_machine_type_does_not_take_is_refused_with_its_key(gcp: Api) -> None:
    refused = gcp.with_settings(disk_type="hyperdisk-balanced").launch("n1")
    assert isinstance(refused, Fatal)
    assert refused.message.endswith("; set gcp.disk_type to one that this machine type takes")


def test_a_quota_of_zero_in_all_regions_is_a_complaint(gcp: Api) -> None:
    gcp.cloud.compute.quotas[""] = {"GPUS_ALL_REGIONS": 0.0}
    assert "GPUS_ALL_REGIONS is 0" in gcp.complaints()["us-central1 quota"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bogus": 1}, 'Unknown name "bogus"'),
        ({"scheduling": {"provisioningModel": "SPOTT"}}, "SPOTT"),
        ({"canIpForward": "yes"}, "not of type boolean"),
        ({"status": "RUNNING"}, "output only"),
        ({"disks": [{"diskSizeGb": 100}]}, "not of type string"),
    ],
)
def test_the_test_cloud_refuses_requests_outside_googles_description(
    gcp: Api, change: dict[str, Any], message: str
) -> None:
    url = f"{gcp.server.url}/compute/v1/projects/{PROJECT}/zones/us-central1-a/instances"
    answer = httpx.post(url, json={"name": "x", **change}, headers={"Authorization": "Bearer ya29.a-token"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
