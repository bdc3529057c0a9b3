"""One HTTP call to the server of a cloud's directory."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx

from provisioners.localcloud.store import Store

# Never used on a Unix socket; httpx would load all root certificates (20 ms) for a client without one.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class NotSentError(Exception):
    """Nobody listens: nothing was asked."""


class NoAnswerError(Exception):
    """The server was asked and did not answer, or not to the end: it may have done what it was asked."""


def call(
    directory: Path,
    method: str,
    path: str,
    *,
    timeout_s: float,
    body: str | None = None,
    params: Mapping[str, str] | None = None,
) -> httpx.Response:
    """One request on a connection of its own. Raises NotSentError, NoAnswerError.

    The parts of `timeout_s` add up: httpx counts connecting, writing and reading each for itself.
    """
    socket_path = Store(directory).endpoint()
    if socket_path is None:
        raise NotSentError(
            f"no local cloud is served in {directory}; start one: spotsup-localcloud serve --dir {directory}"
        )
    _probe(directory, socket_path, timeout_s * 0.1)
    parts = httpx.Timeout(connect=timeout_s * 0.1, write=timeout_s * 0.1, read=timeout_s * 0.7, pool=None)
    transport = httpx.HTTPTransport(uds=str(socket_path), verify=_NO_TLS)
    try:
        with httpx.Client(transport=transport, base_url="http://localcloud", timeout=parts, trust_env=False) as client:
            return client.request(method, path, content=body, params=params)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise NotSentError(f"the local cloud in {directory} does not listen: {_said(error)}") from error
    except httpx.TransportError as error:
        raise NoAnswerError(f"the local cloud in {directory} did not answer: {_said(error)}") from error


def _probe(directory: Path, socket_path: Path, timeout_s: float) -> None:
    """Raise NotSentError unless somebody listens. httpcore 1.0 leaves its socket open when it cannot connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(str(socket_path))
        except OSError as error:
            raise NotSentError(f"the local cloud in {directory} does not listen: {_said(error)}") from error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
