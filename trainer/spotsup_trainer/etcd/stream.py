"""The lines of a streamed HTTP response, in batches: all that have arrived.

http.client reads the lines of a chunked response one by one, at 30 µs each. When 64 nodes write at the same moment,
each of them receives 64 lines; as one batch they are one change to evaluate.
"""

from __future__ import annotations

import http.client
from typing import Any

_READ_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 24  # far more than etcd's largest response
_MAX_SIZE_BYTES = 1 << 10  # of the line that has a chunk's size


class LineStream:
    """The open response of a dedicated connection. For one thread, except for shutting the socket down."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self.socket: Any = connection.sock
        self._connection = connection
        self._response = response
        self._file: Any = response.fp
        self._chunks = Chunks() if response.chunked else None
        self._rest = b""

    def read(self) -> list[bytes]:
        """Wait for at least one whole line; return all that have arrived. [] if the server has ended the response.

        Raises OSError, ValueError, HTTPException.
        """
        while True:
            raw: bytes = self._file.read1(_READ_BYTES)  # waits for bytes, and takes all that are there
            if not raw:
                return []
            data = self._rest + (self._chunks.feed(raw) if self._chunks else raw)
            *lines, self._rest = data.split(b"\n")
            if lines:
                return lines
            if (self._chunks and self._chunks.ended) or len(self._rest) > _MAX_LINE_BYTES:
                return []

    def close(self) -> None:
        """Close response and connection; not while another thread reads."""
        self._response.close()
        self._connection.close()


class Chunks:
    """Decodes HTTP/1.1's chunked encoding from pieces of any size (RFC 9112, section 7.1)."""

    def __init__(self) -> None:
        self.ended = False
        self._raw = b""
        self._left = 0  # missing bytes of the current chunk; below 0: of the line end after it

    def feed(self, raw: bytes) -> bytes:
        """Return the content in `raw`. Raises ValueError if it is not chunked encoding."""
        raw, at, found = self._raw + raw, 0, []
        while at < len(raw) and not self.ended:
            if self._left > 0:
                piece = raw[at : at + self._left]
                found.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left == 0:
                    self._left = -len(b"\r\n")
            elif self._left < 0:
                skipped = min(-self._left, len(raw) - at)
                at += skipped
                self._left += skipped
            else:
                end = raw.find(b"\r\n", at)
                if end < 0:
                    if len(raw) - at > _MAX_SIZE_BYTES:
                        raise ValueError("not chunked encoding")
                    break
                self._left = int(raw[at:end].partition(b";")[0], 16)
                self.ended = self._left == 0
                at = end + 2
        self._raw = raw[at:]
        return b"".join(found)
