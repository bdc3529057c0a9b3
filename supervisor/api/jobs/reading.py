"""Jobs, their nodes, events and output, as any daemon has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from supervisor.api.jobs.changes import alternatives
from supervisor.api.jobs.views import in_order
from supervisor.curve import Curve
from supervisor.errors import CommandRefusedError, NotFoundError
from supervisor.journal.journal import Reading
from supervisor.journal.output import Output
from supervisor.journal.past import view_of
from supervisor.model import Event, JobRecord, NodeRecord, PastRun
from supervisor.planner.world import JobView

MAX_RUN_DIGITS = 6  # of the number in `name.1`


class ReadOnlyJournal(Protocol):
    """What reads of `journal.Journal`."""

    def read(self) -> Reading: ...
    def past_runs(self) -> list[PastRun]: ...
    def past_run(self, job: str, run: int) -> PastRun | None: ...
    def events(self, job: str, after: str = "", task_id: str = "") -> list[Event]: ...
    def logs(self, job: str, nodes: str = "", after: int = 0) -> Output: ...
    def log_begins(self, job: str, nodes: str, since: float) -> Mapping[str, tuple[str, int]]: ...


@dataclass(frozen=True, slots=True)
class Jobs:
    """What is read of jobs. `curve_of`: a job's training curve."""

    journal: ReadOnlyJournal
    curve_of: Callable[[JobRecord], Curve | None]

    def all(self, *, past: bool = False) -> list[JobView]:
        """Return all jobs, newest first; with `past`, also those whose names were used again, unless etcd is away: only
        it has these."""
        reading = self.journal.read()
        found = [*reading.jobs.values(), *(map(view_of, self.journal.past_runs()) if past and reading.live else ())]
        return sorted(found, key=lambda job: job.record.submitted_at, reverse=True)

    def one(self, name: str) -> JobView:
        """Return one job; `name.1` is the first of that name, once the name was used again. Raises NotFoundError."""
        reading = self.journal.read()
        jobs = reading.jobs
        first, _, run = name.rpartition(".")
        if first and run.isdecimal() and len(run) <= MAX_RUN_DIGITS:
            past = self.journal.past_run(first, int(run))
            if past is None:
                raise NotFoundError(f"no run is kept as {name}; `spotsupctl list --all` shows those that are")
            return view_of(past)
        if name in reading.refused:
            raise CommandRefusedError(f"job {name} is left alone: {reading.refused[name]}")
        if name not in jobs:
            raise NotFoundError(f"no job is named {name!r}; {alternatives(name, sorted(jobs), 'jobs')}")
        return jobs[name]

    def find(self, name: str) -> JobView | None:
        """Return one job; None where the name is free. Raises CommandRefusedError for one that is left alone."""
        reading = self.journal.read()
        return self.one(name) if name in {*reading.jobs, *reading.refused} else None

    def known(self, name: str) -> JobView | None:
        """Return one job as the mirror has it, the same object while it does not change; None for any other. Never
        blocks."""
        return self.journal.read().jobs.get(name)

    def owner_of(self, name: str = "", node: str = "") -> str | None:
        """Return the owner of a job, or of a node's job; None for an unknown one. Never blocks."""
        jobs = self.journal.read().jobs
        view = jobs.get(name) if name else next((each for each in jobs.values() if node in each.nodes), None)
        return None if view is None else view.record.owner

    def of_node(self, node: str) -> JobView:
        """Return the job that a node belongs to. Raises NotFoundError."""
        view = next((view for view in self.journal.read().jobs.values() if node in view.nodes), None)
        if view is None:
            raise NotFoundError(f"no node is named {node!r}; `spotsupctl nodes --all` lists all nodes")
        return view

    def node(self, node: str) -> NodeRecord:
        """Return one node. Raises NotFoundError."""
        return self.of_node(node).nodes[node]

    def events(self, name: str, after: str) -> list[Event]:
        """Return a job's events since the one with id `after`."""
        job = self.one(name).record
        return self.journal.events(job.name, after, job.task_id)

    def cluster_events(self, *, jobs: bool = False) -> list[Event]:
        """Return the events of no job, oldest first; with `jobs`, also those of all jobs."""
        names = ["", *(self.journal.read().jobs if jobs else ())]
        found = [event for name in names for event in self.journal.events(name)]
        return sorted(found, key=lambda event: (event.at, event.id))

    def curve(self, name: str) -> tuple[JobView, Curve | None]:
        """Return a job and its training curve, None before its first steps."""
        view = self.one(name)
        return view, self.curve_of(view.record)

    def logs(self, name: str, node: str, after: int = 0) -> Output:
        """Return what a job or one of its nodes has printed after a position. Raises NotFoundError for an unknown
        one."""
        return self.journal.logs(*self._nodes_of(name, node), after)

    def log_begins(self, name: str, node: str, since: float) -> Mapping[str, tuple[str, int]]:
        """Return for nodes that keep times: the chunk, and the character in it, where what was printed after a time
        begins."""
        return self.journal.log_begins(*self._nodes_of(name, node), since)

    def _nodes_of(self, name: str, node: str) -> tuple[str, str]:
        """Return a job, and how the names of its nodes begin in etcd. Raises NotFoundError."""
        view = self.one(name)
        if node and node not in view.nodes:
            known = [each.id for each in in_order(view.nodes.values())]
            raise NotFoundError(f"job {name} has no node {node!r}; {alternatives(node, known, 'nodes')}")
        return view.record.name, f"{node}/" if node else f"{view.record.task_id}-"
