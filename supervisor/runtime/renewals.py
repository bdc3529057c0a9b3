"""Jobs with a schedule: when a run has ended, and no machine of it is left, the job is submitted again."""

from __future__ import annotations

from dataclasses import replace

from supervisor.deadlines import finish_by_at
from supervisor.errors import SpotsupError
from supervisor.events import EventKind
from supervisor.journal.journal import Journal
from supervisor.model import Event, JobRecord, NodeState
from supervisor.new_job import new_job
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock
from supervisor.starting_time import moment, starts_at


def renewed(view: JobView, now: float) -> tuple[JobRecord, Event] | None:
    """Return the job's next run, and the event that says so; None while there is to be none."""
    old = view.record
    over = all(node.state in {NodeState.GONE, NodeState.WARM} for node in view.nodes.values())
    if not (old.ended and old.is_renewed and over):
        return None
    job = new_job(old.spec, old.code_sha256, f"{old.task_id} again at {now}", now)
    begins = starts_at("", old.spec.schedule, now)
    finish_by = finish_by_at(old.spec.finish_by, old.spec.work, begins, now)
    job = replace(
        job,
        owner=old.owner,
        run=old.run + 1,
        starts_at=begins,
        next_event=2,
        deadline=replace(job.deadline, finish_by=finish_by),
    )
    text = f"{job.name} is submitted again by its schedule; it begins at {moment(job.starts_at)}"
    return job, Event(f"{job.task_id}-000001", now, job.name, EventKind.SUBMITTED, text)


class Renewals:
    """A task of housekeeping."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock

    def run(self) -> str:
        """Submit again all jobs whose run is over; says which. Raises SpotsupError, with what was done first."""
        done, problems = [], []
        for view in self._journal.read().jobs.values():
            found = renewed(view, self._clock.now())
            if found is None:
                continue
            job, event = found
            try:
                code = self._journal.find_blob(job.code_sha256)
                if code is None:
                    problems.append(f"the code of {job.name} is no longer stored: cancel it, and submit it again")
                elif self._journal.create_job(job, event, view, code):
                    done.append(job.name)
            except SpotsupError as error:
                problems.append(f"{job.name} is not submitted again yet: {error}")
        if problems:
            raise SpotsupError("; ".join(problems))
        return f"submitted again: {', '.join(done)}" if done else ""
