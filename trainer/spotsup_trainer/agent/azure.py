"""Azure's Scheduled Events: the notice that a spot machine will be taken.

Source: "Azure Metadata Service: Scheduled Events for Linux VMs". Spot machines are told at least 30 seconds before, as
far as Azure manages; it asks to look every second. The first call switches the service on, and may take two minutes.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

DEFAULT_URL = "http://169.254.169.254"
ENDPOINT_VARIABLE = "SPOTSUP_AZURE_METADATA"
"""Another address of the metadata service; Azure's own libraries have no common variable for it."""

_EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
# Terminate: somebody deletes the machine. The others leave it, or bring it back.
_ENDS = ("Preempt", "Terminate")
_POLL_S = 1.0
_TIMEOUT_S = 5.0
_FIRST_TIMEOUT_S = 150.0
_MAX_BYTES = 1 << 20

log = logging.getLogger(__name__)


class AzureReader:
    """Looks every second. It never acknowledges an event: that would have the machine taken at once, and every second
    of the notice is for a checkpoint.
    """

    def __init__(self, url: str = "") -> None:
        url = url or os.environ.get(ENDPOINT_VARIABLE, "") or DEFAULT_URL
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the metadata service's address is {url!r}; it should look like {DEFAULT_URL}")
        self._host, self._port = parts.hostname, parts.port or 80
        self._name = ""
        self._answered = False
        self._told: set[str] = set()

    def read(self) -> float | None:
        """The moment at which the machine will be taken (UNIX seconds), or None after a short rest."""
        if not self._name:
            self._name = self._get(_NAME_PATH, _TIMEOUT_S).strip()
            if not self._name:
                raise ValueError(f"the metadata service gives no name for this machine: {_NAME_PATH}")
        told = json.loads(self._get(_EVENTS_PATH, _TIMEOUT_S if self._answered else _FIRST_TIMEOUT_S))
        self._answered = True
        self._told &= {event.get("EventId") for event in told["Events"]}  # those that are over are told of no more
        for event in told["Events"]:
            # Machines of one availability set or scale set are told of each other's events, too.
            if self._name.lower() not in [str(name).lower() for name in event["Resources"]]:
                continue
            if event["EventType"] in _ENDS:
                return self._deadline(event["EventType"], event.get("NotBefore") or "")
            self._mention(event["EventId"], event["EventType"], event.get("NotBefore") or "")
        time.sleep(_POLL_S)
        return None

    def _deadline(self, kind: str, not_before: str) -> float:
        """`not_before` is empty once the event has started."""
        log.info("Azure takes this machine (%s) at %s", kind, not_before or "once")
        return parsedate_to_datetime(not_before).timestamp() if not_before else time.time()

    def _mention(self, event: str, kind: str, not_before: str) -> None:
        if event not in self._told:
            self._told.add(event)
            log.info("Azure has planned for this machine: %s at %s", kind, not_before or "once")

    def _get(self, path: str, timeout_s: float) -> str:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request("GET", path, headers={"Metadata": "true"})
            response = connection.getresponse()
            body = response.read(_MAX_BYTES).decode()
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status} for {path}: {body[:200]!r}")
        return body
