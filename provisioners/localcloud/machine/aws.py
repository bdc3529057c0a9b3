"""The paths of EC2's metadata service, version 2, on a machine of the local cloud: for the reader that runs on EC2.

PUT /latest/api/token                     a session token; header X-aws-ec2-metadata-token-ttl-seconds: 1 to 21600
GET /latest/meta-data/instance-id         and below, with the header X-aws-ec2-metadata-token; 401 without
GET /latest/meta-data/placement/availability-zone
GET /latest/meta-data/instance-type
GET /latest/meta-data/spot/instance-action    404 until a preemption is announced, then its action and time
GET /latest/meta-data/spot/termination-time
GET /latest/meta-data/events/recommendations/rebalance
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

_PREFIX = "/latest/"
_MAX_TTL_S = 21600
_MAX_TOKENS = 256


class Text(NamedTuple):
    """An answer."""

    status: int
    body: str = ""


class AwsMetadata:
    """Tokens and paths. Times: `now` is monotonic, deadlines are UNIX seconds. Header names are lower case."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        self._facts = facts
        self._tokens: dict[str, float] = {}

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], preempt_at: float | None, now: float
    ) -> Text | None:
        """Return what EC2 would answer; None for a path that is not EC2's."""
        if not path.startswith(_PREFIX):
            return None
        if path == "/latest/api/token":
            return self._token(method, headers, now)
        if self._tokens.get(headers.get("x-aws-ec2-metadata-token", ""), 0.0) <= now:
            return Text(401)
        body = self._data(preempt_at).get(path) if method == "GET" else None
        return Text(404) if body is None else Text(200, body)

    def _token(self, method: str, headers: Mapping[str, str], now: float) -> Text:
        if method != "PUT":
            return Text(405)
        ttl = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= _MAX_TTL_S:
            return Text(400)
        alive = {token: until for token, until in self._tokens.items() if until > now}
        self._tokens = dict(list(alive.items())[-_MAX_TOKENS + 1 :])
        token = secrets.token_urlsafe(32)
        self._tokens[token] = now + int(ttl)
        return Text(200, token)

    def _data(self, preempt_at: float | None) -> dict[str, str]:
        known = {
            "/latest/meta-data/instance-id": self._facts["id"],
            "/latest/meta-data/placement/availability-zone": self._facts["zone"],
            "/latest/meta-data/instance-type": self._facts["instance_type"],
        }
        if preempt_at is None:
            return known
        at = datetime.fromtimestamp(preempt_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return known | {
            "/latest/meta-data/spot/instance-action": json.dumps({"action": "terminate", "time": at}),
            "/latest/meta-data/spot/termination-time": at,
            "/latest/meta-data/events/recommendations/rebalance": json.dumps({"noticeTime": at}),
        }
