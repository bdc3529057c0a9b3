"""A machine's metadata service: HTTP on the machine's own address, for the agent that runs on it.

    GET /v1/instance                            {"id": ..., "zone": ..., "instance_type": ...}
    GET /v1/preemption                          {"preempted": false}
                                                {"preempted": true, "deadline": <UNIX seconds>}
    GET /v1/preemption?wait_s=60&last=false     the same, but answers only once `preempted` differs from `last`
                                                (default false), at the latest after wait_s (at most 300)

Every answer is JSON and closes its connection. 400: a parameter that is none; 404: no such path; 405: not a GET.
Beside them are the paths of real clouds, so that their readers can be tried here: aws.py, azure.py, gcp.py.
One thread serves all: an agent's waiting request costs a socket and no more.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from provisioners.localcloud.machine.aws import AwsMetadata
from provisioners.localcloud.machine.azure import AzureMetadata
from provisioners.localcloud.machine.gcp import GcpMetadata, Value

MAX_WAIT_S = 300.0
_MAX_CONNECTIONS = 128
_MAX_REQUEST_BYTES = 8192
_REQUEST_TIMEOUT_S = 10.0
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
}


class BadRequestError(Exception):
    """A request that is none; says what would be right."""


class _Client:
    """One connection. `waiting_for`: the value of `preempted` that it wants to see, None while it still asks. `google`:
    it is answered in Compute Engine's format.
    """

    __slots__ = ("deadline", "google", "received", "socket", "waiting_for")

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.socket = connection
        self.deadline = deadline
        self.received = b""
        self.waiting_for: bool | None = None
        self.google = False


class MetadataService:
    """Call `step` for ever; `announce` from the same thread. All times but preemption deadlines are monotonic."""

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector, facts: Mapping[str, str]) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._selector = selector
        self._facts = dict(facts)
        self._aws = AwsMetadata(self._facts)
        self._gcp = GcpMetadata(self._facts)
        self._azure = AzureMetadata(self._facts)
        self._preempt_at: float | None = None
        self._clients: dict[int, _Client] = {}
        selector.register(listener, selectors.EVENT_READ)

    def announce(self, deadline: float | None) -> None:
        """Set the preemption's deadline (UNIX seconds) and answer those who wait for it."""
        self._preempt_at = deadline
        for client in [each for each in self._clients.values() if each.waiting_for is self._preempted]:
            self._end_wait(client)

    def timeout_s(self, now: float) -> float | None:
        """Return for how long `step` has nothing to do unless somebody talks."""
        deadlines = [client.deadline for client in self._clients.values()]
        return max(0.0, min(deadlines) - now) if deadlines else None

    def step(self, ready: list[int], now: float) -> None:
        """Serve the file descriptors that are ready, and those whose time is over."""
        for number in ready:
            if number == self._listener.fileno():
                self._accept(now)
            elif number in self._clients:
                self._read(self._clients[number], now)
        for client in [each for each in self._clients.values() if each.deadline <= now]:
            if client.waiting_for is None:
                self._drop(client)
            else:
                self._end_wait(client)

    def _end_wait(self, client: _Client) -> None:
        if client.google:
            self._send_value(client, self._gcp.preempted(preempted=self._preempted))
        else:
            self._answer(client, 200, self._preemption())

    @property
    def _preempted(self) -> bool:
        return self._preempt_at is not None

    def _preemption(self) -> dict[str, object]:
        if self._preempt_at is None:
            return {"preempted": False}
        return {"preempted": True, "deadline": self._preempt_at}

    def _accept(self, now: float) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        if len(self._clients) >= _MAX_CONNECTIONS:
            accepted.close()
            return
        accepted.setblocking(False)
        self._clients[accepted.fileno()] = _Client(accepted, now + _REQUEST_TIMEOUT_S)
        self._selector.register(accepted, selectors.EVENT_READ)

    def _read(self, client: _Client, now: float) -> None:
        try:
            chunk = client.socket.recv(_MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._drop(client)
            return
        client.received += chunk
        if client.waiting_for is not None or b"\r\n\r\n" not in client.received:
            if len(client.received) > _MAX_REQUEST_BYTES:
                self._drop(client)
            return
        self._serve(client, now)

    def _serve(self, client: _Client, now: float) -> None:
        parts, headers = _parse(client.received)
        url = urlsplit(parts[1] if len(parts) == 3 else "")
        if (text := self._aws.answer(parts[0], url.path, headers, self._preempt_at, now)) is not None:
            self._send(client, text.status, "text/plain", text.body.encode())
        elif (value := self._gcp.answer(parts[0], url.path, url.query, headers, preempted=self._preempted)) is not None:
            if value.wait_s:
                client.google, client.waiting_for, client.deadline = True, not self._preempted, now + value.wait_s
            else:
                self._send_value(client, value)
        elif (events := self._azure.answer(parts[0], url.path, url.query, headers, self._preempt_at)) is not None:
            self._send(client, events.status, events.content_type, events.body.encode())
        elif len(parts) != 3 or parts[0] != "GET":
            self._answer(client, 405, {"error": "this service only knows GET"})
        elif url.path == "/v1/instance":
            self._answer(client, 200, self._facts)
        elif url.path == "/v1/preemption":
            self._serve_preemption(client, url.query, now)
        else:
            self._answer(client, 404, {"error": f"no {url.path}; there are /v1/instance and /v1/preemption"})

    def _serve_preemption(self, client: _Client, query: str, now: float) -> None:
        try:
            wait_s, last = parse_wait(query)
        except BadRequestError as error:
            self._answer(client, 400, {"error": str(error)})
            return
        if wait_s == 0 or self._preempted is not last:
            self._answer(client, 200, self._preemption())
            return
        client.waiting_for = not last
        client.deadline = now + wait_s

    def _answer(self, client: _Client, status: int, body: Mapping[str, object]) -> None:
        self._send(client, status, "application/json", json.dumps(body).encode())

    def _send_value(self, client: _Client, value: Value) -> None:
        self._send(client, value.status, "application/text", value.body.encode(), value.headers())

    def _send(
        self, client: _Client, status: int, content_type: str, payload: bytes, more: Mapping[str, str] | None = None
    ) -> None:
        headers = {"Content-Type": content_type, "Content-Length": len(payload), "Connection": "close", **(more or {})}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"HTTP/1.1 {status} {_REASONS[status]}", *lines, "", ""])
        with contextlib.suppress(OSError):  # the client is gone
            client.socket.sendall(head.encode() + payload)  # a few hundred bytes: they fit the socket's buffer
        self._drop(client)

    def _drop(self, client: _Client) -> None:
        self._selector.unregister(client.socket)
        del self._clients[client.socket.fileno()]
        client.socket.close()


def _parse(received: bytes) -> tuple[list[str], dict[str, str]]:
    """Return the parts of the request line, and the headers by their names in lower case."""
    first, *rest = received.split(b"\r\n\r\n", 1)[0].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in rest)
    return first.split(" "), {name.strip().lower(): value.strip() for name, _, value in pairs}


def parse_wait(query: str) -> tuple[float, bool]:
    """(wait_s, last) of `wait_s=60&last=false`. Raises BadRequestError."""
    values = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(values) - {"wait_s", "last"})
    if unknown:
        raise BadRequestError(f"unknown parameter {unknown[0]!r}; there are wait_s and last")
    try:
        wait_s = float(values.get("wait_s", "0"))
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise BadRequestError(f"wait_s must be a number from 0 to {MAX_WAIT_S:.0f}, not {values['wait_s']!r}")
    last = values.get("last", "false")
    if last not in {"false", "true"}:
        raise BadRequestError(f"last must be true or false, not {last!r}")
    return wait_s, last == "true"
