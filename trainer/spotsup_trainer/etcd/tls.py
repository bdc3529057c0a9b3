"""TLS of a watch. etcd sends each change as a record of its own, and an SSLSocket makes two system calls for each: when
64 nodes write at once, that is most of what TLS costs each of them. Here one call reads all that has arrived.
"""

from __future__ import annotations

import io
import socket
import ssl
from typing import Any

_READ_BYTES = 1 << 16
_RECORD_BYTES = 1 << 14  # there are no larger ones


class TlsSocket:
    """A connected socket with TLS, as far as http.client and LineStream use one. For one thread; only `shutdown` may be
    called by others."""

    def __init__(self, raw: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Shake hands. Raises OSError, as an SSLSocket does."""
        self._raw = raw
        self._closed = False
        self._readers = 0
        self._ended = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._send()
                if not self._receive():
                    raise ssl.SSLEOFError("the connection ended within the handshake") from None
            except ssl.SSLError:
                self._send()  # the alert
                raise
            else:
                break
        self._send()

    def read_all(self) -> bytes:
        """Wait for bytes, and take all that have arrived, at most some more than 64 KiB. Empty at the end."""
        pieces: list[bytes] = []
        size, arrived = 0, self._has_some()
        while not (pieces or self._ended):
            if not arrived and not self._receive():
                break  # it has ended without a word
            arrived = False
            # Only where something is left: an SSLWantReadError costs as much as a record.
            while size < _READ_BYTES and self._has_some():
                try:
                    piece = self._tls.read(_RECORD_BYTES)
                except ssl.SSLWantReadError:
                    break  # no whole record, or none of data
                if not piece:
                    self._ended = True  # the other side has said so
                    break
                pieces.append(piece)
                size += len(piece)
        return b"".join(pieces)

    def _has_some(self) -> bool:
        return bool(self._incoming.pending or self._tls.pending())

    def sendall(self, data: bytes) -> None:
        """As a socket's."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
            self._send()

    def makefile(self, _mode: str, _buffering: int = -1) -> io.BufferedReader:
        """Return what http.client reads responses from. As a socket, it stays open until all of these are closed,
        too."""
        self._readers += 1
        return io.BufferedReader(_Reader(self))

    def reader_closed(self) -> None:
        """Take note that one of them is."""
        self._readers -= 1
        if self._closed and not self._readers:
            self._raw.close()

    def settimeout(self, timeout_s: float | None) -> None:
        """As a socket's."""
        self._raw.settimeout(timeout_s)

    def setsockopt(self, *option: Any) -> None:
        """As a socket's."""
        self._raw.setsockopt(*option)

    def shutdown(self, how: int) -> None:
        """As a socket's: a thread that waits in `read_all` wakes."""
        self._raw.shutdown(how)

    def close(self) -> None:
        """As a socket's."""
        self._closed = True
        if not self._readers:
            self._raw.close()

    def _send(self) -> None:
        if data := self._outgoing.read():
            self._raw.sendall(data)

    def _receive(self) -> bool:
        """Wait for bytes. False at their end."""
        self._send()  # what TLS itself has to say, such as new keys
        data = self._raw.recv(_READ_BYTES)
        self._incoming.write(data)
        return bool(data)


class _Reader(io.RawIOBase):
    """Never reads ahead more than what has arrived."""

    def __init__(self, source: TlsSocket) -> None:
        self._source = source
        self._rest = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._source.reader_closed()

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or self._source.read_all()
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
