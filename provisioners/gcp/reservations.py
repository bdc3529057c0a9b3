"""What the project has reserved, as `gcp.reservations` names it: as offers, and as what a launch within it needs.

"Consume reservations", "About VMs that use the reservation-bound model" (Compute Engine) and "Choose a consumption
option" (AI Hypercomputer). Reserved machines count towards quotas when they are reserved ("Reservations of Compute
Engine zonal resources"), so no offer here is compared with them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from provisioners.base import DeniedError, NoCapacity, Offer, ProvisionerError, Scope, UnreachableError
from provisioners.calls import Deadline
from provisioners.catalog import Catalog, MachineType
from provisioners.codes import ApiError
from provisioners.gcp import names
from provisioners.gcp.client import Gcp
from provisioners.gcp.errors import ABSENT_MEMORY_S, is_gone
from provisioners.gcp.settings import RESERVATION, GcpSettings

_NAME_KEY = "compute.googleapis.com/reservation-name"
_TARGET = re.compile(r"(?:projects/([^/]+)/reservations/)?([^/]+)")
# What is reserved of these is always a future reservation's: there is no other of them ("Choose a consumption option").
_ALWAYS_BOUND = ("a3-ultragpu-", "a4-", "a4x-")


@dataclass(frozen=True, slots=True)
class Named:
    """A reservation by its place and name. `project`: "" for the daemon's own."""

    zone: str
    name: str
    project: str = ""

    @property
    def target(self) -> str:
        """Return what a launch calls it (ReservationAffinity.values in the API's description)."""
        return f"projects/{self.project}/reservations/{self.name}" if self.project else self.name

    def __str__(self) -> str:
        """Return it as the settings have it."""
        full = f"projects/{self.project}/zones/{self.zone}/reservations/{self.name}"
        return full if self.project else f"{self.zone}/{self.name}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """What Compute Engine says of one."""

    status: str
    count: int  # how many machines it is for in all, whoever uses them
    assured: int  # how many of those there are now
    is_targeted: bool  # whether machines name it; else any that fits uses it
    is_bound: bool  # whether its machines end with it, and have to say so
    ends_at: float  # when it is deleted, in UNIX seconds on our clock; 0: never
    machine_type: str
    accelerators: tuple[tuple[str, int], ...]
    cpu_platform: str
    policies: tuple[str, ...]  # resource policies, by URL

    def why_not(self, now: float) -> str:
        """Return why no machine can be launched within it; "" if one can."""
        if self.status == "DELETING" or (self.ends_at and self.ends_at <= now):
            return "has ended"
        if self.status != "READY":
            return f"is not ready (it is {self.status or 'without a status'})"
        if self.is_to_come:
            return "has not begun"
        if not (self.count and self.machine_type):
            return "is for no machines of one type"
        if not self.is_targeted:
            return "is for any machine that fits it: make it one that is targeted (--require-specific-reservation)"
        return ""

    @property
    def is_to_come(self) -> bool:
        """True if it is expected to be ready later."""
        # A future reservation's is there before it begins, and has no machines yet (cluster-toolkit#4469).
        early = bool(self.count and self.ends_at and not self.assured)
        return early or self.status not in {"READY", "DELETING", "INVALID"}

    def is_for(self, machine: MachineType) -> bool:
        """True if its machines are of this type."""
        if (machine.machine_type or machine.name) != self.machine_type:
            return False
        attached = ((machine.accelerator, machine.gpus),) if machine.accelerator else ()
        return self.accelerators == attached or not (self.accelerators or machine.machine_type)

    @property
    def kind(self) -> str:
        """Return its machines' type, for people."""
        return "+".join([self.machine_type, *(f"{count}x {name}" for name, count in self.accelerators)])

    def body(self) -> dict[str, Any]:
        """Return what a launch within it has to say, beside its name: all properties must match. Machines of a dense
        one may have another placement policy; no others may (cluster-toolkit, resume.py)."""
        found: dict[str, Any] = {"min_cpu_platform": self.cpu_platform} if self.cpu_platform else {}
        if self.policies or not self.is_bound:
            found["resource_policies"] = list(self.policies)
        return found

    def scheduling(self) -> dict[str, Any]:
        """Return what its scheduling has to say."""
        bound = {"provisioning_model": "RESERVATION_BOUND", "instance_termination_action": "DELETE"}
        return bound if self.is_bound else {}


class Reservations:
    """Reads them, one call for each."""

    def __init__(self, gcp: Gcp, settings: GcpSettings, catalog: Catalog) -> None:
        self._gcp = gcp
        self._catalog = catalog
        self._settings = settings
        self.named = tuple(named(each, settings.project) for each in settings.reservations)

    def fitting(
        self, types: Collection[MachineType], zones: Collection[str], now: float, deadline: Deadline
    ) -> list[tuple[Named, tuple[Reservation, MachineType] | str]]:
        """Return each reservation and what its machines are, or why none can be had. `zones`: those that may be used of
        the reservations' own. Raises ProvisionerError where one cannot be read."""
        return [(each, self._fits(each, types, zones, now, deadline)) for each in self.named]

    def read(self, which: Named, deadline: Deadline) -> Reservation:
        """Return one. Raises ApiError where there is none, else ProvisionerError."""
        project = {"project": which.project} if which.project else {}
        try:
            raw = self._gcp.ask(
                "reservations", "get", deadline, which.zone, zone=which.zone, reservation=which.name, **project
            )
        except DeniedError as error:
            if error.scope is Scope.GLOBAL or not which.project:
                raise
            granted = f"compute.reservations.get (roles/compute.viewer) in the project {which.project}"
            raise DeniedError(f"{error.__cause__}; give the daemon's account {granted}", error.scope) from error
        if raw.name != which.name:  # Google's description has two values for `kind`
            raise UnreachableError(f"Compute Engine ({which.zone}) answered without the reservation {which.name}")
        return reservation(raw, self._gcp.ahead_s)

    def within(self, offer: Offer, deadline: Deadline) -> Reservation | NoCapacity:
        """Return the reservation of an offer; NoCapacity where there is none any more. Raises as `read`."""
        match = _TARGET.fullmatch(offer.reservation)
        if match is None:
            raise ProvisionerError(f"{offer.reservation!r} names no reservation: name yours in gcp.reservations")
        which = Named(offer.zone, match[2], match[1] or "")
        try:
            return self.read(which, deadline)
        except ApiError as error:
            if not is_gone(error.reply):
                raise
            why = f"the reservation {which} does not exist any more: take it out of gcp.reservations"
            return NoCapacity(Scope.TYPE_IN_ZONE, ABSENT_MEMORY_S, why)

    def _fits(
        self, which: Named, types: Collection[MachineType], zones: Collection[str], now: float, deadline: Deadline
    ) -> tuple[Reservation, MachineType] | str:
        if which.zone not in zones:
            return "is in no region or zone that is asked for"
        try:
            found = self.read(which, deadline)
        except ApiError as error:
            if not is_gone(error.reply):
                raise
            return "does not exist"
        if why := found.why_not(now):
            return why
        machine = next((each for each in types if found.is_for(each)), None)
        if machine is None:
            return f"is for {found.kind}, which does not fit" if self._knows(found) else _unknown(found)
        return found, machine

    def _knows(self, found: Reservation) -> bool:
        return any(found.is_for(each) for each in self._catalog.cloud("gcp").types)

    def check(self, now: float, deadline: Deadline) -> str:
        """Return what there is, for `spotsupd check`. Raises ProvisionerError where something has to be done."""
        found, wrong = [], []
        for which in self.named:
            if names.region_of(which.zone) not in self._settings.regions:
                wrong.append(f"{which} is in none of gcp.regions ({', '.join(self._settings.regions)})")
                continue
            try:
                one = self.read(which, deadline)
            except ApiError as error:
                wrong.append(f"{which}: {error}")
                continue
            why = one.why_not(now)
            if not why and not self._knows(one):
                why = _unknown(one)
            if why and not one.is_to_come:
                wrong.append(f"{which} {why}")
            found.append(f"{which} {why or f'is for {one.count} × {one.kind}'}")
        if wrong:
            raise ProvisionerError(f"{'; '.join(wrong)}: correct gcp.reservations")
        return "; ".join(found)


def named(text: str, project: str) -> Named:
    """Return the reservation that an entry of `gcp.reservations` names. Pure."""
    match = RESERVATION.fullmatch(text)
    assert match is not None, "the settings are checked"
    return Named(match["zone"], match["name"], "" if match["project"] in {None, project} else match["project"])


def reservation(raw: Any, ahead_s: float = 0.0) -> Reservation:
    """Return what a description says. `ahead_s`: how far its clock is ahead of ours. Pure."""
    specific = raw.specific_reservation
    properties = specific.instance_properties
    machine_type = names.last_of(properties.machine_type)
    attached = ((names.last_of(gpu.accelerator_type), gpu.accelerator_count) for gpu in properties.guest_accelerators)
    # Calendar mode and AI Hypercomputer deliver dense ones only; the API's v1 does not show a reservation's mode.
    dense = raw.deployment_type == "DENSE"
    return Reservation(
        status=raw.status,
        count=specific.count,
        assured=specific.assured_count if "assured_count" in specific or dense else specific.count,
        is_targeted=raw.specific_reservation_required,
        is_bound=dense or machine_type.startswith(_ALWAYS_BOUND),
        ends_at=_ends_at(raw, ahead_s),
        machine_type=machine_type,
        accelerators=tuple(attached),
        cpu_platform=properties.min_cpu_platform,
        policies=tuple(raw.resource_policies.values()),
    )


def affinity(target: str) -> Mapping[str, Any]:
    """Return that of a machine within a reservation, by Offer.reservation. Pure."""
    return {"consume_reservation_type": "SPECIFIC_RESERVATION", "key": _NAME_KEY, "values": [target]}


def _unknown(found: Reservation) -> str:
    return f"is for {found.kind}, which the catalogue does not know"


def _ends_at(raw: Any, ahead_s: float) -> float:
    """Machines of a bound reservation end with it; those of another one would go on, and cost money: for a job both
    are its end."""
    try:
        if raw.delete_at_time:
            return datetime.fromisoformat(raw.delete_at_time).timestamp() - ahead_s
        if after_s := raw.delete_after_duration.seconds:
            return datetime.fromisoformat(raw.creation_timestamp).timestamp() + float(after_s) - ahead_s
    except ValueError as error:
        raise ProvisionerError(f"Compute Engine describes the reservation {raw.name} with no usable end") from error
    return 0.0
