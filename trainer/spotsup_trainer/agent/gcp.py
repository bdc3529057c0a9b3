"""Compute Engine's metadata service: the preemption notice of a spot VM.

Source: Compute Engine's guide, "Spot VMs", preemption process, and "Wait for changes" of the metadata server. A request
can wait for the change, so none of the notice's thirty seconds is lost.
"""

from __future__ import annotations

import http.client
import logging
import os
import time
from urllib.parse import urlencode, urlsplit

DEFAULT_URL = "http://169.254.169.254"
HOST_VARIABLE = "GCE_METADATA_HOST"
"""As Google's libraries read it: another host, and port, of the metadata service."""

SHUTDOWN_S = 30.0
"""From the shutdown signal of a preempted VM until it is cut off."""

NOTICE_ITEM = "spotsup-notice-s"
"""The metadata item in which the provisioner stores the notice, before the shutdown, that it asked Google for."""

_ROOT = "/computeMetadata/v1/instance"
_WAIT_S = 20
_TIMEOUT_S = 5.0
_MIN_S = 1.0
_MAX_BYTES = 65536

log = logging.getLogger(__name__)


class GcpReader:
    """Reads the current value first, then waits for changes: waiting alone would miss an earlier announcement."""

    def __init__(self, url: str = "") -> None:
        host = os.environ.get(HOST_VARIABLE, "")
        url = url or (f"http://{host}" if host else DEFAULT_URL)
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the metadata service's address is {url!r}; it should look like {DEFAULT_URL}")
        self._host, self._port = parts.hostname, parts.port or 80
        self._etag = ""

    def read(self) -> float | None:
        """Return when the VM will be taken (UNIX seconds), or None after a wait."""
        began = time.monotonic()
        if self._is_preempted():
            notice_s = self._notice_s()
            log.info("Google takes this VM in %g s", notice_s + SHUTDOWN_S)
            return time.time() + notice_s + SHUTDOWN_S
        # Do not poll in a busy loop if the service answers at once.
        time.sleep(max(0.0, _MIN_S - (time.monotonic() - began)))
        return None

    def _is_preempted(self) -> bool:
        if not self._etag and self._ask_preempted({}):
            return True
        wait = {"wait_for_change": "true", "timeout_sec": str(_WAIT_S), "last_etag": self._etag}
        return self._ask_preempted(wait)

    def _ask_preempted(self, wait: dict[str, str]) -> bool:
        query = f"?{urlencode(wait)}" if wait else ""
        status, body, etag = self._get(f"/preempted{query}", _TIMEOUT_S + (_WAIT_S if wait else 0))
        if status != 200 or body.strip() not in {"TRUE", "FALSE"}:
            self._etag = ""
            raise ValueError(f"HTTP {status} for {_ROOT}/preempted: {body[:200]!r}")
        self._etag = etag
        return body.strip() == "TRUE"

    def _notice_s(self) -> float:
        """0 without a valid number: too short a notice costs a moment, one that is too long costs a checkpoint."""
        try:
            status, body, _ = self._get(f"/attributes/{NOTICE_ITEM}", _TIMEOUT_S)
            return min(120.0, max(0.0, float(body))) if status == 200 else 0.0
        except (OSError, http.client.HTTPException, ValueError):
            return 0.0

    def _get(self, path: str, timeout_s: float) -> tuple[int, str, str]:
        """(status, body, ETag)."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request("GET", f"{_ROOT}{path}", headers={"Metadata-Flavor": "Google"})
            response = connection.getresponse()
            return response.status, response.read(_MAX_BYTES).decode(), response.headers.get("ETag") or ""
        finally:
            connection.close()
