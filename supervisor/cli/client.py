"""How `spotsupctl` talks to the daemon: HTTP over its Unix socket, or HTTPS with a token.

By the standard library: every command waits for these imports, and those of an HTTP client took 0.1 s.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from supervisor.cli.contexts import Context, tls_of
from supervisor.errors import CommandRefusedError, DaemonUnreachableError, NotFoundError, SpotsupError, UsageError

_BY_CODE: dict[int, type[SpotsupError]] = {2: UsageError, 4: NotFoundError, 5: CommandRefusedError}
TIMEOUT_S = 30.0
# Statuses of answers that may be others a moment later.
PASSING = frozenset({429, 502, 503, 504})
# As in supervisor.api.routes, which is too heavy to load here.
LEADER_HEADER = "spotsup-leader"
AWAY_HEADER = "spotsup-etcd-away-since"


class UntrustedError(DaemonUnreachableError):
    """A daemon answers, and its certificate is not trusted."""


@dataclass(frozen=True)
class Page:
    """An answer of the daemon."""

    status_code: int
    headers: http.client.HTTPMessage
    content: bytes


class Client:
    """A connection to one daemon. Every method raises SpotsupError, whose exit_code becomes the command's.

    `page` may be called by any thread, all else by one at a time.
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

    def get(self, path: str, **params: str) -> Any:
        """A GET's JSON."""
        query = urlencode({key: value for key, value in params.items() if value})
        return self._call("GET", f"{path}?{query}" if query else path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A POST's JSON."""
        if body is None:
            return self._call("POST", path)
        try:
            data = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as error:  # a number that is none, or bytes of an argument that are no text
            raise UsageError(f"this cannot be sent to the daemon: {error}") from error
        return self._call("POST", path, data, "application/json")

    def put(self, path: str, data: bytes) -> Any:
        """A PUT's JSON."""
        return self._call("PUT", path, data)

    @property
    def over_network(self) -> bool:
        """Whether it is no Unix socket."""
        return isinstance(self._where, Context)

    def send(self, method: str, path: str, body: Any) -> Any:
        """The JSON of a PUT of bytes, or of a POST."""
        return self.put(path, body) if method == "PUT" else self.post(path, body)

    def page(self, target: str) -> Page:
        """The answer to a GET, whatever it is: a page of the dashboard."""
        return self._request("GET", target, None, {})

    def close(self) -> None:
        """Close the connection."""
        while self._idle:
            self._idle.pop().close()

    def _call(self, method: str, path: str, data: bytes | None = None, kind: str = "") -> Any:
        reply = self._request(method, path, data, {"Content-Type": kind} if kind else {})
        self.leader = reply.headers.get(LEADER_HEADER, "")
        self.etcd_away_since = float(reply.headers.get(AWAY_HEADER, 0.0))
        try:
            parsed = json.loads(reply.content)
            if 200 <= reply.status_code < 300:
                return parsed
            raise _later(_BY_CODE.get(parsed["code"], SpotsupError)(parsed["error"]), reply)
        except (ValueError, KeyError, TypeError) as error:
            text = reply.content[:300].decode(errors="replace")
            raise _later(SpotsupError(f"spotsupd answered {reply.status_code}: {text}"), reply) from error

    def _request(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Page:
        """No proxies of the environment, and no redirects: the token is for this daemon."""
        connection = None
        try:
            connection = self._connected()
            whole = True
            try:
                connection.request(method, path, data, {**self._headers, **headers})
            except (BrokenPipeError, ConnectionResetError):
                whole = False  # it refuses before it has read all, and its answer says why
            reply = connection.getresponse()
            page = Page(reply.status, reply.headers, reply.read())
        except (OSError, http.client.HTTPException) as error:
            _close(connection)
            raise self._unreachable(error) from error
        except BaseException:
            _close(connection)
            raise
        if whole:
            self._idle.append(connection)
        else:
            connection.close()
        return page

    def _connected(self) -> http.client.HTTPConnection:
        while self._idle:
            kept = self._idle.pop()
            # What can be read of an idle connection is its end: the daemon closes those that wait for long.
            if kept.sock is not None and not select.select([kept.sock], [], [], 0)[0]:
                return kept
            kept.close()
        where = self._where
        if isinstance(where, Context):
            parts = urlsplit(where.url)
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=self._timeout_s, context=self._tls
            )
        else:
            made = _UnixConnection(os.fspath(where), self._timeout_s)
        try:
            made.connect()
        except BaseException:
            made.close()
            raise
        return made

    def _unreachable(self, error: Exception) -> DaemonUnreachableError:
        where = self._where
        if not isinstance(where, Context):
            away = DaemonUnreachableError(f"no spotsupd answers at {where} ({_reason(error)}): {_fix(error)}")
            away.retry_after_s = 0.0
            return away
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            why = str(error).partition("verify failed: ")[2].partition(" (_ssl")[0] or str(error)
            return UntrustedError(
                f"the certificate of {where.url} is not trusted ({why}): nothing was sent; if it was replaced, "
                f"`spotsupctl login {where.url}` again"
            )
        away = DaemonUnreachableError(
            f"no spotsupd answers at {where.url} ({_reason(error)}): is that its address (`spotsupctl contexts`), and "
            "is its port open to this computer?"
        )
        away.retry_after_s = 0.0
        return away


def _later(error: SpotsupError, reply: Page) -> SpotsupError:
    """With whether the same request may succeed later."""
    if reply.status_code in PASSING:
        asked = reply.headers.get("Retry-After", "")
        error.retry_after_s = float(asked) if asked.isdecimal() else 0.0
    return error


def _close(connection: http.client.HTTPConnection | None) -> None:
    if connection is not None:
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("spotsupd", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


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
