"""A bucket as S3 shows it to everybody: it lists in pages, and answers as slowly as a test wants."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.serving import serving

PAGE = 5


class BucketServer(ThreadingHTTPServer):
    """`objects` by key. `open`: each object takes one of it. `refuse`: how many of the next requests are refused;
    `cut_off`: how many pages end in the middle."""

    daemon_threads = True

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = objects
        self.open = threading.Semaphore(0)
        self.refuse = self.cut_off = 0
        self.served: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: BucketServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.refuse:
            self.server.refuse -= 1
            self._say(503, b"")
            return
        parts = urlsplit(self.path)
        if parts.path == "/":
            self._say(200, self._page({name: values[0] for name, values in parse_qs(parts.query).items()}))
            return
        key = unquote(parts.path[1:])
        self.server.open.acquire(timeout=60)
        self.server.served.append(key)
        self._say(200, self.server.objects[key])

    def _page(self, query: dict[str, str]) -> bytes:
        keys = sorted(key for key in self.server.objects if key.startswith(query.get("prefix", "")))
        first = int(query.get("continuation-token", "0"))
        shown, more = keys[first : first + PAGE], first + PAGE < len(keys)
        sizes = {key: len(self.server.objects[key]) for key in shown}
        rows = "".join(f"<Contents><Key>{escape(key)}</Key><Size>{sizes[key]}</Size></Contents>" for key in shown)
        token = f"<NextContinuationToken>{first + PAGE}</NextContinuationToken>" if more else ""
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        return f'<ListBucketResult xmlns="{space}">{rows}{token}</ListBucketResult>'.encode()

    def _say(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.server.cut_off:
            self.server.cut_off -= 1
            data = data[: len(data) // 2]
        with contextlib.suppress(BrokenPipeError):  # its reader was killed
            self.wfile.write(data)


@contextmanager
def bucket(objects: dict[str, bytes]) -> Iterator[BucketServer]:
    """A running one."""
    with serving(BucketServer(objects)) as server:
        yield server
