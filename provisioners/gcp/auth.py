"""Access tokens: fetched before a call, within its time limit, and not by the SDK during it.

The SDK would renew a stale or refused token by attempts of two minutes each.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
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
    """The token of the application default credentials, for the SDK's clients."""

    def __init__(self, scopes: Sequence[str] = _SCOPES) -> None:
        super().__init__()
        self._scopes = scopes
        self._source: Any = None
        self._lock = threading.Lock()

    def renew(self, timeout_s: float) -> None:
        """Renew the token unless it is valid for some minutes. Raises GoogleAuthError."""
        limit_s = min(max(timeout_s, _SHORTEST_S), _MAX_S)
        if not self._lock.acquire(timeout=limit_s):
            raise exceptions.TransportError("other calls are waiting for a token")
        try:
            if self._source is None:
                self._source, _ = google.auth.default(scopes=self._scopes)
            if self._source.token_state.name != "FRESH":
                self._source.refresh(_Bounded(limit_s))
            self.token, self.expiry = self._source.token, self._source.expiry
        finally:
            self._lock.release()

    @property
    def email(self) -> str:
        """Return the address of a service account, once there is a token; "" where the credentials do not say."""
        return str(getattr(self._source, "service_account_email", "") or "")

    def billed_to(self, project: str) -> str:
        """Return the project whose quota a call of IAM's or the like counts towards, where that has to be said."""
        return quota_project(self._source, project)

    def refresh(self, request: Any) -> None:  # noqa: ARG002 - its name is the library's
        """Forget the token. The SDK calls this when Google has refused the token: the next call gets a new one."""
        with self._lock:
            self._source.token = None
        raise exceptions.RefreshError("Google rejected the access token (401)")


def quota_project(source: Any, project: str) -> str:
    """Return the quota project. A person's credentials have no project, and some APIs refuse them without one
    ("Troubleshoot your ADC setup: user credentials"); "" for a service account's, which have theirs."""
    if getattr(source, "service_account_email", ""):
        return ""
    return str(getattr(source, "quota_project_id", "") or project)


class _Bounded:
    """A transport with a time limit. Errors that the library would retry are raised at once."""

    def __init__(self, timeout_s: float) -> None:
        self._request = Request()
        self._timeout_s = timeout_s

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        answer = self._request(*args, **{**kwargs, "timeout": self._timeout_s})
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise exceptions.TransportError(f"HTTP {answer.status}")
        return answer
