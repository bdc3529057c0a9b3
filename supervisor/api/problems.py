"""Errors as JSON: RFC 9457, and besides the sentence and the exit code that `spotsupctl` ends with."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from supervisor.errors import (
    BusyError,
    CommandRefusedError,
    ForbiddenError,
    JournalFullError,
    JournalUnavailableError,
    NotFoundError,
    PreconditionError,
    SpotsupError,
    UsageError,
)
from supervisor.removed import INSTEAD

HTTP_STATUS: dict[type[SpotsupError], int] = {
    UsageError: 422,
    NotFoundError: 404,
    ForbiddenError: 403,
    PreconditionError: 412,
    CommandRefusedError: 409,
    JournalUnavailableError: 503,
    BusyError: 503,
    JournalFullError: 507,
}
MEDIA_TYPE = "application/problem+json"
# In a request's scope: its id, and who makes it.
REQUEST_ID, CALLER, TARGET = "spotsup.request", "spotsup.caller", "spotsup.target"
_DOCUMENT = "GET /v1/openapi.json"
_EXIT_CODES = {400: 2, 401: 5, 403: 5, 404: 4, 405: 2, 413: 2, 422: 2, 429: 5}


def problem(status: int, sentence: str, request: str, code: int | None = None, **headers: str) -> JSONResponse:
    """Return the answer to a request that failed. `code`: the exit code of a command that made it."""
    row: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": sentence,
        "error": sentence,
        "code": _EXIT_CODES.get(status, 1) if code is None else code,
        "request": request,
    }
    return JSONResponse(row, status, {name.replace("_", "-"): value for name, value in headers.items()}, MEDIA_TYPE)


def add_problems(app: FastAPI) -> None:
    """Make a problem of every error of an app."""

    @app.exception_handler(SpotsupError)
    def _spotsup_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, SpotsupError)
        return problem(HTTP_STATUS.get(type(error), 500), str(error), _id(request), error.exit_code)

    @app.exception_handler(RequestValidationError)
    def _bad_request(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        what = INSTEAD.get(str(first["loc"][-1]), f"{_DOCUMENT} says what it takes")
        return problem(422, f"the request is wrong at {where}: {first['msg']}; {what}", _id(request))

    @app.exception_handler(HTTPException)
    def _no_route(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        named = f"{request.method} {request.url.path}"[:200]
        text = (
            f"the API has no {named}; {_DOCUMENT} lists what it has"
            if error.status_code in (404, 405)
            else str(error.detail)
        )
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers = {"Allow": ", ".join(sorted(_methods(request)))}
        return problem(error.status_code, text, _id(request), None, **headers)

    @app.exception_handler(Exception)
    def _fault(request: Request, _: Exception) -> JSONResponse:
        text = (
            f"a fault in spotsupd: its log has it (`journalctl -u spotsupd`), request {_id(request)}; please report it"
        )
        return problem(500, text, _id(request))


def _methods(request: Request) -> set[str]:
    """Return what may be asked of a path. Starlette names those of its first route only."""
    routes = [each for each in request.app.routes if each.matches(request.scope)[0] is not Match.NONE]
    return {method for route in routes for method in getattr(route, "methods", None) or ()}


def _id(request: Request) -> str:
    return str(request.scope.get(REQUEST_ID, ""))
