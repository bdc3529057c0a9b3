"""`/metrics`, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Response

from supervisor.access import Action
from supervisor.api.security.rules import may
from supervisor.metrics.export import CONTENT_TYPE


def metrics_app(text: Callable[[], bytes]) -> FastAPI:
    """Only the metrics: for a port that users other than the daemon's can reach."""
    app = FastAPI(title="spotsupd", docs_url=None, redoc_url=None, openapi_url=None)
    add_metrics(app, text)
    return app


def add_metrics(app: FastAPI, text: Callable[[], bytes]) -> None:
    """Add the route."""

    described: dict[int | str, dict[str, Any]] = {200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}}

    @app.get("/metrics", response_class=Response, responses=described, openapi_extra=may(Action.READ))
    def _metrics() -> Response:
        return Response(text(), media_type=CONTENT_TYPE)
