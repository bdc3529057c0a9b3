"""How `spotsupctl` talks to the daemon: HTTP over its Unix socket."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import httpx

from supervisor.errors import CommandRefusedError, DaemonUnreachableError, NotFoundError, SpotsupError, UsageError

_BY_CODE: dict[int, type[SpotsupError]] = {2: UsageError, 4: NotFoundError, 5: CommandRefusedError}
TIMEOUT_S = 30.0
# As in supervisor.api.routes, which is too heavy to load here.
LEADER_HEADER = "spotsup-leader"
AWAY_HEADER = "spotsup-etcd-away-since"


class Client:
    """A connection to one daemon. Every method raises SpotsupError, whose exit_code becomes the command's."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.leader = ""  # which daemon leads, if a standby answered
        self.etcd_away_since = 0.0  # UNIX seconds; 0 where etcd answers the daemon
        self._path = path
        # An empty TLS context: httpx would load the system's certificates (20 ms), and a Unix socket needs none.
        no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        transport = httpx.HTTPTransport(uds=os.fspath(path), verify=no_tls)
        self._http = httpx.Client(transport=transport, base_url="http://spotsupd", timeout=timeout_s, trust_env=False)

    def get(self, path: str, **params: str) -> Any:
        """A GET's JSON."""
        return self._call("GET", path, params={key: value for key, value in params.items() if value})

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A POST's JSON."""
        return self._call("POST", path, json=body)

    def put(self, path: str, data: bytes) -> Any:
        """A PUT's JSON."""
        return self._call("PUT", path, content=data)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _call(self, method: str, path: str, **rest: Any) -> Any:
        try:
            reply = self._http.request(method, path, **rest)
        except httpx.TransportError as error:
            raise DaemonUnreachableError(
                f"no spotsupd answers at {self._path} ({_reason(error)}): {_fix(error)}"
            ) from error
        self.leader = reply.headers.get(LEADER_HEADER, "")
        self.etcd_away_since = float(reply.headers.get(AWAY_HEADER, 0.0))
        if reply.is_success:
            return reply.json()
        try:
            raw = reply.json()
            raise _BY_CODE.get(raw["code"], SpotsupError)(raw["error"])
        except (ValueError, KeyError, TypeError) as error:
            raise SpotsupError(f"spotsupd answered {reply.status_code}: {reply.text[:300]}") from error


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
