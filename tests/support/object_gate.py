"""A gate in front of a real object store's server, which can misbehave as a store does on its worst day."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias, cast

from werkzeug.serving import make_server

from tests.support.serving import serving

# status line, headers, body
Answer: TypeAlias = tuple[str, list[tuple[str, str]], bytes]


@dataclass(frozen=True, slots=True)
class Request:
    """What a fault is decided by. `key`: within the bucket."""

    method: str
    key: str
    query: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One answer that differs from the server's. Exactly one field is set."""

    # status line, code, message
    error: tuple[str, str, str] | None = None
    # the connection is reset before, or after the request was carried out
    reset: str = ""
    # the request is carried out, and half of the answer's body arrives
    cut: bool = False
    # nothing happens until this is set; then the request is carried out
    until: threading.Event | None = None


class Gate(ABC):
    """`fault` is asked about each request to `bucket`. Thread-safe.

    `slow_down`, `internal`, `denied`, `missing`: the store's own errors, as a fault has them. `place`: an address in
    its bucket; the tests' own controls go by key below it.
    """

    slow_down: tuple[str, str, str]
    internal: tuple[str, str, str]
    denied: tuple[str, str, str]
    missing: tuple[str, str, str]
    # Variables with credentials that the server refuses; none where it looks at none.
    unknown_credentials: ClassVar[Mapping[str, str]] = {}
    # Whether the gate has to make the server's conditional writes atomic.
    one_at_a_time = True

    def __init__(self, host: str, bucket: str) -> None:
        self.bucket = bucket
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._server = make_server(host, 0, self._answer, threaded=True)
        self.url = f"http://{host}:{self._server.server_port}"

    @property
    @abstractmethod
    def place(self) -> str:
        """An address in its bucket."""

    @property
    @abstractmethod
    def environ(self) -> Mapping[str, str]:
        """What points clients here."""

    @abstractmethod
    def place_of(self, bucket: str, prefix: str) -> str:
        """Another address."""

    @abstractmethod
    def keys(self) -> dict[str, int]:
        """Key below `place` -> size."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """An object below `place`."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """The same."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """The same."""

    @abstractmethod
    def make_bucket(self) -> None:
        """Once it answers."""

    @abstractmethod
    def serve(self, environ: dict[str, Any], body: bytes) -> Answer:
        """What the server answers to a WSGI request."""

    def folders(self) -> list[str]:
        """The folders right below `place`."""
        return sorted({key.partition("/")[0] for key in self.keys() if "/" in key})

    @contextmanager
    def running(self) -> Iterator[Self]:
        """It answers until the end of this."""
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        with serving(self._server):
            try:
                self.make_bucket()
                yield self
            finally:
                self.fault = lambda _: None

    @contextmanager
    def here(self) -> Iterator[Self]:
        """It runs, and this process's own clients use it."""
        with self.running() as server:
            before = dict(os.environ)
            os.environ.update(server.environ)
            try:
                yield server
            finally:
                os.environ.clear()
                os.environ.update(before)

    def key_in(self, path: str) -> str:
        """The key that a request's path names, "" for the bucket's own."""
        return path.removeprefix(f"/{self.bucket}").lstrip("/")

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        request = Request(environ["REQUEST_METHOD"], self.key_in(path), query)
        self.requests.append(request)
        fault = self.fault(request) or Fault()
        # the body first, as a server that refuses without it would be a reset for the client
        body = _body_of(environ)
        if fault.until is not None:
            fault.until.wait(60.0)
        if fault.error is not None:
            status, code, message = fault.error
            text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))])
            return [text]
        if fault.reset == "before":
            return self._reset(environ, start)
        with self._lock if self.one_at_a_time else contextlib.nullcontext():
            status, headers, content = self.serve(environ, body)
        if fault.reset == "after":
            return self._reset(environ, start)
        start(status, headers)
        return self._cut(content, environ) if fault.cut else [content]

    def _cut(self, content: bytes, environ: dict[str, Any]) -> Iterator[bytes]:
        yield content[: len(content) // 2]
        self._close(environ)

    def _reset(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        self._close(environ)
        start("500 Gone", [("Content-Length", "0")])
        return []

    @staticmethod
    def _close(environ: dict[str, Any]) -> None:
        connection = cast("socket.socket", environ["werkzeug.socket"])
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.shutdown(socket.SHUT_RDWR)


def _body_of(environ: dict[str, Any]) -> bytes:
    found: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return found


def by_application(application: Any, environ: dict[str, Any], body: bytes) -> Answer:
    """What a WSGI application of this process answers."""
    environ["wsgi.input"] = io.BytesIO(body)
    answer: list[Any] = []

    def collect(*given: Any) -> Callable[[bytes], None]:
        answer.extend(given)
        return lambda _: None

    content = b"".join(application(environ, collect))
    return answer[0], list(answer[1]), content
