"""The daemon's listening sockets, and the threads that serve them.

Over the network nobody may be slow: uvicorn itself waits for a request, and for whoever reads an answer, without end.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from asyncio import sslproto
from pathlib import Path
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from h11._receivebuffer import ReceiveBuffer
from spotsup_trainer.vitals import Pulse, Vitals
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.api.security.tls import Certificate
from supervisor.api.security.unix_socket import PEER, peer_uid
from supervisor.errors import StartError

MAX_PORT = 65535
# uvicorn never closes idle connections. More than follow jobs (supervisor.api.stream.MAX_WATCHERS): others ask, too.
MAX_CONNECTIONS = 1024
# Of them, from one address of the network: that of an office, maybe.
MAX_PER_ADDRESS = 256
# Within this a client has to complete TLS's handshake, and the head of its request.
HEAD_S = 10.0
# So many bytes of a request's body have to come in each such time, and one of an answer has to be taken.
MIN_BODY_BYTES = 64 * 1024
MAX_HEAD_BYTES = 32 * 1024
# What asyncio keeps for each TLS connection to read into, from its beginning to its end. Its own 256 KiB are 128 MiB
# for those who follow jobs; a record of TLS has 16 KiB.
TLS_BUFFER_BYTES = 32 * 1024
# A server whose event loop has not turned for so long hangs.
STUCK_S = 60.0
RESTART_S = 0.5


class _Lines(ReceiveBuffer):
    """h11 takes a bare line feed for the end of a line. Another program before this one may not, and so see other
    requests (RFC 9112, 11.2)."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a whole head; None until it is there."""
        before = bytes(self)
        lines: list[bytearray] | None = super().maybe_extract_lines()
        head = before[: len(before) - len(self)]
        if head.count(b"\n") != head.count(b"\r\n"):
            raise h11.RemoteProtocolError("a line ends without a carriage return")
        return lines


class _Connection(H11Protocol):
    """Closed at once if there are too many others. Requests on a Unix socket name the user as their client."""

    # Of the last look: bytes of body that had come, and bytes of answers that waited.
    _received = 0
    _came = 0
    _waited = 0
    # The answer after which a part of the next request's head had come.
    _answered: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.conn._receive_buffer = _Lines()  # noqa: SLF001 - h11 has no option for it
        uid = peer_uid(transport.get_extra_info("socket"))
        if uid is not None:
            self.client = (PEER, uid)
        else:
            self.loop.call_later(HEAD_S, self._look)
        alike = sum(_address(each) == _address(self) for each in self.connections)
        if len(self.connections) > MAX_CONNECTIONS or (uid is None and alike > MAX_PER_ADDRESS):
            transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def _look(self) -> None:
        """Ends the connection of a client that was too slow since the last look."""
        if self.transport.is_closing():
            return
        waiting = self.transport.get_write_buffer_size()
        state, own = str(self.conn.their_state), str(self.conn.our_state)  # as h11 names them
        # One that is idle between two requests is uvicorn's to close, after `timeout_keep_alive`.
        is_within_head = state == own == "IDLE" and (self.cycle is None or bool(self.conn.trailing_data[0]))
        slow = is_within_head and self.cycle is self._answered
        self._answered = self.cycle if is_within_head else None
        if state == "SEND_BODY" and not self.flow.read_paused:
            slow = self._received - self._came < MIN_BODY_BYTES
        if slow or 0 < self._waited <= waiting:
            self.transport.abort()
            return
        self._came, self._waited = self._received, waiting
        self.loop.call_later(HEAD_S, self._look)


def _address(connection: Any) -> str:
    return connection.client[0] if connection.client else ""


class _Loop(asyncio.SelectorEventLoop):
    """uvicorn leaves TLS's handshake the default of a minute, and its buffers theirs."""

    async def create_server(self, *args: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEAD_S
            sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES  # there is no option for it
        return await super().create_server(*args, **options)


class _Server(uvicorn.Server):
    """Beats while its event loop turns."""

    def __init__(self, config: uvicorn.Config, pulse: Pulse, certificate: Certificate | None) -> None:
        super().__init__(config)
        self._pulse = pulse
        self._certificate = certificate

    async def on_tick(self, counter: int) -> bool:
        self._pulse.beat()
        if self._certificate is not None:
            self._certificate.follow(time.monotonic())
        return await super().on_tick(counter)


class ApiServer:
    """Serves an app on a listening socket, from a thread of its own; started again after an error."""

    def __init__(self, app: FastAPI, listening: socket.socket, certificate: Certificate | None = None) -> None:
        """`certificate`: for HTTPS."""
        self._app = app
        self._certificate = certificate
        self._socket = listening
        self._file = Path(listening.getsockname()) if listening.family == socket.AF_UNIX else None
        self._pulse = Pulse()
        self._stopping = threading.Event()
        self._server = self._new_server()
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)

    def start(self) -> None:
        """Begin to serve. The socket accepts connections already."""
        self._thread.start()

    def vitals(self) -> Vitals:
        """Return how its thread is."""
        return self._pulse.vitals(STUCK_S, self._thread)

    def stop(self) -> None:
        """Finish requests in progress, for a few seconds at most, and remove a Unix socket's file."""
        self._stopping.set()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(timeout=5)
        self._socket.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _new_server(self) -> _Server:
        config = uvicorn.Config(
            self._app,
            http=_Connection,
            ws="none",
            log_config=None,
            access_log=False,
            log_level="error",  # each broken request of whoever reaches the port is a warning
            lifespan="off",
            timeout_graceful_shutdown=2,
            server_header=False,
            # A header that a client writes would be its address, or even make it root of the Unix socket.
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        config.load()
        config.ssl = self._certificate.context if self._certificate else None
        return _Server(config, self._pulse, self._certificate)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                # It closes what it is given.
                with asyncio.Runner(loop_factory=_Loop) as runner:
                    runner.run(self._server.serve(sockets=[self._socket.dup()]))
                if not self._stopping.is_set():
                    raise RuntimeError("the server has ended")
            except Exception as error:  # noqa: BLE001 - whatever it is: people need an answer
                self._pulse.fault(error)
                self._server = self._new_server()
                self._stopping.wait(RESTART_S)


def bind_address(address: str, key: str = "api.targets") -> socket.socket:
    """Return a listening TCP socket at "host:port", which `key` of the configuration names. Raises StartError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if int(port) > MAX_PORT:
        raise StartError(f"cannot listen at {address}: ports end at {MAX_PORT}; set {key} to another address")
    try:
        found = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise StartError(f"cannot listen at {address} ({error}): set {key} to another address") from error
    # Connections have it from here. asyncio sets it only on a socket that names its protocol, which this one does not:
    # the second part of each answer would wait 40 ms for the acknowledgement of the first.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found
