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
LED_BY = "spotsup-led-by"  # as supervisor.api.app, which is too heavy to load here


class Client:
    """One daemon. Every method raises a SpotsupError whose exit_code is the command's."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.led_by = ""  # who leads, where a standby answered
        self._path = path
        # A context without certificates: httpx would load all of the system's (20 ms) for a socket without TLS.
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
        """Hang up."""
        self._http.close()

    def _call(self, method: str, path: str, **rest: Any) -> Any:
        try:
            answer = self._http.request(method, path, **rest)
        except httpx.TransportError as error:
            raise DaemonUnreachableError(
                f"no spotsupd answers at {self._path} ({_reason(error)}): is it running (`systemctl status spotsupd`, "
                "or `spotsupd run --embedded-etcd`), and is this its socket (--socket, SPOTSUP_SOCKET)?"
            ) from error
        self.led_by = answer.headers.get(LED_BY, "")
        if answer.is_success:
            return answer.json()
        try:
            told = answer.json()
            raise _BY_CODE.get(told["code"], SpotsupError)(told["error"])
        except (ValueError, KeyError, TypeError) as error:
            raise SpotsupError(f"spotsupd answers {answer.status_code}: {answer.text[:300]}") from error


def _reason(error: Exception) -> str:
    text = str(error).removeprefix("[Errno ").partition("] ")[2]
    return text or str(error) or type(error).__name__
