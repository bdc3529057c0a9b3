"""Compute Engine's requests, and the reading of its answers: pure functions."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from google.cloud import compute_v1
from hypothesis import given
from hypothesis import strategies as st

from provisioners.base import (
    EndCause,
    Fatal,
    InstanceState,
    LaunchRequest,
    Market,
    NoCapacity,
    Offer,
    ProvisionerError,
    Scope,
)
from provisioners.gcp import describe, disks, launch, names, quota, reservations
from provisioners.gcp.errors import ERRORS, GcpErrorReply
from provisioners.gcp.settings import GcpSettings
from tests.clouds.gcp_wire import read_call
from tests.unit.launching import OTHERS, TEAM, abridged, assert_reviewed, machine_of, request_for, request_on

SPOT = Offer("gcp", "us-central1", "us-central1-a", "n1-standard-8+t4x1", Market.SPOT, None, "T4", 1)
REQUEST, asking = request_for(SPOT), partial(request_on, SPOT)
PLAIN = GcpSettings(regions=("us-central1",), project="a-project")
FULL = GcpSettings(
    regions=("us-central1",),
    project="a-project",
    public_address=False,
    disk_gb=200,
    tags={"team": "vision"},
    images={"A100": "projects/a-project/global/images/our-a100"},
    image_proprietary="projects/a-project/global/images/family/proprietary",
    subnetworks={"us-central1": "gpu"},
    network_tags=("gpu", "ssh"),
    service_account="nodes@a-project.iam.gserviceaccount.com",
    notice_s=120,
)
OF_US = "projects/a-project/zones/us-central1-a/reservations"
OF_LAB = "projects/lab/zones/us-central1-a/reservations"
NOT_READY = "Cannot insert instance to a reservation with status: CREATING, as it requires"
NINE = ("nodes-2", *(f"rdma-{number}" for number in range(8)))
RDMA = FULL.model_copy(
    update={
        "further_subnetworks": {"us-central1-a/a3-ultragpu-8g": NINE},
        "placement_policies": {"us-central1": "near"},
    }
)


def within(instance_type: str, target: str) -> LaunchRequest:
    request = asking(instance_type, Market.RESERVED)
    return replace(request, offer=replace(request.offer, reservation=target))


def body(request: LaunchRequest, settings: GcpSettings) -> dict[str, Any]:
    return launch.instance(request, settings, *machine_of(request))


CASES: Mapping[str, tuple[LaunchRequest, GcpSettings]] = {
    "gcp_spot": (REQUEST, PLAIN),
    "gcp_on_demand_with_everything": (
        asking("a2-highgpu-1g", Market.ON_DEMAND, tags={"job": "resnet"}, disk_gb=500, dead_man_s=0.0),
        FULL,
    ),
    "gcp_spot_with_notice": (asking("a3-ultragpu-8g"), FULL),
    "gcp_spot_with_rdma": (asking("a3-ultragpu-8g"), RDMA),
    "gcp_flex": (asking("a3-highgpu-8g", Market.FLEX), FULL.model_copy(update={"flex_days": 0.5})),
    "gcp_reserved": (within("n1-standard-8+t4x1", "projects/other/reservations/ours"), PLAIN),
}


def on_the_wire(asked: dict[str, Any]) -> dict[str, Any]:
    """As the SDK sends it."""
    text = compute_v1.Instance.to_json(compute_v1.Instance(asked), always_print_fields_with_no_presence=False)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_launch_request_matches_the_reviewed_one(name: str) -> None:
    asked = on_the_wire(body(*CASES[name]))
    for item in asked["metadata"]["items"]:
        if item["key"] == "user-data":
            item["value"] = abridged(item["value"])
    assert_reviewed(name, asked, sort_keys=True)


@pytest.mark.parametrize("name", CASES)
def test_every_field_is_in_googles_model(name: str) -> None:
    sent = json.dumps(on_the_wire(body(*CASES[name]))).encode()
    path = "/compute/v1/projects/p/zones/us-central1-a/instances"
    call = read_call({"REQUEST_METHOD": "POST", "PATH_INFO": path, "QUERY_STRING": "requestId=1"}, sent)
    assert call.action == "instances.insert"


@pytest.mark.parametrize("market", Market)
@pytest.mark.parametrize("settings", [PLAIN, FULL], ids=["plain", "full"])
def test_all_resources_are_labelled_and_deleted_with_their_machine(market: Market, settings: GcpSettings) -> None:
    asked = body(asking("n1-standard-8+t4x1", market), settings)
    (disk,) = asked["disks"]
    for labels in (asked["labels"], disk["initialize_params"]["labels"]):
        own = [labels[key] for key in ("spotsup-cluster", "spotsup-key-mark", "spotsup-node", "spotsup-token")]
        assert own == ["team-a", TEAM.key_mark, "node-1", "token-1"]
    assert disk["auto_delete"]
    spot = {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
    assert (spot.items() <= asked["scheduling"].items()) is (market is Market.SPOT)
    assert not asked["scheduling"]["automatic_restart"]
    assert ("max_run_duration" in asked["scheduling"]) is (market is Market.FLEX)
    assert ("preemption_notice_duration" in asked["scheduling"]) is (market is Market.SPOT and settings is FULL)


def test_further_interfaces_are_of_one_zone_and_type_and_only_the_first_one_is_public() -> None:
    settings = RDMA.model_copy(update={"public_address": True})
    first, second, *rdma = body(asking("a3-ultragpu-8g"), settings)["network_interfaces"]
    assert first["access_configs"]
    assert (second["nic_type"], second["subnetwork"]) == ("GVNIC", "regions/us-central1/subnetworks/nodes-2")
    assert [each["nic_type"] for each in rdma] == ["MRDMA"] * 8
    assert not any("access_configs" in each for each in (second, *rdma))
    for name, kept in (("a3-highgpu-8g", True), ("n1-standard-8+t4x1", False)):
        asked = body(asking(name), settings)
        assert len(asked["network_interfaces"]) == 1
        assert ("resource_policies" in asked) is kept


def test_our_own_labels_win_and_an_invalid_label_is_refused() -> None:
    asked = body(replace(REQUEST, tags={"spotsup-cluster": "somebody-else"}), PLAIN)
    assert asked["labels"]["spotsup-cluster"] == "team-a"
    for tags in ({"Team": "vision"}, {"team": "Vision"}, {"team": "v" * 64}):
        with pytest.raises(ProvisionerError, match=r"is not a label: .*gcp\.tags"):
            body(replace(REQUEST, tags=tags), PLAIN)
    with pytest.raises(ProvisionerError, match="more than Compute Engine allows"):
        body(replace(REQUEST, tags={f"t{number}": "" for number in range(62)}), PLAIN)


def test_the_image_depends_on_the_gpus_generation() -> None:
    def image(instance_type: str, settings: GcpSettings) -> str:
        return str(body(asking(instance_type), settings)["disks"][0]["initialize_params"]["source_image"])

    assert image("n1-standard-8+v100x1", FULL).endswith("family/proprietary")
    assert image("n1-standard-8+t4x1", FULL) == FULL.image
    assert image("a2-ultragpu-1g", FULL).endswith("our-a100")
    with pytest.raises(ProvisionerError, match=r"V100 needs .* set gcp\.image_proprietary"):
        image("n1-standard-8+v100x1", PLAIN)


def test_gpus_are_attached_to_n1_alone_and_new_families_get_hyperdisks() -> None:
    n1, a2, a4 = (body(asking(name), PLAIN) for name in ("n1-standard-16+t4x2", "a2-highgpu-1g", "a4-highgpu-8g"))
    accelerator = "zones/us-central1-a/acceleratorTypes/nvidia-tesla-t4"
    assert n1["guest_accelerators"] == [{"accelerator_type": accelerator, "accelerator_count": 2}]
    assert n1["machine_type"] == "zones/us-central1-a/machineTypes/n1-standard-16"
    assert "guest_accelerators" not in a2
    kinds = [each["disks"][0]["initialize_params"]["disk_type"].rpartition("/")[2] for each in (n1, a2, a4)]
    assert kinds == ["pd-balanced", "pd-balanced", "hyperdisk-balanced"]


@pytest.mark.parametrize(
    ("machine_type", "kind"),
    [
        ("n1-standard-8", "pd-balanced"),
        ("f1-micro", "pd-balanced"),
        ("e2-standard-2", "pd-balanced"),
        ("n2d-custom-4-5120-ext", "pd-balanced"),
        ("c3-standard-8", "pd-balanced"),
        ("c3-standard-192-metal", "hyperdisk-balanced"),
        ("g2-standard-8", "pd-balanced"),
        ("a2-ultragpu-1g", "pd-balanced"),
        ("a3-highgpu-8g", "pd-balanced"),
        ("a3-megagpu-8g", "pd-balanced"),
        ("a3-ultragpu-8g", "hyperdisk-balanced"),
        ("a4-highgpu-8g", "hyperdisk-balanced"),
        ("a4x-highgpu-4g", "hyperdisk-balanced"),
        ("g4-standard-48", "hyperdisk-balanced"),
        ("n4-standard-8", "hyperdisk-balanced"),
        ("n4d-standard-8", "hyperdisk-balanced"),
        ("c4-standard-8", "hyperdisk-balanced"),
        ("c4a-standard-8", "hyperdisk-balanced"),
        ("h4d-standard-192", "hyperdisk-balanced"),
        ("z9-of-a-later-year-8", "hyperdisk-balanced"),
    ],
)
def test_only_families_that_are_known_to_take_persistent_disks_get_one(machine_type: str, kind: str) -> None:
    assert disks.of_type(machine_type) == kind


def test_the_settings_may_name_the_type_of_all_disks() -> None:
    named = PLAIN.model_copy(update={"disk_type": "pd-ssd"})
    disk = body(asking("a4-highgpu-8g"), named)["disks"][0]["initialize_params"]
    assert disk["disk_type"] == "zones/us-central1-a/diskTypes/pd-ssd"


@pytest.mark.parametrize("code", ["UNSUPPORTED_OPERATION", "badRequest", "invalid"])
def test_a_disk_that_the_machine_type_does_not_take_is_no_lack_of_capacity(code: str) -> None:
    message = "pd-balanced disk type cannot be used by c4-standard-8 machine type."
    found = ERRORS.launch_outcome(GcpErrorReply("us-central1-a", code, message), "us-central1-a")
    assert isinstance(found, Fatal)
    assert found.message.endswith("; set gcp.disk_type to one that this machine type takes")


@pytest.mark.parametrize("code", ["invalid", "conditionNotMet", "CONDITION_NOT_MET"])
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Specified reservation 'ours' does not have available resources for the request.", NoCapacity),
        ("No available resources in specified reservations 'ours'", NoCapacity),
        (f"{NOT_READY} reservation to be in READY state.", NoCapacity),
        ("Specified reservations [ours] do not exist.", Fatal),
        ("Specified reservations [ours] can not be targeted as specificReservationRequired is not set", Fatal),
    ],
)
def test_what_google_says_of_a_reservation_is_told_apart(code: str, message: str, kind: type) -> None:
    found = ERRORS.launch_outcome(GcpErrorReply("us-central1-a", code, message), "us-central1-a")
    assert isinstance(found, kind)
    if isinstance(found, NoCapacity):
        assert found.scope is Scope.TYPE_IN_ZONE
    else:
        assert isinstance(found, Fatal)
        assert found.message.endswith("; look at gcp.reservations, and at the reservation")


@pytest.mark.parametrize("wrong", ["ours", "us-central1/ours", "zones/us-central1-a/reservations/ours", "projects/p/x"])
def test_an_entry_that_names_no_reservation_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="neither ZONE/NAME nor projects/P/zones/ZONE/reservations/NAME"):
        GcpSettings(regions=("us-central1",), project="a-project", reservations=(wrong,))


def test_a_reservation_of_the_own_project_is_called_by_its_name_alone() -> None:
    ours = [reservations.named(text, "a-project") for text in ("us-central1-a/r", f"{OF_US}/r", f"{OF_LAB}/r")]
    assert [each.target for each in ours] == ["r", "r", "projects/lab/reservations/r"]
    assert [str(each) for each in ours] == ["us-central1-a/r", "us-central1-a/r", f"{OF_LAB}/r"]


# -- names ---------------------------------------------------------------------------------------------------

TEXT = st.text(min_size=1, max_size=80)
NODE = st.from_regex(r"[a-z][a-z0-9-]{0,38}[a-z0-9]-[0-9]{1,3}", fullmatch=True)


@given(token=TEXT, cluster=TEXT, node=TEXT | NODE)
def test_names_are_valid_in_google_and_distinct_by_token_and_owner(token: str, cluster: str, node: str) -> None:
    request = replace(REQUEST, token=token, owner=replace(TEAM, cluster=cluster), node=node)
    name = names.instance_name(request)
    assert len(name) <= 63
    assert name == names.instance_name(replace(request, offer=replace(SPOT, instance_type="g2-standard-4")))
    assert name != names.instance_name(replace(request, token=f"{token}x"))
    for other in (replace(request.owner, cluster=f"{cluster}x"), replace(request.owner, key_mark="other")):
        assert name != names.instance_name(replace(request, owner=other))
        assert not re.fullmatch(names.pattern_of_owner(other), f"/instances/{name}")
        assert not re.fullmatch(names.pattern_of_token(other, token), f"/instances/{name}")
    for pattern in (names.pattern_of_owner(request.owner), names.pattern_of_token(request.owner, token)):
        assert re.fullmatch(pattern, f"/instances/{name}")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert name[0].isalpha()
    assert name[-1] != "-"
    assert names.node_in(name) in {node, ""}


def test_the_daemons_nodes_are_in_their_machines_names() -> None:
    name = names.instance_name(replace(REQUEST, node="resnet-a1b2c3-17"))
    assert names.node_in(name) == "resnet-a1b2c3-17"
    assert names.node_in("spotsup-x") == names.node_in("other") == ""


@given(one=TEXT | st.from_regex(r"[a-z0-9_-]{0,63}", fullmatch=True), other=TEXT)
def test_labels_stand_for_one_text(one: str, other: str) -> None:
    label = names.label_value(one)
    assert len(label) <= 63
    assert set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")
    assert names.plain_value(label) in {one, ""}
    assert one == other or label != names.label_value(other)
    assert names.label_value(label) != label or label == one


def test_a_request_id_is_the_same_until_something_failed() -> None:
    first = names.request_id(REQUEST, 0)
    assert uuid.UUID(first).int != 0
    assert first == names.request_id(replace(REQUEST, offer=replace(SPOT, instance_type="other")), 0)
    others = [names.request_id(REQUEST, 1), names.request_id(replace(REQUEST, token="token-2"), 0)]  # noqa: S106
    others += [names.request_id(replace(REQUEST, owner=each), 0) for each in OTHERS]
    assert len({first, *others}) == 5


def test_ids_carry_their_zone() -> None:
    assert names.split_id(names.id_of("us-central1-a", "spotsup-1")) == ("us-central1-a", "spotsup-1")
    assert names.split_id("spotsup-1") == ("", "spotsup-1")


# -- answers -------------------------------------------------------------------------------------------------


def raw(status: str = "RUNNING", **change: Any) -> Any:
    fields = {
        "name": "spotsup-1",
        "status": status,
        "creation_timestamp": "2026-11-20T16:00:00.000-08:00",
        "machine_type": "https://www.googleapis.com/compute/v1/projects/p/zones/z/machineTypes/n1-standard-8",
        "network_interfaces": [{"network_i_p": "10.0.0.1", "access_configs": [{"nat_i_p": "3.4.5.6"}]}],
        "labels": {**TEAM.tags, "spotsup-node": "node-1", "spotsup-token": f"sha256-{'0' * 48}"},
    }
    return compute_v1.Instance({**fields, **change})


def operation(kind: str, at: float, *, done: bool = True, code: str = "") -> describe.Operation:
    return describe.Operation("us-central1-a", "spotsup-1", kind, done, at, code=code)


def read(instance: Any, *operations: describe.Operation, now: float = 0.0) -> Any:
    return describe.instance(instance, "us-central1-a", PLAIN, operations, now)


def test_a_description_becomes_an_instance() -> None:
    machine = read(raw())
    assert (machine.id, machine.region, machine.zone) == ("us-central1-a:spotsup-1", "us-central1", "us-central1-a")
    assert (machine.owner, machine.node, machine.token) == (TEAM, "node-1", "")
    assert (machine.ssh_host, machine.private_address, machine.ssh_port) == ("3.4.5.6", "10.0.0.1", 22)
    assert (machine.instance_type, machine.launched_at) == ("n1-standard-8", 1795219200.0)
    private = describe.instance(raw(), "us-central1-a", FULL, (), 0.0)
    assert private.ssh_host == "10.0.0.1"


@pytest.mark.parametrize(
    ("status", "kind", "expected", "cause"),
    [
        ("PROVISIONING", "", InstanceState.PENDING, None),
        ("STAGING", "", InstanceState.PENDING, None),
        ("RUNNING", "", InstanceState.RUNNING, None),
        ("STOPPING", "delete", InstanceState.STOPPING, EndCause.USER),
        ("STOPPING", "compute.instances.preempted", InstanceState.STOPPING, EndCause.PREEMPTED),
        ("STOPPING", "", InstanceState.STOPPING, EndCause.UNKNOWN),
        ("REPAIRING", "compute.instances.hostError", InstanceState.STOPPING, EndCause.FAILED),
        ("TERMINATED", "compute.instances.preempted", InstanceState.STOPPED, EndCause.PREEMPTED),
        ("TERMINATED", "compute.instances.guestTerminate", InstanceState.STOPPED, EndCause.FAILED),
        ("TERMINATED", "setLabels", InstanceState.STOPPED, EndCause.UNKNOWN),
        ("SUSPENDED", "suspend", InstanceState.STOPPED, EndCause.USER),
    ],
)
def test_states_and_their_causes(status: str, kind: str, expected: InstanceState, cause: EndCause | None) -> None:
    operations = [operation(kind, 100.0)] if kind else []
    machine = read(raw(status), *operations, now=1000.0)
    assert (machine.state, machine.end_cause, machine.preempt_at) == (expected, cause, None)


def test_the_first_end_is_the_cause_unless_it_failed() -> None:
    preempted, deleted = operation("compute.instances.preempted", 100.0), operation("delete", 120.0)
    assert read(raw("STOPPING"), deleted, preempted, now=200.0).end_cause is EndCause.PREEMPTED
    failed = operation("delete", 90.0, code="RESOURCE_NOT_READY")
    assert read(raw("STOPPING"), failed, preempted, now=200.0).end_cause is EndCause.PREEMPTED
    other = replace(preempted, target="spotsup-2")
    found = describe.by_machine([other, preempted])
    assert found == {"us-central1-a:spotsup-1": [preempted], "us-central1-a:spotsup-2": [other]}


@pytest.mark.parametrize("status", ["RUNNING", "STOPPING"])
def test_a_machine_that_is_being_preempted_runs_for_another_half_minute(status: str) -> None:
    machine = read(raw(status), operation("compute.instances.preempted", 100.0, done=False), now=129.0)
    assert (machine.state, machine.end_cause, machine.preempt_at) == (InstanceState.RUNNING, None, 130.0)


def test_a_deleted_machine_is_read_from_its_operations() -> None:
    born, ended = operation("insert", 50.0), operation("delete", 100.0)
    (gone,) = describe.ended([ended, born], [], since=0.0)
    assert (gone.id, gone.state, gone.end_cause) == ("us-central1-a:spotsup-1", InstanceState.TERMINATED, EndCause.USER)
    assert gone.launched_at == 50.0
    assert not describe.ended([ended, born], [gone.id], since=0.0)
    assert not describe.ended([ended, born], [], since=101.0)
    assert not describe.ended([born], [], since=0.0)
    (going,) = describe.ended([replace(ended, done=False), born], [], since=0.0)
    assert going.state is InstanceState.STOPPING


def test_a_wait_that_ends_with_an_unknown_code_is_a_lack_of_capacity() -> None:
    failed = replace(operation("insert", 50.0, code="WAITED_IN_VAIN"), message="No machine.", took_s=91.0)
    (refused,) = describe.refused([failed], [], since=0.0)
    assert refused.refused == NoCapacity(
        Scope.TYPE_IN_ZONE, 300.0, "Compute Engine (us-central1-a) answered WAITED_IN_VAIN: No machine"
    )
    assert not describe.refused([replace(failed, took_s=30.0)], [], since=0.0)
    assert not describe.refused([replace(failed, code="INTERNAL_ERROR")], [], since=0.0)


def test_a_deadline_is_at_most_half_a_minute_away_whatever_googles_clock() -> None:
    machine = read(raw("STOPPING"), operation("compute.instances.preempted", 3700.0, done=False), now=100.0)
    assert (machine.state, machine.preempt_at) == (InstanceState.RUNNING, 130.0)


def test_a_machine_without_a_creation_time_is_listed() -> None:
    machine = read(raw(creation_timestamp=""))
    assert (machine.state, machine.launched_at) == (InstanceState.RUNNING, 0.0)


def test_a_missing_required_field_is_an_error() -> None:
    with pytest.raises(ProvisionerError, match="describes an instance without a required field"):
        read(raw("DREAMING"))
    with pytest.raises(ProvisionerError, match="describes an operation without a required field"):
        describe.operation(compute_v1.Operation({"name": "operation-1"}))


def test_gpus_count_towards_their_quota() -> None:
    limits = {"NVIDIA_T4_GPUS": 4.0, "PREEMPTIBLE_NVIDIA_T4_GPUS": 16.0, "NVIDIA_L4_GPUS": 2.0}
    limits |= {"PREEMPTIBLE_NVIDIA_L4_GPUS": 0.0, "PREEMPTIBLE_NVIDIA_H100_GPUS": 0.0}
    assert quota.limit("nvidia-tesla-t4", Market.SPOT, limits) == ("PREEMPTIBLE_NVIDIA_T4_GPUS", 16.0)
    assert quota.limit("nvidia-tesla-t4", Market.ON_DEMAND, limits) == ("NVIDIA_T4_GPUS", 4.0)
    assert quota.limit("nvidia-l4", Market.SPOT, limits) == ("NVIDIA_L4_GPUS", 2.0)
    assert quota.limit("nvidia-h100-80gb", Market.SPOT, limits) == ("PREEMPTIBLE_NVIDIA_H100_GPUS", 0.0)
    assert quota.limit("nvidia-h100-80gb", Market.ON_DEMAND, limits) is None
    assert quota.limit("nvidia-b200", Market.SPOT, limits) is None
    assert quota.limit("nvidia-tesla-t4", Market.FLEX, limits) == ("PREEMPTIBLE_NVIDIA_T4_GPUS", 16.0)
    assert "NVIDIA_T4_GPUS" in quota.gpus_in(limits)
    assert "PREEMPTIBLE_NVIDIA_L4_GPUS" not in quota.gpus_in(limits)


def test_the_metrics_are_googles_own() -> None:
    from tests.clouds.gcp_wire import COMPUTE, _document

    known = set(_document(COMPUTE)["schemas"]["Quota"]["properties"]["metric"]["enum"])
    for metric in quota._METRICS.values():
        assert {metric, f"PREEMPTIBLE_{metric}"} & known
    assert quota.ALL_REGIONS in known


# -- user data -----------------------------------------------------------------------------------------------


def test_a_forgotten_machine_shuts_down_and_uses_no_right_to_delete_instances() -> None:
    items = {each["key"]: each["value"] for each in body(REQUEST, FULL)["metadata"]["items"]}
    assert "systemctl poweroff" in items["user-data"]
    assert "token" not in items["user-data"]
    assert len(items["user-data"]) < 256 * 1024


def test_googles_guest_agent_is_told_to_leave_the_host_key_alone() -> None:
    items = {each["key"]: each["value"] for each in body(REQUEST, FULL)["metadata"]["items"]}
    config = json.loads(items["user-data"].removeprefix("#cloud-config\n"))
    ((shell, flag, early),) = config["bootcmd"]
    assert (shell, flag) == ("sh", "-c")
    assert "set_host_keys = false" in early
    assert config["runcmd"][0][2].startswith(f"grep -qsF {REQUEST.host_key.public.split()[1]} ")


def test_a_cap_does_not_change_the_request_as_compute_engine_takes_none() -> None:
    assert body(replace(REQUEST, max_usd_per_hour=1.8), PLAIN) == body(REQUEST, PLAIN)
