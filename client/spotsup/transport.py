"""HTTP to the daemon: over its Unix socket, or HTTPS with a token.

By the standard library: every command waits for these imports, and those of an HTTP client take 0.1 s.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import selectors
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from spotsup.contexts import Context, tls_of
from spotsup.errors import (
    CommandRefusedError,
    DaemonUnreachableError,
    ForbiddenError,
    NotFoundError,
    SpotsupError,
    UntrustedError,
    UsageError,
)

TIMEOUT_S = 30.0  # for the connection, and until more of a request or of its answer has moved
MAX_ANSWER_BYTES = 64 * 1024 * 1024
BLOCK_BYTES = 64 * 1024  # of a body, each with a time limit of its own
_BY_CODE: dict[int, type[SpotsupError]] = {2: UsageError, 4: NotFoundError, 5: CommandRefusedError}
# Statuses of answers that may be others a moment later.
_PASSING = frozenset({429, 502, 503, 504})
# As in supervisor.api.app.
LEADER_HEADER = "spotsup-leader"
AWAY_HEADER = "spotsup-etcd-away-since"


@dataclass(frozen=True)
class Page:
    """An answer of the daemon."""

    status_code: int
    headers: http.client.HTTPMessage
    content: bytes


class Transport:
    """Connections to one daemon, for any number of threads. Methods raise SpotsupError.

    Connections are kept for the next request, and closed with the last use of the object.
    """

    def __init__(self, where: Path | Context, timeout_s: float = TIMEOUT_S, *, verify: bool = True) -> None:
        """`verify`: whether the daemon's certificate is; without that no token is sent. Raises UsageError."""
        self.leader = ""  # which daemon leads, if a standby answered
        self.etcd_away_since = 0.0  # UNIX seconds; 0 where etcd answers the daemon
        self._where = where
        self._timeout_s = timeout_s
        self._headers: dict[str, str] = {}
        self._tls: ssl.SSLContext | None = None
        if isinstance(where, Context):
            if verify:
                self._tls = tls_of(where)
                self._headers = {"Authorization": f"Bearer {where.token}"} if where.token else {}
            else:
                self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._idle: list[http.client.HTTPConnection] = []
        weakref.finalize(self, _close_all, self._idle)

    def get(self, path: str, **params: Any) -> Any:
        """Return a GET's JSON. Parameters that are empty or None are left out."""
        query = urlencode({key: value for key, value in params.items() if value not in (None, "")})
        return self._call("GET", f"{path}?{query}" if query else path)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return a POST's JSON."""
        if body is None:
            return self._call("POST", path)
        try:
            data = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as error:  # a number that is none, or bytes of an argument that are no text
            raise UsageError(f"this cannot be sent to the daemon: {error}") from error
        return self._call("POST", path, data, {"Content-Type": "application/json"})

    def put(self, path: str, data: bytes, sent: Callable[[int], None] = lambda _: None) -> Any:
        """Return a PUT's JSON. `sent`: told how many bytes have gone, as often as a block has."""
        return self._call("PUT", path, _Body(data, sent), {"Content-Length": str(len(data))})

    def page(self, target: str) -> Page:
        """Return the answer to a GET, whatever it is: a page of the dashboard."""
        return self._request("GET", target, None, {})

    def close(self) -> None:
        """Close the connections that are not in use."""
        _close_all(self._idle)

    def _call(
        self, method: str, path: str, body: bytes | io.BytesIO | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        reply = self._request(method, path, body, headers or {})
        self.leader = reply.headers.get(LEADER_HEADER, "")
        self.etcd_away_since = float(reply.headers.get(AWAY_HEADER, 0.0))
        return _parsed(reply)

    def _request(self, method: str, path: str, body: bytes | io.BytesIO | None, headers: Mapping[str, str]) -> Page:
        """No proxies of the environment, and no redirects: the token is for this daemon."""
        connection = None
        try:
            connection = self._connected()
            whole = True
            try:
                connection.request(method, path, body, {**self._headers, **headers})
            except (BrokenPipeError, ConnectionResetError):
                whole = False  # it refuses before it has read all, and its answer says why
            reply = connection.getresponse()
            page = Page(reply.status, reply.headers, reply.read(MAX_ANSWER_BYTES + 1))
        except (OSError, http.client.HTTPException) as error:
            _close(connection)
            raise _unreachable(self._where, error) from error
        except BaseException:
            _close(connection)
            raise
        if len(page.content) > MAX_ANSWER_BYTES:
            connection.close()
            raise SpotsupError(f"spotsupd answered more than {MAX_ANSWER_BYTES} bytes: ask for less")
        if whole:
            self._idle.append(connection)
        else:
            connection.close()
        return page

    def _connected(self) -> http.client.HTTPConnection:
        while True:
            try:
                kept = self._idle.pop()
            except IndexError:
                return self._opened()
            if _is_open(kept):
                return kept
            kept.close()

    def _opened(self) -> http.client.HTTPConnection:
        where = self._where
        if isinstance(where, Context):
            parts = urlsplit(where.url)
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=self._timeout_s, context=self._tls, blocksize=BLOCK_BYTES
            )
        else:
            made = _UnixConnection(os.fspath(where), self._timeout_s)
        try:
            made.connect()
        except BaseException:
            made.close()
            raise
        return made


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("spotsupd", timeout=timeout_s, blocksize=BLOCK_BYTES)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Body(io.BytesIO):
    """A body that is sent in blocks."""

    def __init__(self, data: bytes, sent: Callable[[int], None]) -> None:
        super().__init__(data)
        self._sent = sent

    def read(self, size: int | None = -1, /) -> bytes:
        """Whoever asks for a block has sent the one before."""
        self._sent(self.tell())
        return super().read(size)


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """True if it is open. What can be read of an idle connection is its end: the daemon closes those that wait for
    long."""
    if connection.sock is None:
        return False
    with selectors.DefaultSelector() as waiting:
        waiting.register(connection.sock, selectors.EVENT_READ)
        return not waiting.select(0)


def _close(connection: http.client.HTTPConnection | None) -> None:
    if connection is not None:
        connection.close()


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _parsed(reply: Page) -> Any:
    try:
        parsed = json.loads(reply.content)
        if 200 <= reply.status_code < 300:
            return parsed
        kind = ForbiddenError if reply.status_code in (401, 403) else _BY_CODE.get(parsed["code"], SpotsupError)
        failed = kind(parsed["error"], str(parsed.get("request", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = reply.content[:300].decode(errors="replace")
        failed = SpotsupError(f"spotsupd answered {reply.status_code}: {text}")
    if reply.status_code in _PASSING:
        asked = reply.headers.get("Retry-After", "")
        failed.retry_after_s = float(asked) if asked.isdecimal() else 0.0
    raise failed


def _unreachable(where: Path | Context, error: Exception) -> DaemonUnreachableError:
    if not isinstance(where, Context):
        away = DaemonUnreachableError(f"no spotsupd answers at {where} ({_reason(error)}): {_fix(error)}")
    elif "CERTIFICATE_VERIFY_FAILED" in str(error):
        why = str(error).partition("verify failed: ")[2].partition(" (_ssl")[0] or str(error)
        return UntrustedError(
            f"the certificate of {where.url} is not trusted ({why}): nothing was sent; if it was replaced, "
            f"`spotsupctl login {where.url}` again"
        )
    else:
        away = DaemonUnreachableError(
            f"no spotsupd answers at {where.url} ({_reason(error)}): is that its address (`spotsupctl contexts`), and "
            "is its port open to this computer?"
        )
    away.retry_after_s = 0.0
    return away


def _fix(error: Exception) -> str:
    if "Permission denied" in str(error):
        return (
            "its socket is for root, the daemon's user and the members of api.group: ask root to add you to that group"
        )
    return (
        "is it running (`systemctl status spotsupd`, or `spotsupd run --embedded-etcd`), and is this its socket "
        "(--socket, SPOTSUP_SOCKET)?"
    )


def _reason(error: Exception) -> str:
    text = str(error).removeprefix("[Errno ").partition("] ")[2]
    return text or str(error) or type(error).__name__
