"""Capacity reservations: what the account has reserved, and whether a launch still finds a place in it.

Azure launches machines beyond what a group reserves, and bills them like any other: only a block refuses them. So a
launch looks first. Sources: Azure's pages "On-demand capacity reservation", "Overallocate capacity reservation" and
"Share a capacity reservation group"; the descriptions of ReservationType and ScheduleProfile in its API 2026-04-01.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provisioners.azure.client import Azure, Clients
from provisioners.azure.errors import CAPACITY_MEMORY_S, is_missing
from provisioners.azure.history import timestamp
from provisioners.azure.settings import AzureSettings
from provisioners.base import DeniedError, Market, NoCapacity, Offer, ProvisionerError, Scope
from provisioners.calls import Deadline, NotSentError
from provisioners.codes import ApiError
from provisioners.listings import of_those_that_answer

API = "2026-04-01"
"""The first API version that shows when a reservation begins that is not a block."""

_ID = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)/providers/Microsoft\.Compute/"
    r"capacityReservationGroups/(?P<name>[^/]+)",
    re.IGNORECASE,
)
# A block lasts whole days or weeks, and can be had for the same day until 11:30 UTC (ScheduleProfile). At what time of
# its dates it begins and ends is not documented.
_TURN_S = 11.5 * 3600.0
# Of a group in a place that is not there. For the daemon's own place they are denials, with another remedy.
_NOWHERE = frozenset({"ResourceGroupNotFound", "SubscriptionNotFound", "InvalidSubscriptionId"})
_KINDS = frozenset({"targeted", "block"})


class _NothingError(ProvisionerError):
    """A named group is not there, or reserves nothing."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation in a group: machines of one size in one place."""

    group: str  # the group's resource id, which a launch names
    label: str  # for people
    kind: str  # of the group, in lower case
    state: str  # in lower case
    size: str = ""
    region: str = ""
    zone: str = ""  # the region's name where it has no zone
    foreign: bool = False  # of another subscription
    machines: int = 0
    begins_at: float = 0.0  # UNIX seconds, as `ends_at`; 0: has begun
    ends_at: float = 0.0  # 0: never
    users: frozenset[str] = frozenset()  # resource ids of all machines in it, in lower case; also deallocated ones

    def why_unusable(self, now: float) -> str:
        """Return why nothing can be launched in it now, whatever is free; "" where it can."""
        if self.kind not in _KINDS:
            return f"{self.label} is of the type {self.kind}, which takes no machines that name it"
        if self.state != "succeeded":
            return f"{self.label} is {self.state or 'without a state'}"
        if self.foreign and self.zone != self.region:
            return f"{self.label} is of another subscription, whose zones have other numbers: share one without zones"
        if self.machines < 1:
            return f"{self.label} reserves no machine"
        if self.begins_at > now:
            return f"{self.label} begins on {_day(self.begins_at)}"
        if self.ends_at and self.ends_at <= now:
            return f"{self.label} ended on {_day(self.ends_at)}"
        return ""

    def why_full(self, machine: str) -> str:
        """Return why it has no place for a machine, by its resource id; "" where it has."""
        if machine.lower() in self.users or len(self.users) < self.machines:
            return ""
        return (
            f"{self.label} is full: {len(self.users)} machines are in it, and it reserves {self.machines} "
            f"{self.size} in {self.zone}"
        )


class Reservations:
    """Those of the groups that the settings name. Thread-safe."""

    def __init__(self, azure: Azure, settings: AzureSettings, now: Callable[[], float] = time.time) -> None:
        """`now`: UNIX seconds."""
        self._azure = azure
        self._settings = settings
        self._now = now
        self._launching = threading.Lock()

    def named(self, deadline: Deadline) -> tuple[list[Reservation], list[str]]:
        """(all reservations, why named groups have none). Raises ProvisionerError where no group is named, or none can
        be read."""
        here = f"/subscriptions/{self._settings.subscription}/resourceGroups/"
        ids = []
        for each in self._settings.capacity_reservations:
            group, _, name = each.partition("/")
            full = f"{here}{group}/providers/Microsoft.Compute/capacityReservationGroups/{name}"
            ids.append(each if each.startswith("/") else full)
        if not ids:
            raise ProvisionerError(
                "nothing is known to be reserved on azure: name capacity reservation groups in "
                "azure.capacity_reservations"
            )

        def ask(group: str) -> list[Reservation] | str:
            try:
                return self._read(group, deadline)
            except _NothingError as error:
                return str(error)

        found: list[Reservation] = []
        without: list[str] = []
        for answer in of_those_that_answer(ids, ask):
            if isinstance(answer, str):
                without.append(answer)
            else:
                found += answer
        return found, without

    def checked(self, deadline: Deadline) -> str:
        """Return what is reserved. Raises ProvisionerError for what can never be used as it is."""
        found, wrong = self.named(deadline)
        regions = self._settings.regions
        wrong += [
            f"{each.label} is in {each.region}, not in azure.regions" for each in found if each.region not in regions
        ]
        if wrong:
            raise ProvisionerError(f"{'; '.join(wrong)}: look at azure.capacity_reservations")
        now = self._now()
        each_one = [
            each.why_unusable(now) or f"{each.label} has {each.machines} {each.size} in {each.zone}" for each in found
        ]
        return "; ".join(each_one)

    @contextmanager
    def place(self, offer: Offer, machine: str, deadline: Deadline) -> Iterator[NoCapacity | None]:
        """Yield why what is reserved has no place for a machine, by its resource id; None where it has, or the offer is
        of another market. The caller launches within: one at a time, so that no two take the same place. Raises as
        `Azure.ask`, and NotSentError where other launches take too long."""
        if offer.market is not Market.RESERVED:
            yield None
            return
        if not self._launching.acquire(timeout=max(deadline.left_s(), 0.0)):
            raise NotSentError(f"other launches in {_label(offer.reservation)} took too long")
        try:
            yield self._why_no_place(offer, machine, deadline)
        finally:
            self._launching.release()

    def _why_no_place(self, offer: Offer, machine: str, deadline: Deadline) -> NoCapacity | None:
        size = offer.instance_type.lower()
        for each in self._read(offer.reservation, deadline):
            if (each.size.lower(), each.zone) == (size, offer.zone):
                why = each.why_unusable(self._now()) or each.why_full(machine)
                return NoCapacity(Scope.TYPE_IN_ZONE, CAPACITY_MEMORY_S, why) if why else None
        raise ProvisionerError(
            f"{_label(offer.reservation)} reserves no {offer.instance_type} in {offer.zone}: look at "
            "azure.capacity_reservations"
        )

    def _read(self, group: str, deadline: Deadline) -> list[Reservation]:
        """Return a group's reservations. Raises as `Azure.ask`, and _NothingError."""
        match, label = _ID.fullmatch(group), _label(group)
        if match is None:
            raise ProvisionerError(f"{group!r} is not the resource id of a capacity reservation group")
        subscription, where = match["subscription"], (match["group"], match["name"])
        foreign = subscription.lower() != self._settings.subscription.lower()

        def kind(clients: Clients, more: Mapping[str, Any]) -> Any:
            return clients.compute_of(subscription).capacity_reservation_groups.get(*where, api_version=API, **more)

        def members(clients: Clients, more: Mapping[str, Any]) -> Any:
            reservations = clients.compute_of(subscription).capacity_reservations
            return reservations.list_by_capacity_reservation_group(*where, api_version=API, **more)

        try:
            described = self._azure.ask(f"the capacity reservation group {label}", kind, deadline)
            listed = list(self._azure.pages(f"the reservations of {label}", members, deadline))
        except ApiError as error:
            if not is_missing(error.reply.code):
                raise
            raise _NothingError(f"there is no capacity reservation group {label}") from error
        except DeniedError as error:
            if isinstance(error.__cause__, ApiError) and error.__cause__.reply.code in _NOWHERE:
                raise _NothingError(f"there is no capacity reservation group {label}") from error
            raise DeniedError(f"{error}, where the capacity reservation group is, too", error.scope) from error
        if not listed:
            raise _NothingError(f"{label} has no reservation")
        kept = str((described.get("properties") or {}).get("reservationType") or "Targeted").lower()
        return [read(each, group, kept, foreign=foreign) for each in listed]


def read(raw: Mapping[str, Any], group: str, kind: str, *, foreign: bool) -> Reservation:
    """Return a reservation as Azure describes it; of one that cannot be read, the state says so. Pure. `kind`: of its
    group."""
    label = f"{_label(group)}/{raw.get('name')}"
    try:
        properties, sku = raw["properties"], raw["sku"]
        schedule = properties.get("scheduleProfile") or {}
        # As in a request: "East US" is eastus.
        region = str(raw["location"]).lower().replace(" ", "")
        zones: Sequence[str] = raw.get("zones") or ()
        return Reservation(
            group=group,
            label=label,
            kind=kind,
            state=str(properties.get("provisioningState") or "").lower(),
            size=str(sku["name"]),
            region=region,
            zone=f"{region}-{zones[0]}" if zones else region,
            foreign=foreign,
            machines=int(sku["capacity"]),
            begins_at=_time(schedule.get("start")),
            ends_at=_time(schedule.get("end")),
            users=frozenset(str(each["id"]).lower() for each in properties.get("virtualMachinesAssociated") or ()),
        )
    except (KeyError, TypeError, ValueError):
        return Reservation(group, label, kind, "unreadable")


def _time(value: object) -> float:
    """Return UNIX seconds; 0 where there is no date. Raises ValueError for what is not one."""
    if not value:
        return 0.0
    if (at := timestamp(value)) is None:
        raise ValueError(f"{value!r} is not a date")
    return at if "T" in str(value) else at + _TURN_S


def _label(group: str) -> str:
    return group.rpartition("/")[2]


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"
