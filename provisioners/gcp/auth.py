"""Access tokens: fetched before a call that needs one, within its time, and not by the SDK in the midst of it.

The SDK would renew a token that it holds for stale, or that was refused, by attempts of two minutes each.
"""

from __future__ import annotations

import threading
from http import HTTPStatus
from typing import Any

import google.auth
from google.auth import exceptions
from google.auth.credentials import Credentials
from google.auth.transport.requests import Request

_SCOPES = ("https://www.googleapis.com/auth/compute",)
_SHORTEST_S = 0.1
_MAX_S = 10.0


class Bearer(Credentials):  # type: ignore[misc]
    """The application default credentials' token, as the SDK's clients hold it."""

    def __init__(self) -> None:
        super().__init__()
        self._source: Any = None
        self._lock = threading.Lock()

    def renew(self, timeout_s: float) -> None:
        """See to it that the token is good for some minutes. Raises GoogleAuthError."""
        limit_s = min(max(timeout_s, _SHORTEST_S), _MAX_S)
        if not self._lock.acquire(timeout=limit_s):
            raise exceptions.TransportError("others wait for one, too")
        try:
            if self._source is None:
                self._source, _ = google.auth.default(scopes=_SCOPES)
            if self._source.token_state.name != "FRESH":
                self._source.refresh(_Bounded(limit_s))
            self.token, self.expiry = self._source.token, self._source.expiry
        finally:
            self._lock.release()

    def refresh(self, request: Any) -> None:  # noqa: ARG002 - its name is the library's
        """The SDK calls this where Google has refused the token: the next call shall have another."""
        with self._lock:
            self._source.token = None
        raise exceptions.RefreshError("it refuses the access token (401)")


class _Bounded:
    """A transport with a limit in time. What the library would try again after a while is a fault at once."""

    def __init__(self, timeout_s: float) -> None:
        self._request = Request()
        self._timeout_s = timeout_s

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        answer = self._request(*args, **{**kwargs, "timeout": self._timeout_s})
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise exceptions.TransportError(f"HTTP {answer.status}")
        return answer
