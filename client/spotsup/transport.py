"""HTTP to the daemon: over HTTPS with a token, or over the Unix socket of this computer."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from spotsup.errors import ConflictError, ForbiddenError, NotFoundError, SpotsupError, UnreachableError, UsageError

TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_BY_STATUS = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    422: UsageError,
}

# Statuses of answers that may be others a moment later.
_PASSING = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class Target:
    """Where a daemon is."""

    # "https://host:port", or the path of a Unix socket.
    where: str
    token: str = field(default="", repr=False)
    # By which CAs its certificate is verified, as PEM text; "": the system's.
    ca: str = ""
    # `ca` is the daemon's own and signs nothing else: the certificate's names do not matter.
    own_ca: bool = False

    @property
    def over_network(self) -> bool:
        """Whether it is no Unix socket."""
        return self.where.startswith("https://")


def target_of(url: str, token: str, ca: str) -> Target:
    """A daemon over the network. Raises UsageError: a token is sent over https alone."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.username or parts.path.strip("/"):
        raise UsageError(f"{url!r} is no address of a daemon: write https://host:port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Target(f"https://{host}:{parts.port or 8443}", token, ca)


def found_target(context: str) -> Target:
    """What `spotsupctl` would use: a context of `spotsupctl login`, else the Unix socket. Raises UsageError."""
    environment = os.environ
    if not context and environment.get("SPOTSUP_SOCKET"):
        return Target(environment["SPOTSUP_SOCKET"])
    context = context or environment.get("SPOTSUP_CONTEXT", "")
    file = Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "spotsup" / "contexts.json"
    if file.exists():
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise UsageError(f"{file} holds tokens, and others can read it: `chmod 600` it")
        try:
            kept = json.loads(file.read_text())
            name = context or kept["current"]
            if name != "socket":
                row = kept["contexts"][name]
                return Target(row["url"], row["token"], row["ca"], row["own_ca"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{file} has no context {context!r}, or is damaged: `spotsupctl contexts`") from error
    elif context not in ("", "socket"):
        raise UsageError(f"there is no context {context!r}: `spotsupctl login` makes one")
    return Target(str(_default_socket()))


def _default_socket() -> Path:
    # As in supervisor.cli.ctl.
    host = Path("/var/lib/spotsup")
    own = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "spotsup"
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return (host if root or (host.is_dir() and not own.is_dir()) else own) / "spotsupd.sock"


class Transport:
    """One connection per request: a client may be used by several threads, and forgotten without closing it."""

    def __init__(self, target: Target, timeout_s: float = TIMEOUT_S) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._tls = _tls(target) if target.over_network else None

    def json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        data: bytes | None = None,
        **params: Any,
    ) -> Any:
        """A request's JSON. Raises SpotsupError."""
        query = urlencode({key: value for key, value in params.items() if value not in (None, "")})
        headers: dict[str, str] = {}
        if self._target.token:
            headers["Authorization"] = f"Bearer {self._target.token}"
        if body is not None:
            data = json.dumps({key: value for key, value in body.items() if value is not None}).encode()
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            with contextlib.closing(connection):
                connection.request(method, f"{path}?{query}" if query else path, body=data, headers=headers)
                reply = connection.getresponse()
                raw = reply.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            away = UnreachableError(
                f"no spotsupd answers at {self._target.where} ({error or type(error).__name__}): "
                "does it run, and is that its address?"
            )
            away.retry_after_s = None if isinstance(error, ssl.SSLCertVerificationError) else 0.0
            raise away from error
        if len(raw) > MAX_ANSWER_BYTES:
            raise SpotsupError(f"spotsupd answered more than {MAX_ANSWER_BYTES} bytes: ask for less")
        return _parsed(reply.status, raw, reply.headers.get("Retry-After", ""))

    @property
    def over_network(self) -> bool:
        """Whether it is no Unix socket."""
        return self._target.over_network

    def send(self, method: str, path: str, body: Any) -> Any:
        """The JSON of a PUT of bytes, or of a POST. Raises SpotsupError."""
        return self.json(method, path, data=body) if method == "PUT" else self.json(method, path, body)

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            parts = urlsplit(self._target.where)
            assert parts.hostname is not None
            return http.client.HTTPSConnection(parts.hostname, parts.port, context=self._tls, timeout=self._timeout_s)
        return _UnixConnection(self._target.where, self._timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("spotsupd", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _tls(target: Target) -> ssl.SSLContext:
    try:
        made = ssl.create_default_context(cadata=target.ca or None)
    except (ValueError, ssl.SSLError) as error:
        raise UsageError(f"the CA cannot be read ({error}): `ca` is the text of a PEM file") from error
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = not target.own_ca
    return made


def _parsed(status: int, raw: bytes, retry_after: str = "") -> Any:
    try:
        parsed = json.loads(raw)
        if status < 300:
            return parsed
        sentence, request = str(parsed["error"]), str(parsed.get("request", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        failed = SpotsupError(f"spotsupd answered {status}: {raw[:300].decode(errors='replace')}")
    else:
        failed = _BY_STATUS.get(status, SpotsupError)(sentence, request)
    if status in _PASSING:
        failed.retry_after_s = float(retry_after) if retry_after.isdecimal() else 0.0
    raise failed
