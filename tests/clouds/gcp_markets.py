"""Flex-start VMs and reservations, as the test cloud has them: by Google's pages on both, where these say something.

A reservation is described by Google's own model: a field that it does not have cannot be set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.cloud import compute_v1

from tests.clouds.gcp_instances import Record
from tests.clouds.gcp_wire import Call, FakeGcpError

_WEEK_S = 7 * 86400


def waits(body: Mapping[str, Any]) -> bool:
    """Whether a request waits for room: "Compute Engine instance lifecycle", PENDING."""
    return _valid_for_s(body) >= 90


def check_flex(body: Mapping[str, Any]) -> None:
    """Refuse what "Create a Flex-start VM" and "About Flex-start VMs" do not allow."""
    scheduling, valid_for_s = body.get("scheduling", {}), _valid_for_s(body)
    if scheduling.get("provisioningModel") != "FLEX_START":
        if "params" in body:
            raise FakeGcpError(400, "badRequest", "requestValidForDuration is for FLEX_START instances")
        return
    lasts_s = int(scheduling.get("maxRunDuration", {}).get("seconds", 0))
    affinity = body.get("reservationAffinity", {}).get("consumeReservationType")
    kind = body["machineType"].rpartition("/")[2]
    rules = {
        "maxRunDuration must be between 30 seconds and 7 days": 30 <= lasts_s <= _WEEK_S,
        "instanceTerminationAction must be specified": "instanceTerminationAction" in scheduling,
        "automaticRestart must be false": not scheduling.get("automaticRestart", True),
        "requestValidForDuration must be 0, or 90 seconds to 2 hours": not valid_for_s or 90 <= valid_for_s <= 7200,
        "FLEX_START instances cannot consume reservations": affinity == "NO_RESERVATION",
        "FLEX_START is not supported for this machine type": not kind.startswith("a4x-"),
    }
    for message, holds in rules.items():
        if not holds:
            raise FakeGcpError(400, "badRequest", f"{message}.")


class Reserved:
    """All reservations. `known`: by project, zone and name."""

    def __init__(self, project: str, alive: Callable[[], Sequence[Record]]) -> None:
        self.known: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._project = project
        self._alive = alive

    def make(
        self,
        name: str,
        machine_type: str,
        count: int = 1,
        *,
        zone: str = "us-central1-a",
        gpus: Mapping[str, int] | None = None,
        project: str = "",
        cpu_platform: str = "",
        **more: Any,
    ) -> dict[str, Any]:
        """One that is ready. `gpus`: those that are attached; `more`: further fields, or others."""
        attached = [{"acceleratorType": gpu, "acceleratorCount": number} for gpu, number in (gpus or {}).items()]
        properties = {"machineType": machine_type, **({"guestAccelerators": attached} if attached else {})}
        properties |= {"minCpuPlatform": cpu_platform} if cpu_platform else {}
        numbers = {"count": str(count), "assuredCount": str(count), "inUseCount": "0"}
        raw = {
            "kind": "compute#reservation",
            "name": name,
            "status": "READY",
            "specificReservationRequired": True,
            "specificReservation": {**numbers, "instanceProperties": properties},
            **more,
        }
        compute_v1.Reservation.from_json(json.dumps(raw), ignore_unknown_fields=False)
        self.known[project or self._project, zone, name] = raw
        return raw

    def get(self, call: Call) -> Mapping[str, Any]:
        """One."""
        place = call.path["project"], call.path["zone"], call.path["reservation"]
        if place not in self.known:
            path = "projects/{}/zones/{}/reservations/{}".format(*place)
            raise FakeGcpError(404, "notFound", f"The resource '{path}' was not found")
        return self.known[place]

    def check(self, zone: str, body: Mapping[str, Any]) -> None:
        """Refuse what cannot be within a reservation at all. Messages: the tests of Kubernetes' cluster autoscaler,
        skypilot#3327, Colab Enterprise's page on troubleshooting."""
        scheduling, target = body.get("scheduling", {}), _target(body)
        bound = scheduling.get("provisioningModel") == "RESERVATION_BOUND"
        if target is None:
            if bound:
                raise FakeGcpError(400, "invalid", "RESERVATION_BOUND instances must target a specific reservation.")
            return
        raw = self._find(zone, target)
        if raw is None:
            raise _refusal(f"Specified reservations [{target}] do not exist.")
        if not raw["specificReservationRequired"]:
            raise _refusal(
                f"Specified reservations [{target}] can not be targeted as specificReservationRequired is not set"
            )
        if raw["status"] != "READY":
            why = f"Cannot insert instance to a reservation with status: {raw['status']}, as it requires reservation to"
            raise _refusal(f"{why} be in READY state.")
        wanted = raw["specificReservation"]["instanceProperties"]
        gpus = [(each["acceleratorType"].rpartition("/")[2], each["acceleratorCount"]) for each in _gpus(body)]
        reserved = [(each["acceleratorType"], each["acceleratorCount"]) for each in _gpus(wanted)]
        has = body["machineType"].rpartition("/")[2], gpus, body.get("minCpuPlatform", "")
        matches = has == (wanted["machineType"], reserved, wanted.get("minCpuPlatform", ""))
        policies = set(raw.get("resourcePolicies", {}).values())
        dense = raw.get("deploymentType") == "DENSE"
        asked = set(body.get("resourcePolicies", ()))
        if not matches or bound is not dense or (asked != policies and not (dense and not policies)):
            raise _refusal("No available resources in specified reservations.")

    def fault_of(self, zone: str, body: Mapping[str, Any]) -> tuple[str, str] | None:
        """(code, message) of a launch within a full one."""
        target = _target(body)
        raw = self._find(zone, target) if target is not None else None
        if raw is None:
            return None
        used = sum(each.zone == zone and _target(each.body) == target for each in self._alive())
        if used < int(raw["specificReservation"]["count"]):
            return None
        message = f"Specified reservation '{target}' does not have available resources for the request."
        return "CONDITION_NOT_MET", message

    def _find(self, zone: str, target: str) -> dict[str, Any] | None:
        *where, name = target.split("/")
        return self.known.get((where[1] if where else self._project, zone, name))


def _valid_for_s(body: Mapping[str, Any]) -> int:
    return int(body.get("params", {}).get("requestValidForDuration", {}).get("seconds", 0))


def _gpus(described: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = described.get("guestAccelerators", ())
    return found


def _target(body: Mapping[str, Any]) -> str | None:
    affinity = body.get("reservationAffinity", {})
    if affinity.get("consumeReservationType") != "SPECIFIC_RESERVATION":
        return None
    if affinity["key"] != "compute.googleapis.com/reservation-name":
        raise _refusal("Unknown key.")
    (target,) = affinity["values"]
    return str(target)


def _refusal(message: str) -> FakeGcpError:
    return FakeGcpError(400, "invalid", f"Invalid value for field 'resource.reservationAffinity': '{{...'. {message}")
