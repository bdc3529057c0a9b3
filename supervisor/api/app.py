"""The HTTP API: the routes of all resources over `Service`, behind the gate. Each says what it does, and so who may use
it (security/rules.py); every error is JSON as in problems.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from supervisor.access import AuditEntry
from supervisor.api.daemon.adoption import Adoption
from supervisor.api.daemon.events import add_events
from supervisor.api.daemon.routes import add_adoption, add_ca, add_daemons
from supervisor.api.described import describe
from supervisor.api.jobs.presenter import Presenter
from supervisor.api.jobs.queue import add_queue
from supervisor.api.jobs.report import OnDemand, Prices, add_report
from supervisor.api.jobs.routes import add_commands, add_cost, add_jobs
from supervisor.api.jobs.runs import add_runs
from supervisor.api.nodes.routes import add_nodes
from supervisor.api.nodes.targets import add_targets
from supervisor.api.problems import add_problems
from supervisor.api.security.audit import add_audit
from supervisor.api.security.gate import Gate, Users
from supervisor.api.service import Service
from supervisor.api.stream import add_stream
from supervisor.api.submit.explain import Explainer, add_explain
from supervisor.api.submit.recorded import add_recorded
from supervisor.api.submit.routes import add_submissions
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Status

# A header of a standby's responses: which daemon leads.
LEADER_HEADER = "spotsup-leader"
# A header of all responses while etcd does not answer: since when, in UNIX seconds. Rows carry it as etcd_away_since.
AWAY_HEADER = "spotsup-etcd-away-since"


def create_app(  # noqa: PLR0913 - the last ones by name, with defaults
    service: Service,
    status: Callable[[], Status],
    clock: Clock,
    version: str,
    adoption: Adoption | None = None,
    explainer: Explainer | None = None,
    prices: Prices = lambda _: OnDemand({}, "this daemon asks no cloud for prices"),
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
    jobs, presenter, users = service.jobs, Presenter(status, clock), users or Users()

    def owner(about: Mapping[str, Any]) -> str | None:
        return jobs.owner_of(about.get("name", ""), about.get("node", ""))

    def headers() -> Iterator[tuple[str, str]]:
        if service.daemons.other_leader:
            yield LEADER_HEADER, service.daemons.other_leader
        if status().etcd_away_since:
            yield AWAY_HEADER, str(status().etcd_away_since)

    add_problems(app)
    app.add_middleware(Gate, routes=lambda: app.routes, users=users, owner=owner, headers=headers)
    add_jobs(app, jobs, presenter)
    add_cost(app, jobs, presenter, prices)
    add_nodes(app, jobs, service.commands, presenter)
    add_submissions(app, service.submissions, service.job_files, presenter)
    add_commands(app, service.commands, presenter)
    add_daemons(app, service.daemons, status, version)
    add_ca(app, ca)
    add_stream(app, jobs, presenter.job, presenter.sentence, users, listen)
    describe(app)
    add_targets(app, jobs.all)
    add_events(app, jobs)
    add_queue(app, jobs, presenter)
    add_report(app, jobs, presenter, prices)
    add_recorded(app, service.job_files, clock)
    add_runs(app, jobs, presenter)
    if adoption is not None:
        add_adoption(app, adoption)
    if explainer is not None:
        add_explain(app, service.job_files, explainer)
    if audit is not None:
        add_audit(app, audit)
    return app
