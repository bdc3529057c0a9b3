"""What users may ask of any daemon, leader or standby. Each request is stored before it is acknowledged (P6).

A command changes a record in the journal, guarded by that record's revision; the leader acts on it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from supervisor.api.changes import (
    Scale,
    Terms,
    active_nodes,
    alternatives,
    check_priced,
    limited_job,
    numbers_of,
    scaled_job,
    unreadable_by,
    waits_warm,
)
from supervisor.api.checked import Checked
from supervisor.api.gate import MAX_BLOB_BYTES
from supervisor.api.quote import Quote, check_room
from supervisor.api.submissions import Submissions
from supervisor.api.views import in_order
from supervisor.budget import BUDGET, USER_BUDGET
from supervisor.curve import Curve
from supervisor.deadlines import finish_by_at
from supervisor.errors import (
    CommandRefusedError,
    JournalFullError,
    JournalUnavailableError,
    NotFoundError,
    SpotsupError,
    UsageError,
)
from supervisor.events import EventKind
from supervisor.features.limits.rule import PAUSED_BY_USER, reached
from supervisor.features.pause.record import PauseRecord
from supervisor.features.queue.rule import PRIORITY, displaced
from supervisor.features.retention.rule import kept_because, sweeps_by_member
from supervisor.journal.journal import Journal, Reading
from supervisor.journal.output import Output
from supervisor.journal.past import view_of
from supervisor.market.admission import QueueRules
from supervisor.model import DaemonPause, Event, JobRecord, JobState, NodeRecord, NodeState
from supervisor.new_job import new_job
from supervisor.planner.world import JobView
from supervisor.runtime.clock import Clock
from supervisor.runtime.loop import Leader
from supervisor.spec import JobSpec
from supervisor.spec_limits import LimitChanges
from supervisor.starting_time import starts_at

MAX_TRIES = 20
MAX_CODE_DELETIONS = 20  # per submission: each costs a read of etcd, and each submission adds one job
MAX_RUN_DIGITS = 6  # of the number in `name.1`
MAX_SOURCES = 4  # folders in which a job looks for a checkpoint to resume from
CATCH_UP_S = 5.0
_LEAVING = frozenset({NodeState.DRAINING, NodeState.TERMINATING})
_ENDED = frozenset({NodeState.LOST, NodeState.FAILED, NodeState.GONE})


@dataclass(frozen=True, slots=True)
class Change:
    """What a command writes."""

    job: JobRecord
    kind: EventKind  # of the event
    text: str
    node: NodeRecord | None = None  # where a node changes too


class Service:
    """The API's verbs, over the journal."""

    def __init__(  # noqa: PLR0913 - the last ones by name, with defaults
        self,
        journal: Journal,
        leader: Leader,
        clock: Clock,
        clouds: Sequence[str],
        wait_for: Callable[[Callable[[Reading], bool], float], bool],
        quote: Callable[[JobSpec], Quote] | None = None,
        *,
        hosted: Collection[str] = (),
        curve: Callable[[JobRecord], Curve | None] | None = None,
        queue: QueueRules = QueueRules(),  # noqa: B008 - frozen
        budgeted: bool = False,
    ) -> None:
        """`quote`: asks a job's cloud for offers; without it, none is asked before the job is stored.

        `hosted`: clouds whose machines are processes of this computer, and can mount nothing. `curve`: a job's training
        curve; by default as etcd has it. `queue`: the operator's limits. `budgeted`: each job needs a price."""
        self._journal = journal
        self._leader = leader
        self._clock = clock
        self._wait_for = wait_for
        self._hosted = frozenset(hosted)
        self._queue = queue
        self._curve = curve or journal.curve
        self._terms = Terms()
        self.submissions = Submissions(
            journal=journal,
            clock=clock,
            clouds=clouds,
            hosted=hosted,
            quote=quote,
            queue=queue,
            budgeted=budgeted,
        )

    def under(self, terms: Terms) -> Service:
        """Return the service for one caller: its changes raise ForbiddenError and PreconditionError by these terms."""
        bound = copy.copy(self)
        bound._terms = terms  # noqa: SLF001 - its own
        return bound

    @property
    def other_leader(self) -> str:
        """Return the leading daemon, if it is another one; "" if this one leads, or none does."""
        return "" if self.leads else self._leader.leader

    @property
    def leads(self) -> bool:
        """True if this daemon leads, and so acts on commands."""
        return self._leader.leading

    def pause_daemons(self, reason: str) -> None:
        """Stop all daemons of the cluster from acting, across restarts. Commands are still stored."""
        self._journal.set_pause(DaemonPause(self._clock.now(), reason))
        self._await(lambda reading: reading.pause is not None)

    def resume_daemons(self) -> None:
        """Let the daemons act again."""
        self._journal.set_pause(None)
        self._await(lambda reading: reading.pause is None)

    @property
    def paused(self) -> DaemonPause | None:
        """Return the pause of all daemons, if there is one."""
        return self._read().pause

    def put_blob(self, data: bytes, owner: str = "") -> str:
        """Store a code archive of the user `owner`. Returns its SHA-256."""
        if len(data) > MAX_BLOB_BYTES:
            raise UsageError(
                f"the code archive has {len(data)} bytes; at most {MAX_BLOB_BYTES} are accepted: "
                "list what is not code in "
                ".spotsupignore"
            )
        return self._journal.put_blob(data, owner)

    def check(self, spec_value: Any, resume_from: str = "", owner: str = "") -> Checked:
        """Check a submission before its code is packed and sent. Raises what `submit` raises, and CommandRefusedError
        if the job's cloud answers that it has no such offer."""
        checked = self.submissions.admit_anew(spec_value, owner)
        spec = checked.spec
        present = self._find(spec.name)
        if present is not None:
            self._check_replaceable(present)
        if resume_from:
            self._sources(resume_from, spec)
        return self.submissions.quoted(checked)

    def submit(
        self, spec_value: Any, code_sha256: str, submission: str, resume_from: str = "", owner: str = ""
    ) -> JobView:
        """Store a new job of the user `owner`. `submission`: the client's own id of this request; sent again, it is the
        same job.

        `resume_from`: the name of a job that has ended or is paused, with whose newest checkpoint this one begins.
        """
        checked = self.submissions.admit(spec_value, owner)
        spec = checked.spec
        now = self._clock.now()
        record = new_job(spec, code_sha256, submission, now)
        begins = starts_at(spec.start_after, spec.schedule, now)
        finish_by = finish_by_at(spec.finish_by, spec.work, begins, now)
        record = replace(record, owner=owner, starts_at=begins, deadline=replace(record.deadline, finish_by=finish_by))
        placed, order = None, ""
        for _ in range(MAX_TRIES):
            # Where a connection breaks, a transaction is sent twice: one that was refused may be our own.
            self._catch_up(spec.name)
            present = self._find(spec.name)
            if present is not None and present.record.uid == record.uid:
                return present
            if present is not None:
                self._check_replaceable(present)
            if placed is None:
                placed, order = self.submissions.placed(replace(checked, spec=record.spec))
            code = self._journal.find_blob(code_sha256)
            if code is None:
                raise UsageError("the job's code was not uploaded first: PUT /v1/blobs, as `spotsupctl submit` does")
            run = present.record.run + 1 if present else 1
            sources = self._sources(resume_from, spec) if resume_from else ()
            text = f"{spec.name} submitted" + (f"; it resumes from {sources[0]}" if sources else "") + order
            new = Change(replace(record, spec=placed, run=run, resume_from=sources), EventKind.SUBMITTED, text)
            event, record_now = _event(new, self._clock.now())
            if self._journal.create_job(record_now, event, present, code):
                self._delete_old_code(present)
                self._await(lambda reading: _has(reading, spec.name, record.uid))
                seen = self._read().jobs.get(spec.name)
                # It is stored, so the command succeeds even if this daemon's own copy of the journal is late.
                return seen if seen and seen.record.uid == record.uid else JobView(record_now, 0, {}, {})
        raise CommandRefusedError(f"job {spec.name} changes too fast to be stored; try again")

    def scale(self, name: str, scale: Scale) -> JobView:
        """Change how many nodes a job wants. Raises CommandRefusedError beyond its limits, or if it has ended."""

        def change(view: JobView) -> Change:
            scaled = scaled_job(view.record, scale)
            if scaled.min_nodes > view.record.min_nodes:
                check_room(scaled.spec, scaled.owner, scaled.min_nodes, self._queue)
            return Change(scaled, EventKind.SCALED, f"{name} scaled to {numbers_of(scaled)}")

        return self._change(name, change)

    def limits(self, name: str, changes: LimitChanges) -> JobView:
        """Change a job's limits; one that is paused for a limit goes on once none is reached.

        Raises CommandRefusedError for one that cannot be kept.
        """

        def change(view: JobView) -> Change | None:
            check_priced(view, changes)
            limited = limited_job(view, changes, self._clock.now())
            if limited == view.record:
                return None
            given = changes.model_dump(exclude_none=True)
            text = ", ".join(f"limits.{each} {value:g}" for each, value in given.items())
            return Change(limited, EventKind.LIMITS_CHANGED, f"{name} now has {text}")

        return self._change(name, change)

    def cancel(self, name: str) -> JobView:
        """Ask for a job's end. Repeating that is fine; a job that has ended is refused, unless its schedule goes on."""

        def change(view: JobView) -> Change:
            text = f"{name}: a user asked to cancel it"
            return Change(replace(view.record, cancel_requested=True), EventKind.CANCEL_REQUESTED, text)

        self._catch_up(name)
        view = self.job(name)
        self._terms.check(view.record)
        if view.record.cancel_requested:
            return view
        try:
            return self._change(name, change, renewed=True)
        except CommandRefusedError:
            # Where a connection breaks, a transaction is sent twice: the job may have ended by the first one.
            seen = self.job(name)
            if seen.record.uid == view.record.uid and seen.record.cancel_requested:
                return seen
            raise

    def delete(self, name: str) -> JobView:
        """Delete an ended job with all that is kept of it; its checkpoints stay. Returns it as it was.

        Raises NotFoundError, and CommandRefusedError for one that has machines or may go on.
        """
        self._catch_up(name)
        view, tried = self.job(name), ""
        for _ in range(MAX_TRIES):
            self._terms.check(view.record)
            if (cluster := self._read().cluster) is not None and cluster.doubted_at:
                raise CommandRefusedError(
                    f"the journal was put back, and machines of {name} may run that it does not know: an operator "
                    "looks first, with `spotsupd adopt`"
                )
            if why := kept_because(view, sweeps_by_member(sweep for sweep, _ in self._journal.sweeps())):
                raise CommandRefusedError(why)
            tried = view.record.uid
            if self._deleted(view):
                self._await(lambda reading: name not in reading.jobs)
                return view
            if view.revision != self._journal.job_revision(name):
                self._await_newer(view)
            seen = self._read().jobs.get(name)
            if seen is None or seen.record.uid != tried:
                return view  # by this request, whose answer etcd's client lost, or by another one
            view = seen
        raise CommandRefusedError(f"job {name} changes too fast to be deleted; try again")

    def _deleted(self, view: JobView) -> bool:
        """Delete the job's keys, then its code where no other job needs it."""
        try:
            if not self._journal.delete_job(view, self._clock.now()):
                return False
        except JournalFullError as error:
            raise JournalFullError(
                f"etcd is full, and {view.name} has cost money this month: that sum has to be written before it is "
                "deleted. Delete jobs first that cost nothing since the month began, then make room "
                "(docs/operations.md#etcd-is-full)"
            ) from error
        with contextlib.suppress(SpotsupError):  # housekeeping deletes it within a day
            self._journal.delete_code(view.record.code_sha256, view.revision)
        return True

    def pause(self, name: str) -> JobView:
        """Ask for a checkpoint and the release of a job's machines until it is resumed. Repeating that is fine."""

        def change(view: JobView) -> Change | None:
            job = view.record
            if job.pause.at and not job.pause.by:
                return None
            # Of a job that is paused for a limit: raising that limit does not resume it any more.
            reason = PAUSED_BY_USER if job.state is JobState.PAUSED else job.reason
            at = job.pause.at or self._clock.now()
            paused = replace(job, reason=reason, pause=PauseRecord(at))
            return Change(paused, EventKind.PAUSE_REQUESTED, f"{name}: a user asked to pause it")

        return self._change(name, change)

    def resume(self, name: str) -> JobView:
        """Continue a paused job from its checkpoint. Does nothing for a job that is not paused.

        Raises CommandRefusedError while a limit is reached, for which the job would pause again at once.
        """

        def change(view: JobView) -> Change | None:
            if not view.record.pause.at:
                return None
            if view.record.pause.by == PRIORITY:
                raise CommandRefusedError(f"job {name} stays paused: {displaced(view.record.queue.displaced_by)}")
            if over := reached(view.record, view.nodes.values(), self._clock.now()):
                raise CommandRefusedError(f"job {name} stays paused: {over.reason(name)}")
            if view.record.pause.by in {BUDGET, USER_BUDGET}:
                why = view.record.reason if view.record.state is JobState.PAUSED else "its budget is spent"
                raise CommandRefusedError(f"job {name} stays paused: {why}")
            resumed = replace(view.record, pause=PauseRecord())
            return Change(resumed, EventKind.RESUMED, f"{name}: a user resumed it")

        return self._change(name, change)

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

        return self._change(self._job_of(node).name, change, node=node)

    def jobs(self, *, past: bool = False) -> list[JobView]:
        """Return all jobs, newest first; with `past`, also those whose names were used again, unless etcd is away: only
        it has these."""
        reading = self._read()
        found = [*reading.jobs.values(), *(map(view_of, self._journal.past_runs()) if past and reading.live else ())]
        return sorted(found, key=lambda job: job.record.submitted_at, reverse=True)

    def job(self, name: str) -> JobView:
        """Return one job; `name.1` is the first of that name, once the name was used again. Raises NotFoundError."""
        reading = self._read()
        jobs = reading.jobs
        first, _, run = name.rpartition(".")
        if first and run.isdecimal() and len(run) <= MAX_RUN_DIGITS:
            past = self._journal.past_run(first, int(run))
            if past is None:
                raise NotFoundError(f"no run is kept as {name}; `spotsupctl list --all` shows those that are")
            return view_of(past)
        if name in reading.refused:
            raise CommandRefusedError(f"job {name} is left alone: {reading.refused[name]}")
        if name not in jobs:
            raise NotFoundError(f"no job is named {name!r}; {alternatives(name, sorted(jobs), 'jobs')}")
        return jobs[name]

    def known(self, name: str) -> JobView | None:
        """Return one job as the mirror has it, the same object while it does not change; None for any other. Never
        blocks."""
        return self._read().jobs.get(name)

    def owner_of(self, name: str = "", node: str = "") -> str | None:
        """Return the owner of a job, or of a node's job; None for an unknown one. Never blocks."""
        jobs = self._read().jobs
        view = jobs.get(name) if name else next((each for each in jobs.values() if node in each.nodes), None)
        return None if view is None else view.record.owner

    def node(self, node: str) -> NodeRecord:
        """Return one node. Raises NotFoundError."""
        return self._job_of(node).nodes[node]

    def events(self, name: str, after: str) -> list[Event]:
        """Return a job's events since the one with id `after`."""
        job = self.job(name).record
        return self._journal.events(job.name, after, job.task_id)

    def cluster_events(self, *, jobs: bool = False) -> list[Event]:
        """Return the events of no job, oldest first; with `jobs`, also those of all jobs."""
        names = ["", *(self._read().jobs if jobs else ())]
        found = [event for name in names for event in self._journal.events(name)]
        return sorted(found, key=lambda event: (event.at, event.id))

    def curve(self, name: str) -> tuple[JobView, Curve | None]:
        """Return a job and its training curve, None before its first steps."""
        view = self.job(name)
        return view, self._curve(view.record)

    def logs(self, name: str, node: str, after: int = 0) -> Output:
        """Return what a job or one of its nodes has printed after a position. Raises NotFoundError for an unknown
        one."""
        return self._journal.logs(*self._nodes_of(name, node), after)

    def log_begins(self, name: str, node: str, since: float) -> Mapping[str, tuple[str, int]]:
        """Return for nodes that keep times: the chunk, and the character in it, where what was printed after a time
        begins."""
        return self._journal.log_begins(*self._nodes_of(name, node), since)

    def _nodes_of(self, name: str, node: str) -> tuple[str, str]:
        """Return a job, and how the names of its nodes begin in etcd. Raises NotFoundError."""
        view = self.job(name)
        if node and node not in view.nodes:
            known = [each.id for each in in_order(view.nodes.values())]
            raise NotFoundError(f"job {name} has no node {node!r}; {alternatives(node, known, 'nodes')}")
        return view.record.name, f"{node}/" if node else f"{view.record.task_id}-"

    # -- helpers -------------------------------------------------------------------------------------------

    def _sources(self, name: str, spec: JobSpec) -> tuple[str, ...]:
        """Return where the checkpoints of a job are, and of those that it resumed from itself. Raises NotFoundError,
        and CommandRefusedError if the new job could not read them."""
        try:
            job = self.job(name).record
        except NotFoundError as error:
            raise NotFoundError(
                f"cannot resume from {name}: there is no such job, or it was deleted. A deleted job's checkpoints are "
                f"where they were, for your program to load; {error}"
            ) from error
        if not (job.ended or job.state is JobState.PAUSED):
            raise CommandRefusedError(f"job {name} is {job.state}: cancel or pause it before another resumes from it")
        why = unreadable_by(job, spec, self._hosted)
        if why:
            raise CommandRefusedError(f"cannot resume from {name}: {why}")
        return (job.checkpoint_path, *job.resume_from)[:MAX_SOURCES]

    def _delete_old_code(self, replaced: JobView | None) -> None:
        """Delete the code of ended jobs: the one whose name was used again, and those that ended last. A failure is
        ignored, because the new job is stored already."""
        over = [view for view in self._read().jobs.values() if view.record.ended and not active_nodes(view)]
        latest = sorted(over, key=lambda view: view.record.ended_at)[-MAX_CODE_DELETIONS:]
        with contextlib.suppress(SpotsupError):
            for view in [*latest, *filter(None, [replaced])]:
                self._journal.delete_code(view.record.code_sha256, view.revision)

    def _check_replaceable(self, present: JobView) -> None:
        name = present.record.name
        if not present.record.ended:
            raise CommandRefusedError(
                f"the name {name} is in use ({present.record.state}): choose another, or cancel that job"
            )
        self._terms.check(present.record)
        if count := active_nodes(present):
            raise CommandRefusedError(f"job {name} has ended but still releases {count} nodes: try again in a moment")

    def _find(self, name: str) -> JobView | None:
        return self.job(name) if name in {*self._read().jobs, *self._read().refused} else None

    def _job_of(self, node: str) -> JobView:
        view = next((view for view in self._read().jobs.values() if node in view.nodes), None)
        if view is None:
            raise NotFoundError(f"no node is named {node!r}; `spotsupctl nodes --all` lists all nodes")
        return view

    def _change(
        self, name: str, change: Callable[[JobView], Change | None], *, renewed: bool = False, node: str = ""
    ) -> JobView:
        """Store what `change` makes of the job; None means that nothing has to change. `renewed`: also of one that has
        ended, and that its schedule would submit again. `node`: also of one that has ended, if this machine of it
        waits."""
        self._catch_up(name)
        for _ in range(MAX_TRIES):
            view = self.job(name)
            self._terms.check(view.record)
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
            event, stored = _event(changed, self._clock.now())
            if self._journal.update_job(view, stored, event, changed.node):
                self._await_newer(view)
                seen = self._read().jobs.get(name, view)
                return replace(view, record=stored) if seen.revision == view.revision else seen
            self._await_newer(view)
        raise CommandRefusedError(f"job {name} changes too fast to be stored; try again")

    def _read(self) -> Reading:
        return self._journal.read()

    def _catch_up(self, name: str) -> None:
        """Wait until our copy of the journal has every change of a job that any daemon acknowledged before now.

        Otherwise an old copy could refuse a command, or find that nothing has to change. Raises
        JournalUnavailableError.
        """
        newest = self._journal.job_revision(name)
        if _is_at(self._read(), name, newest):
            return
        if not self._wait_for(lambda reading: _is_at(reading, name, newest), CATCH_UP_S):
            raise JournalUnavailableError(
                f"this daemon's copy of the journal has been behind etcd for {CATCH_UP_S:g} s: try again in a moment"
            )

    def _await(self, predicate: Callable[[Reading], bool]) -> None:
        """Wait, briefly, until our copy of the journal has our own write, so that the next command sees it."""
        self._wait_for(predicate, 2.0)

    def _await_newer(self, old: JobView) -> None:
        def is_newer(reading: Reading) -> bool:
            seen = reading.jobs.get(old.record.name)
            return seen is None or seen.revision != old.revision

        self._await(is_newer)


def _event(change: Change, now: float) -> tuple[Event, JobRecord]:
    job, node = change.job, change.node.id if change.node else ""
    event = Event(f"{job.task_id}-{job.next_event:06d}", now, job.name, change.kind, change.text, node)
    return event, replace(job, next_event=job.next_event + 1)


def _has(reading: Reading, name: str, uid: str) -> bool:
    return name in reading.jobs and reading.jobs[name].record.uid == uid


def _is_at(reading: Reading, name: str, newest: int) -> bool:
    """True if a reading has a job's revision `newest`; 0 means that the job does not exist."""
    if name in reading.refused:
        return True
    known = reading.jobs[name].revision if name in reading.jobs else 0
    return known >= newest if newest else not known
