"""A daemon that is asked by whoever means it ill: all routes over real sockets, and a table of what they try."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.api.security.gate import COOKIE, Users
from supervisor.api.security.throttle import Throttle
from tests.sim.harness import submit, training_world
from tests.sim.promises import jobs_of
from tests.support.https import Https
from tests.support.whole_api import token_of, tokens, unhurried, whole_api

UNHURRIED = Throttle(1e9, 1e9)


@dataclass(frozen=True)
class Reply:
    """To a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Site:
    """The daemon: a job of ann trains."""

    https: Https
    users: Users

    def ask(
        self, user: str, method: str, path: str, body: bytes | dict[str, Any] | None = None, **headers: str
    ) -> Reply:
        """`user`: whose token is sent; "" for none."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        if user:
            named["authorization"] = f"Bearer {token_of(user)}"
        if isinstance(body, dict):
            body, named["content-type"] = json.dumps(body).encode(), "application/json"
        connection = http.client.HTTPSConnection(
            "localhost", self.https.port, context=self.https.trusting(), timeout=60.0
        )
        try:
            connection.request(method, path, body, named)
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): text for name, text in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def page(self, path: str, user: str = "eve") -> str:
        """One of the dashboard's, as a browser gets it."""
        reply = self.ask("", "GET", path, cookie=f"{COOKIE}={token_of(user)}")
        assert "script-src 'self'" in reply.headers.get("content-security-policy", ""), reply
        return reply.body.decode()

    def raw(self, request: str) -> set[int]:
        """The statuses of what is answered to bytes, until the connection is closed."""
        answer = self.https.raw(request)
        parts = answer.split(b"HTTP/1.1 ")[1:]
        return {int(part[:3]) for part in parts}

    def connect(self) -> ssl.SSLSocket:
        return self.https.connect()

    def job(self, name: str = "anns") -> Any:
        return jobs_of(self.https.world)[name].record

    @property
    def node(self) -> str:
        """Of ann's job."""
        return next(iter(jobs_of(self.https.world)["anns"].nodes))

    def submit(self, user: str, **spec: Any) -> Reply:
        """A job whose code is there."""
        digest = self.ask(user, "PUT", "/v1/blobs", b"code").json["sha256"]
        body = {
            "spec": {"name": "new", "nodes": 1, "run": "t.py", **spec},
            "code_sha256": digest,
            "submission": f"{user}-{spec.get('name', 'new')}-submission"[:64],
        }
        return self.ask(user, "POST", "/v1/jobs", body)

    def check(self, **spec: Any) -> int:
        """The status that bob gets for a job file."""
        return self.ask("bob", "POST", "/v1/check", {"spec": {"name": "new", "nodes": 1, "run": "t.py", **spec}}).status

    @property
    def paused(self) -> bool:
        """Whether the daemons are."""
        return self.https.world.daemon.journal.read().pause is not None

    def is_well(self) -> bool:
        """Whether it still answers, and nothing of ann's job was changed."""
        job = self.job()
        untouched = not (job.cancel_requested or job.pause.at) and job.desired_nodes == 1
        return untouched and not self.paused and self.ask("eve", "GET", "/v1/health").status == 200


@contextmanager
def a_site(state: Path) -> Iterator[Site]:
    """Running."""
    world = training_world(1, 2, 4)
    submit(world, "anns", 1, 1, 2, owner="ann")
    assert world.run_until(lambda known: any(each.ssh_host for each in jobs_of(known)["anns"].nodes.values()), 600.0)
    found: list[Users] = []

    def make(https: Https) -> Any:
        https.tokens = tokens()
        found.append(unhurried(lambda: https.tokens, https.entries.append))
        return whole_api(https.world, found[0], https.entries)

    with Https.started(state, world, make=make) as https:
        yield Site(https, found[0])


@dataclass
class Table:
    """What is tried, by what people call it: how, and what becomes of it."""

    rows: dict[str, tuple[Callable[[Site], None], str]] = field(default_factory=dict)

    def row(self, attempt: str, answer: str) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
        """Adds a row."""

        def add(tried: Callable[[Site], None]) -> Callable[[Site], None]:
            assert attempt not in self.rows
            self.rows[attempt] = (tried, answer)
            return tried

        return add


def closed_within(connection: socket.socket, begin: Callable[[], None], limit_s: float = 60.0) -> None:
    """Asserts that the other end closes, whatever `begin` sends."""
    connection.settimeout(limit_s)
    try:
        begin()
        while connection.recv(65536):
            pass
    except TimeoutError:
        raise AssertionError("the connection is still open") from None
    except (OSError, ssl.SSLError):
        return
