"""`/v1/nodes`: the nodes of all jobs, and the end of one."""

from __future__ import annotations

from itertools import groupby

from fastapi import FastAPI, Request, Response

from supervisor.access import Action
from supervisor.api.jobs.changes import Terms
from supervisor.api.jobs.commands import Commands
from supervisor.api.jobs.presenter import Presenter
from supervisor.api.jobs.reading import Jobs
from supervisor.api.jobs.views import in_order, node_rows
from supervisor.api.pages import After, Limit, page
from supervisor.api.rows import DatedNode, NodeRow
from supervisor.api.security.gate import caller_of_request
from supervisor.api.security.rules import may


def add_nodes(app: FastAPI, jobs: Jobs, commands: Commands, presenter: Presenter) -> None:
    """Add the routes."""

    @app.get("/v1/nodes", openapi_extra=may(Action.READ))
    def nodes(request: Request, response: Response, *, after: After = "", limit: Limit = None) -> list[DatedNode]:
        nodes = [(view, node) for view in jobs.all() for node in in_order(view.nodes.values())]
        found = page(nodes, lambda each: each[1].id, after, limit, request, response)
        now = presenter.clock.now()
        by_job = groupby(found, key=lambda each: id(each[0]))
        groups = [list(group) for _, group in by_job]
        return presenter.dated(
            row for group in groups for row in node_rows(group[0][0], now, [node for _, node in group])
        )

    @app.post("/v1/nodes/{node}/drain", openapi_extra=may(Action.CHANGE))
    def drain(node: str, request: Request) -> NodeRow:
        view = commands.under(Terms(caller_of_request(request))).drain(node)
        return {row["id"]: row for row in node_rows(view, presenter.clock.now())}[node]
