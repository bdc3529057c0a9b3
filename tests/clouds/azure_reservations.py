"""Capacity reservation groups of the test cloud: what is reserved, and by whom it is used.

Sources: Azure's pages "On-demand capacity reservation" (what is not supported with it, which machines are listed) and
"Overallocate capacity reservation" (only a block refuses more machines than it has); the schemas of API 2026-04-01. Its
errors for machines that do not fit are not documented: codes and words are made up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.clouds.azure_machines import RESERVED, Group, zone_of
from tests.clouds.azure_wire import Call, FakeAzureError
from tests.clouds.base import Answer

_GROUPS = "/subscriptions/{subscription}/resourcegroups/{group}/providers/microsoft.compute/capacityreservationgroups"
_PERMISSION = "Compute/capacityReservationGroups"
Route = tuple[str, str, str, Callable[[Call, dict[str, str]], Answer]]


class ReservedCapacity:
    """The groups, by id in lower case. What can be set: `groups` and `members` by `reserve`, the ids of `others`'
    machines by their reservation's. Callers hold the fleet's lock.
    """

    def __init__(self, fleet: Group, paged: Callable[[Call, list[Any]], Answer]) -> None:
        self._fleet = fleet
        self._paged = paged
        self.groups: dict[str, dict[str, Any]] = {}
        self.members: dict[str, list[dict[str, Any]]] = {}
        self.others: dict[str, list[str]] = {}
        self.routes: list[Route] = [
            ("GET", _GROUPS + "/{name}", f"{_PERMISSION}/read", self._get),
            ("GET", _GROUPS + "/{name}/capacityreservations", f"{_PERMISSION}/capacityReservations/read", self._list),
        ]
        self.reserve(RESERVED, "Standard_NC4as_T4_v3", 2)

    def reserve(
        self,
        group: str,
        size: str,
        machines: int,
        *,
        zones: tuple[str, ...] = ("1",),
        location: str = "eastus",
        kind: str = "Targeted",
        state: str = "Succeeded",
        schedule: dict[str, str] | None = None,
    ) -> str:
        """Add a reservation to a group, and the group where there is none; returns the reservation's id."""
        name = group.rpartition("/")[2]
        self.groups.setdefault(
            group.lower(),
            {
                "id": group,
                "name": name,
                "type": "Microsoft.Compute/capacityReservationGroups",
                "location": location,
                "properties": {"reservationType": kind},
                **({"zones": list(zones)} if zones else {}),
            },
        )
        members = self.members.setdefault(group.lower(), [])
        one = f"{group}/capacityReservations/{name}-{len(members)}"
        members.append(
            {
                "id": one,
                "name": one.rpartition("/")[2],
                "type": "Microsoft.Compute/capacityReservationGroups/capacityReservations",
                "location": location,
                "sku": {"name": size, "capacity": machines},
                **({"zones": list(zones)} if zones else {}),
                "properties": {
                    "reservationId": f"id-{len(members)}",
                    "provisioningState": state,
                    "provisioningTime": "2026-11-01T00:00:00.0000000+00:00",
                    "timeCreated": "2026-11-01T00:00:00.0000000+00:00",
                    **({"scheduleProfile": schedule} if schedule else {}),
                },
            }
        )
        return one

    def knows(self, path: str) -> bool:
        """Whether a call is about a group that is there."""
        return path.lower().removesuffix("/capacityreservations") in self.groups

    def check(self, body: dict[str, Any]) -> None:
        """Raises FakeAzureError for a machine that the group which it names does not take."""
        asked = body["properties"]
        named = (asked.get("capacityReservation") or {}).get("capacityReservationGroup") or {}
        if not named:
            return
        group = str(named.get("id")).lower()
        if group not in self.groups:
            raise FakeAzureError("ResourceNotFound", f"The capacity reservation group {named.get('id')} was not found.")
        if asked.get("priority") == "Spot" or "virtualMachineScaleSet" in asked:
            raise FakeAzureError("OperationNotAllowed", "Capacity reservation is not supported for this machine.")
        member = next((each for each in self.members[group] if _takes(each, body)), None)
        if member is None:
            raise FakeAzureError("InvalidParameter", "The group has no reservation of this size and place.")
        full = len(self._users(group, member)) >= member["sku"]["capacity"]
        if full and self.groups[group]["properties"]["reservationType"] == "Block":
            raise FakeAzureError("OverconstrainedAllocationRequest", "The block has no capacity left.")

    def _users(self, group: str, member: dict[str, Any]) -> list[str]:
        """The machines that are in a reservation, also those for which it has no place."""
        mine = []
        for record in self._fleet.records.values():
            named = record.body["properties"].get("capacityReservation", {}).get("capacityReservationGroup", {})
            if str(named.get("id")).lower() == group and _takes(member, record.body):
                mine.append(record.id)
        return [*mine, *self.others.get(member["id"], [])]

    def _get(self, call: Call, _names: dict[str, str]) -> Answer:
        return Answer(200, self._must_know(call.path))

    def _list(self, call: Call, _names: dict[str, str]) -> Answer:
        group = re.sub("/capacityreservations$", "", call.path.lower())
        self._must_know(group)
        found = []
        for each in self.members[group]:
            # Azure lists other resources' ids in any case.
            users = [
                {"id": user.replace("/virtualMachines/", "/VIRTUALMACHINES/")} for user in self._users(group, each)
            ]
            properties = {**each["properties"], **({"virtualMachinesAssociated": users} if users else {})}
            found.append({**each, "properties": properties})
        return self._paged(call, found)

    def _must_know(self, path: str) -> dict[str, Any]:
        if path.lower() not in self.groups:
            raise FakeAzureError("ResourceNotFound", f"The Resource '{path.rpartition('/')[2]}' was not found.")
        return self.groups[path.lower()]


def _takes(member: dict[str, Any], body: dict[str, Any]) -> bool:
    return (member["sku"]["name"], zone_of(member)) == (body["properties"]["hardwareProfile"]["vmSize"], zone_of(body))
