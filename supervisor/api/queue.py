"""The jobs that wait, as plain JSON: who waits since when, what each needs at least, and why it does not train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import FastAPI

from supervisor.api.service import Service
from supervisor.model import JobState
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Status

WAITING_STATES = frozenset({JobState.QUEUED, JobState.STARTING, JobState.WAITING})


def add_queue(app: FastAPI, service: Service, status: Callable[[], Status], clock: Clock) -> None:
    """The route."""

    @app.get("/v1/queue")
    def queue() -> list[dict[str, Any]]:
        return queue_rows(service.jobs(), status().about, clock.now())


def queue_rows(jobs: Iterable[JobView], about: Callable[[str], str], now: float) -> list[dict[str, Any]]:
    """One row per job that wants to train and does not, the oldest first. `about`: what the daemon does for a job."""
    waiting = [view for view in jobs if view.record.state in WAITING_STATES]
    return [
        _row(view, about(view.record.name), now)
        for view in sorted(waiting, key=lambda view: (view.record.submitted_at, view.record.name))
    ]


def _row(view: JobView, reason: str, now: float) -> dict[str, Any]:
    job, resources = view.record, view.record.spec.resources
    return {
        "job": job.name,
        "owner": job.owner,
        "state": job.state,
        "nodes": job.min_nodes,
        "gpus": job.min_nodes * resources.gpus_per_node,
        "gpu": resources.gpu,
        "reason": reason,
        "submitted_at": job.submitted_at,
        "waiting_s": round(max(0.0, now - job.state_since), 1),
    }
