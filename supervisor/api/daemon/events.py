"""Events of the cluster as a whole: budgets, leaders, orphans, channels; and those of all jobs beside them."""

from __future__ import annotations

from operator import itemgetter

from fastapi import FastAPI, Request, Response

from supervisor.access import Action
from supervisor.api.jobs.reading import Jobs
from supervisor.api.jobs.views import event_row
from supervisor.api.pages import After, Limit, page
from supervisor.api.rows import EventRow
from supervisor.api.security.rules import may

# Of all jobs together, the newest: each job keeps a thousand.
MAX_EVENTS = 1000


def add_events(app: FastAPI, source: Jobs) -> None:
    """Add the route."""

    @app.get("/v1/events", openapi_extra=may(Action.READ))
    def events(
        request: Request, response: Response, *, jobs: bool = False, after: After = "", limit: Limit = None
    ) -> list[EventRow]:
        rows = [event_row(each) for each in source.cluster_events(jobs=jobs)]
        return page(rows[-MAX_EVENTS:], itemgetter("id"), after, limit, request, response)
