"""Azure's Scheduled Events: the preemption notice of a spot VM.

Source: "Azure Metadata Service: Scheduled Events for Linux VMs". A spot VM gets its notice 30 seconds before, on a
best-effort basis; Azure recommends to poll every second. The first call enables the service, and may take two minutes.
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
# Terminate: a user deletes the VM. After all other events the VM still exists.
_ENDS = ("Preempt", "Terminate")
_POLL_S = 1.0
_TIMEOUT_S = 5.0
_FIRST_TIMEOUT_S = 150.0
_MAX_BYTES = 1 << 20

log = logging.getLogger(__name__)


class AzureReader:
    """Polls every second. It never acknowledges an event: Azure would take the VM at once, and the checkpoint needs
    every second of the notice.
    """

    def __init__(self, url: str = "") -> None:
        url = url or os.environ.get(ENDPOINT_VARIABLE, "") or DEFAULT_URL
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the metadata service's address is {url!r}; it should look like {DEFAULT_URL}")
        self._host, self._port = parts.hostname, parts.port or 80
        self._name = ""
        self._answered = False
        self._logged: set[str] = set()

    def read(self) -> float | None:
        """Return when the VM will be taken (UNIX seconds), or None after a short wait."""
        if not self._name:
            self._name = self._get(_NAME_PATH, _TIMEOUT_S).strip()
            if not self._name:
                raise ValueError(f"the metadata service gives no name for this VM: {_NAME_PATH}")
        reply = json.loads(self._get(_EVENTS_PATH, _TIMEOUT_S if self._answered else _FIRST_TIMEOUT_S))
        self._answered = True
        self._logged &= {event.get("EventId") for event in reply["Events"]}  # forget events that are over
        for event in reply["Events"]:
            # VMs of one availability set or scale set get each other's events, too.
            if self._name.lower() not in [str(name).lower() for name in event["Resources"]]:
                continue
            if event["EventType"] in _ENDS:
                return self._deadline(event["EventType"], event.get("NotBefore") or "")
            self._log(event["EventId"], event["EventType"], event.get("NotBefore") or "")
        time.sleep(_POLL_S)
        return None

    def _deadline(self, kind: str, not_before: str) -> float:
        """`not_before` is empty once the event has started."""
        log.info("Azure takes this VM (%s) at %s", kind, not_before or "once")
        return parsedate_to_datetime(not_before).timestamp() if not_before else time.time()

    def _log(self, event: str, kind: str, not_before: str) -> None:
        if event not in self._logged:
            self._logged.add(event)
            log.info("Azure has scheduled for this VM: %s at %s", kind, not_before or "once")

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
