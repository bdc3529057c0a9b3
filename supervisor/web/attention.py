"""What people should look at now, the worst first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supervisor.model import JobState, NodeState
from supervisor.planner.world import JobView
from supervisor.runtime.loop import Status
from supervisor.web.formats import duration

MAX_SHOWN = 12
WAITING_S = 300.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One of them."""

    level: str  # bad, near
    job: str  # "" for the cluster
    text: str


def findings(views: Sequence[JobView], status: Status, now: float) -> list[Finding]:
    """Return the findings of the daemon and of all jobs; how many more there are is said."""
    found = [*_of_the_daemon(status, now), *(each for view in views for each in _of_a_job(view, now))]
    found.sort(key=lambda each: (each.level != "bad", each.job != ""))
    return found


def _of_the_daemon(status: Status, now: float) -> Iterator[Finding]:
    if status.etcd_away_since:
        since = duration(now - status.etcd_away_since)
        yield Finding("bad", "", f"etcd has not answered for {since}: nothing is decided; training goes on")
    for warning in status.headline.split("; ")[1:]:
        yield Finding("near", "", warning)


def _of_a_job(view: JobView, now: float) -> Iterator[Finding]:
    job, progress = view.record, view.progress
    if job.ended:
        if job.state is JobState.FAILED and now - job.ended_at < 86400:
            yield Finding("bad", view.name, f"failed: {job.reason}")
        return
    problem = (progress.checkpoint_problem if progress else "") or job.checkpoints.problem
    if job.hang.since:
        yield Finding("bad", view.name, f"its steps have hung for {duration(now - job.hang.since)}")
    if problem:
        yield Finding("bad", view.name, f"checkpoints are not being written: {problem}")
    if job.state is JobState.WAITING and now - job.state_since > WAITING_S:
        yield Finding("bad", view.name, f"has had too few nodes to train for {duration(now - job.state_since)}")
    if job.state is JobState.PAUSED and job.pause.by:
        yield Finding("near", view.name, f"is paused: {job.reason}")
    if job.bootstraps.failures:
        count = f"{job.bootstraps.failures} node{'s' if job.bootstraps.failures > 1 else ''}"
        yield Finding("near", view.name, f"{count} in a row could not be prepared")
    for node in view.nodes.values():
        if node.slow.at and node.state is NodeState.MEMBER:
            yield Finding("near", view.name, f"all others wait for {node.id}: {node.slow.factor:.1f} times as long")
    silent = sum(node.state is NodeState.SUSPECT for node in view.nodes.values())
    if silent:
        yield Finding("near", view.name, f"{silent} node{'s are' if silent > 1 else ' is'} silent")
    doomed = sum(node.notice is not None and node.state is NodeState.MEMBER for node in view.nodes.values())
    if doomed:
        yield Finding("near", view.name, f"{doomed} node{'s' if doomed > 1 else ''} will be preempted")
