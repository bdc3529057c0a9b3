"""In front of every route: who asks, whether they may, how much and how often; and what they did is written down.

A pure ASGI middleware, so that nothing of a request's body is read before its caller is known.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from supervisor.access import Action, AuditEntry, Caller, Role, TokenRecord, caller_of, id_of, refusal
from supervisor.api.problems import CALLER, REQUEST_ID, TARGET, problem
from supervisor.api.security.rules import AUDITED, Rule, caller_on_socket, rule_of
from supervisor.api.security.throttle import Folded, Throttle
from supervisor.api.security.unix_socket import PEER

MAX_BODY_BYTES = 1024 * 1024
MAX_BLOB_BYTES = 32 * 1024 * 1024
# Bytes of a body, where that is another limit.
MAX_BYTES = {"PUT /v1/blobs": MAX_BLOB_BYTES}
# Where a browser keeps the token. The prefix: only over HTTPS, and only for this host.
COOKIE = "__Host-spotsup"
# Of one token: so many requests at once, and so many per second for longer.
BURST, PER_S = 200, 20.0
# Of one address: so many wrong tokens at once, and per second for longer. A right one is never refused for them.
FAILED_BURST, FAILED_PER_S = 10, 1 / 6
# Of one token and route: so many refused requests are written down one by one, then one a minute, with a count.
REFUSED_BURST, REFUSED_PER_S = 5, 1 / 60


@dataclass(slots=True)
class Users:
    """What the gate asks of the journal. The default is for an app that only serves the Unix socket."""

    tokens: Callable[[], Mapping[str, TokenRecord]] = dict
    now: Callable[[], float] = time.time
    # Stores an entry, or logs why that failed. May block.
    audit: Callable[[AuditEntry], None] = lambda _: None
    per_token: Throttle = field(default_factory=lambda: Throttle(BURST, PER_S))
    failed: Throttle = field(default_factory=lambda: Throttle(FAILED_BURST, FAILED_PER_S))
    refused: Folded = field(default_factory=lambda: Folded(REFUSED_BURST, REFUSED_PER_S))
    # By token: held while one of its plans is made.
    planning: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def lets_in(self, caller: Caller) -> bool:
        """True if who was let in still may be: a token may expire, or be revoked, while an answer lasts."""
        known = self.tokens().get(caller.token)
        return not caller.token or (known is not None and known.is_valid(self.now()))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The route that a request is for."""

    name: str  # `METHOD /path`; "" for none
    params: Mapping[str, Any]
    # What stands there; None where nothing does.
    rule: Rule | None = None

    @property
    def action(self) -> Action | None:
        return self.rule.action if self.rule else None

    @property
    def is_page(self) -> bool:
        return self.rule is not None and self.rule.is_page

    @property
    def target(self) -> str:
        return str(self.params.get("name") or self.params.get("node") or "")


class Gate:
    """Wraps an app."""

    def __init__(
        self,
        app: ASGIApp,
        routes: Callable[[], Sequence[BaseRoute]],
        users: Users,
        owner: Callable[[Mapping[str, Any]], str | None],
        headers: Callable[[], Iterable[tuple[str, str]]],
    ) -> None:
        """`owner`: of the job that a path's parameters are about, None for an unknown one; must not block.

        `headers`: of all answers.
        """
        self._app = app
        self._routes = routes
        self._users = users
        self._owner = owner
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        scope[REQUEST_ID] = secrets.token_hex(8)
        asked = _asked(scope, self._routes())
        scope[TARGET] = asked.target
        caller = Caller("", Role.VIEWER) if asked.action is Action.PUBLIC else await self._caller(scope, asked)
        if isinstance(caller, Response):
            await caller(scope, receive, self._answering(scope, send))
            return
        scope[CALLER] = caller
        answer = self._answering(scope, send)
        if asked.action in AUDITED:
            answer = self._audited(scope, asked, caller, answer)
        refused = _why_too_large(scope, asked) or self._why_not(scope, asked, caller)
        try:
            if refused is None and asked.action is Action.PLAN and caller.token:
                # What a plan costs is not known before: one of a token at a time, so that others get their turn.
                async with self._users.planning.setdefault(caller.token, asyncio.Lock()):
                    await self._app(scope, receive, answer)
            else:
                await (refused or self._app)(scope, receive, answer)
        except Exception:
            # Whoever is further out answers with status 500.
            await self._write(scope, asked, caller, 500)
            raise

    async def _caller(self, scope: Scope, asked: _Asked) -> Caller | Response:
        client = scope.get("client")
        if client is not None and client[0] == PEER:
            return await run_in_threadpool(caller_on_socket, client)  # which asks for the user's name
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        is_browser = not given and asked.is_page
        if is_browser:
            given = [f"Bearer {token}".encode("latin-1") for token in _cookies(scope)]
        scheme, _, text = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
        known = self._users.tokens().get(id_of(text))
        caller = caller_of(text, known, self._users.now()) if scheme.lower() == "bearer" else None
        if caller is None:
            address = str(client[0]) if client else ""
            to_login = is_browser and (not given or not self._users.failed.wait_s(address, time.monotonic()))
            if to_login:  # without a cookie, or with one that has expired
                return Response(status_code=303, headers={"location": "/login"})
            return self._failed(scope, address, is_given=bool(given))
        wait_s = self._users.per_token.wait_s(caller.token, time.monotonic())
        if wait_s:
            often = f"the token of {caller.name} is used too often: at most {PER_S:g} requests per second"
            text = f"{often}; wait {wait_s:.0f} s"
            return problem(429, text, scope[REQUEST_ID], retry_after=str(int(wait_s) + 1))
        return caller

    def _failed(self, scope: Scope, address: str, *, is_given: bool) -> Response:
        wait_s = self._users.failed.wait_s(address, time.monotonic())
        if wait_s:
            text = f"too many wrong tokens came from {address}: wait {wait_s:.0f} s, then send the right one"
            return problem(429, text, scope[REQUEST_ID], retry_after=str(int(wait_s) + 1))
        why = "the token is not valid, has expired, or was revoked" if is_given else "a token is needed"
        text = f"{why}: an admin makes one (`spotsupd user add`), and `spotsupctl login` keeps it"
        return problem(401, text, scope[REQUEST_ID], www_authenticate="Bearer")

    def _why_not(self, scope: Scope, asked: _Asked, caller: Caller) -> Response | None:
        if not asked.name:
            return None  # the app answers with 404, 405
        action = asked.action
        about_job = action in {Action.CHANGE, Action.LOGIN}
        why = refusal(caller, action, self._owner(asked.params) if about_job else None) if action else "it has no rule"
        return problem(403, why, scope[REQUEST_ID]) if why else None

    def _answering(self, scope: Scope, send: Send) -> Send:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [("x-request-id", scope[REQUEST_ID]), ("x-content-type-options", "nosniff"), *self._headers()]
                named = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in extra]
                message = {**message, "headers": [*message.get("headers", ()), *named]}
            await send(message)

        return answer

    def _audited(self, scope: Scope, asked: _Asked, caller: Caller, send: Send) -> Send:
        """Write the entry before the answer begins: what is acknowledged is written down."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._write(scope, asked, caller, message["status"])
            await send(message)

        return answer

    async def _write(self, scope: Scope, asked: _Asked, caller: Caller, status: int) -> None:
        if asked.action not in AUDITED:
            return
        client = scope.get("client")
        address = str(client[0]) if client and caller.token else ""
        count = 1
        if 400 <= status < 500 and not (
            count := self._users.refused.count(f"{caller.token} {asked.name}", time.monotonic())
        ):
            return
        now, request, target = self._users.now(), scope[REQUEST_ID], scope[TARGET][:64]
        entry = AuditEntry(now, request, caller.name, caller.token, address, asked.name, target, status, count)
        await run_in_threadpool(self._users.audit, entry)


def _cookies(scope: Scope) -> list[str]:
    """Return what a browser has kept."""
    texts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
    pairs = [part.strip().partition("=") for text in texts for part in text.split(";")]
    return [value for name, _, value in pairs if name == COOKIE]


def _asked(scope: Scope, routes: Sequence[BaseRoute]) -> _Asked:
    for route in routes:
        match, found = route.matches(scope)
        if match is Match.FULL:
            name = f"{scope['method']} {getattr(route, 'path', '')}"
            return _Asked(name, found.get("path_params", {}), rule_of(route))
    return _Asked("", {})


def _why_too_large(scope: Scope, asked: _Asked) -> Response | None:
    """Return why a request is too large, by its Content-Length, before any of the body is read: the server reads no
    more than that."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0").decode("latin-1")
    limit = MAX_BYTES.get(asked.name, MAX_BODY_BYTES)
    if b"transfer-encoding" not in headers and length.isdecimal() and int(length) <= limit:
        return None
    size = f"the request has {length} bytes; at most {limit} are accepted: send less"
    if asked.name in MAX_BYTES:
        size += ", list what is not code in .spotsupignore"
    if b"transfer-encoding" in headers:
        size = f"the request has no Content-Length: send one, of at most {limit} bytes"
    # Closed, because it is not clear where the next request begins.
    return problem(413, size, scope[REQUEST_ID], connection="close")


def caller_of_request(request: Request) -> Caller:
    """Return who makes a request."""
    caller = request.scope[CALLER]
    assert isinstance(caller, Caller)
    return caller


def name_target(request: Request, job: str) -> None:
    """Note what a request is about, for the audit log, where its path does not say."""
    request.scope[TARGET] = job
