"""The queue as plain JSON: jobs that wait, what they need, why they do not train, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter

from fastapi import FastAPI, Request, Response
from typing_extensions import TypedDict  # pydantic takes that of typing from Python 3.12 on

from supervisor.access import Action
from supervisor.api.jobs.presenter import Presenter
from supervisor.api.jobs.reading import Jobs
from supervisor.api.pages import After, Limit, page
from supervisor.api.security.rules import may
from supervisor.features.limits.rule import LIFTED
from supervisor.features.queue.rule import PRIORITY, displaced
from supervisor.market.admission import Admission
from supervisor.model import COUNTED_NODE_STATES, JobState
from supervisor.planner.world import JobView
from supervisor.starting_time import moment

WAITING_STATES = frozenset({JobState.QUEUED, JobState.STARTING, JobState.WAITING})


class QueueRow(TypedDict):
    """A job that waits. `place`: None for one that is let start."""

    place: int | None
    job: str
    owner: str
    priority: int
    state: JobState
    nodes: int
    gpus: int
    gpu: str
    alternatives: list[str]
    reason: str
    starts_when: str
    submitted_at: float
    waiting_s: float


def add_queue(app: FastAPI, jobs: Jobs, presenter: Presenter) -> None:
    """Add the route."""

    @app.get("/v1/queue", openapi_extra=may(Action.READ))
    def queue(request: Request, response: Response, *, after: After = "", limit: Limit = None) -> list[QueueRow]:
        now = presenter.status()
        rows = queue_rows(jobs.all(), now.admissions, now.about, presenter.clock.now())
        return page(rows, itemgetter("job"), after, limit, request, response)


def queue_rows(
    jobs: Iterable[JobView], admissions: Mapping[str, Admission], about: Callable[[str], str], now: float
) -> list[QueueRow]:
    """Return one row per job that waits, in the order of the queue; first those that are let start, and have no place
    in it.

    `about`: what the daemon does for a job.
    """
    waiting = [view for view in jobs if waits(view)]
    rows = [_row(view, admissions.get(view.record.name), about, now) for view in waiting]
    return sorted(rows, key=lambda row: (row["place"] or 0, -row["priority"], row["submitted_at"], row["job"]))


def waits(view: JobView) -> bool:
    """True if it is in the queue: it wants to train, and does not."""
    job = view.record
    waits_paused = job.pause.by == PRIORITY or job.pause.by in LIFTED
    return job.state in WAITING_STATES or (job.state is JobState.PAUSED and waits_paused)


def _row(view: JobView, admission: Admission | None, about: Callable[[str], str], now: float) -> QueueRow:
    job, spec = view.record, view.record.spec
    has = next((node.offer for node in view.nodes.values() if node.state in COUNTED_NODE_STATES), None)
    resources = spec.resources_of(has)
    gpu = resources.gpu if has or not spec.kinds else " or ".join(dict.fromkeys(each.gpu for each in spec.resources))
    reason, starts_when = about(job.name), f"{job.spec.placement.cloud} grants its nodes, which are asked for already"
    if now < job.starts_at:
        reason = starts_when = f"it begins at {moment(job.starts_at)}"
    if job.pause.by == PRIORITY:
        reason, starts_when = displaced(job.queue.displaced_by), f"{job.queue.displaced_by} has ended, or needs less"
    elif job.pause.by in LIFTED:
        starts_when = "the next month begins (UTC), or the budget is raised"
    if admission is not None and admission.place:
        reason, starts_when = admission.reason, admission.starts_when
    return {
        "place": admission.place if admission is not None and admission.place else None,
        "job": job.name,
        "owner": job.owner,
        "priority": job.spec.priority,
        "state": job.state,
        "nodes": job.min_nodes,
        "gpus": job.min_nodes * resources.gpus_per_node,
        "gpu": gpu,
        "alternatives": list(spec.kinds),
        "reason": reason,
        "starts_when": starts_when,
        "submitted_at": job.submitted_at,
        "waiting_s": round(max(0.0, now - job.state_since), 1),
    }
