"""What the metrics are made from: frozen data of one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from supervisor.budget import Budgets
from supervisor.journal.journal import Reading
from supervisor.planner.world import JobView
from supervisor.runtime.loop import Status
from supervisor.runtime.supervision import PartHealth

# `job` and `instance` are Prometheus' own: it would rename ours.
JOB_LABEL = "spotsup_job"
# Of so many jobs that have not ended each has its own samples: the newest ones.
MAX_JOBS = 500


@dataclass(frozen=True, slots=True)
class Picture:
    """The daemon at one moment."""

    now: float  # UNIX seconds
    version: str
    reading: Reading
    status: Status
    leading: bool
    parts: Mapping[str, PartHealth] = field(default_factory=lambda: MappingProxyType({}))  # by name of the part
    budgets: Budgets = field(default_factory=Budgets)
    # By kind of action, for how long the oldest has waited for a thread, in seconds.
    waits_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def live_jobs(self) -> list[JobView]:
        """Return the jobs that have samples of their own: none that has ended, and at most MAX_JOBS."""
        live = [view for view in self.reading.jobs.values() if not view.record.ended]
        return sorted(live, key=lambda view: (-view.record.submitted_at, view.name))[:MAX_JOBS]
