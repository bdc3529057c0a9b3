"""Flex-start VMs and what is reserved, on Compute Engine by the real SDK."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioners.base import (
    DeniedError,
    Fatal,
    InstanceState,
    LaunchOutcome,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    ProvisionerError,
    Scope,
    Unknown,
    UnreachableError,
)
from tests.clouds.base import bare
from tests.integration.cloud_names import T4, Api
from tests.support.machines import TIMEOUT_S, launched_by, request_at

pytestmark = pytest.mark.long

FLEX = replace(T4, market=Market.FLEX)
RESERVED = OfferQuery(market=Market.RESERVED)
ATTACHED = {"nvidia-tesla-t4": 1}
FULL = "does not have available resources for the request"


def at(seconds: float) -> str:
    """A time from now on, as Google writes it."""
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat(timespec="milliseconds")


def with_reservations(gcp: Api, *names: str, **settings: Any) -> Api:
    return gcp.with_settings(reservations=names, **settings)


def launch(gcp: Api, offer: Offer, node: str = "n1") -> LaunchOutcome:
    return gcp.provisioner.launch(request_at(offer, node), TIMEOUT_S)


def launched(gcp: Api, offer: Offer, node: str = "n1") -> dict[str, Any]:
    """What was asked for."""
    body: dict[str, Any] = gcp.cloud.fleet.record(bare(launched_by(gcp.provisioner, request_at(offer, node)).id)).body
    return body


# -- flex ----------------------------------------------------------------------------------------------------


def test_flex_machines_are_offered_for_days_at_the_price_on_demand_at_most(gcp: Api) -> None:
    gcp = gcp.with_settings(flex_days=2.5)
    first, *_ = gcp.offers(OfferQuery(gpu="L4", market=Market.FLEX))
    assert (first.instance_type, first.usd_per_hour, first.lasts_s) == ("g2-standard-4", 0.706832, 2.5 * 86400)
    assert first.price_source.startswith("at most: on-demand, catalog: ")
    # They count towards preemptible quotas, and are of no use where a type is not sold so.
    gcp.cloud.compute.quotas["us-central1"] |= {"NVIDIA_T4_GPUS": 0, "PREEMPTIBLE_NVIDIA_T4_GPUS": 2}
    assert gcp.offers(FLEX)
    with pytest.raises(ProvisionerError, match=r"PREEMPTIBLE_NVIDIA_T4_GPUS of us-central1 is 2 GPUs"):
        gcp.offers(replace(FLEX, gpus_per_node=4))
    with pytest.raises(ProvisionerError, match="does not sell a4x-highgpu-4g as flex machines: ask for another market"):
        gcp.offers(OfferQuery(instance_types=("a4x-highgpu-4g",), market=Market.FLEX))


def test_a_flex_machine_is_asked_for_as_google_wants_it_and_is_not_preempted(gcp: Api) -> None:
    gcp = gcp.with_settings(notice_s=120)
    body = launched(gcp, gcp.offers(FLEX)[0])
    assert body["scheduling"] == {
        "provisioningModel": "FLEX_START",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "604800"},
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    }
    assert body["params"] == {"requestValidForDuration": {"seconds": "90"}}
    assert {each["key"]: each["value"] for each in body["metadata"]["items"]}["spotsup-notice-s"] == "0"
    assert gcp.found("n1").preempt_at is None


def test_a_flex_machine_that_waits_is_pending_and_one_that_waited_in_vain_is_no_capacity(gcp: Api) -> None:
    offer = gcp.offers(FLEX)[0]
    gcp.cloud.compute.late_s = 3600.0
    gcp.cloud.exhaust(offer.zone)
    outcome = gcp.provisioner.launch(request_at(offer, "n1"), 1.0)
    assert isinstance(outcome, Unknown)
    assert gcp.found("n1").state is InstanceState.PENDING
    (waiting,) = gcp.cloud.fleet.alive()
    assert waiting.status == "PENDING"
    waiting.fails = (time.time(), waiting.fails[1])
    (ended,) = gcp.listed()
    assert isinstance(ended.refused, NoCapacity)
    assert (ended.state, ended.refused.scope) == (InstanceState.TERMINATED, Scope.TYPE_IN_ZONE)
    assert not gcp.cloud.fleet.alive()
    gcp.cloud.make_room(offer.zone)
    launched(gcp, offer)


# -- reserved ------------------------------------------------------------------------------------------------


def test_what_is_reserved_is_offered_as_far_as_it_fits(gcp: Api) -> None:
    reserved, own, shared = gcp.cloud.compute.reserved, "us-central1-a/t4", "us-west1-b/elsewhere"
    reserved.make("t4", "n1-standard-8", 3, gpus=ATTACHED)
    reserved.make("calendar", "a3-highgpu-8g", 2, zone="us-central1-b", project="lab", deleteAtTime=at(86400))
    gcp = with_reservations(gcp, own, shared, "projects/lab/zones/us-central1-b/reservations/calendar")
    first, second = gcp.offers(RESERVED)
    assert (second.zone, second.instance_type, second.room, second.ends_at) == (
        "us-central1-a",
        "n1-standard-8+t4x1",
        3,
        0.0,
    )
    assert (second.usd_per_hour, second.price_source) == (0.0, "reserved: billed whether it is used or not")
    assert (second.reservation, second.gpus) == ("t4", 1)
    assert (first.zone, first.instance_type, first.room) == ("us-central1-b", "a3-highgpu-8g", 2)
    assert first.reservation == "projects/lab/reservations/calendar"
    assert first.ends_at == pytest.approx(time.time() + 86400, abs=5.0)
    assert gcp.offers(replace(RESERVED, gpu="T4", gpus_per_node=1)) == [second]
    assert gcp.offers(replace(RESERVED, zones=("us-central1-b",))) == [first]
    # What is reserved has counted towards the quotas when it was made.
    gcp.cloud.compute.quotas["us-central1"] |= {"NVIDIA_T4_GPUS": 0, "PREEMPTIBLE_NVIDIA_T4_GPUS": 0}
    assert gcp.offers(RESERVED) == [first, second]
    with pytest.raises(
        ProvisionerError, match=r"us-central1-a/t4 is for n1-standard-8\+1x nvidia-tesla-t4, which does"
    ):
        gcp.offers(replace(RESERVED, gpu="V100"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": "CREATING"}, r"is not ready \(it is CREATING\)"),
        ({"status": "DELETING"}, "has ended"),
        ({"deleteAtTime": at(-60)}, "has ended"),
        ({"creationTimestamp": at(-90), "deleteAfterDuration": {"seconds": "60"}}, "has ended"),
        ({"deploymentType": "DENSE", "deleteAtTime": at(9000), "specificReservation": {"count": "2"}}, "has not begun"),
        ({"specificReservationRequired": False}, r"any machine that fits it: .*--require-specific-reservation"),
        ({"specificReservation": {}}, "is for no machines of one type"),
        (
            {"specificReservation": {"count": "1", "instanceProperties": {"machineType": "c99-huge"}}},
            "is for c99-huge, which the catalogue does not know",
        ),
    ],
)
def test_what_cannot_be_used_is_left_out_with_its_reason(gcp: Api, change: dict[str, Any], why: str) -> None:
    gcp.cloud.compute.reserved.make("ours", "g2-standard-8", **change)
    gcp = with_reservations(gcp, "us-central1-a/ours")
    with pytest.raises(ProvisionerError, match=rf"within gcp.reservations: us-central1-a/ours .*{why}"):
        gcp.offers(RESERVED)
    gcp.cloud.compute.reserved.make("good", "g2-standard-8")
    gcp = with_reservations(gcp, "us-central1-a/ours", "us-central1-a/good", "us-central1-a/gone")
    assert [each.reservation for each in gcp.offers(RESERVED)] == ["good"]


def test_no_reservation_and_one_that_cannot_be_read_are_told_apart(gcp: Api) -> None:
    with pytest.raises(ProvisionerError, match=r"nothing is reserved: .* in gcp\.reservations"):
        gcp.offers(RESERVED)
    gcp.cloud.compute.reserved.make("ours", "g2-standard-8", project="lab")
    gcp = with_reservations(gcp, "projects/lab/zones/us-central1-a/reservations/ours")
    gcp.cloud.denied.add("compute.reservations.get")
    with pytest.raises(DeniedError, match=r"compute\.reservations\.get .* in the project lab"):
        gcp.offers(RESERVED)
    gcp.cloud.denied.clear()
    gcp.cloud.fail_next("reservations.get", "garbage", times=9)
    with pytest.raises(UnreachableError):
        gcp.provisioner.offers(RESERVED, 0.3)


def test_a_launch_names_its_reservation_and_a_full_one_is_no_capacity(gcp: Api) -> None:
    gcp.cloud.compute.reserved.make("t4", "n1-standard-8", gpus=ATTACHED, cpu_platform="Intel Skylake")
    gcp.cloud.compute.placement_policies.add("near")
    gcp = with_reservations(gcp, "us-central1-a/t4", placement_policies={"us-central1": "near"}, notice_s=60)
    (offer,) = gcp.offers(RESERVED)
    body = launched(gcp, offer)
    assert body["reservationAffinity"] == {
        "consumeReservationType": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": ["t4"],
    }
    assert body["scheduling"] == {"onHostMaintenance": "TERMINATE", "automaticRestart": False}
    launched(gcp, offer)
    assert gcp.cloud.counted()["instances.insert"] == 1
    full = launch(gcp, offer, "n2")
    assert isinstance(full, NoCapacity)
    assert (full.scope, FULL in full.message) == (Scope.TYPE_IN_ZONE, True)
    # The token's machine is found even where the reservation has gone; a new one is not asked for.
    gcp.cloud.compute.reserved.known.clear()
    launched(gcp, offer)
    gone = launch(gcp, offer, "n3")
    assert isinstance(gone, NoCapacity)
    assert (gone.memory_s, gone.scope) == (3600.0, Scope.TYPE_IN_ZONE)
    assert "us-central1-a/t4 does not exist any more: take it out of gcp.reservations" in gone.message
    unnamed = launch(gcp, replace(offer, reservation=""), "n4")
    assert isinstance(unnamed, Fatal)


def test_machines_of_a_dense_reservation_are_bound_to_it_and_may_be_near_each_other(gcp: Api) -> None:
    gcp.cloud.compute.reserved.make("block", "a3-highgpu-8g", deploymentType="DENSE", deleteAtTime=at(86400))
    gcp.cloud.compute.placement_policies.add("near")
    gcp = with_reservations(gcp, "us-central1-a/block", placement_policies={"us-central1": "near"})
    body = launched(gcp, gcp.offers(RESERVED)[0])
    assert body["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
    assert body["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert body["resourcePolicies"] == ["regions/us-central1/resourcePolicies/near"]


def test_check_tells_of_reservations_that_cannot_be_used(gcp: Api) -> None:
    gcp.cloud.compute.reserved.make("t4", "n1-standard-8", 2, gpus=ATTACHED)
    gcp.cloud.compute.reserved.make("soon", "g2-standard-8", status="CREATING")
    gcp, soon = with_reservations(gcp, "us-central1-a/t4", "us-central1-a/soon"), "is not ready (it is CREATING)"
    (found,) = (each for each in gcp.provisioner.check(30.0) if each.what == "reservations")
    assert (found.ok, found.message) == (
        True,
        f"us-central1-a/t4 is for 2 × n1-standard-8+1x nvidia-tesla-t4; us-central1-a/soon {soon}",
    )
    wrong = with_reservations(gcp, "us-central1-a/t4", "us-central1-a/gone", "us-west1-a/far").complaints()
    assert "reservations/gone' was not found" in wrong["reservations"]
    assert "us-west1-a/far is in none of gcp.regions (us-central1): correct gcp.reservations" in wrong["reservations"]
