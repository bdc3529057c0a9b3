"""The API of an empty world behind TLS, on a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from spotsup.contexts import fingerprint
from spotsup_simulator.world import World
from starlette.types import Receive, Scope, Send

from supervisor.access import AuditEntry, Role, TokenRecord, sha256_of, token_text
from supervisor.api.app import create_app
from supervisor.api.secrets import Secrets, add_secrets
from supervisor.api.security.gate import Users
from supervisor.api.security.tls import certificate_of, own_ca, own_files
from supervisor.api.serving import ApiServer, bind_address
from supervisor.config import parse_config
from supervisor.identity import Identity
from supervisor.runtime.loop import Status
from tests.sim.harness import empty_world, service

SECRET = bytes(32)
ROOT = TokenRecord("a" * 12, "ann", Role.ADMIN, sha256_of(SECRET), 0.0, time.time() + 1e6)
TOKEN = token_text(ROOT.id, SECRET)


class Https:
    """Use `started`."""

    def __init__(self, state: Path, world: World, port: int, make: Callable[[Https], FastAPI]) -> None:
        self.config = parse_config({"state_dir": str(state), "api": {"listen": "127.0.0.1:0"}}, "it")
        self.world = world
        self.tokens: Mapping[str, TokenRecord] = {ROOT.id: ROOT}
        self.entries: list[AuditEntry] = []
        # What clients have sent.
        self.authorizations: list[str] = []
        app = make(self)
        self.routes = app.routes

        async def seen(scope: Scope, receive: Receive, send: Send) -> None:
            found = [value.decode() for name, value in scope["headers"] if name == b"authorization"]
            self.authorizations += found
            await app(scope, receive, send)

        certificate = certificate_of(self.config, "desk.example")
        listening = bind_address(f"127.0.0.1:{port}", "api.listen")
        self.port = int(listening.getsockname()[1])
        self.server = ApiServer(seen, listening, certificate)  # type: ignore[arg-type]  # any ASGI app

    @classmethod
    @contextlib.contextmanager
    def started(
        cls, state: Path, world: World | None = None, port: int = 0, make: Callable[[Https], FastAPI] | None = None
    ) -> Iterator[Https]:
        """Running; stopped at the end. `state`: the daemon's folder. `make`: its app, of most routes if not given."""
        made = cls(state, world or empty_world(), port, make or _most_routes)
        made.server.start()
        try:
            yield made
        finally:
            made.stop()

    def stop(self) -> int:
        """Stop. Returns its port, which is free now."""
        self.server.stop()
        return self.port

    @property
    def ca(self) -> str:
        return own_files(self.config).ca.read_text()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.ca)

    def trusting(self) -> ssl.SSLContext:
        """What a client needs that trusts it."""
        return ssl.create_default_context(cadata=self.ca)

    def connect(self, context: ssl.SSLContext | None = None, name: str = "localhost") -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), 20.0)
        return (context or self.trusting()).wrap_socket(raw, server_hostname=name)

    def get(self, path: str, token: str = TOKEN) -> tuple[int, Any]:
        """Status and JSON."""
        connection = http.client.HTTPSConnection("localhost", self.port, context=self.trusting(), timeout=20.0)
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            connection.close()

    def raw(self, request: str) -> bytes:
        """All that is answered until the connection is closed, which may be before all was sent."""
        answer, closed = bytearray(), contextlib.suppress(ConnectionError, ssl.SSLEOFError)
        with self.connect() as connection:
            with closed:
                connection.sendall(request.encode("latin-1"))
            with closed:
                while part := connection.recv(65536):
                    answer += part
        return bytes(answer)


def _most_routes(https: Https) -> FastAPI:
    app = create_app(
        service(https.world),
        lambda: Status(0.0, "", {}, {}),
        https.world.clock,
        "0",
        users=Users(lambda: https.tokens, audit=https.entries.append),
        audit=lambda: https.entries,
        ca=lambda: own_ca(https.config),
    )
    add_secrets(app, Secrets(https.world.daemon.journal, Identity(b"s" * 32), https.world.clock))
    return app
