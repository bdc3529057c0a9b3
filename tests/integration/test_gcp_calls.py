"""Compute Engine by the real SDK, against the test cloud with machines on paper: faults, limits, numbers of calls."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

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
    UnreachableError,
)
from provisioners.catalog import load_catalog, merged
from provisioners.gcp.provisioner import GcpProvisioner
from provisioners.gcp.settings import GcpSettings
from tests.clouds import gcp
from tests.clouds.gcp_compute import rule
from tests.clouds.machines import PaperMachines
from tests.support.machines import CLUSTER, TIMEOUT_S, found_by, launched_by, request_at

T4 = OfferQuery(gpu="T4", gpus_per_node=1)
TYPE = "n1-standard-8+t4x1"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[gcp.GcpServer]:
    with gcp.gcp_cloud(PaperMachines()) as running:
        for name, value in running.environ(tmp_path / "key").items():
            monkeypatch.setenv(name, value)
        yield running


def provider(server: gcp.GcpServer, **settings: Any) -> GcpProvisioner:
    given = {"project": gcp.PROJECT, "regions": ("us-central1",), "endpoint": server.url, **settings}
    return GcpProvisioner(GcpSettings(**given))


@pytest.fixture
def compute(server: gcp.GcpServer) -> GcpProvisioner:
    return provider(server)


def offer(zone: str = "us-central1-a", market: Market = Market.SPOT) -> Offer:
    return Offer("gcp", zone.rpartition("-")[0], zone, TYPE, market, None, "T4", 1)


def request(node: str, place: Offer | None = None) -> LaunchRequest:
    return request_at(place or offer(), node)


def launched(compute: GcpProvisioner, node: str, place: Offer | None = None) -> Instance:
    return launched_by(compute, request(node, place))


def bare(instance: Instance) -> str:
    return instance.id.rpartition(":")[2]


# -- launches ------------------------------------------------------------------------------------------------


def test_an_instance_is_inserted_once_and_its_operation_is_polled(
    server: gcp.GcpServer, compute: GcpProvisioner
) -> None:
    launched(compute, "n1")
    counted = server.cloud.counted()
    assert counted.pop("zoneOperations.get") >= 1
    assert counted == {"zoneOperations.list": 1, "instances.insert": 1, "instances.get": 1}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("full", NoCapacity),
        ("quota", Quota),
        ("transient", Transient),
        ("unheard-of", Transient),
        ("throttled", Throttled),
        ("quota-at-once", Quota),
        ("internal", Unknown),
        ("proxy", Unknown),
    ],
)
def test_a_refused_insertion_is_not_repeated_here_and_can_be_later(
    server: gcp.GcpServer, compute: GcpProvisioner, fault: str, kind: type
) -> None:
    server.cloud.fail_next("instances.insert", fault)
    assert isinstance(compute.launch(request("n1"), TIMEOUT_S), kind)
    assert server.cloud.counted()["instances.insert"] == 1
    assert compute.find("token-n1", TIMEOUT_S) is None
    launched(compute, "n1")


def test_after_a_failure_another_request_id_is_used_and_a_repetition_uses_the_same(
    server: gcp.GcpServer, compute: GcpProvisioner
) -> None:
    server.cloud.fail_next("instances.insert", "drop-reply")
    compute.launch(request("n1"), TIMEOUT_S)
    server.cloud.lag(3600.0)  # so that the operation is not seen
    launched(compute, "n1")
    server.cloud.lag(0.0)
    server.cloud.fail_next("instances.insert", "full")
    compute.launch(request("n2"), TIMEOUT_S)
    launched(compute, "n2")
    ids = [call.query["requestId"] for call in server.cloud.calls if call.action == "instances.insert"]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert len(server.cloud.alive()) == 2


def test_an_insertion_that_takes_too_long_is_unknown_and_can_be_waited_for_again(
    server: gcp.GcpServer, compute: GcpProvisioner
) -> None:
    server.cloud.compute.instances.op_s = 2.0
    outcome = compute.launch(request("n1"), 1.0)
    assert isinstance(outcome, Unknown)
    assert "did not finish in time" in outcome.message
    assert found_by(compute, "n1").state is InstanceState.PENDING
    launched(compute, "n1")
    assert server.cloud.counted()["instances.insert"] == 1


def test_an_operation_that_cannot_be_read_continues(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    for how in ("internal", "garbage", "drop-reply"):
        server.cloud.fail_next("zoneOperations.get", how)
    launched(compute, "n1")


def test_an_instance_preempted_during_its_creation_is_found_with_its_end(
    server: gcp.GcpServer, compute: GcpProvisioner
) -> None:
    server.cloud.fail_next("instances.insert", "taken-at-once")
    assert isinstance(compute.launch(request("n1"), TIMEOUT_S), Unknown)
    gone = found_by(compute, "n1")
    assert (gone.state, gone.end_cause, gone.node) == (InstanceState.TERMINATED, EndCause.PREEMPTED, "n1")
    again = launched(compute, "n1")
    assert (again.state, again.cluster, again.token) == (InstanceState.TERMINATED, CLUSTER, "token-n1")
    assert server.cloud.counted()["instances.insert"] == 1


def test_a_quota_of_all_regions_is_everywhere(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    server.cloud.compute.most_machines = 1
    launched(compute, "n1")
    here = compute.launch(request("n2"), TIMEOUT_S)
    server.cloud.fail_next("instances.insert", "quota-everywhere")
    everywhere = compute.launch(request("n3"), TIMEOUT_S)
    assert isinstance(here, Quota)
    assert isinstance(everywhere, Quota)
    assert (here.scope, everywhere.scope) == (Scope.REGION, Scope.GLOBAL)


def test_a_type_that_a_zone_lacks_is_no_capacity_for_an_hour(compute: GcpProvisioner) -> None:
    outcome = compute.launch(request("n1", offer("us-central1-c")), TIMEOUT_S)
    assert isinstance(outcome, NoCapacity)
    assert outcome.memory_s == 3600


def test_operations_of_others_are_not_taken_for_ours(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    launched(compute, "n1")
    server.cloud.compute.filters = False
    launched(compute, "n2")
    assert len(compute.instances(CLUSTER, TIMEOUT_S)) == 2


def test_a_name_in_use_by_another_instance_is_not_ours(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    launched(compute, "n1")
    record = server.cloud.alive()[0]
    for each in record.body["metadata"]["items"]:
        each["value"] = "stranger" if each["key"] == "spotsup-node" else each["value"]
    server.cloud.compute.instances.operations.clear()
    server.cloud.compute._requests.clear()
    outcome = compute.launch(request("n1"), TIMEOUT_S)
    assert isinstance(outcome, Fatal)
    assert "belongs to node 'stranger'" in outcome.message


def test_a_token_whose_machine_the_cloud_forgot_is_transient(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    machine = launched(compute, "n1")
    compute.terminate(machine.id, TIMEOUT_S)
    assert found_by(compute, "n1").state is InstanceState.TERMINATED
    operations = server.cloud.compute.instances.operations
    operations[:] = [each for each in operations if each.kind == "insert"]
    outcome = compute.launch(request("n1"), TIMEOUT_S)
    assert isinstance(outcome, Transient)
    assert "new token" in outcome.message


def test_text_that_fits_no_label_is_returned_unchanged(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    odd = replace(request("n1"), node="Node №1 of the Big_Job", token="Token/1", cluster="Team A")  # noqa: S106 - a name
    outcome = compute.launch(odd, TIMEOUT_S)
    assert isinstance(outcome, Launched), outcome
    (machine,) = compute.instances("Team A", TIMEOUT_S)
    assert (machine.node, machine.token, machine.cluster) == (odd.node, odd.token, odd.cluster)
    assert compute.find("Token/1", TIMEOUT_S) == machine
    assert not compute.instances("team a", TIMEOUT_S)
    compute.terminate(machine.id, TIMEOUT_S)
    (gone,) = compute.instances("Team A", TIMEOUT_S)
    assert (gone.id, gone.node, gone.state) == (machine.id, "", InstanceState.TERMINATED)


def test_the_settings_reach_the_machine(server: gcp.GcpServer) -> None:
    account = "nodes@a-project.iam.gserviceaccount.com"
    compute = provider(server, tags={"team": "vision"}, service_account=account, network_tags=("gpu",), notice_s=120)
    machine = launched(compute, "n1")
    body = server.cloud.record(bare(machine)).body
    assert body["labels"]["team"] == body["disks"][0]["initializeParams"]["labels"]["team"] == "vision"
    assert body["serviceAccounts"][0]["email"] == account
    assert body["tags"] == {"items": ["gpu"]}
    assert body["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    assert body["guestAccelerators"][0]["acceleratorCount"] == 1
    items = {each["key"]: each["value"] for each in body["metadata"]["items"]}
    assert items["spotsup-notice-s"] == "120"


# -- reading -------------------------------------------------------------------------------------------------


def test_a_listing_without_a_zone_is_no_listing(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    launched(compute, "n1")
    server.cloud.compute.unreachable.add("us-central1-b")
    with pytest.raises(UnreachableError, match="listing lacks zones/us-central1-b"):
        compute.instances(CLUSTER, TIMEOUT_S)


def test_refused_credentials_are_reported_by_every_call(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    launched(compute, "n1")
    server.cloud.credentials = "expired"
    for ask in (
        lambda: compute.offers(T4, TIMEOUT_S),
        lambda: compute.instances(CLUSTER, TIMEOUT_S),
        lambda: compute.find("token", TIMEOUT_S),
        lambda: compute.terminate("us-central1-a:spotsup-1", TIMEOUT_S),
        lambda: compute.leftovers(CLUSTER, TIMEOUT_S),
    ):
        with pytest.raises(DeniedError, match=r"401.*renew them"):
            ask()
    assert isinstance(compute.launch(request("n2"), TIMEOUT_S), Fatal)
    server.cloud.credentials = "good"
    assert len(compute.instances(CLUSTER, TIMEOUT_S)) == 1


def test_credentials_without_a_token_are_reported(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    server.cloud.credentials = "wrong"
    with pytest.raises(DeniedError, match="Invalid JWT Signature"):
        compute.instances(CLUSTER, TIMEOUT_S)
    outcome = compute.launch(request("n1"), TIMEOUT_S)
    assert isinstance(outcome, Fatal)
    assert "gcloud auth" in outcome.message


def test_a_wrong_clock_is_named_in_the_error(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    server.cloud.skew(3700.0, strict=True)
    with pytest.raises(DeniedError, match=r"reasonable timeframe.*set this computer's clock"):
        compute.instances(CLUSTER, TIMEOUT_S)
    (finding,) = compute.check(TIMEOUT_S)
    assert finding.message.endswith("set this computer's clock: it differs from Google's by minutes")


@pytest.mark.parametrize("credentials", ["hang", "busy"])
def test_a_token_that_does_not_come_is_no_answer_in_time(
    server: gcp.GcpServer, compute: GcpProvisioner, credentials: str
) -> None:
    server.cloud.credentials = credentials
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="issued no access token"):
        compute.instances(CLUSTER, 1.0)
    assert isinstance(compute.launch(request("n1"), 1.0), Transient)
    assert time.monotonic() - began < 3.0
    assert not server.cloud.calls


def test_missing_credentials_are_reported(
    server: gcp.GcpServer, compute: GcpProvisioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    with pytest.raises(DeniedError, match=r"no Google credentials.*gcloud auth application-default login"):
        compute.instances(CLUSTER, TIMEOUT_S)
    assert isinstance(compute.launch(request("n1"), TIMEOUT_S), Fatal)


def test_the_configured_certificate_is_trusted(server: gcp.GcpServer, tmp_path: Path) -> None:
    """Tokens come from `server`, in plain HTTP."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    secure = gcp.GcpServer(gcp.GcpCloud(PaperMachines()), tls=tls)
    try:
        launched(provider(secure, endpoint_ca=str(tmp_path / "ca.pem")), "n1")
        with pytest.raises(UnreachableError, match="cannot be reached: "):
            provider(secure).instances(CLUSTER, TIMEOUT_S)
        assert isinstance(provider(secure).launch(request("n2"), TIMEOUT_S), Transient)
    finally:
        secure.stop()
    assert not server.cloud.calls


def test_descriptions_may_lack_fields(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    launched(compute, "n1")
    server.cloud.compute.missing = {"networkInterfaces", "machineType"}
    (machine,) = compute.instances(CLUSTER, TIMEOUT_S)
    assert (machine.instance_type, machine.ssh_host, machine.private_address) == ("", "", "")
    server.cloud.compute.missing = {"metadata"}
    (machine,) = compute.instances(CLUSTER, TIMEOUT_S)
    assert (machine.node, machine.token) == ("n1", "token-n1")
    server.cloud.compute.missing = {"status"}
    with pytest.raises(ProvisionerError, match="describes an instance without a required field"):
        compute.instances(CLUSTER, TIMEOUT_S)


def test_a_listing_without_end_is_given_up(
    server: gcp.GcpServer, compute: GcpProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioners.gcp.client.MAX_PAGES", 1)
    server.cloud.multiply(bare(launched(compute, "n1")), 500)
    with pytest.raises(ProvisionerError, match="has more than 1 pages of instances"):
        compute.instances(CLUSTER, 60.0)


def test_all_regions_are_in_the_same_listing(server: gcp.GcpServer) -> None:
    compute = provider(server, regions=("us-central1", "us-west1"))
    west = launched(compute, "n1", offer("us-west1-a"))
    central = launched(compute, "n2")
    server.cloud.calls.clear()
    assert {each.id for each in compute.instances(CLUSTER, TIMEOUT_S)} == {west.id, central.id}
    assert set(server.cloud.counted().values()) == {1}
    assert found_by(compute, "n1").region == "us-west1"
    compute.terminate(west.id, TIMEOUT_S)
    assert found_by(compute, "n1").state is InstanceState.TERMINATED
    compute.terminate(bare(central), TIMEOUT_S)
    assert found_by(compute, "n2").state is InstanceState.TERMINATED


# -- ends ----------------------------------------------------------------------------------------------------


def test_ended_instances_are_listed_for_an_hour(server: gcp.GcpServer) -> None:
    later = 0.0
    settings = GcpSettings(project=gcp.PROJECT, regions=("us-central1",), endpoint=server.url)
    compute = GcpProvisioner(settings, now=lambda: time.time() + later)
    machine = launched(compute, "n1")
    compute.terminate(machine.id, TIMEOUT_S)
    (gone,) = compute.instances(CLUSTER, TIMEOUT_S)
    assert (gone.id, gone.node, gone.cluster) == (machine.id, "n1", CLUSTER)
    assert (gone.state, gone.end_cause) == (InstanceState.TERMINATED, EndCause.USER)
    assert gone.launched_at == pytest.approx(machine.launched_at, abs=1.0)
    later = 3700.0
    assert not compute.instances(CLUSTER, TIMEOUT_S)
    assert found_by(compute, "n1").id == machine.id


def test_a_preempted_instance_runs_for_another_half_minute(server: gcp.GcpServer) -> None:
    later = 0.0
    settings = GcpSettings(project=gcp.PROJECT, regions=("us-central1",), endpoint=server.url)
    compute = GcpProvisioner(settings, now=lambda: time.time() + later)
    machine = launched(compute, "n1")
    deadline = server.cloud.preempt(bare(machine), 600.0)
    assert deadline == pytest.approx(time.time() + 30, abs=5)
    noticed = found_by(compute, "n1")
    assert (noticed.state, noticed.end_cause) == (InstanceState.RUNNING, None)
    assert noticed.preempt_at == pytest.approx(deadline, abs=0.01)
    later = 31.0
    late = found_by(compute, "n1")
    assert (late.state, late.end_cause, late.preempt_at) == (InstanceState.STOPPING, EndCause.PREEMPTED, None)


def test_a_preemption_may_stop_a_machine_which_then_still_costs(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    machine = launched(compute, "n1")
    server.cloud.preempt(bare(machine), 0.0, stop=True)
    stopped = found_by(compute, "n1")
    assert (stopped.state, stopped.end_cause) == (InstanceState.STOPPED, EndCause.PREEMPTED)
    compute.terminate(machine.id, TIMEOUT_S)
    gone = found_by(compute, "n1")
    assert (gone.state, gone.end_cause) == (InstanceState.TERMINATED, EndCause.PREEMPTED)


@pytest.mark.parametrize("kind", ["compute.instances.hostError", "compute.instances.guestTerminate"])
def test_a_machine_that_fails_or_switches_itself_off_keeps_its_disk(
    server: gcp.GcpServer, compute: GcpProvisioner, kind: str
) -> None:
    machine = launched(compute, "n1")
    server.cloud.lose(bare(machine), kind, stop=True)
    off = found_by(compute, "n1")
    assert (off.state, off.end_cause) == (InstanceState.STOPPED, EndCause.FAILED)
    compute.terminate(machine.id, TIMEOUT_S)
    assert found_by(compute, "n1").state is InstanceState.TERMINATED
    assert not server.cloud.compute.instances.disks


def test_a_console_is_shown_and_none_is_empty(compute: GcpProvisioner) -> None:
    machine = launched(compute, "n1")
    assert "a machine on paper" in compute.console(machine.id, TIMEOUT_S)
    assert compute.console(bare(machine), TIMEOUT_S) == compute.console(machine.id, TIMEOUT_S)
    assert compute.console("us-central1-a:spotsup-1", TIMEOUT_S) == ""
    assert compute.console("no-such-machine", TIMEOUT_S) == ""


def test_leftovers_are_found_by_label_and_removed(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    launched(compute, "n1")  # its disk is in use
    for number, cluster in enumerate(("another", CLUSTER)):
        labels = {"spotsup-cluster": cluster, "spotsup-node": "n1"}
        server.cloud.leave_behind("us-central1-b", labels, f"left-{number}")
    (left,) = compute.leftovers(CLUSTER, TIMEOUT_S)
    assert (left.kind, left.node, left.region) == (LeftoverKind.DISK, "n1", "us-central1")
    for _ in range(2):
        compute.remove(left, TIMEOUT_S)
    assert not compute.leftovers(CLUSTER, TIMEOUT_S)
    assert len(compute.leftovers("another", TIMEOUT_S)) == 1
    assert found_by(compute, "n1").state is InstanceState.RUNNING
    with pytest.raises(ProvisionerError, match="leave only disks"):
        compute.remove(replace(left, kind=LeftoverKind.ADDRESS), TIMEOUT_S)


def test_a_disk_that_is_in_use_stays(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    machine = launched(compute, "n1")
    server.cloud.leave_behind("us-central1-a", {"spotsup-cluster": CLUSTER})
    (left,) = compute.leftovers(CLUSTER, TIMEOUT_S)
    with pytest.raises(ProvisionerError, match="already being used"):
        compute.remove(replace(left, id=machine.id), TIMEOUT_S)


# -- offers --------------------------------------------------------------------------------------------------


def test_offers_are_what_zones_have(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    offers = compute.offers(T4, TIMEOUT_S)
    assert {each.instance_type for each in offers} == {TYPE}
    assert {each.zone for each in offers} == {f"us-central1-{letter}" for letter in "abf"}
    assert {(each.usd_per_hour, each.price_source) for each in offers} == {(None, "")}
    counted = server.cloud.counted()
    assert (counted["machineTypes.aggregatedList"], counted["acceleratorTypes.aggregatedList"]) == (1, 1)


def test_without_spot_prices_the_order_is_that_of_prices_on_demand(compute: GcpProvisioner) -> None:
    offers = compute.offers(OfferQuery(gpus_per_node=1), TIMEOUT_S)
    assert offers[0].instance_type == "g2-standard-4"
    assert {each.usd_per_hour for each in offers} == {None}
    assert offers[-1].instance_type == TYPE
    on_demand = compute.offers(OfferQuery(gpu="L4", market=Market.ON_DEMAND), TIMEOUT_S)
    assert on_demand[0].usd_per_hour == 0.706832
    assert on_demand[0].price_source.endswith("read 2026-11-21")


def test_the_users_prices_are_used_and_named(server: gcp.GcpServer, tmp_path: Path) -> None:
    mine = tmp_path / "catalog.toml"
    mine.write_text(
        '[gcp.prices.us-central1]\nsource = "our contract, 2026"\nusd_per_hour = {"g2-standard-8" = 0.85}\n'
    )
    compute = provider(server, catalog=str(mine))
    first, *rest = compute.offers(OfferQuery(gpu="L4", gpus_per_node=1, market=Market.ON_DEMAND), TIMEOUT_S)
    assert (first.instance_type, first.usd_per_hour) == ("g2-standard-8", 0.85)
    assert first.price_source == "catalog: our contract, 2026"
    assert rest


def test_only_regions_with_a_subnetwork_are_offered(server: gcp.GcpServer) -> None:
    compute = provider(server, regions=("us-central1", "us-west1"), subnetworks={"us-west1": "default"})
    assert {each.region for each in compute.offers(T4, TIMEOUT_S)} == {"us-west1"}
    launched(compute, "n1", offer("us-west1-b"))


def test_without_a_quota_there_is_no_offer(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    quotas = server.cloud.compute.quotas
    quotas["us-central1"] |= {"PREEMPTIBLE_NVIDIA_T4_GPUS": 0, "NVIDIA_T4_GPUS": 2}
    assert compute.offers(T4, TIMEOUT_S)
    with pytest.raises(ProvisionerError, match=r"NVIDIA_T4_GPUS of us-central1 is 2 GPUs, and .* has 4: request more"):
        compute.offers(replace(T4, gpus_per_node=4), TIMEOUT_S)
    quotas[""]["GPUS_ALL_REGIONS"] = 0
    with pytest.raises(ProvisionerError, match="GPUS_ALL_REGIONS of the project is 0"):
        compute.offers(T4, TIMEOUT_S)
    server.cloud.denied |= {"compute.projects.get", "compute.regions.get"}
    assert compute.offers(T4, TIMEOUT_S)


def test_the_users_catalog_is_used(server: gcp.GcpServer) -> None:
    settings = GcpSettings(project=gcp.PROJECT, regions=("us-central1",), endpoint=server.url)
    compute = GcpProvisioner(settings, catalog=merged(load_catalog(), load_catalog()))
    assert compute.offers(T4, TIMEOUT_S)


# -- check ---------------------------------------------------------------------------------------------------


def complaints(compute: GcpProvisioner) -> dict[str, str]:
    return {each.what: each.message for each in compute.check(30.0) if not each.ok}


def test_correct_settings_have_no_complaint(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    findings = compute.check(30.0)
    assert [each.what for each in findings if not each.ok] == []
    names = {"credentials", "reading", "image", "network", "us-central1 machine types", "us-central1 quota"}
    assert {each.what for each in findings} == names
    assert not server.cloud.alive()


def test_credentials_are_the_first_complaint_and_the_last(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    server.cloud.credentials = "wrong"
    assert list(complaints(compute)) == ["credentials"]
    server.cloud.credentials = "good"
    other = complaints(provider(server, project="nobodys"))
    assert list(other) == ["credentials"]
    assert "set gcp.project" in other["credentials"]


def test_missing_permissions_are_found_before_anything_is_launched(
    server: gcp.GcpServer, compute: GcpProvisioner
) -> None:
    server.cloud.denied |= {"compute.disks.list", "compute.globalOperations.list"}
    assert "lacks compute.disks.list, compute.globalOperations.list" in complaints(compute)["reading"]


def test_images_are_looked_up(server: gcp.GcpServer) -> None:
    family = "projects/ubuntu-os-accelerator-images/global/images/family/nothing"
    found = complaints(provider(server, image=family, images={"L4": "ubuntu"}, image_proprietary=family))
    assert found["image"] == f"image {family} does not exist (notFound): set gcp.image"
    assert "of the form projects/P/global/images/family/F: set gcp.images" in found["image of L4"]
    assert "set gcp.image_proprietary" in found["image_proprietary"]


def test_a_network_without_the_needed_rules_is_reported(server: gcp.GcpServer) -> None:
    server.cloud.compute.firewalls = [rule("inside", ports=("1-21",)), rule("web", ports=("80", "443"))]
    assert "allows port 22" in complaints(provider(server))["network"]
    server.cloud.compute.firewalls = [rule("ssh", ports=("20-30",), tags=("gpu",))]
    assert "allows port 22" in complaints(provider(server))["network"]
    assert "reach each other" in complaints(provider(server, network_tags=("gpu",)))["network"]
    server.cloud.compute.firewalls.append(rule("inside", tags=("gpu",)))
    assert "network" not in complaints(provider(server, network_tags=("gpu",)))
    found = complaints(provider(server, subnetworks={"us-central1": "nowhere"}))
    assert "gcp.subnetworks" in found["us-central1 subnetwork"]


def test_no_quota_for_any_gpu_is_a_complaint(server: gcp.GcpServer, compute: GcpProvisioner) -> None:
    server.cloud.compute.quotas["us-central1"] = {"CPUS": 24.0}
    assert "no GPU quota of us-central1 is above 0" in complaints(compute)["us-central1 quota"]
    server.cloud.compute.quotas[""] = {"GPUS_ALL_REGIONS": 0.0}
    assert "GPUS_ALL_REGIONS is 0" in complaints(compute)["us-central1 quota"]


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
    server: gcp.GcpServer, change: dict[str, Any], message: str
) -> None:
    url = f"{server.url}/compute/v1/projects/{gcp.PROJECT}/zones/us-central1-a/instances"
    answer = httpx.post(url, json={"name": "x", **change}, headers={"Authorization": "Bearer ya29.a-token"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
