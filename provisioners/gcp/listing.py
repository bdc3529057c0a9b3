"""The two listings of instances: the existing ones, and operations, which show those that are gone."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provisioners.base import Instance, ProvisionerError, UnreachableError
from provisioners.calls import Deadline
from provisioners.gcp import describe, names
from provisioners.gcp.client import Gcp, items_of
from provisioners.gcp.settings import GcpSettings
from provisioners.readings import read_each

PAGE = 500  # Google's maximum


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Both listings at the time `at` (UNIX seconds)."""

    machines: Sequence[Instance]
    operations: Sequence[describe.Operation]
    at: float
    silent: Mapping[str, str]  # why a region's listing is not complete

    def ended(self, since: float | None = None) -> list[Instance]:
        """Return the instances that ended since `since`; by default, within the last hour."""
        since = self.at - describe.REMEMBERED_S if since is None else since
        return describe.ended(self.operations, [each.id for each in self.machines], since=since)

    def refused(self) -> list[Instance]:
        """Return the instances whose insertion failed within the last hour, after Google had accepted it."""
        since = self.at - describe.REMEMBERED_S
        return describe.refused(self.operations, [each.id for each in self.machines], since=since)


class Listing:
    """Reads both, in as many calls for any number of regions, zones and instances."""

    def __init__(self, gcp: Gcp, settings: GcpSettings, now: Callable[[], float]) -> None:
        self._gcp = gcp
        self._settings = settings
        self._now = now

    def read(self, wanted: str, pattern: str, deadline: Deadline) -> Snapshot:
        """Return the instances that match a filter, and the operations on instances whose URLs match `pattern`.
        Instances first: one that ends between the two calls is then in both, not in neither.
        """
        silent: dict[str, str] = {}
        listed = self.machines(wanted, deadline, silent)
        operations = self._operations(pattern, deadline, silent)
        now = self._now()
        regions = self._settings.regions
        if len(silent) == len(regions):
            raise UnreachableError(silent[regions[0]])
        its = describe.by_machine(operations)
        machines = read_each(
            [(zone, vm) for zone, vm in listed if names.region_of(zone) in regions],
            lambda each: describe.instance(
                each[1], each[0], self._settings, its.get(names.id_of(each[0], each[1].name), ()), now
            ),
            lambda each: names.id_of(each[0], each[1].name),
        )
        return Snapshot(machines, [each for each in operations if names.region_of(each.zone) in regions], now, silent)

    def machines(self, wanted: str, deadline: Deadline, silent: dict[str, str] | None = None) -> list[tuple[str, Any]]:
        """(zone, description) of all instances of the project that match a filter. `silent`: as of `items_of`."""
        return list(self._gcp.aggregated("instances", "instances", deadline, silent, filter=wanted, max_results=PAGE))

    def operations_in(self, zone: str, pattern: str, deadline: Deadline) -> list[describe.Operation]:
        """Return the newest operations of one zone on instances whose URLs match. Raises ApiError and
        ProvisionerError."""
        answer = self._gcp.ask(
            "zoneOperations",
            "list",
            deadline,
            zone,
            kind="compute#operationList",
            zone=zone,
            filter=_on(pattern),
            order_by=_NEWEST_FIRST,
            max_results=PAGE,
        )
        return self._read(answer.items, pattern)

    def _operations(self, pattern: str, deadline: Deadline, silent: dict[str, str]) -> list[describe.Operation]:
        """Return one page of the newest operations: Google keeps operations for weeks, and old ones are not needed."""
        answer = self._gcp.ask(
            "globalOperations",
            "aggregated_list",
            deadline,
            kind="compute#operationAggregatedList",
            filter=_on(pattern),
            order_by=_NEWEST_FIRST,
            max_results=PAGE,
        )
        return self._read((raw for _, raw in items_of(answer, "operations", self._settings.regions, silent)), pattern)

    def _read(self, listed: Iterable[Any], pattern: str) -> list[describe.Operation]:
        """Return those that match, checked again after Google's filter. Times are on our clock."""
        ours, ahead_s = re.compile(pattern), self._gcp.ahead_s
        found = []
        for raw in listed:
            if ours.fullmatch(raw.target_link):
                # One that cannot be read is as one that is not there: a listing does not need it.
                with contextlib.suppress(ProvisionerError):
                    found.append(describe.operation(raw))
        return [replace(each, began_at=each.began_at - ahead_s) for each in found]


_NEWEST_FIRST = "creationTimestamp desc"


def _on(pattern: str) -> str:
    return f"targetLink eq '{pattern}'"
