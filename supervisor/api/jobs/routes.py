"""`/v1/jobs` and `/v1/cost`: what is read of jobs, and what changes one."""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header, Query, Request, Response

from supervisor.access import Action
from supervisor.api.body import RequestBody
from supervisor.api.jobs.changes import Scale, Terms, etag, limit_changes
from supervisor.api.jobs.commands import Commands
from supervisor.api.jobs.presenter import Presenter
from supervisor.api.jobs.reading import Jobs
from supervisor.api.jobs.report import Prices, on_demand_row
from supervisor.api.jobs.views import cost_row, deleted_row, event_row, job_detail
from supervisor.api.pages import After, Limit, page
from supervisor.api.rows import (
    BeginsRow,
    ChunkRow,
    DatedCost,
    DatedCostOfJob,
    DatedDetail,
    DatedJob,
    DeletedRow,
    EventRow,
    JobRow,
    OutputRow,
)
from supervisor.api.security.gate import caller_of_request
from supervisor.api.security.rules import may
from supervisor.planner.world import JobView
from supervisor.spec_limits import LimitChanges

# etcd's revisions have 63 bits.
MAX_POSITION = (1 << 63) - 2
# "What I saw": the ETag of a job, or several; `*` for any.
IfMatch = Annotated[str, Header(max_length=400)]
# A limit that no job can have is refused by its name, as in a job file.
LimitsBody = Annotated[dict[str, Any], Body(json_schema_extra=LimitChanges.model_json_schema())]


class ScaleBody(RequestBody):
    """What to change; None leaves a number as it is."""

    desired: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    spares: int | None = None


def add_jobs(app: FastAPI, jobs: Jobs, presenter: Presenter) -> None:
    """Add the routes that read."""

    @app.get("/v1/jobs", openapi_extra=may(Action.READ), name="jobs")
    def all_jobs(
        request: Request, response: Response, *, past: bool = False, after: After = "", limit: Limit = None
    ) -> list[DatedJob]:
        found = page(jobs.all(past=past), attrgetter("name"), after, limit, request, response)
        return presenter.dated(presenter.jobs(found))

    @app.get("/v1/jobs/{name}", openapi_extra=may(Action.READ))
    def job(name: str, response: Response) -> DatedDetail:
        view = jobs.one(name)
        response.headers["etag"] = etag(view.record)
        (row,) = presenter.dated([job_detail(view, presenter.sentence(view), presenter.clock.now())])
        found: DatedDetail = row
        return found

    @app.get("/v1/jobs/{name}/events", openapi_extra=may(Action.READ))
    def events(
        name: str, request: Request, response: Response, *, after: str = "", limit: Limit = None
    ) -> list[EventRow]:
        rows = [event_row(event) for event in jobs.events(name, after)]
        return page(rows, itemgetter("id"), "", limit, request, response)

    @app.get("/v1/jobs/{name}/logs", openapi_extra=may(Action.READ))
    def logs(name: str, node: str = "", after: Annotated[int, Query(ge=0, le=MAX_POSITION)] = 0) -> OutputRow:
        found = jobs.logs(name, node, after)
        chunks: list[ChunkRow] = [
            {"node": c.node, "chunk": c.number, "text": c.data.decode(errors="replace")} for c in found.chunks
        ]
        return {"chunks": chunks, "position": found.position, "more": found.more}

    @app.get("/v1/jobs/{name}/logs/begins", openapi_extra=may(Action.READ))
    def log_begins(name: str, since: Annotated[float, Query(allow_inf_nan=False)], node: str = "") -> BeginsRow:
        found = jobs.log_begins(name, node, since)
        return {"begins": [{"node": key, "chunk": chunk, "at": at} for key, (chunk, at) in found.items()]}


def add_cost(app: FastAPI, jobs: Jobs, presenter: Presenter, prices: Prices) -> None:
    """Add what jobs cost. `prices`: asks a job's cloud for its on-demand prices."""

    @app.get("/v1/cost", openapi_extra=may(Action.READ))
    def cost(
        request: Request, response: Response, *, past: bool = False, after: After = "", limit: Limit = None
    ) -> list[DatedCost]:
        found = page(jobs.all(past=past), attrgetter("name"), after, limit, request, response)
        now = presenter.clock.now()
        return presenter.dated(cost_row(view, now) for view in found)

    @app.get("/v1/jobs/{name}/cost", openapi_extra=may(Action.READ))
    def cost_of_job(name: str, *, on_demand: bool = False) -> list[DatedCostOfJob]:
        view = jobs.one(name)
        row, prices_now = cost_row(view, presenter.clock.now()), prices(view) if on_demand else None
        compared = on_demand_row(view, prices_now, presenter.clock.now()) if prices_now else None
        return presenter.dated([{**row, "on_demand": compared}])


def add_commands(app: FastAPI, commands: Commands, presenter: Presenter) -> None:
    """Add the routes that change a job."""

    def bound(request: Request, if_match: str = "") -> Commands:
        return commands.under(Terms(caller_of_request(request), if_match))

    def changed(view: JobView, response: Response) -> JobRow:
        response.headers["etag"] = etag(view.record)
        return presenter.job(view)

    @app.post("/v1/jobs/{name}/scale", openapi_extra=may(Action.CHANGE))
    def scale(name: str, body: ScaleBody, request: Request, response: Response, if_match: IfMatch = "") -> JobRow:
        wanted = Scale(body.desired, body.min_nodes, body.max_nodes, body.spares)
        return changed(bound(request, if_match).scale(name, wanted), response)

    @app.post("/v1/jobs/{name}/limits", openapi_extra=may(Action.CHANGE))
    def limits(name: str, body: LimitsBody, request: Request, response: Response, if_match: IfMatch = "") -> JobRow:
        return changed(bound(request, if_match).limits(name, limit_changes(body)), response)

    @app.post("/v1/jobs/{name}/cancel", openapi_extra=may(Action.CHANGE))
    def cancel(name: str, request: Request) -> JobRow:
        return presenter.job(bound(request).cancel(name))

    @app.post("/v1/jobs/{name}/delete", openapi_extra=may(Action.CHANGE))
    def delete(name: str, request: Request) -> DeletedRow:
        return deleted_row(bound(request).delete(name), presenter.clock.now())

    @app.post("/v1/jobs/{name}/pause", openapi_extra=may(Action.CHANGE))
    def pause(name: str, request: Request) -> JobRow:
        return presenter.job(bound(request).pause(name))

    @app.post("/v1/jobs/{name}/resume", openapi_extra=may(Action.CHANGE))
    def resume(name: str, request: Request) -> JobRow:
        return presenter.job(bound(request).resume(name))
