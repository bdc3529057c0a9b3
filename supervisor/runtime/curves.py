"""Keeps the training curves of jobs (`supervisor.curve`) in etcd, beside the loop: on the leader only.

It watches the journal's mirror after each tick. Whatever fails here, the loop and the jobs do not notice: at worst a
curve has a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog
from spotsup_trainer.etcd import Compare
from spotsup_trainer.wire import Progress

from supervisor.curve import Cause, Curve, Point, Seen, begun, extended, with_measured
from supervisor.errors import JournalUnavailableError
from supervisor.features.limits.rule import spent_usd
from supervisor.journal.journal import Journal, Reading
from supervisor.model import JobRecord, JobState, NodeRecord
from supervisor.planner.pauses import pauses_of
from supervisor.planner.world import JobView
from supervisor.runtime.background import in_background
from supervisor.runtime.clock import Clock

# Between two writes of one curve: what is newer is lost with the daemon.
WRITE_S = 30.0
# A node's clock that differs by more is not believed.
MAX_SKEW_S = 60.0

log = structlog.get_logger("spotsupd")


class Leading(Protocol):
    """What is needed of the leader election."""

    def lease_valid(self) -> bool:
        """True if this daemon leads, and may write."""
        ...

    def guard(self) -> Sequence[Compare]:
        """Return the guards that every write carries."""
        ...


@dataclass(slots=True)
class _Followed:
    """One job whose curve is kept."""

    view: JobView  # as last looked at
    curve: Curve | None = None
    loaded: bool = False  # what etcd has of it was read
    watched: bool = False  # nothing was missed since `curve.newest`
    members: frozenset[str] = frozenset()  # of the round of `curve.newest`
    at: float = 0.0  # of `curve.newest`
    progress: Progress | None = None  # as last looked at
    written: Curve | None = None  # what etcd has
    due_at: float = 0.0  # of the next write, unless the job has ended
    retry_at: float = 0.0  # after a call that failed


class CurveKeeper:
    """Call `follow` after each tick: it returns at once. One call of etcd at a time runs on a thread of its own."""

    def __init__(
        self,
        journal: Journal,
        leader: Leading,
        clock: Clock,
        start: Callable[[Callable[[], Any], str], Future[Any]] = in_background,
    ) -> None:
        """`start`: starts a call on a thread."""
        self._journal = journal
        self._leader = leader
        self._clock = clock
        self._start = start
        self._jobs: dict[str, _Followed] = {}  # by task id
        self._left_out: set[str] = set()  # task ids of jobs that have ended, or whose curve cannot be kept
        self._call: tuple[str, Future[Any], Curve | None] | None = None  # under way: a read, or a write of a curve
        self._outages = 0

    def curve(self, job: JobRecord) -> Curve | None:
        """Return a job's curve: as of now if it is kept here, else as etcd has it. For any thread.

        Raises JournalUnavailableError, and SchemaError if it cannot be read.
        """
        known = self._jobs.get(job.task_id)
        return self._journal.curve(job) if known is None or known.curve is None else known.curve

    def follow(self) -> None:
        """Take up what has changed since the last call, and read or write one curve. Never raises."""
        try:
            self._follow()
        except Exception:
            log.exception("training curves are not kept just now")

    def _follow(self) -> None:
        reading = self._journal.read()
        leads = self._leader.lease_valid() and reading.live and reading.cluster is not None and reading.pause is None
        if not leads or reading.outages != self._outages:
            # Another daemon may write the curves now, and rounds may pass unseen.
            self._jobs, self._left_out, self._outages = {}, set(), reading.outages
        self._collect()
        if not leads:
            return
        now = self._clock.now()
        for view in reading.jobs.values():
            task = view.record.task_id
            if task in self._left_out:
                continue
            try:
                self._look(task, view, now)
            except Exception as error:  # noqa: BLE001 - one job's messages: no other job notices
                log.warning("the training curve of a job is not kept", job=view.record.name, error=repr(error))
                self._leave_out(task)
        self._forget_replaced(reading)
        if self._call is None:
            self._start_call(now)

    def _look(self, task: str, view: JobView, now: float) -> None:
        known = self._jobs.get(task)
        if known is None:
            if view.record.ended or view.record.spec.kind == "data":
                self._left_out.add(task)
            elif view.progress is not None:
                self._jobs[task] = _Followed(view)
            return
        if known.view is view and known.progress is not None:
            return
        known.view = view
        if known.loaded and view.progress is not None and view.progress is not known.progress:
            known.progress = view.progress
            _extend(known, view, view.progress, now)
        if known.curve is not None and view.pauses is not None:
            known.curve = with_measured(
                known.curve, {each.round: each.pause_s for each in pauses_of(view) if each.pause_s is not None}
            )

    def _start_call(self, now: float) -> None:
        """Read, or write, the curve that waits longest: with very many jobs each is written less often."""
        for task, known in sorted(self._jobs.items(), key=lambda each: max(each[1].due_at, each[1].retry_at)):
            job = known.view.record
            if _waits(known.retry_at, now):
                continue
            if not known.loaded:
                self._call = task, self._start(partial(self._journal.curve, job), "curve"), None
                return
            due = job.ended or not _waits(known.due_at, now)
            if known.curve is not None and known.curve is not known.written and due:
                self._call = task, self._start(self._write_of(job, known.curve), "curve"), known.curve
                return
            if job.ended:
                self._leave_out(task)
                return

    def _write_of(self, job: JobRecord, curve: Curve) -> Callable[[], bool]:
        guard = self._leader.guard()
        return lambda: self._journal.put_curve(job, curve, guard)

    def _collect(self) -> None:
        if self._call is None or not self._call[1].done():
            return
        (task, call, written), self._call = self._call, None
        known = self._jobs.get(task)
        if known is None:
            return
        now = self._clock.now()
        known.due_at = known.retry_at = now + WRITE_S
        try:
            result = call.result(0)
        except (JournalUnavailableError, TimeoutError):
            return
        except Exception as error:  # noqa: BLE001 - one job's record: no other job notices
            log.warning("the training curve of a job is not kept", job=known.view.record.name, error=str(error))
            self._leave_out(task)
            return
        if written is None:
            known.curve = known.written = result
            known.loaded, known.due_at, known.retry_at = True, 0.0, 0.0
        elif result:
            known.written, known.retry_at = written, 0.0

    def _leave_out(self, task: str) -> None:
        self._jobs.pop(task, None)
        self._left_out.add(task)

    def _forget_replaced(self, reading: Reading) -> None:
        """Jobs whose names were used again."""
        there = {view.record.task_id for view in reading.jobs.values()}
        self._left_out &= there
        for task in self._jobs.keys() - there:
            del self._jobs[task]


def _waits(until: float, now: float) -> bool:
    """True if it is not time yet. A clock that was set back must not make it wait for longer."""
    return now < until <= now + WRITE_S


def _extend(known: _Followed, view: JobView, progress: Progress, now: float) -> None:
    """Extend the curve with the job's newest progress."""
    if not progress.step:
        return
    current, before = view.round, known.curve
    members = frozenset(current.nodes()) if current is not None and current.number == progress.round else frozenset()
    nodes = len(members) or (before.newest.nodes if before is not None else len(known.members))
    # A node whose clock is wrong is taken to have reported just now.
    at = progress.at if now - MAX_SKEW_S <= progress.at <= now + 1.0 else now
    usd = spent_usd(view.record, view.nodes.values(), now)
    point = Point(at, progress.step, progress.samples, progress.epoch, progress.loss, nodes, usd, progress.gpu_percent)
    first_step_at = min(at, progress.first_step_at + at - progress.at)
    seen = Seen(point, progress.round, first_step_at, cause_of(view, known.members, members, since=known.at))
    known.curve = begun(seen) if before is None else extended(before, seen, watched=known.watched)
    known.watched, known.members, known.at = True, members or known.members, at


def cause_of(view: JobView, before: frozenset[str], members: frozenset[str], since: float) -> Cause:
    """Return why a round of `members` follows one of `before`, of which the last step was made at `since`."""
    if any(each.after == JobState.PAUSED and each.at >= since - MAX_SKEW_S for each in view.record.history):
        return "paused"
    reason = view.round.reason if view.round is not None else ""
    left = [view.nodes[node] for node in sorted(before - members) if node in view.nodes]
    for cause, of_node in _CAUSES.items():
        if any(of_node(node) for node in left):
            return cause
    if "hung" in reason:
        return "hung"
    if "failed" in reason:
        return "failed"
    if before - members:
        return "scaled"
    return "joined" if before and members - before else "re-formed"


# Of a node that left the round, in this order.
_CAUSES: dict[Cause, Callable[[NodeRecord], bool]] = {
    "unhealthy": lambda node: bool(node.unhealthy_at),
    "slow": lambda node: bool(node.slow.leaves_at) and node.notice is None,
    "preempted": lambda node: node.notice is not None,
    "drained": lambda node: node.drain_requested,
    "lost": lambda node: node.needs_replacement,
}
