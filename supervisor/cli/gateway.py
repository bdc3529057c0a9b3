"""The port of `spotsupctl dashboard`: a port of the loopback interface leads to the daemon's socket.

Other users of this computer can connect to it, too: it lets in who has the link, once, and then the browser that used
it.
"""

from __future__ import annotations

import hmac
import re
import secrets
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from spotsup.transport import Page

from supervisor.errors import DaemonUnreachableError, UsageError

COOKIE = "spotsup-dashboard"
MAX_TARGET = 2000
# Nothing of the API: it hands out keys on this socket.
PAGES = re.compile(r"/|/(fleet|queue|money)|/jobs/[^/]+(/logs)?|/static/[0-9a-f]+/[a-z.]+")
# What a page needs of the daemon's answer.
KEPT_HEADERS = (
    "content-type",
    "content-security-policy",
    "cache-control",
    "x-content-type-options",
    "referrer-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "x-frame-options",
)


class Pages(Protocol):
    """Where pages come from; the real one is `spotsup.transport.Transport`."""

    def page(self, target: str) -> Page:
        """Return the answer to a GET. Raises DaemonUnreachableError."""
        ...


class Gateway(ThreadingHTTPServer):
    """Answers requests with the daemon's pages."""

    daemon_threads = True

    def __init__(self, daemon: Pages, port: int) -> None:
        """`port`: 0 for a free one. Raises UsageError if it is taken."""
        self.source = daemon
        self._link, self.session = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UsageError(f"cannot listen at 127.0.0.1:{port} ({error}): choose another --port") from error

    @property
    def hosts(self) -> frozenset[str]:
        """Return what a browser may call it. Another name is another site's, which points here."""
        return frozenset(f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost"))

    @property
    def link(self) -> str:
        """Log one browser in."""
        return f"http://127.0.0.1:{self.server_port}/?link={self._link}"

    def used(self, link: str) -> bool:
        """True if it is the link, which is good for one use."""
        fits = bool(self._link) and hmac.compare_digest(link.encode(), self._link.encode())
        if fits:
            self._link = ""
        return fits


class _Handler(BaseHTTPRequestHandler):
    server: Gateway
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        if self.headers.get("host", "") not in self.server.hosts or len(self.path) > MAX_TARGET:
            self._say(400, "This address is not the dashboard's.")
            return
        link = parse_qs(target.query).get("link", [""])[0]
        if link and self.server.used(link):
            cookie = f"{COOKIE}={self.server.session}; HttpOnly; SameSite=Strict; Path=/"
            self._answer(303, {"Location": "/", "Set-Cookie": cookie}, b"")
            return
        if not self._is_known():
            self._say(403, "The link was used, or is another one: run `spotsupctl dashboard` again.")
            return
        if not PAGES.fullmatch(target.path):
            self._say(404, "This port serves the dashboard only.")
            return
        try:
            # Never the whole of what was asked for: it may be an address elsewhere.
            reply = self.server.source.page(f"{target.path}?{target.query}")
        except DaemonUnreachableError as error:
            self._say(502, str(error))
            return
        headers = {name: reply.headers[name] for name in KEPT_HEADERS if name in reply.headers}
        self._answer(reply.status_code, headers, reply.content)

    def _is_known(self) -> bool:
        found = SimpleCookie(self.headers.get("cookie", "")).get(COOKIE)
        return found is not None and hmac.compare_digest(found.value.encode(), self.server.session.encode())

    def _say(self, status: int, text: str) -> None:
        self._answer(status, {"content-type": "text/plain; charset=utf-8"}, f"{text}\n".encode())

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
        """Nothing: the terminal has the link."""
