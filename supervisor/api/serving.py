"""The daemon's listening sockets, and the threads that serve them."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from spotsup_trainer.vitals import Pulse, Vitals
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.api.unix_socket import PEER, peer_uid
from supervisor.errors import StartError

MAX_PORT = 65535
# uvicorn never closes idle connections, and each takes a file descriptor that cloud calls need too.
MAX_CONNECTIONS = 256
# A server whose event loop has not turned for so long hangs.
STUCK_S = 60.0
RESTART_S = 0.5


class _Connection(H11Protocol):
    """Closed at once if there are too many others. Requests on a Unix socket name the user as their client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        uid = peer_uid(transport.get_extra_info("socket"))
        if uid is not None:
            self.client = (PEER, uid)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()


class _Server(uvicorn.Server):
    """Beats while its event loop turns."""

    def __init__(self, config: uvicorn.Config, pulse: Pulse) -> None:
        super().__init__(config)
        self._pulse = pulse

    async def on_tick(self, counter: int) -> bool:
        self._pulse.beat()
        return await super().on_tick(counter)


class ApiServer:
    """Serves an app on a listening socket, from a thread of its own; started again after an error."""

    def __init__(self, app: FastAPI, listening: socket.socket) -> None:
        self._app = app
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
        """How its thread is."""
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
            self._app, http=_Connection, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
        return _Server(config, self._pulse)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                # It closes what it is given.
                asyncio.run(self._server.serve(sockets=[self._socket.dup()]))
                if not self._stopping.is_set():
                    raise RuntimeError("the server has ended")
            except Exception as error:  # noqa: BLE001 - whatever it is: people need an answer
                self._pulse.fault(error)
                self._server = self._new_server()
                self._stopping.wait(RESTART_S)


def bind_address(address: str, key: str = "api.targets") -> socket.socket:
    """A listening TCP socket at "host:port", which `key` of the configuration names. Raises StartError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if int(port) > MAX_PORT:
        raise StartError(f"cannot listen at {address}: ports end at {MAX_PORT}; set {key} to another address")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise StartError(f"cannot listen at {address} ({error}): set {key} to another address") from error
