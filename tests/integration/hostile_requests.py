"""Hostile requests: tokens, other people's jobs, slow clients, and requests that two programs read differently."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from supervisor.access import Action, sha256_of
from supervisor.api import serving
from supervisor.api.security.gate import BURST, COOKIE, FAILED_BURST, FAILED_PER_S, PER_S
from supervisor.api.security.rules import rules_of
from supervisor.api.security.throttle import Throttle
from tests.sim.promises import jobs_of
from tests.support.hostile import UNHURRIED, Site, Table, closed_within
from tests.support.machines import CLIENT_KEY, wait_for
from tests.support.whole_api import SECRET, token_of

REQUESTS = Table()
row = REQUESTS.row

# -- who asks ----------------------------------------------------------------------------------------------------------


def refused_as(site: Site, authorization: str) -> None:
    reply = site.ask("", "POST", "/v1/daemon/pause", {}, authorization=authorization)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")


@row("no token, on every route", "401")
def no_token(site: Site) -> None:
    for name, rule in rules_of(site.https.routes).items():
        if rule is None or rule.action is Action.PUBLIC or " /v1/" not in name:
            continue
        method, _, path = name.partition(" ")
        assert (
            site.ask("", method, path.format(name="anns", node=site.node, sweep="lr", sha256="0" * 64)).status == 401
        ), name


@row("a forged token", "401")
def forged(site: Site) -> None:
    refused_as(site, f"Bearer {token_of('root', bytes(32))}")


@row("a token that has expired", "401")
def expired(site: Site) -> None:
    refused_as(site, f"Bearer {token_of('old')}")


@row("a token that was revoked", "401, at once")
def revoked(site: Site) -> None:
    before = site.https.tokens
    assert site.ask("bob", "GET", "/v1/me").status == 200
    site.https.tokens = {key: each for key, each in before.items() if each.user != "bob"}
    try:
        assert site.ask("bob", "GET", "/v1/me").status == 401
    finally:
        site.https.tokens = before


@row("the hash that the daemon stores, in place of a token", "401")
def stored_hash(site: Site) -> None:
    head, _, _ = token_of("root").rpartition("_")
    refused_as(site, f"Bearer {head}_{sha256_of(SECRET)}")


@row("two tokens in one request", "401")
def two_tokens(site: Site) -> None:
    line = f"authorization: Bearer {token_of('root')}\r\n"
    assert site.raw(f"{HEAD}{line}{line}content-length: 2\r\n\r\n{{}}") == {401}


@row("a token in the address, or the dashboard's cookie for the API", "401")
def token_elsewhere(site: Site) -> None:
    text = token_of("root")
    assert site.ask("", "GET", f"/v1/me?token={text}&access_token={text}").status == 401
    assert site.ask("", "GET", "/v1/me", cookie=f"{COOKIE}={text}").status == 401


@row("headers that name somebody else, or another method: `X-Forwarded-For`, `X-Remote-User`, …", "ignored")
def other_names(site: Site) -> None:
    headers = {
        "x_forwarded_for": "uid", "forwarded": "for=uid", "x_remote_user": "root", "x_http_method_override": "GET",
    }  # fmt: skip
    assert site.ask("", "POST", "/v1/daemon/pause", {}, **headers).status == 401
    assert site.ask("eve", "POST", "/v1/daemon/pause", {}, **headers).status == 403


@row("guess tokens", "429 after ten; the right one is still let in")
def guesses(site: Site) -> None:
    site.users.failed = Throttle(FAILED_BURST, FAILED_PER_S)
    try:
        wrong = f"Bearer {token_of('root', bytes(32))}"
        codes = [site.ask("", "GET", "/v1/me", authorization=wrong).status for _ in range(FAILED_BURST + 20)]
        assert (set(codes[:FAILED_BURST]), codes[-1]) == ({401}, 429)
        assert site.ask("root", "GET", "/v1/me").status == 200
    finally:
        site.users.failed = UNHURRIED


@row("ask without end with a valid token", "429; others are answered")
def without_end(site: Site) -> None:
    site.users.per_token = Throttle(BURST, PER_S / 1000)  # a busy computer would be slower than 20 per second
    try:
        ask = f"GET /v1/me HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token_of('bob')}\r\n"
        answers = site.https.raw(f"{ask}\r\n" * (BURST + 1) + f"{ask}connection: close\r\n\r\n")
        assert (answers.count(b"HTTP/1.1 200"), answers.count(b"HTTP/1.1 429")) == (BURST, 2)
        assert site.ask("eve", "GET", "/v1/me").status == 200
    finally:
        site.users.per_token = UNHURRIED


@row("another site that logs a browser in, or out of it asks the API", "403, and 401")
def another_site(site: Site) -> None:
    form = f"token={token_of('eve')}".encode()
    assert site.ask("", "POST", "/login", form, sec_fetch_site="cross-site").status == 403
    cookie = f"{COOKIE}={token_of('root')}"
    assert site.ask("", "POST", "/v1/daemon/pause", {}, sec_fetch_site="cross-site", cookie=cookie).status == 401


# -- other people's jobs -----------------------------------------------------------------------------------------------


@row("scale, limit, pause, resume or cancel somebody else's job", "403, and in the audit log")
def others_job(site: Site) -> None:
    for verb, body in (
        ("scale", {"desired": 2}),
        ("limits", {"hours": 1.0}),
        ("pause", {}),
        ("resume", {}),
        ("cancel", {}),
    ):
        for user in ("bob", "eve"):
            assert site.ask(user, "POST", f"/v1/jobs/anns/{verb}", body).status == 403
            entry = site.https.entries[-1]
            assert (entry.user, entry.target, entry.status) == (user, "anns", 403)


@row("drain somebody else's node, or log in to it", "403, and no certificate")
def others_node(site: Site) -> None:
    asked: dict[str, dict[str, Any]] = {"drain": {}, "login": {"public_key": CLIENT_KEY.public}}
    for verb, body in asked.items():
        reply = site.ask("bob", "POST", f"/v1/nodes/{site.node}/{verb}", body)
        assert (reply.status, b"certificate" in reply.body) == (403, False)


@row("take the name of somebody else's job, while it runs and after its end", "409, and 403")
def others_name(site: Site) -> None:
    assert site.submit("bob", name="anns").status == 409
    assert site.submit("ann", name="over").status == 200
    assert site.ask("ann", "POST", "/v1/jobs/over/cancel").status == 200
    world = site.https.world
    assert world.run_until(lambda known: jobs_of(known)["over"].record.ended, 600.0)
    reply = site.submit("bob", name="over")
    assert (reply.status, "the job is of ann" in reply.json["error"]) == (403, True)


@row("submit, upload or plan as a viewer", "403")
def as_viewer(site: Site) -> None:
    body: dict[str, Any] = {"spec": {"name": "new", "nodes": 1, "run": "t.py"}}
    asked: dict[str, dict[str, Any]] = {
        "/v1/check": body,
        "/v1/plan": body,
        "/v1/jobs": {**body, "code_sha256": "0" * 64, "submission": "1" * 8},
    }
    for path, content in asked.items():
        assert site.ask("eve", "POST", path, content).status == 403
    assert site.ask("eve", "PUT", "/v1/blobs", b"code").status == 403


@row("pause the daemons, adopt machines or read the audit log as a submitter", "403")
def as_submitter(site: Site) -> None:
    assert site.ask("ann", "POST", "/v1/daemon/pause", {}).status == 403
    assert site.ask("ann", "POST", "/v1/adopt", {}).status == 403
    assert site.ask("ann", "GET", "/v1/audit").status == 403


# -- slow and many -----------------------------------------------------------------------------------------------------


@row("a connection on which TLS never begins", "closed after 10 s")
def no_handshake(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.https.port), 20.0) as connection:
        closed_within(connection, lambda: None)


def dripping(site: Site, begin: str, drop: bytes) -> None:
    """A byte now and then."""
    with site.connect() as connection:

        def drip() -> None:
            connection.sendall(begin.encode())
            for _ in range(600):
                connection.sendall(drop)
                time.sleep(0.1)

        closed_within(connection, drip)


@row("a head that comes byte by byte", "closed after 10 s")
def slow_head(site: Site) -> None:
    dripping(site, "GET /v1/health HTTP/1.1\r\nhost: x\r\nx: ", b"y")


@row("a body that comes byte by byte", "closed after 10 s")
def slow_body(site: Site) -> None:
    dripping(site, f"{HEAD_KEPT}authorization: Bearer {token_of('root')}\r\ncontent-length: 900\r\n\r\n{{", b" ")


@row("an answer that is not read", "closed after 20 s")
def unread_answer(site: Site) -> None:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(60.0)
    raw.connect(("127.0.0.1", site.https.port))
    with site.https.trusting().wrap_socket(raw, server_hostname="localhost") as connection:
        ask = f"GET /v1/openapi.json HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token_of('eve')}\r\n\r\n"
        connection.sendall(ask.encode() * 150)
        own = connection.getsockname()
        wait_for(lambda: not is_open(site, own), "the end of the connection")


def is_open(site: Site, address: tuple[str, int]) -> bool:
    connections = list(site.https.server._server.server_state.connections)
    return any(getattr(each, "client", None) == address for each in connections)


@row("more connections from one address than it may have", "closed at once; the others are answered")
def many_connections(site: Site) -> None:
    before, serving.MAX_PER_ADDRESS = serving.MAX_PER_ADDRESS, 2
    try:
        with site.connect() as first, site.connect() as second:
            wait_for(lambda: is_open(site, first.getsockname()) and is_open(site, second.getsockname()), "both")
            with site.connect() as third:
                closed_within(third, lambda: None)
            ask = f"GET /v1/me HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token_of('eve')}\r\n\r\n"
            first.sendall(ask.encode())
            assert first.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        serving.MAX_PER_ADDRESS = before
    wait_for(lambda: not site.https.server._server.server_state.connections, "the end of all")


# -- what two programs read differently --------------------------------------------------------------------------------

HEAD_KEPT = "POST /v1/daemon/pause HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
HEAD = f"{HEAD_KEPT}connection: close\r\n"


def smuggled(attempt: str, answer: str, statuses: set[int], *requests: Callable[[str], str]) -> None:
    """A row. `requests`: of an admin's header, which would pause the daemons if one were carried out."""

    @row(attempt, answer)
    def tried(site: Site) -> None:
        for request in requests:
            found = site.raw(request(f"authorization: Bearer {token_of('root')}\r\n"))
            assert found
            assert found <= statuses
            assert not site.paused


def with_length(text: str) -> Callable[[str], str]:
    return lambda who: f"{HEAD_KEPT}{who}content-length: {text}\r\n\r\n{{}}{HIDDEN}{who}\r\n"


HIDDEN = "POST /v1/daemon/pause HTTP/1.1\r\nhost: x\r\n"
smuggled(
    "a request with a length and chunks",
    "400 or 413, closed; what follows is not read as a request",
    {400, 413},
    lambda who: f"{HEAD_KEPT}{who}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}{who}\r\n",
)
smuggled(
    "a request with two lengths",
    "400, closed",
    {400},
    lambda who: f"{HEAD_KEPT}{who}content-length: 2\r\ncontent-length: 40\r\n\r\n{{}}{HIDDEN}{who}\r\n",
)
smuggled(
    "a length that is no number: `+2`, `0x2`, `1e1`, `-1`",
    "400, closed",
    {400},
    *map(with_length, ("+2", "0x2", "1e1", "-1")),
)
smuggled(
    "a token in a folded header",
    "not its own header: 401",
    {400, 401},
    lambda who: f"{HEAD}x: y\r\n {who}content-length: 2\r\n\r\n{{}}",
)
smuggled(
    "lines that end with a bare line feed",
    "400, closed",
    {400},
    lambda who: f"{HEAD}{who}content-length: 2\r\n\r\n{{}}".replace("\r\n", "\n"),
)
smuggled(
    "a space before a colon, or a zero byte in a header",
    "400, closed",
    {400},
    lambda who: f"{HEAD}x: \0\r\n{who}content-length: 2\r\n\r\n{{}}",
    lambda who: f"{HEAD}{who}content-length : 2\r\n\r\n{{}}",
)
smuggled(
    "a head without end",
    "400 after 32 KiB, closed",
    {400},
    lambda who: f"{HEAD}{who}x: {'y' * 100_000}\r\n\r\n{{}}",
)
