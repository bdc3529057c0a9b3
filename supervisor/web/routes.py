"""The dashboard's routes: read-only pages of HTML, and their few files. Nothing is loaded from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response

from supervisor.access import Action
from supervisor.api.security.gate import COOKIE, Users
from supervisor.api.security.rules import may
from supervisor.errors import NotFoundError, SpotsupError
from supervisor.web.login import add_login
from supervisor.web.pages import Pages
from supervisor.web.source import Source

STATIC = Path(__file__).parent / "static"
TYPES = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
MAX_NAME = 200
Name = Annotated[str, Query(max_length=MAX_NAME)]


def add_dashboard(app: FastAPI, source: Source, users: Users | None = None) -> None:
    """Add the pages under `/`. The API's own routes stay below `/v1`. `users`: may log in, over HTTPS."""
    files = {name: (STATIC / name).read_bytes() for name in TYPES}
    # The address changes with the content, so that browsers may keep it.
    assets = {name: f"/static/{hashlib.sha256(data).hexdigest()[:12]}/{name}" for name, data in files.items()}
    # By whether a reader has logged in with a token, and so may log out.
    pages = {each: Pages(source, assets, can_log_out=each) for each in (False, True)}

    def html(request: Request, make: Callable[[Pages], str]) -> Response:
        code, own = 200, pages[COOKIE in request.cookies]
        try:
            text = make(own)
        except SpotsupError as error:
            code = 404 if isinstance(error, NotFoundError) else 503
            text = own.error(code, str(error))
        return page(text, code)

    def page(text: str, code: int) -> Response:
        return Response(text, code, {**HEADERS, "Cache-Control": "no-store"}, "text/html; charset=utf-8")

    add_login(app, users or Users(), lambda problem, code: page(pages[False].login(problem), code))

    @app.get("/", include_in_schema=False, openapi_extra=may(Action.READ, page=True))
    def overview(request: Request) -> Response:
        return html(request, Pages.overview)

    @app.get("/fleet", include_in_schema=False, openapi_extra=may(Action.READ, page=True))
    def fleet(request: Request) -> Response:
        return html(request, Pages.fleet)

    @app.get("/queue", include_in_schema=False, openapi_extra=may(Action.READ, page=True))
    def queue(request: Request) -> Response:
        return html(request, Pages.queue)

    @app.get("/money", include_in_schema=False, openapi_extra=may(Action.READ, page=True))
    def money(request: Request) -> Response:
        return html(request, Pages.money)

    @app.get("/jobs/{name}", include_in_schema=False, openapi_extra=may(Action.READ, page=True))
    def job(request: Request, name: str, window: Name = "") -> Response:
        return html(request, lambda own: own.job(name, window))

    @app.get("/jobs/{name}/logs", include_in_schema=False, openapi_extra=may(Action.READ, page=True))
    def logs(request: Request, name: str, node: Name = "") -> Response:
        return html(request, lambda own: own.logs(name, node))

    @app.get("/static/{version}/{name}", include_in_schema=False, openapi_extra=may(Action.PUBLIC))
    def static(version: str, name: str) -> Response:
        if assets.get(name) != f"/static/{version}/{name}":
            return Response(status_code=404, headers=HEADERS)
        headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
        return Response(files[name], 200, headers, TYPES[name])
