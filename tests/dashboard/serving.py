"""A made-up cluster's dashboard on a port of the loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from supervisor.api.serving import ApiServer, bind_address
from supervisor.web.routes import add_dashboard
from tests.dashboard.clusters import Cluster


@contextmanager
def serving(cluster: Cluster) -> Iterator[str]:
    """Its address."""
    app = FastAPI(openapi_url=None)
    add_dashboard(app, cluster.source())
    listening = bind_address("127.0.0.1:0")
    server = ApiServer(app, listening)
    server.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.stop()
