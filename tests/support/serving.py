"""A server of a test, on a thread of its own; and one that answers by a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import TypeVar

Server = TypeVar("Server", bound=BaseServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """It answers until the end of this."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def answering(
    answer: Callable[[str, Message], tuple[int, str]], *, headers: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The URL of an HTTP server that answers GET, PUT and POST as `answer` says of a path and the request's headers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path, self.headers)
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body.encode()))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_POST = do_HEAD = do_GET  # noqa: N815 - http.server finds it by this name

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"
