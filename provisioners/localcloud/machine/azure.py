"""The paths of Azure's metadata service on a machine of the local cloud: for the reader that runs on Azure.

All need the header Metadata: true, and an api-version; 400 without.

GET /metadata/scheduledevents?api-version=2020-07-01                 the events; a Preempt once one is announced
GET /metadata/instance/compute/name?api-version=2021-02-01&format=text
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qsl

_PREFIX = "/metadata/"


class Events(NamedTuple):
    """An answer."""

    status: int
    content_type: str = "application/json"
    body: str = ""


class AzureMetadata:
    """Paths. Deadlines are UNIX seconds, header names are lower case."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        self._facts = facts

    def answer(
        self, method: str, path: str, query: str, headers: Mapping[str, str], preempt_at: float | None
    ) -> Events | None:
        """Return what Azure would answer; None for a path that is not Azure's."""
        if not path.startswith(_PREFIX):
            return None
        asked = dict(parse_qsl(query))
        if headers.get("metadata", "").lower() != "true" or "api-version" not in asked:
            return Events(400, body=json.dumps({"error": "Bad request. Required metadata header not specified"}))
        if method != "GET":
            return Events(405)
        if path == "/metadata/scheduledevents":
            return Events(200, body=json.dumps(self._scheduled(preempt_at)))
        if path == "/metadata/instance/compute/name" and asked.get("format") == "text":
            return Events(200, "text/plain", self._facts["id"])
        return Events(404)

    def _scheduled(self, preempt_at: float | None) -> dict[str, object]:
        if preempt_at is None:
            return {"DocumentIncarnation": 1, "Events": []}
        event = {
            "EventId": f"preempt-{self._facts['id']}",
            "EventType": "Preempt",
            "ResourceType": "VirtualMachine",
            "Resources": [self._facts["id"]],
            "EventStatus": "Scheduled",
            "NotBefore": formatdate(preempt_at, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        return {"DocumentIncarnation": 2, "Events": [event]}
