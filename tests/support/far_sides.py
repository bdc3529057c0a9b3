"""Unkind far sides of alerts on loopback: an HTTP server (Slack's webhook and API, or one's own)."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

from tests.support.serving import serving


@dataclass(frozen=True)
class Posted:
    """A request that came."""

    path: str
    headers: Message
    body: bytes

    @property
    def fields(self) -> dict[str, str]:
        """Of a call of Slack's API, or of a JSON body."""
        if "json" in (self.headers["Content-Type"] or ""):
            return dict(json.loads(self.body))
        return dict(parse_qsl(self.body.decode()))


@dataclass(frozen=True)
class Answer:
    """What is answered. `cut`: the connection ends within the body. `hang`: nothing comes until the end of the test.
    `reset`: the connection is reset before an answer. `after_s`: it takes so long."""

    status: int = 200
    body: str = "ok"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hang: bool = False
    reset: bool = False
    after_s: float = 0.0

    @classmethod
    def of_api(cls, error: str = "", status: int = 200, **more: str) -> Answer:
        """As Slack's API answers."""
        found = {"ok": False, "error": error} if error else {"ok": True, "channel": "C1", "ts": "17.5", **more}
        return cls(status, json.dumps(found), {"Content-Type": "application/json"})


@dataclass
class FarSide:
    """The server, what came, and what it answers: the next of `answers`, then `usual`."""

    url: str = ""
    posted: list[Posted] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    usual: Answer = field(default_factory=Answer)
    on_post: Callable[[], None] = lambda: None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def texts(self) -> list[str]:
        """The messages that came."""
        return [each.fields.get("text", "") for each in self.posted]


@contextmanager
def far_side() -> Iterator[FarSide]:
    """An HTTP server."""
    found = FarSide()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found.posted.append(Posted(self.path, self.headers, body))
            found.on_post()
            answer = found.answers.pop(0) if found.answers else found.usual
            self.close_connection = True
            if answer.hang:
                found.over.wait(60.0)
                return
            if answer.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            time.sleep(answer.after_s)
            raw = answer.body.encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(raw) + 100 * answer.cut)}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)

        do_HEAD = do_POST  # noqa: N815 - http.server finds it by this name

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with serving(server):
        found.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield found
        finally:
            found.over.set()


def closed_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
