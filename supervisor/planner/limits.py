"""Limits of hours and dollars: how much is used, when people are warned, and when the job pauses.

A limit destroys nothing: the job checkpoints and pauses as if a user had asked for it, until the limit is raised.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.model import EventKind, JobRecord, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import in_round
from supervisor.planner.queue import PRIORITY, displaced
from supervisor.planner.silence import advances, kept

N = NodeState
WARN_AT = 0.8  # of a limit
PAUSED_BY_USER = "a user paused it"


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a limit is used."""

    name: str  # as in the job file
    used: float
    limit: float

    @property
    def reached(self) -> bool:
        """Whether nothing is left."""
        return self.used >= self.limit

    @property
    def near(self) -> bool:
        """Whether little is left."""
        return self.used >= WARN_AT * self.limit

    def remedy(self, job: str) -> str:
        """The command that allows half as much again."""
        more = float(f"{1.5 * max(self.used, self.limit):.2g}")
        return f"`spotsupctl limits {job} --{self.name} {more:g}`"

    def reason(self, job: str) -> str:
        """Why the job is paused, and what to do."""
        return f"limits.{self.name} {self.limit:g} reached; {self.remedy(job)} goes on"


def trained_s(job: JobRecord, now: float) -> float:
    """For how long the job has trained: time without enough nodes does not count."""
    return job.trained_s + (max(0.0, now - job.training_since) if job.training_since else 0.0)


def spent_usd(job: JobRecord, nodes: Iterable[NodeRecord], now: float) -> float:
    """What the job has cost so far."""
    return job.dropped_nodes_usd + sum(node.usd(now) for node in nodes)


def uses(job: JobRecord, nodes: Iterable[NodeRecord], now: float) -> list[Use]:
    """Of each limit that pauses the job."""
    limits = job.spec.limits
    used = (
        ("hours", trained_s(job, now) / 3600, limits.hours),
        ("usd", spent_usd(job, nodes, now), limits.usd),
    )
    return [Use(name, amount, limit) for name, amount, limit in used if limit is not None]


def reached(job: JobRecord, nodes: Iterable[NodeRecord], now: float) -> Use | None:
    """A limit that is reached."""
    return next((use for use in uses(job, nodes, now) if use.reached), None)


def pause_reason(job: JobRecord, nodes: Iterable[NodeRecord], now: float) -> str:
    """Why a job that is to pause does so."""
    if job.limit_reached == PRIORITY:
        return displaced(job.displaced_by)
    of_limit = [use for use in uses(job, nodes, now) if use.name == job.limit_reached]
    return of_limit[0].reason(job.name) if of_limit else PAUSED_BY_USER


def drive_limits(draft: Draft) -> None:
    """Count the time of training; warn when a limit is near, and pause the job when it is reached."""
    _count_training(draft)
    job = draft.job
    if job.ended or job.pause_requested_at:
        return
    found = uses(job, draft.nodes.values(), draft.now)
    for use in found:
        if use.near and not use.reached and use.name not in job.limits_warned:
            text = f"{job.name} used {use.used:.3g} of limits.{use.name} {use.limit:g}, and pauses when that is reached"
            draft.add_event(EventKind.LIMIT_NEAR, f"{text}; {use.remedy(job.name)} raises it", limit=use.name)
    draft.set_job(limits_warned=tuple(use.name for use in found if use.near))
    over = next((use for use in found if use.reached), None)
    if over is not None:
        draft.set_job(pause_requested_at=draft.now, limit_reached=over.name)
        text = f"{job.name} checkpoints and pauses: {over.reason(job.name)}"
        draft.add_event(EventKind.LIMIT_REACHED, text, limit=over.name)


def _count_training(draft: Draft) -> None:
    since, training = draft.job.training_since, _is_training(draft)
    if training and not since:
        draft.set_job(training_since=draft.now)
    elif since and not training:
        until, progress = draft.now, draft.view.progress
        if progress is not None and since < draft.timers_paused_until:
            # No daemon watched a part of this stretch: it lasted until the last step that was made.
            until = min(until, max(since, progress.at))
        draft.set_job(trained_s=draft.job.trained_s + max(0.0, until - since), training_since=0.0)


def _is_training(draft: Draft) -> bool:
    """Whether a round has enough nodes. A silent one counts while its suspicion runs out, for it may train; one that is
    kept for longer only if its steps advance."""
    unseen = {node.id for node in kept(draft) if not advances(draft, node)}
    inside = [node for node in draft.in_states(N.MEMBER, N.SUSPECT, N.DRAINING) if in_round(draft, node)]
    inside = [node for node in inside if node.id not in unseen]
    return not draft.job.ended and len(inside) >= draft.job.min_nodes
