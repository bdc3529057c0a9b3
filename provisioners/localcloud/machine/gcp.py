"""The paths of Compute Engine's metadata service on a machine of the local cloud: for the reader that runs there.

All need the header Metadata-Flavor: Google; 403 without. Every answer has an ETag.

GET /computeMetadata/v1/instance/preempted        FALSE, and TRUE once a preemption is announced
    ?wait_for_change=true&timeout_sec=60&last_etag=E    answers once the ETag is another, at the latest after the time
GET /computeMetadata/v1/instance/id               and name, zone, machine-type, maintenance-event
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

_PREFIX = "/computeMetadata/v1/"
_PREEMPTED = f"{_PREFIX}instance/preempted"
_MAX_WAIT_S = 300.0


class Value(NamedTuple):
    """An answer, or, with `wait_s`, the wish to be answered once that is another."""

    status: int
    body: str = ""
    wait_s: float = 0.0

    def headers(self) -> dict[str, str]:
        """Return what comes with it."""
        etag = hashlib.sha256(self.body.encode()).hexdigest()[:16]
        return {"Metadata-Flavor": "Google", "ETag": etag} if self.status == 200 else {"Metadata-Flavor": "Google"}


class GcpMetadata:
    """Paths. Header names are lower case."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        self._facts = facts

    def answer(
        self, method: str, path: str, query: str, headers: Mapping[str, str], *, preempted: bool
    ) -> Value | None:
        """Return what Compute Engine would answer; None for a path that is not its own."""
        if not path.startswith(_PREFIX):
            return None
        if headers.get("metadata-flavor") != "Google":
            return Value(403)
        if method != "GET":
            return Value(405)
        body = self._data(preempted).get(path)
        if body is None:
            return Value(404)
        asked = dict(parse_qsl(query))
        value = Value(200, body)
        if asked.get("wait_for_change") != "true" or path != _PREEMPTED:
            return value
        last = asked.get("last_etag", value.headers()["ETag"])
        seconds = asked.get("timeout_sec", str(_MAX_WAIT_S))
        if not seconds.replace(".", "", 1).isdecimal():
            return Value(400)
        return value._replace(wait_s=min(float(seconds), _MAX_WAIT_S)) if last == value.headers()["ETag"] else value

    def preempted(self, *, preempted: bool) -> Value:
        """Return the value for waiting clients."""
        return Value(200, self._data(preempted)[_PREEMPTED])

    def _data(self, preempted: bool) -> dict[str, str]:
        place = "projects/1/"
        known = {
            "id": self._facts["id"],
            "name": self._facts["id"],
            "zone": f"{place}zones/{self._facts['zone']}",
            "machine-type": f"{place}machineTypes/{self._facts['instance_type']}",
            "maintenance-event": "NONE",
            "preempted": "TRUE" if preempted else "FALSE",
        }
        return {f"{_PREFIX}instance/{name}": value for name, value in known.items()}
