"""How `spotsupctl` talks to the daemon: HTTP over its Unix socket, or HTTPS with a token."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import httpx

from supervisor.cli.contexts import Context, tls_of
from supervisor.errors import CommandRefusedError, DaemonUnreachableError, NotFoundError, SpotsupError, UsageError

_BY_CODE: dict[int, type[SpotsupError]] = {2: UsageError, 4: NotFoundError, 5: CommandRefusedError}
TIMEOUT_S = 30.0
# As in supervisor.api.routes, which is too heavy to load here.
LEADER_HEADER = "spotsup-leader"
AWAY_HEADER = "spotsup-etcd-away-since"


class UntrustedError(DaemonUnreachableError):
    """A daemon answers, and its certificate is not trusted."""


class Client:
    """A connection to one daemon. Every method raises SpotsupError, whose exit_code becomes the command's."""

    def __init__(self, where: Path | Context, timeout_s: float = TIMEOUT_S, *, verify: bool = True) -> None:
        """`verify`: whether the daemon's certificate is; without that no token is sent. Raises UsageError."""
        self.leader = ""  # which daemon leads, if a standby answered
        self.etcd_away_since = 0.0  # UNIX seconds; 0 where etcd answers the daemon
        self._where = where
        if isinstance(where, Context):
            if verify:
                tls, headers = tls_of(where), {"authorization": f"Bearer {where.token}"} if where.token else {}
            else:
                tls, headers = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), {}
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
            url, transport = where.url, httpx.HTTPTransport(verify=tls)
        else:
            # An empty TLS context: httpx would load the system's certificates (20 ms), and a Unix socket needs none.
            url, headers, tls = "http://spotsupd", {}, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            transport = httpx.HTTPTransport(uds=os.fspath(where), verify=tls)
        # No proxies of the environment, and by default no redirects: the token is for this daemon.
        self._http = httpx.Client(
            transport=transport,
            base_url=url,
            headers=headers,
            timeout=timeout_s,
            trust_env=False,
            follow_redirects=False,
        )

    def get(self, path: str, **params: str) -> Any:
        """A GET's JSON."""
        return self._call("GET", path, params={key: value for key, value in params.items() if value})

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A POST's JSON."""
        return self._call("POST", path, json=body)

    def put(self, path: str, data: bytes) -> Any:
        """A PUT's JSON."""
        return self._call("PUT", path, content=data)

    def page(self, target: str) -> httpx.Response:
        """The answer to a GET, whatever it is: a page of the dashboard."""
        try:
            return self._http.get(target)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _call(self, method: str, path: str, **rest: Any) -> Any:
        try:
            reply = self._http.request(method, path, **rest)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        self.leader = reply.headers.get(LEADER_HEADER, "")
        self.etcd_away_since = float(reply.headers.get(AWAY_HEADER, 0.0))
        if reply.is_success:
            return reply.json()
        try:
            raw = reply.json()
            raise _BY_CODE.get(raw["code"], SpotsupError)(raw["error"])
        except (ValueError, KeyError, TypeError) as error:
            raise SpotsupError(f"spotsupd answered {reply.status_code}: {reply.text[:300]}") from error

    def _unreachable(self, error: Exception) -> DaemonUnreachableError:
        where = self._where
        if not isinstance(where, Context):
            return DaemonUnreachableError(f"no spotsupd answers at {where} ({_reason(error)}): {_fix(error)}")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            why = str(error).partition("verify failed: ")[2].partition(" (_ssl")[0] or str(error)
            return UntrustedError(
                f"the certificate of {where.url} is not trusted ({why}): nothing was sent; if it was replaced, "
                f"`spotsupctl login {where.url}` again"
            )
        return DaemonUnreachableError(
            f"no spotsupd answers at {where.url} ({_reason(error)}): is that its address (`spotsupctl contexts`), and "
            "is its port open to this computer?"
        )


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
