"""What is reserved on Azure, by its real SDK: capacity reservation groups as offers, and launches within them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from provisioners.azure.client import Azure
from provisioners.azure.provisioner import AzureProvisioner
from provisioners.base import (
    DeniedError,
    Fatal,
    InstanceState,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    ProvisionerError,
    Scope,
    Transient,
    UnreachableError,
)
from provisioners.calls import Deadline
from supervisor.market.ends import known_end
from tests.clouds.azure_machines import GROUP, RESERVED, SCALE_SET, SUBSCRIPTION
from tests.integration.cloud_names import T4, Api
from tests.support.machines import TIMEOUT_S, launched_by, request_at, wait_state

SIZE = "Standard_NC4as_T4_v3"
QUERY = replace(T4, market=Market.RESERVED)
READ = "Microsoft.Compute/capacityReservationGroups/read"
ELSEWHERE = RESERVED.replace(GROUP, "capacity").replace("/reserved", "/regional")
SHARED = ELSEWHERE.replace(SUBSCRIPTION, "99999999-0000-0000-0000-000000000000")
NOON = 1798545600.0  # 2026-12-29 12:00 UTC


def with_groups(arm: Api, *groups: str, now: float = NOON, **settings: Any) -> Api:
    """A daemon that knows of these groups, at a time of its own."""
    known = arm.server.settings(capacity_reservations=groups or (f"{GROUP}/reserved",), **settings)
    return replace(arm, provisioner=AzureProvisioner(known, now=lambda: now, looks_s=()))


def a_place(arm: Api, node: str) -> LaunchRequest:
    """A request for a machine within what is reserved."""
    return request_at(arm.offers(QUERY)[0], node)


def launch(arm: Api, request: LaunchRequest) -> LaunchOutcome:
    return arm.provisioner.launch(request, TIMEOUT_S)


# -- offers --------------------------------------------------------------------------------------------------


def test_each_reservation_that_fits_is_an_offer_without_a_further_price_or_quota(arm: Api) -> None:
    arm.cloud.arm.reserved.reserve(ELSEWHERE, SIZE, 8, zones=())
    arm.cloud.arm.reserved.reserve(ELSEWHERE, "Standard_NC96ads_A100_v4", 1, zones=())
    arm.cloud.arm.quotas = {"lowPriorityCores": 0, "cores": 0}
    arm = with_groups(arm, f"{GROUP}/reserved", "capacity/regional")
    known = Offer("azure", "eastus", "eastus-1", SIZE, Market.RESERVED, 0.0, "T4", 1)
    known = replace(known, price_source="reserved: billed whether it is used or not")
    regional = replace(known, zone="eastus", reservation=ELSEWHERE, room=8)
    zonal = replace(known, reservation=RESERVED, room=2)
    assert list(arm.offers(QUERY)) == [regional, zonal]
    assert list(arm.offers(replace(QUERY, zones=("eastus-1",)))) == [zonal]
    assert [each.gpus for each in arm.offers(OfferQuery(gpu="A100", market=Market.RESERVED, gpus_per_node=3))] == [4]


def test_what_another_subscription_shares_is_offered_and_launched_in(arm: Api) -> None:
    arm.cloud.arm.reserved.reserve(SHARED, SIZE, 1, zones=())
    arm = with_groups(arm, SHARED)
    (offer,) = arm.offers(QUERY)
    assert offer.reservation == SHARED
    assert launched_by(arm.provisioner, request_at(offer, "n1")).zone == "eastus"


@pytest.mark.parametrize(
    ("reserved", "why"),
    [
        ({"schedule": {"start": "2026-12-30", "end": "2027-01-02"}, "kind": "Block"}, "begins on 2026-12-30"),
        ({"schedule": {"start": "2026-12-27", "end": "2026-12-29"}, "kind": "Block"}, "ended on 2026-12-29"),
        ({"schedule": {"start": "soon"}}, "is unreadable"),
        ({"state": "Updating"}, "is updating"),
        ({"machines": 0}, "reserves no machine"),
        ({"kind": "Open"}, "is of the type open"),
        ({"size": "Standard_D2s_v3"}, "is of Standard_D2s_v3, which is not asked for"),
        ({"location": "westus2"}, "is in westus2-1, which is not asked for"),
        ({"group": SHARED}, "is of another subscription, whose zones have other numbers"),
    ],
)
def test_what_cannot_be_used_now_is_left_out_and_named(arm: Api, reserved: dict[str, Any], why: str) -> None:
    group = reserved.get("group", ELSEWHERE)
    arm.cloud.arm.reserved.reserve(**{"group": group, "size": SIZE, "machines": 4, **reserved})
    with pytest.raises(ProvisionerError, match=f"nothing that is reserved on azure can be used: regional.* {why}"):
        with_groups(arm, group).offers(QUERY)
    assert [each.reservation for each in with_groups(arm, f"{GROUP}/reserved", group).offers(QUERY)] == [RESERVED]


@pytest.mark.parametrize("group", [f"{GROUP}/no", "nowhere/no", SHARED.replace("/regional", "/no")])
def test_a_group_that_is_not_there_is_named(arm: Api, group: str) -> None:
    with pytest.raises(ProvisionerError, match=r"there is no capacity reservation group no$"):
        with_groups(arm, group).offers(QUERY)


def test_what_is_reserved_and_what_is_not_there_is_found_before_anything_is_launched(arm: Api) -> None:
    what = "capacity reservations"
    (found,) = [each for each in with_groups(arm).provisioner.check(30.0) if each.what == what]
    assert (found.ok, found.message) == (True, "reserved/reserved-0 has 2 Standard_NC4as_T4_v3 in eastus-1")
    assert with_groups(arm, f"{GROUP}/reserved", f"{GROUP}/no").complaints() == {
        what: "there is no capacity reservation group no: look at azure.capacity_reservations"
    }


def test_without_a_named_group_the_setting_is_named(arm: Api) -> None:
    with pytest.raises(ProvisionerError, match=r"name capacity reservation groups in azure\.capacity_reservations$"):
        arm.offers(QUERY)


def test_groups_that_cannot_be_read_are_no_evidence(arm: Api) -> None:
    arm = with_groups(arm)
    arm.cloud.denied.add(READ)
    with pytest.raises(DeniedError, match=f"{READ}.*docs/permissions.*where the capacity reservation group is, too"):
        arm.offers(QUERY)
    arm.cloud.denied.clear()
    arm.cloud.fail_next(READ, "transient", times=9)
    with pytest.raises(UnreachableError, match="ServiceUnavailable"):
        arm.provisioner.offers(QUERY, 0.5)


def test_the_end_of_a_block_is_known_before(arm: Api) -> None:
    schedule = {"start": "2026-12-29", "end": "2026-12-31"}
    one = arm.cloud.arm.reserved.reserve(ELSEWHERE, SIZE, 4, kind="Block", schedule=schedule)
    arm.cloud.arm.reserved.others[one] = ["/subscriptions/s/resourceGroups/g/providers/X/virtualMachines/theirs"]
    arm = with_groups(arm, "capacity/regional")
    (offer,) = arm.offers(QUERY)
    assert offer.ends_at == NOON + 2 * 86400.0 - 1800.0
    assert known_end(offer, NOON) == (offer.ends_at, "the end of regional")
    # By the SDK's own description of the answer.
    (read,) = Azure(arm.server.settings()).pages(
        "reservations",
        lambda clients, more: clients.compute.capacity_reservations.list_by_capacity_reservation_group(
            "capacity", "regional", **more
        ),
        Deadline(TIMEOUT_S),
    )
    described: Any = read
    assert (described.sku.name, described.sku.capacity, described.zones) == (SIZE, 4, ["1"])
    assert (described.provisioning_state, described.schedule_profile.end) == ("Succeeded", "2026-12-31")
    assert [each.id.rpartition("/")[2] for each in described.virtual_machines_associated] == ["theirs"]


# -- launches ------------------------------------------------------------------------------------------------


def test_a_full_group_is_no_capacity_though_azure_would_launch_and_bill(arm: Api) -> None:
    wall, arm = arm, with_groups(arm, scale_sets={"eastus-1": SCALE_SET})
    requests = [a_place(arm, f"n{number}") for number in range(3)]
    first, second, third = (launch(arm, each) for each in requests)
    assert isinstance(first, Launched)
    assert isinstance(second, Launched)
    assert isinstance(third, NoCapacity)
    assert third.scope is Scope.TYPE_IN_ZONE
    assert "is full: 2 machines are in it, and it reserves 2 Standard_NC4as_T4_v3 in eastus-1" in third.message
    assert arm.launches() == 2
    for record in arm.cloud.fleet.records.values():
        asked = record.body["properties"]
        assert asked["capacityReservation"] == {"capacityReservationGroup": {"id": RESERVED}}
        assert not {"priority", "evictionPolicy", "billingProfile", "virtualMachineScaleSet"} & asked.keys()
    # The token's machine is the answer, full or not.
    again = launch(arm, requests[0])
    assert isinstance(again, Launched)
    assert again.instance.id == first.instance.id
    arm.terminate(first.instance)
    wait_state(wall.provisioner, requests[0].token, InstanceState.TERMINATED)
    assert isinstance(launch(arm, requests[2]), Launched)


def test_machines_of_others_take_places_and_a_machine_that_is_not_listed_yet_is_found(arm: Api) -> None:
    arm = with_groups(arm)
    request = a_place(arm, "n1")
    machine = launched_by(arm.provisioner, request)
    arm.cloud.arm.reserved.others[f"{RESERVED}/capacityReservations/reserved-0"] = ["/vm/theirs", "/vm/theirs-2"]
    arm.cloud.fleet.records[machine.id].body["properties"]["capacityReservation"] = {}
    assert isinstance(launch(arm, a_place(arm, "n2")), NoCapacity)
    again = launch(arm, request)
    assert isinstance(again, Launched)
    assert again.instance.id == machine.id


def test_launches_at_one_moment_take_no_place_twice(arm: Api) -> None:
    arm = with_groups(arm)
    requests = [a_place(arm, f"n{number}") for number in range(4)]
    with ThreadPoolExecutor(len(requests)) as pool:
        outcomes = list(pool.map(lambda each: launch(arm, each), requests))
    assert sorted(type(each).__name__ for each in outcomes) == ["Launched"] * 2 + ["NoCapacity"] * 2
    assert len(arm.cloud.fleet.records) == 2


def test_what_was_reserved_and_is_gone_is_said_and_nothing_is_launched(arm: Api) -> None:
    arm.cloud.arm.reserved.reserve(ELSEWHERE, SIZE, 4, schedule={"start": "2026-12-01", "end": "2026-12-30"})
    request = a_place(with_groups(arm, "capacity/regional"), "n1")
    ended = launch(with_groups(arm, "capacity/regional", now=NOON + 86400.0), request)
    assert isinstance(ended, NoCapacity)
    assert "ended on 2026-12-30" in ended.message
    here, offer = with_groups(arm), request.offer
    for gone, why in (
        (
            replace(offer, zone="eastus-2"),
            "regional reserves no Standard_NC4as_T4_v3 in eastus-2",
        ),
        (replace(offer, reservation=f"{RESERVED}-no"), "there is no capacity reservation group reserved-no"),
        (replace(offer, reservation=""), "'' is not the resource id of a capacity reservation group"),
    ):
        refused = launch(here, replace(request, offer=gone))
        assert isinstance(refused, Fatal)
        assert why in refused.message
    arm.cloud.fail_next(READ, "transient", times=9)
    assert isinstance(here.provisioner.launch(request, 0.4), Transient)
    assert not arm.launches()
