"""An S3 server on loopback: moto's, behind a gate that can misbehave as S3 does on its worst day."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

REGION = "us-east-1"
SLOW_DOWN = "503 Slow Down", "SlowDown", "Please reduce your request rate."
DENIED = "403 Forbidden", "AccessDenied", "Access Denied"
INTERNAL = "500 Internal Server Error", "InternalError", "We encountered an internal error. Please try again."


@dataclass(frozen=True, slots=True)
class Request:
    """What a fault is decided by."""

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


class S3:
    """`fault` is asked about each request to `bucket`. Thread-safe: requests are carried out one at a time, so that
    conditional writes are as atomic as S3's."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.bucket = f"checkpoints-{secrets.token_hex(6)}"
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.requests: list[Request] = []
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._server = make_server(host, 0, self._answer, threaded=True)
        self.url = f"http://{host}:{self._server.server_port}"

    @property
    def place(self) -> str:
        """An address in its bucket."""
        return f"s3://{self.bucket}/prefix/job-1"

    @property
    def environ(self) -> dict[str, str]:
        """What points clients here."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
        }

    @property
    def client(self) -> Any:
        """boto3's."""
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client("s3", endpoint_url=self.url, region_name=REGION, **keys)

    def keys(self) -> dict[str, int]:
        """Key below `place` -> size."""
        found = self.client.list_objects_v2(Bucket=self.bucket, Prefix="prefix/job-1/").get("Contents", [])
        return {each["Key"].removeprefix("prefix/job-1/"): each["Size"] for each in found}

    def folders(self) -> list[str]:
        """The folders right below `place`."""
        return sorted({key.partition("/")[0] for key in self.keys() if "/" in key})

    @contextmanager
    def running(self) -> Iterator[S3]:
        """It answers until the end of this."""
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            self.client.create_bucket(Bucket=self.bucket)
            yield self
        finally:
            self.fault = lambda _: None
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _answer(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        request = Request(environ["REQUEST_METHOD"], path.removeprefix(f"/{self.bucket}").lstrip("/"), query)
        self.requests.append(request)
        fault = self.fault(request) or Fault()
        # the body first, as a server that refuses without it would be a reset for the client
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if fault.until is not None:
            fault.until.wait(60.0)
        if fault.error is not None:
            status, code, message = fault.error
            text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))])
            return [text]
        if fault.reset == "before":
            return self._reset(environ, start)
        with self._lock:
            environ["wsgi.input"] = io.BytesIO(body)
            answer: list[Any] = []

            def collect(*given: Any) -> Callable[[bytes], None]:
                answer.extend(given)
                return lambda _: None

            content = b"".join(self._moto(environ, collect))
        if fault.reset == "after":
            return self._reset(environ, start)
        if fault.cut:
            start(*answer[:2])
            return self._cut(content, environ)
        start(*answer[:2])
        return [content]

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


@contextmanager
def s3_here() -> Iterator[S3]:
    """A running one that this process's own clients use."""
    with S3().running() as server:
        before = dict(os.environ)
        os.environ.update(server.environ)
        try:
            yield server
        finally:
            os.environ.clear()
            os.environ.update(before)
