"""What users ask of a job that there is. Each request is stored before it is acknowledged (P6).

Any daemon, leader or standby, takes a command: it changes a record in the journal, guarded by that record's revision;
the leader acts on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from supervisor.api.jobs.changes import (
    Scale,
    Terms,
    check_priced,
    limited_job,
    numbers_of,
    scaled_job,
    waits_warm,
)
from supervisor.api.jobs.reading import Jobs
from supervisor.api.journal_copy import JournalCopy
from supervisor.api.quote import check_room
from supervisor.budget import BUDGET, USER_BUDGET
from supervisor.errors import CommandRefusedError, JournalFullError, SpotsupError
from supervisor.events import EventKind
from supervisor.features.limits.rule import PAUSED_BY_USER, reached
from supervisor.features.pause.record import PauseRecord
from supervisor.features.queue.rule import PRIORITY, displaced
from supervisor.features.retention.rule import kept_because, sweeps_by_member
from supervisor.market.admission import QueueRules
from supervisor.model import Event, JobRecord, JobState, NodeRecord, NodeState
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock
from supervisor.spec_limits import LimitChanges

MAX_TRIES = 20
_LEAVING = frozenset({NodeState.DRAINING, NodeState.TERMINATING})
_ENDED = frozenset({NodeState.LOST, NodeState.FAILED, NodeState.GONE})


@dataclass(frozen=True, slots=True)
class Change:
    """What a command writes."""

    job: JobRecord
    kind: EventKind  # of the event
    text: str
    node: NodeRecord | None = None  # where a node changes too


def with_event(change: Change, now: float) -> tuple[Event, JobRecord]:
    """Return a change's event, and its job, which counts it."""
    job, node = change.job, change.node.id if change.node else ""
    event = Event(f"{job.task_id}-{job.next_event:06d}", now, job.name, change.kind, change.text, node)
    return event, replace(job, next_event=job.next_event + 1)


@dataclass(frozen=True, slots=True)
class Commands:
    """What changes a job. `queue`: the operator's limits. `terms`: of who asks; all of the methods raise ForbiddenError
    and PreconditionError by them, and NotFoundError."""

    copy: JournalCopy
    jobs: Jobs
    clock: Clock
    queue: QueueRules
    terms: Terms = Terms()  # noqa: RUF009 - frozen

    def under(self, terms: Terms) -> Commands:
        """Return the commands of one caller."""
        return replace(self, terms=terms)

    def scale(self, name: str, scale: Scale) -> JobView:
        """Change how many nodes a job wants. Raises CommandRefusedError beyond its limits, or if it has ended."""

        def change(view: JobView) -> Change:
            scaled = scaled_job(view.record, scale)
            if scaled.min_nodes > view.record.min_nodes:
                check_room(scaled.spec, scaled.owner, scaled.min_nodes, self.queue)
            return Change(scaled, EventKind.SCALED, f"{name} scaled to {numbers_of(scaled)}")

        return self._store(name, change)

    def limits(self, name: str, changes: LimitChanges) -> JobView:
        """Change a job's limits; one that is paused for a limit goes on once none is reached.

        Raises CommandRefusedError for one that cannot be kept.
        """

        def change(view: JobView) -> Change | None:
            check_priced(view, changes)
            limited = limited_job(view, changes, self.clock.now())
            if limited == view.record:
                return None
            given = changes.model_dump(exclude_none=True)
            text = ", ".join(f"limits.{each} {value:g}" for each, value in given.items())
            return Change(limited, EventKind.LIMITS_CHANGED, f"{name} now has {text}")

        return self._store(name, change)

    def cancel(self, name: str) -> JobView:
        """Ask for a job's end. Repeating that is fine; a job that has ended is refused, unless its schedule goes on."""

        def change(view: JobView) -> Change:
            text = f"{name}: a user asked to cancel it"
            return Change(replace(view.record, cancel_requested=True), EventKind.CANCEL_REQUESTED, text)

        self.copy.catch_up(name)
        view = self.jobs.one(name)
        self.terms.check(view.record)
        if view.record.cancel_requested:
            return view
        try:
            return self._store(name, change, renewed=True)
        except CommandRefusedError:
            # Where a connection breaks, a transaction is sent twice: the job may have ended by the first one.
            seen = self.jobs.one(name)
            if seen.record.uid == view.record.uid and seen.record.cancel_requested:
                return seen
            raise

    def delete(self, name: str) -> JobView:
        """Delete an ended job with all that is kept of it; its checkpoints stay. Returns it as it was.

        Raises NotFoundError, and CommandRefusedError for one that has machines or may go on.
        """
        self.copy.catch_up(name)
        view, tried = self.jobs.one(name), ""
        for _ in range(MAX_TRIES):
            self.terms.check(view.record)
            if (cluster := self.copy.read().cluster) is not None and cluster.doubted_at:
                raise CommandRefusedError(
                    f"the journal was put back, and machines of {name} may run that it does not know: an operator "
                    "looks first, with `spotsupd adopt`"
                )
            if why := kept_because(view, sweeps_by_member(sweep for sweep, _ in self.copy.journal.sweeps())):
                raise CommandRefusedError(why)
            tried = view.record.uid
            if self._deleted(view):
                self.copy.wait_until(lambda reading: name not in reading.jobs)
                return view
            if view.revision != self.copy.journal.job_revision(name):
                self.copy.wait_for_newer(view)
            seen = self.copy.read().jobs.get(name)
            if seen is None or seen.record.uid != tried:
                return view  # by this request, whose answer etcd's client lost, or by another one
            view = seen
        raise CommandRefusedError(f"job {name} changes too fast to be deleted; try again")

    def _deleted(self, view: JobView) -> bool:
        """Delete the job's keys, then its code where no other job needs it."""
        try:
            if not self.copy.journal.delete_job(view, self.clock.now()):
                return False
        except JournalFullError as error:
            raise JournalFullError(
                f"etcd is full, and {view.name} has cost money this month: that sum has to be written before it is "
                "deleted. Delete jobs first that cost nothing since the month began, then make room "
                "(docs/operations.md#etcd-is-full)"
            ) from error
        with contextlib.suppress(SpotsupError):  # housekeeping deletes it within a day
            self.copy.journal.delete_code(view.record.code_sha256, view.revision)
        return True

    def pause(self, name: str) -> JobView:
        """Ask for a checkpoint and the release of a job's machines until it is resumed. Repeating that is fine."""

        def change(view: JobView) -> Change | None:
            job = view.record
            if job.pause.at and not job.pause.by:
                return None
            # Of a job that is paused for a limit: raising that limit does not resume it any more.
            reason = PAUSED_BY_USER if job.state is JobState.PAUSED else job.reason
            at = job.pause.at or self.clock.now()
            paused = replace(job, reason=reason, pause=PauseRecord(at))
            return Change(paused, EventKind.PAUSE_REQUESTED, f"{name}: a user asked to pause it")

        return self._store(name, change)

    def resume(self, name: str) -> JobView:
        """Continue a paused job from its checkpoint. Does nothing for a job that is not paused.

        Raises CommandRefusedError while a limit is reached, for which the job would pause again at once.
        """

        def change(view: JobView) -> Change | None:
            if not view.record.pause.at:
                return None
            if view.record.pause.by == PRIORITY:
                raise CommandRefusedError(f"job {name} stays paused: {displaced(view.record.queue.displaced_by)}")
            if over := reached(view.record, view.nodes.values(), self.clock.now()):
                raise CommandRefusedError(f"job {name} stays paused: {over.reason(name)}")
            if view.record.pause.by in {BUDGET, USER_BUDGET}:
                why = view.record.reason if view.record.state is JobState.PAUSED else "its budget is spent"
                raise CommandRefusedError(f"job {name} stays paused: {why}")
            resumed = replace(view.record, pause=PauseRecord())
            return Change(resumed, EventKind.RESUMED, f"{name}: a user resumed it")

        return self._store(name, change)

    def drain(self, node: str) -> JobView:
        """Ask for a node to be replaced and then to leave its round in order; a machine that waits for the next job is
        let go. Repeating that is fine.

        Raises NotFoundError, and CommandRefusedError for a node that has ended.
        """

        def change(view: JobView) -> Change | None:
            found = view.nodes.get(node)
            if found is None or found.state in _ENDED:
                state = found.state if found else "gone"
                raise CommandRefusedError(
                    f"node {node} is {state}: there is nothing to drain; `spotsupctl nodes` shows those that run"
                )
            if found.drain_requested or found.state in _LEAVING:
                return None
            text = f"a user asked to drain {node}: it leaves once replaced"
            if waits_warm(view, node):
                text = f"a user let {node} go, which waited for the next job"
            drained = replace(found, drain_requested=True, needs_replacement=True)
            return Change(view.record, EventKind.DRAIN_REQUESTED, text, drained)

        return self._store(self.jobs.of_node(node).name, change, node=node)

    def _store(
        self, name: str, change: Callable[[JobView], Change | None], *, renewed: bool = False, node: str = ""
    ) -> JobView:
        """Store what `change` makes of the job; None means that nothing has to change. `renewed`: also of one that has
        ended, and that its schedule would submit again. `node`: also of one that has ended, if this machine of it
        waits."""
        self.copy.catch_up(name)
        for _ in range(MAX_TRIES):
            view = self.jobs.one(name)
            self.terms.check(view.record)
            may_change = (renewed and view.record.is_renewed) or waits_warm(view, node)
            if view.record.ended and not may_change:
                raise CommandRefusedError(
                    f"job {name} has ended ({view.record.state}): nothing was changed; `spotsupctl "
                    "submit --resume-from "
                    f"{name}` begins another job with its checkpoint"
                )
            changed = change(view)
            if changed is None:
                return view
            event, stored = with_event(changed, self.clock.now())
            if self.copy.journal.update_job(view, stored, event, changed.node):
                self.copy.wait_for_newer(view)
                seen = self.copy.read().jobs.get(name, view)
                return replace(view, record=stored) if seen.revision == view.revision else seen
            self.copy.wait_for_newer(view)
        raise CommandRefusedError(f"job {name} changes too fast to be stored; try again")
