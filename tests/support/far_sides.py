"""Unkind far sides of alerts on loopback: an HTTP server (Slack's webhook and API, or one's own) and an SMTP server."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import socketserver
import ssl
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


@dataclass
class MailBox:
    """An SMTP server: what it has taken, and how it answers. `replies`: by command, in place of the usual reply; an
    empty one ends the connection; `hang` answers nothing after that command."""

    port: int = 0
    taken: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    replies: dict[str, str] = field(default_factory=dict)
    hang: str = ""
    over: threading.Event = field(default_factory=threading.Event)


class _Talk(socketserver.StreamRequestHandler):
    """One connection to the SMTP server."""

    box: MailBox
    context: ssl.SSLContext | None

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            going = self._say("greeting", "220 fake")
            while going and (line := self.rfile.readline()):
                command, _, rest = line.decode().strip().partition(" ")
                going = self._answer(command.upper(), rest)
        if isinstance(self.request, ssl.SSLSocket):
            self.request.close()

    def _say(self, command: str, usual: str) -> bool:
        """Whether to go on."""
        if self.box.hang == command:
            self.box.over.wait(60.0)
            return False
        reply = self.box.replies.get(command, usual)
        self.wfile.write(f"{reply}\r\n".encode() if reply else b"")
        return bool(reply)

    def _answer(self, command: str, rest: str) -> bool:
        """Whether to go on."""
        match command:
            case "EHLO":
                tls = "250-STARTTLS\r\n" if self.context and not isinstance(self.request, ssl.SSLSocket) else ""
                return self._say(command, f"250-fake\r\n{tls}250 AUTH PLAIN")
            case "STARTTLS":
                return self._say(command, "220 go") and self._encrypt()
            case "AUTH":
                said = base64.b64decode(rest.partition(" ")[2]).decode()
                self.box.logins.append(said.replace("\0", " ").strip())
                return self._say(command, "235 welcome")
            case "DATA":
                return self._say(command, "354 go") and self._take()
            case "QUIT":
                self._say(command, "221 bye")
                return False
            case _:
                return self._say(command, "250 ok")

    def _encrypt(self) -> bool:
        assert self.context is not None
        self.request = self.context.wrap_socket(self.request, server_side=True)
        self.rfile, self.wfile = self.request.makefile("rb"), self.request.makefile("wb", 0)
        return True

    def _take(self) -> bool:
        lines = []
        while (line := self.rfile.readline().decode()) not in {".\r\n", ""}:
            lines.append(line)
        if self.box.replies.get("taken", "250").startswith("250"):
            self.box.taken.append("".join(lines))
        return self._say("taken", "250 taken")


@contextmanager
def mail_box(context: ssl.SSLContext | None = None) -> Iterator[MailBox]:
    """An SMTP server, with STARTTLS where `context` is given."""
    found = MailBox()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, allow_reuse_address = True, True

    talk = type("Talk", (_Talk,), {"box": found, "context": context})
    with serving(Server(("127.0.0.1", 0), talk)) as server:
        found.port = server.server_address[1]
        try:
            yield found
        finally:
            found.over.set()


def closed_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
