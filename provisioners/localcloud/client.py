"""One HTTP call to the server of a cloud's directory.

By the standard library: httpcore 1.0, below httpx, leaves its socket open when it cannot connect, and a daemon asks
again and again while its cloud is away.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from provisioners.calls import NoAnswerError, NotSentError
from provisioners.localcloud.store import Store


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    content_type: str
    content: bytes

    @property
    def text(self) -> str:
        """Return the content, for people."""
        return self.content.decode(errors="replace")


def call(
    directory: Path,
    method: str,
    path: str,
    *,
    timeout_s: float,
    body: str | None = None,
    params: Mapping[str, str] | None = None,
) -> Answer:
    """Make one request on a connection of its own, within `timeout_s`. Raises NotSentError, NoAnswerError."""
    deadline = time.monotonic() + timeout_s
    socket_path = Store(directory).endpoint()
    if socket_path is None:
        raise NotSentError(
            f"no local cloud is served in {directory}; start one: spotsup-localcloud serve --dir {directory}"
        )
    connection = http.client.HTTPConnection("localcloud")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        try:
            stream.settimeout(timeout_s)
            stream.connect(str(socket_path))
        except OSError as error:
            raise NotSentError(f"the local cloud in {directory} does not listen: {_said(error)}") from error
        connection.sock = stream
        try:
            return _exchange(connection, stream, method, _target(path, params), body, deadline)
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(f"the local cloud in {directory} did not answer: {_said(error)}") from error
        finally:
            connection.close()


def _exchange(
    connection: http.client.HTTPConnection,
    stream: socket.socket,
    method: str,
    target: str,
    body: str | None,
    deadline: float,
) -> Answer:
    stream.settimeout(_left_s(deadline))
    connection.request(method, target, body, {"Content-Type": "application/json", "Connection": "close"})
    stream.settimeout(_left_s(deadline))
    with connection.getresponse() as response:
        stream.settimeout(_left_s(deadline))
        return Answer(response.status, response.headers.get_content_type(), response.read())


def _target(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path


def _left_s(deadline: float) -> float:
    """Never 0: that would mean a socket that does not wait at all, and another error."""
    return max(0.001, deadline - time.monotonic())


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
