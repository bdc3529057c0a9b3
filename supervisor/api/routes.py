"""The HTTP routes over `Service`. Each says what it does, and so who may use it (rules.py); every error is JSON as in
problems.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from supervisor.access import Action, AuditEntry
from supervisor.api.adoption import Adoption
from supervisor.api.audit import add_audit
from supervisor.api.changes import Scale, Terms, etag, limit_changes
from supervisor.api.described import describe
from supervisor.api.events import add_events
from supervisor.api.explain import Explainer, add_explain
from supervisor.api.gate import Gate, Users, caller_of_request, name_target
from supervisor.api.pages import After, Limit, page
from supervisor.api.problems import add_problems
from supervisor.api.queue import add_queue
from supervisor.api.quote import Quote, quote_row
from supervisor.api.recorded import add_recorded
from supervisor.api.report import OnDemand, add_report, on_demand_row, report_row
from supervisor.api.rows import (
    AdoptedRow,
    BeginsRow,
    CallerRow,
    CaRow,
    CheckedRow,
    ChunkRow,
    DatedCost,
    DatedCostOfJob,
    DatedDetail,
    DatedJob,
    DatedNode,
    DeletedRow,
    EventRow,
    HealthRow,
    JobRow,
    NodeRow,
    OutputRow,
    PlanRow,
)
from supervisor.api.rules import may
from supervisor.api.runs import add_runs
from supervisor.api.service import Service
from supervisor.api.stream import add_stream
from supervisor.api.targets import add_targets
from supervisor.api.uploads import add_uploads
from supervisor.api.views import cost_row, deleted_row, event_row, in_order, job_detail, job_row, node_rows
from supervisor.curve import Curve
from supervisor.errors import NotFoundError, UsageError
from supervisor.planner.sentences import ENDED_AS
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Status
from supervisor.spec import JobSpec
from supervisor.spec_limits import LimitChanges

# A header of a standby's responses: which daemon leads.
LEADER_HEADER = "spotsup-leader"
# A header of all responses while etcd does not answer: since when, in UNIX seconds. Rows carry it as etcd_away_since.
AWAY_HEADER = "spotsup-etcd-away-since"
# etcd's revisions have 63 bits.
MAX_POSITION = (1 << 63) - 2
MIN_SUBMISSION = 8  # characters
# "What I saw": the ETag of a job, or several; `*` for any.
IfMatch = Annotated[str, Header(max_length=400)]

# The client's own id of a submission: one that is sent again is the same job. An alias of `submission` in the body.
IdempotencyKey = Annotated[str, Header(max_length=64)]

# A limit that no job can have is refused by its name, as in a job file.
LimitsBody = Annotated[dict[str, Any], Body(json_schema_extra=LimitChanges.model_json_schema())]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CheckBody(_Body):
    """A job file's content, and the job that it resumes from."""

    spec: dict[str, Any] = Field(repr=False)
    resume_from: str = Field(default="", max_length=64)


class SubmitBody(_Body):
    """A job file's content, the archive it runs, and the client's id of this request."""

    spec: dict[str, Any] = Field(repr=False)
    code_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    # Or as the header Idempotency-Key.
    submission: str = Field(default="", pattern="^(.{8,64})?$")
    resume_from: str = Field(default="", max_length=64)


class ScaleBody(_Body):
    """What to change; None leaves a number as it is."""

    desired: int | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    spares: int | None = None


class PauseBody(_Body):
    """Why, shown by `spotsupctl daemon status`."""

    reason: str = Field(default="", max_length=200)


class AdoptBody(_Body):
    """Names of jobs whose machines are terminated instead of adopted; and clouds whose present account is right,
    although the machines in the journal were in another one."""

    release: list[str] = Field(default=[], max_length=1000)
    accounts: list[str] = Field(default=[], max_length=10)


def create_app(  # noqa: PLR0913 - the last ones by name, with defaults
    service: Service,
    status: Callable[[], Status],
    clock: Clock,
    version: str,
    adoption: Adoption | None = None,
    explainer: Explainer | None = None,
    prices: Callable[[JobView], OnDemand] = lambda _: OnDemand({}, "this daemon asks no cloud for prices"),
    *,
    users: Users | None = None,
    audit: Callable[[], list[AuditEntry]] | None = None,
    ca: Callable[[], str] = str,
    listen: Callable[[Callable[[], None]], None] = lambda _: None,
) -> FastAPI:
    """Return the API over a service. `adoption`, `explainer` and `audit` add their routes.

    `prices`: asks a job's cloud for its on-demand prices. `users`: who may use it beside those of the Unix socket.
    `ca`: of the daemon's own certificate, "" for none.
    `listen`: has a function called when the journal has changed, for readers that follow jobs.
    """
    app = FastAPI(
        title="spotsupd", version=version, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    add_problems(app)

    def owner(about: Mapping[str, Any]) -> str | None:
        return service.owner_of(about.get("name", ""), about.get("node", ""))

    def headers() -> Iterator[tuple[str, str]]:
        if service.other_leader:
            yield LEADER_HEADER, service.other_leader
        if status().etcd_away_since:
            yield AWAY_HEADER, str(status().etcd_away_since)

    users = users or Users()
    app.add_middleware(Gate, lambda: app.routes, users, owner, headers)

    def report(view: JobView, curve: Curve | None) -> dict[str, Any]:
        return report_row(view, _about(status(), view), curve, prices(view), clock.now())

    _reading_routes(app, service, status, clock, prices)
    _submitting_routes(app, service, status, clock)
    _changing_routes(app, service, status, clock)
    _daemon_routes(app, service, status, version)
    _ca_route(app, ca)

    def row(view: JobView) -> JobRow:
        return job_row(view, _about(status(), view), clock.now())

    add_stream(app, service, row, lambda view: _about(status(), view), users, listen)
    describe(app)
    add_targets(app, service.jobs)
    add_events(app, service)
    add_queue(app, service, status, clock)
    add_report(app, service, report)
    add_recorded(app, service, clock)
    add_runs(app, service, row)
    add_uploads(app, service)
    if adoption is not None:
        _adoption_route(app, adoption)
    if explainer is not None:
        add_explain(app, service, explainer)
    if audit is not None:
        add_audit(app, audit)
    return app


def _ca_route(app: FastAPI, ca: Callable[[], str]) -> None:
    @app.get("/v1/ca", openapi_extra=may(Action.PUBLIC))
    def own_ca() -> CaRow:
        if not (text := ca()):
            raise NotFoundError(
                "the certificate of this API is not the daemon's own, so its CA is not known here; "
                "ask who made api.cert, "
                "and trust that (`spotsupctl login --ca FILE`)"
            )
        return {"ca": text}


def _adoption_route(app: FastAPI, adoption: Adoption) -> None:
    @app.post("/v1/adopt", openapi_extra=may(Action.OPERATE))
    def adopt(body: AdoptBody) -> list[AdoptedRow]:
        return [
            {
                "job": each.job.name,
                "state": each.job.state,
                "text": each.event.text,
                "nodes": {node.id: node.state for node in each.nodes},
            }
            for each in adoption.adopt(body.release, body.accounts)
        ]


def _daemon_routes(app: FastAPI, service: Service, status: Callable[[], Status], version: str) -> None:
    def row() -> HealthRow:
        now, pause = status(), service.paused
        return {
            "version": version,
            "at": now.at,
            "headline": now.headline,
            "leading": service.leads,
            "leader": service.other_leader or None,
            "paused": None if pause is None else {"at": pause.at, "reason": pause.reason},
            "counters": dict(now.counters),
            "etcd_away_since": now.etcd_away_since or None,
        }

    @app.get("/v1/health", openapi_extra=may(Action.READ))
    def health() -> HealthRow:
        return row()

    @app.get("/v1/me", openapi_extra=may(Action.READ))
    def me(request: Request) -> CallerRow:
        caller = caller_of_request(request)
        return {"name": caller.name, "role": caller.role, "token": caller.token or None}

    @app.post("/v1/daemon/pause", openapi_extra=may(Action.OPERATE))
    def pause_daemons(body: PauseBody) -> HealthRow:
        service.pause_daemons(body.reason)
        return row()

    @app.post("/v1/daemon/resume", openapi_extra=may(Action.OPERATE))
    def resume_daemons() -> HealthRow:
        service.resume_daemons()
        return row()


def _reading_routes(
    app: FastAPI,
    service: Service,
    status: Callable[[], Status],
    clock: Clock,
    prices: Callable[[JobView], OnDemand],
) -> None:
    def dated(rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Return the rows with since when they may be out of date."""
        since = status().etcd_away_since or None
        return [{**row, "etcd_away_since": since} for row in rows]

    @app.get("/v1/jobs", openapi_extra=may(Action.READ))
    def jobs(
        request: Request, response: Response, *, past: bool = False, after: After = "", limit: Limit = None
    ) -> list[DatedJob]:
        found = page(service.jobs(past=past), attrgetter("name"), after, limit, request, response)
        known, now = status(), clock.now()
        return dated(job_row(view, _about(known, view), now) for view in found)

    @app.get("/v1/jobs/{name}", openapi_extra=may(Action.READ))
    def job(name: str, response: Response) -> DatedDetail:
        view = service.job(name)
        response.headers["etag"] = etag(view.record)
        (row,) = dated([job_detail(view, _about(status(), view), clock.now())])
        found: DatedDetail = row
        return found

    @app.get("/v1/jobs/{name}/events", openapi_extra=may(Action.READ))
    def events(
        name: str, request: Request, response: Response, *, after: str = "", limit: Limit = None
    ) -> list[EventRow]:
        rows = [event_row(event) for event in service.events(name, after)]
        return page(rows, itemgetter("id"), "", limit, request, response)

    @app.get("/v1/jobs/{name}/logs", openapi_extra=may(Action.READ))
    def logs(name: str, node: str = "", after: Annotated[int, Query(ge=0, le=MAX_POSITION)] = 0) -> OutputRow:
        found = service.logs(name, node, after)
        chunks: list[ChunkRow] = [
            {"node": c.node, "chunk": c.number, "text": c.data.decode(errors="replace")} for c in found.chunks
        ]
        return {"chunks": chunks, "position": found.position, "more": found.more}

    @app.get("/v1/jobs/{name}/logs/begins", openapi_extra=may(Action.READ))
    def log_begins(name: str, since: Annotated[float, Query(allow_inf_nan=False)], node: str = "") -> BeginsRow:
        found = service.log_begins(name, node, since)
        return {"begins": [{"node": key, "chunk": chunk, "at": at} for key, (chunk, at) in found.items()]}

    @app.get("/v1/cost", openapi_extra=may(Action.READ))
    def cost(
        request: Request, response: Response, *, past: bool = False, after: After = "", limit: Limit = None
    ) -> list[DatedCost]:
        found, now = page(service.jobs(past=past), attrgetter("name"), after, limit, request, response), clock.now()
        return dated(cost_row(view, now) for view in found)

    @app.get("/v1/jobs/{name}/cost", openapi_extra=may(Action.READ))
    def cost_of_job(name: str, *, on_demand: bool = False) -> list[DatedCostOfJob]:
        view = service.job(name)
        row = cost_row(view, clock.now())
        return dated([{**row, "on_demand": on_demand_row(view, prices(view), clock.now()) if on_demand else None}])

    @app.get("/v1/nodes", openapi_extra=may(Action.READ))
    def nodes(request: Request, response: Response, *, after: After = "", limit: Limit = None) -> list[DatedNode]:
        nodes = [(view, node) for view in service.jobs() for node in in_order(view.nodes.values())]
        found, now = page(nodes, lambda each: each[1].id, after, limit, request, response), clock.now()
        by_job = groupby(found, key=lambda each: id(each[0]))
        groups = [list(group) for _, group in by_job]
        return dated(row for group in groups for row in node_rows(group[0][0], now, [node for _, node in group]))


def _about(status: Status, view: JobView) -> str:
    record = view.record
    return f"{ENDED_AS[record.state]}: {record.reason}" if view.past else status.about(record.name)


def _submitting_routes(app: FastAPI, service: Service, status: Callable[[], Status], clock: Clock) -> None:
    def row(view: JobView) -> JobRow:
        return job_row(view, status().about(view.record.name), clock.now())

    @app.post("/v1/check", openapi_extra=may(Action.PLAN))
    def check(body: CheckBody, request: Request) -> CheckedRow:
        caller = caller_of_request(request)
        found = service.under(Terms(caller)).check(body.spec, body.resume_from, caller.name)
        quoted = planned(found.spec, found.quote) if found.quote else None
        return {"name": found.spec.name, "warnings": quoted["warnings"] if quoted else [], "plan": quoted}

    def planned(spec: JobSpec, quote: Quote) -> PlanRow:
        return {**quote_row(quote), "rented": service.submissions.is_rented(spec)}

    @app.post("/v1/plan", openapi_extra=may(Action.PLAN))
    def plan(body: CheckBody) -> PlanRow:
        return planned(*service.submissions.plan(body.spec))

    @app.post("/v1/jobs", openapi_extra=may(Action.SUBMIT))
    def submit(body: SubmitBody, request: Request, idempotency_key: IdempotencyKey = "") -> JobRow:
        caller, submission = caller_of_request(request), submission_of(body.submission, idempotency_key)
        name_target(request, str(body.spec.get("name", "")))
        bound = service.under(Terms(caller))
        return row(bound.submit(body.spec, body.code_sha256, submission, body.resume_from, caller.name))


def submission_of(body: str, header: str) -> str:
    """Return the client's id of a submission. Raises UsageError without one, or with two."""
    if body and header and body != header:
        raise UsageError("`submission` and the header Idempotency-Key differ: send one of them, or the same twice")
    if len(found := body or header) < MIN_SUBMISSION:
        raise UsageError(
            f"the submission has no id of the client's own: send `submission`, or the header Idempotency-Key, with "
            f"{MIN_SUBMISSION} to 64 characters, and the same ones when you send it again"
        )
    return found


def _changing_routes(app: FastAPI, service: Service, status: Callable[[], Status], clock: Clock) -> None:
    def row(view: JobView) -> JobRow:
        return job_row(view, status().about(view.record.name), clock.now())

    def bound(request: Request, if_match: str = "") -> Service:
        return service.under(Terms(caller_of_request(request), if_match))

    def changed(view: JobView, response: Response) -> JobRow:
        response.headers["etag"] = etag(view.record)
        return row(view)

    @app.post("/v1/jobs/{name}/scale", openapi_extra=may(Action.CHANGE))
    def scale(name: str, body: ScaleBody, request: Request, response: Response, if_match: IfMatch = "") -> JobRow:
        wanted = Scale(body.desired, body.min_nodes, body.max_nodes, body.spares)
        return changed(bound(request, if_match).scale(name, wanted), response)

    @app.post("/v1/jobs/{name}/limits", openapi_extra=may(Action.CHANGE))
    def limits(name: str, body: LimitsBody, request: Request, response: Response, if_match: IfMatch = "") -> JobRow:
        return changed(bound(request, if_match).limits(name, limit_changes(body)), response)

    @app.post("/v1/jobs/{name}/cancel", openapi_extra=may(Action.CHANGE))
    def cancel(name: str, request: Request) -> JobRow:
        return row(bound(request).cancel(name))

    @app.post("/v1/jobs/{name}/delete", openapi_extra=may(Action.CHANGE))
    def delete(name: str, request: Request) -> DeletedRow:
        return deleted_row(bound(request).delete(name), clock.now())

    @app.post("/v1/jobs/{name}/pause", openapi_extra=may(Action.CHANGE))
    def pause(name: str, request: Request) -> JobRow:
        return row(bound(request).pause(name))

    @app.post("/v1/jobs/{name}/resume", openapi_extra=may(Action.CHANGE))
    def resume(name: str, request: Request) -> JobRow:
        return row(bound(request).resume(name))

    @app.post("/v1/nodes/{node}/drain", openapi_extra=may(Action.CHANGE))
    def drain(node: str, request: Request) -> NodeRow:
        view = bound(request).drain(node)
        return {row["id"]: row for row in node_rows(view, clock.now())}[node]
