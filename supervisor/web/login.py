"""Logging in to the dashboard over HTTPS: the browser keeps the token in a cookie that no script can read.

The cookie counts for the pages only, which change nothing, and never below `/v1`: no other site can make use of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response

from supervisor.access import Action, caller_of, id_of
from supervisor.api.security.gate import COOKIE, Users
from supervisor.api.security.rules import may

MAX_TOKEN = 200
# How a request came about, as browsers say themselves; others say nothing.
_OWN = frozenset({"", "none", "same-origin"})


def add_login(app: FastAPI, users: Users, page: Callable[[str, int], Response]) -> None:
    """Add the form, and the way out. `page`: the form with a sentence that says what was wrong, and its status."""

    @app.get("/login", include_in_schema=False, openapi_extra=may(Action.PUBLIC))
    def login_form() -> Response:
        return page("", 200)

    @app.post("/login", include_in_schema=False, openapi_extra=may(Action.PUBLIC))
    async def log_in(request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "") not in _OWN:
            return page("Another site asked for this: type the token here.", 403)
        token = _token_in((await request.body()).decode("latin-1"))
        known = users.tokens().get(id_of(token))
        if caller_of(token, known, users.now()) is None or known is None:
            address = str(request.client.host) if request.client else ""
            if users.failed.wait_s(address, time.monotonic()):
                return page("Too many wrong tokens: wait a minute.", 429)
            return page("This token is not valid, has expired, or was revoked.", 401)
        left_s = max(1, int(known.expires_at - users.now()))
        return _with_cookie(Response(status_code=303, headers={"Location": "/"}), token, left_s)

    @app.post("/logout", include_in_schema=False, openapi_extra=may(Action.PUBLIC))
    def log_out() -> Response:
        return _with_cookie(Response(status_code=303, headers={"Location": "/login"}), "", 0)


def _token_in(body: str) -> str:
    """Return the form's token; "" where the body is no such form."""
    try:
        form = parse_qs(body, max_num_fields=10)
    except ValueError:
        return ""
    return form.get("token", [""])[0].strip()[:MAX_TOKEN]


def _with_cookie(response: Response, token: str, left_s: int) -> Response:
    response.set_cookie(COOKIE, token, max_age=left_s, path="/", secure=True, httponly=True, samesite="strict")
    return response
