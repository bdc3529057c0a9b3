"""Machines in Azure's Activity Log: when they were requested, when they ended, and who ended them.

A deleted machine is gone from every listing at once, and the machines' own API never reports whether Azure evicted it
or a user deleted it. The log does, some minutes late. Source of its format: Microsoft.Insights, activityLogs_API.json,
version 2015-04-01. Evictions are logged as Microsoft.Compute/virtualMachines/evictSpotVM/action. Not verified on a real
account: that the claim xms_mirid identifies a machine that deallocates itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from provisioners.base import EndCause

API = "2015-04-01"
WINDOW_S = 3600.0
"""How far back the log is read: an ended machine is listed for so long."""

CLOCKS_S = 60.0
"""The difference between clocks that is tolerated, either way, after what was measured of it (`Azure.ahead_s`). Without
entries later than our now, a token whose machine has ended would look unused; whether Azure takes an end of the range
that is far in the future is not documented."""

NOTICE_S = 30.0
"""Spot machines get "at least 30 seconds" of notice."""

_MACHINE = re.compile(r"/resourcegroups/([^/]+)/providers/microsoft\.compute/virtualmachines/([^/]+)$", re.IGNORECASE)
_KIND = "microsoft.compute/virtualmachines/"
_SELECT = "eventTimestamp,operationName,status,resourceId,properties,claims"
_MAX_PAGES = 10  # newest first
_IN_PROGRESS = ("started", "accepted", "succeeded")
_EVICTIONS = ("evictspotvm/action", "simulateeviction/action")
_STOPS = ("deallocate/action", "poweroff/action")


@dataclass(frozen=True, slots=True)
class Event:
    """One log entry about one machine."""

    at: float
    machine: str
    operation: str  # in lower case, as `status`
    status: str
    body: Mapping[str, Any] = field(default_factory=dict)  # the machine, as Azure answered
    by_identity: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """The history of the last machine of a name, within the log's window."""

    born_at: float = 0.0
    body: Mapping[str, Any] = field(default_factory=dict)
    made: bool = False  # it was created
    failed: bool = False  # it was requested and never created
    cause: EndCause | None = None  # of its end, once that has begun
    evicted_at: float | None = None  # when Azure announced its eviction
    gone_at: float | None = None  # when it was deleted
    stopped_by: EndCause | None = None  # who shut it down


def read(
    raw: Callable[[str, str, Mapping[str, str]], Any],
    subscription: str,
    group: str,
    now: float,
    *,
    machine: str = "",
    window_s: float = WINDOW_S,
) -> list[Event]:
    """Return the log of a resource group, or of one machine in it. `raw(method, url, params)` makes a request."""
    since = datetime.fromtimestamp(now - window_s - CLOCKS_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    until = datetime.fromtimestamp(now + CLOCKS_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    place = f"resourceGroupName eq '{group}'"
    if machine:
        place = (
            f"resourceUri eq '/subscriptions/{subscription}/resourceGroups/{group}"
            f"/providers/Microsoft.Compute/virtualMachines/{machine}'"
        )
    wanted = f"eventTimestamp ge '{since}' and eventTimestamp le '{until}' and {place}"
    url = f"/subscriptions/{subscription}/providers/Microsoft.Insights/eventtypes/management/values"
    params: Mapping[str, str] = {"api-version": API, "$filter": wanted, "$select": _SELECT}
    found: list[Event] = []
    for _ in range(_MAX_PAGES):
        answer = raw("GET", url, params)
        found += events(answer["value"], group)
        url, params = answer.get("nextLink") or "", {}
        if not url:
            break
    return found


def events(entries: Iterable[Mapping[str, Any]], group: str) -> list[Event]:
    """Return the entries about machines of the group, without unreadable ones: the log is never the only evidence."""
    found = []
    for each in entries:
        match = _MACHINE.search(_value(each.get("resourceId")))
        operation = _value(each.get("operationName")).lower()
        at = timestamp(each.get("eventTimestamp"))
        if match is None or match[1].lower() != group.lower() or not operation.startswith(_KIND) or at is None:
            continue
        found.append(
            Event(
                at=at,
                machine=match[2].lower(),
                operation=operation.removeprefix(_KIND),
                status=_value(each.get("status")).lower(),
                body=_body(each.get("properties")),
                by_identity=str((each.get("claims") or {}).get("xms_mirid", "")),
            )
        )
    return found


def pasts(found: Iterable[Event]) -> dict[str, Past]:
    """Machine's name in lower case -> its history."""
    known: dict[str, Past] = {}
    for event in sorted(found, key=lambda each: each.at):
        known[event.machine] = _after(known.get(event.machine, Past()), event)
    return known


def timestamp(value: object) -> float | None:
    """UNIX seconds; None for a value that is not a time."""
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _after(past: Past, event: Event) -> Past:
    in_progress = event.status in _IN_PROGRESS
    if event.operation == "write":
        if past.gone_at is not None:
            past = Past()
        born_at = past.born_at or event.at
        made = past.made or event.status == "succeeded"
        failed = not made and event.status == "failed"
        return replace(past, born_at=born_at, body=event.body or past.body, made=made, failed=failed)
    if event.operation in _EVICTIONS:
        if not in_progress:
            return replace(past, cause=None, evicted_at=None)
        gone_at = event.at if event.status == "succeeded" and event.operation == _EVICTIONS[0] else past.gone_at
        return replace(
            past, cause=EndCause.PREEMPTED, evicted_at=past.evicted_at or event.at, gone_at=past.gone_at or gone_at
        )
    if event.operation == "delete" and in_progress:
        cause = past.cause or EndCause.USER
        gone_at = event.at if event.status == "succeeded" else None
        return replace(past, cause=cause, gone_at=past.gone_at or gone_at)
    if event.operation in _STOPS and in_progress:
        # Its dead-man switch has the machine's own identity.
        itself = event.by_identity.lower().endswith(f"/virtualmachines/{event.machine}")
        return replace(past, stopped_by=EndCause.FAILED if itself else EndCause.USER)
    return past


def _value(name: object) -> str:
    """Names are {"value": …, "localizedValue": …}, or plain."""
    return str(name.get("value", "")) if isinstance(name, Mapping) else str(name or "")


def _body(properties: object) -> Mapping[str, Any]:
    text = properties.get("responseBody") if isinstance(properties, Mapping) else None
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
