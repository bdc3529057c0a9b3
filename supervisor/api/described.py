"""The OpenAPI document: what FastAPI knows of the routes, and besides how to log in and what errors are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from supervisor.access import Action
from supervisor.api.problems import MEDIA_TYPE
from supervisor.api.rules import RULES

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
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _complete(operation, RULES.get(f"{method.upper()} {path}"))
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation does it


def _complete(operation: dict[str, Any], action: Action | None) -> None:
    problem = {
        "description": "Refused, or failed.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    responses = {code: each for code, each in operation["responses"].items() if code != "422"}
    operation["responses"] = {**responses, "default": problem}
    operation["security"] = [] if action is Action.PUBLIC else [{"token": []}]
    operation["x-spotsup-action"] = str(action)
