"""A page of metrics for Prometheus on a node, on a thread of its own: for what no other exporter has."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any, NamedTuple

_READ_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class Sample(NamedTuple):
    """One number, and of what it is."""

    labels: Mapping[str, str]
    value: float


class _Server(TCPServer):
    """Not HTTPServer: that one asks for the machine's name, which may take seconds."""

    allow_reuse_address = True
    what = ""  # whose metrics

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Usually a scraper hung up. One line in the agent's log; the base class would print a traceback."""
        log.warning("the %s metrics were not sent to %s: %s", self.what, client_address[0], sys.exc_info()[1])


def serve(
    what: str, address: str, port: int, page: Callable[[], str], ready: Callable[[TCPServer], None] = lambda _: None
) -> None:
    """Serve `page` until `shutdown` of the server that `ready` gets. Returns at once where the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _READ_TIMEOUT_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: every scrape would be a line."""

    try:
        server = _Server((address, port), Handler)
    except OSError as error:
        log.info("the %s metrics are not served at %s:%d: %s", what, address, port, error)
        return
    server.what = what
    with server:
        log.info("the %s metrics are served at %s:%d", what, address, server.server_address[1])
        ready(server)
        server.serve_forever()


def family(name: str, kind: str, what: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield one metric in Prometheus' text format 0.0.4; nothing without a sample."""
    lines = [f"{name}{_braced(each.labels)} {each.value}" for each in samples]
    if lines:
        yield f"# HELP {name} {what}"
        yield f"# TYPE {name} {kind}"
        yield from lines


def _braced(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
