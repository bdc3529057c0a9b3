"""A webhook of the user's own: JSON, signed with HMAC-SHA256 over the time and the body. docs/alerts.md has the code
that verifies it."""

from __future__ import annotations

import hashlib
import hmac
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from supervisor.alerts.senders import MAX_ANSWER_BYTES, TIMEOUT_S, Outgoing, Receipt, seconds_of, without
from supervisor.alerts.texts import plain_text

VERSION = 1


class SignedWebhook:
    """Posts JSON to a URL."""

    def __init__(self, url: str, secret: str, cluster: str, now: Callable[[], float]) -> None:
        """`now`: the time that is signed, UNIX seconds."""
        self._url, self._secret, self._cluster, self._now = url, secret, cluster, now

    def send(self, message: Outgoing) -> Receipt:
        """Post one request of all events. Any 2xx is a receipt."""
        body = json.dumps(self._body(message), ensure_ascii=False, separators=(",", ":")).encode()
        timestamp = str(int(self._now()))
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Spotsup-Timestamp": timestamp,
            "Spotsup-Signature": f"v1={signature(self._secret, timestamp, body)}",
        }
        try:
            status, retry_after, text = self._request("POST", body, headers)
        except Exception as error:  # noqa: BLE001 - of the network, of HTTP, or of the bytes of the answer
            return Receipt(error=f"the webhook did not answer: {self._reason(error)}")
        if 200 <= status < 300:
            return Receipt(delivered=tuple(event.id for event in message.events))
        said = f"the webhook answered {status} {without(text, self._secret, self._url)}".strip()
        return Receipt(error=said, retry_after_s=seconds_of(retry_after), refused=status == 413)

    def try_without_sending(self) -> str:
        """Try whether anything answers there; what it answers to a HEAD means nothing."""
        try:
            self._request("HEAD", b"", {})
        except Exception as error:  # noqa: BLE001 - as above
            return f"it does not answer ({self._reason(error)}): check the URL, and this computer's way there"
        return ""

    def _body(self, message: Outgoing) -> dict[str, Any]:
        events = [
            {
                "id": event.id,
                "at": event.at,
                "job": event.job,
                "node": event.node,
                "kind": str(event.kind),
                "level": event.kind.level.name.lower(),
                "text": event.text,
                "data": dict(event.data),
            }
            for event in message.events
        ]
        return {"version": VERSION, "cluster": self._cluster, "text": plain_text(message.events), "events": events}

    def _request(self, method: str, body: bytes, headers: dict[str, str]) -> tuple[int, str | None, str]:
        request = urllib.request.Request(self._url, body or None, headers, method=method)  # noqa: S310 - the operator's
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.headers.get("Retry-After"), ""
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(MAX_ANSWER_BYTES).decode(errors="replace")
                return error.code, error.headers.get("Retry-After"), text

    def _reason(self, error: Exception) -> str:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        return without(str(why), self._secret, self._url) or type(why).__name__


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The alerts are for this address."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer is an error as any other."""


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 over the time, a full stop and the body, in hexadecimal digits."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
