"""EC2's metadata service, version 2: the interruption notice of a spot instance.

Source: the EC2 user guide, "Spot Instance interruption notices" and "Use IMDSv2". AWS recommends to poll every five
seconds; we poll more often, because two minutes are short, and the service is on the instance's own host.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import time
from datetime import datetime
from urllib.parse import urlsplit

DEFAULT_URL = "http://169.254.169.254"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""As the AWS SDKs read it: another address of the metadata service."""

_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_ACTION_PATH = "/latest/meta-data/spot/instance-action"
_REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
_TOKEN_TTL_S = 21600
_POLL_S = 1.5
_TIMEOUT_S = 2.0
_MAX_BYTES = 65536

log = logging.getLogger(__name__)


class AwsReader:
    """Polls with a session token, which it renews when the service refuses it."""

    def __init__(self, url: str = "", *, token_ttl_s: int = _TOKEN_TTL_S) -> None:
        url = url or os.environ.get(ENDPOINT_VARIABLE, "") or DEFAULT_URL
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the metadata service's address is {url!r}; it should look like {DEFAULT_URL}")
        self._host, self._port = parts.hostname, parts.port or 80
        self._token_ttl_s = token_ttl_s
        self._token = ""
        self._recommended = ""

    def read(self) -> float | None:
        """Return when the instance will be taken (UNIX seconds), or None after a short wait."""
        reply = self._get(_ACTION_PATH)
        if reply is not None:
            action = json.loads(reply)
            log.info("EC2 will %s this instance at %s", action["action"], action["time"])
            # Python 3.9 and 3.10, which many images have, know no Z.
            return datetime.fromisoformat(action["time"].replace("Z", "+00:00")).timestamp()
        self._look_for_rebalance()
        time.sleep(_POLL_S)
        return None

    def _look_for_rebalance(self) -> None:
        """EC2 may recommend to move before it takes an instance. Often it never does: log it, do not drain."""
        reply = self._get(_REBALANCE_PATH)
        if reply is not None and reply != self._recommended:
            self._recommended = reply
            log.info("EC2 sees a higher risk that this instance will be taken: %s", reply.strip())

    def _get(self, path: str) -> str | None:
        """Return the body; None for HTTP 404."""
        for _ in range(2):
            if not self._token:
                self._token = self._new_token()
            status, body = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status == 401:
                self._token = ""
                continue
            if status == 404:
                return None
            if status != 200:
                raise ValueError(f"HTTP {status} for {path}: {body[:200]!r}")
            return body
        raise ValueError(f"the metadata service refuses a new token, for {path}")

    def _new_token(self) -> str:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(self._token_ttl_s)}
        status, body = self._ask("PUT", _TOKEN_PATH, lifetime)
        if status != 200 or not body:
            raise ValueError(f"the metadata service gives no token: HTTP {status}: {body[:200]!r}")
        return body

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(_MAX_BYTES).decode()
        finally:
            connection.close()
