"""The OpenAPI document: what FastAPI knows of the routes, and besides how to log in and what errors are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from supervisor.access import Action
from supervisor.api.problems import MEDIA_TYPE
from supervisor.api.security.rules import ACTION, may

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457. `detail` is one sentence for people.",
    "required": ["type", "title", "status", "detail", "error", "code", "request"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "error": {"type": "string", "description": "The same as `detail`."},
        "code": {"type": "integer", "description": "The exit code of spotsupctl."},
        "request": {"type": "string", "description": "The id of the request, as in `x-request-id` and the audit log."},
    },
}


def describe(app: FastAPI) -> None:
    """Complete the document of an app when it is first asked for."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = made()
        components = document.setdefault("components", {})
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        components.setdefault("schemas", {})["Problem"] = _PROBLEM
        for operations in document["paths"].values():
            for operation in operations.values():
                _complete(operation)
        return document

    @app.get("/v1/openapi.json", include_in_schema=False, openapi_extra=may(Action.READ))
    def described() -> JSONResponse:
        return JSONResponse(openapi())

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation does it


def _complete(operation: dict[str, Any]) -> None:
    problem = {
        "description": "Refused, or failed.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    responses = {code: each for code, each in operation["responses"].items() if code != "422"}
    operation["responses"] = {**responses, "default": problem}
    operation["security"] = [] if operation[ACTION] == Action.PUBLIC else [{"token": []}]
