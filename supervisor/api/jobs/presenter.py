"""How jobs are shown: with the daemon's sentence about each, as of now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.api.jobs.views import job_row
from supervisor.api.rows import JobRow
from supervisor.planner.sentences import ENDED_AS
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Status


@dataclass(frozen=True, slots=True)
class Presenter:
    """What the rows of several routes have in common."""

    status: Callable[[], Status]
    clock: Clock

    def sentence(self, view: JobView) -> str:
        """Return what is done about a job and why; of one whose name was used again, how it ended."""
        return _sentence(self.status(), view)

    def job(self, view: JobView) -> JobRow:
        """Return a job's row."""
        return job_row(view, self.sentence(view), self.clock.now())

    def jobs(self, views: Iterable[JobView]) -> list[JobRow]:
        """Return a row of each, all of the same tick."""
        status, now = self.status(), self.clock.now()
        return [job_row(view, _sentence(status, view), now) for view in views]

    def dated(self, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Return the rows with since when they may be out of date."""
        since = self.status().etcd_away_since or None
        return [{**row, "etcd_away_since": since} for row in rows]


def _sentence(status: Status, view: JobView) -> str:
    record = view.record
    return f"{ENDED_AS[record.state]}: {record.reason}" if view.past else status.about(record.name)
