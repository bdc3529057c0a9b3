"""Runs sweeps (`supervisor.sweep`) beside the loop: on the leader only.

A member's job is made under an id of the sweep's own, in a transaction guarded by leadership: whoever leads next makes
none of them twice. What is lost with a daemon is decided again by the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

import structlog
from spotsup_trainer.etcd import Compare

from supervisor.errors import JournalUnavailableError, SpotsupError
from supervisor.events import EventKind
from supervisor.features.limits.rule import spent_usd, trained_s
from supervisor.journal.journal import Journal, Reading
from supervisor.model import Event, JobRecord, JobState, NodeState
from supervisor.new_job import new_job, uid_of
from supervisor.planner.world import JobView, Problem
from supervisor.runtime.background import in_background
from supervisor.runtime.clock import Clock
from supervisor.spec import parse_spec
from supervisor.starting_time import moment, starts_at
from supervisor.sweep import Member, Result, Seen, SweepRecord, decide, member_spec

# Between two looks: so long a member may wait for its place.
EVERY_S = 1.0
STUCK_S = 600.0  # people are told of a sweep that cannot go on for so long

log = structlog.get_logger("spotsupd")


class Leading(Protocol):
    """What is needed of the leader election."""

    def lease_valid(self) -> bool:
        """True if this daemon leads, and may write."""
        ...

    def guard(self) -> Sequence[Compare]:
        """Return the guards that every write carries."""
        ...


def seen_of(sweep: SweepRecord, member: Member, reading: Reading, now: float) -> Seen | None:
    """Return a member's job as the journal has it; None where there is none, or one of somebody else's with its
    name."""
    view = reading.jobs.get(sweep.job_name(member))
    if view is None or view.record.uid != uid_of(sweep.submission(member)):
        return None
    job, progress = view.record, view.progress
    loss = progress.loss if progress and progress.loss is not None and math.isfinite(progress.loss) else None
    usd, hours_s = spent_usd(job, view.nodes.values(), now), trained_s(job, now)
    value = progress.metrics.get(sweep.metric) if progress and sweep.metric else None
    step = progress.step if progress else 0
    result = Result(str(job.state), step, loss, round(usd, 4), round(hours_s, 1), value)
    return Seen(job.ended, job.state is not JobState.PAUSED, job.cancel_requested, result)


class SweepKeeper:
    """Call `follow` after each tick: it returns at once. One look at a time runs on a thread of its own."""

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
        self._look: Future[Any] | None = None
        self._looked_at = 0.0
        self._problem = ""
        self._stuck: dict[str, tuple[float, str]] = {}  # sweeps that cannot go on: since when, and why

    def problems(self) -> tuple[Problem, ...]:
        """Return the sweeps that cannot go on."""
        return tuple(
            Problem(
                EventKind.TASK_FAILING,
                f"sweep-{name}",
                since,
                f"the sweep {name} cannot go on since {moment(since)}: {why}",
                STUCK_S,
                over=f"the sweep {name} goes on, or is over",
            )
            for name, (since, why) in self._stuck.items()
        )

    def follow(self) -> None:
        """Begin a look, unless one lasts. Never raises."""
        if self._look is not None:
            if not self._look.done():
                return
            error, self._look = self._look.exception(), None
            if error is not None and str(error) != self._problem:
                log.warning("sweeps are not looked after just now", error=str(error) or repr(error))
            self._problem = str(error) if error else ""
        now = self._clock.now()
        if self._leader.lease_valid() and not self._looked_at <= now < self._looked_at + EVERY_S:
            self._looked_at = now
            self._look = self._start(self.look, "sweeps")

    def look(self) -> None:
        """Do for all sweeps what is to be done now. Raises SpotsupError."""
        reading = self._journal.read()
        if not (self._leader.lease_valid() and reading.live and reading.cluster is not None and reading.pause is None):
            return
        stuck = {}
        for sweep, revision in self._journal.sweeps():
            if sweep.over:
                continue
            try:
                problem = self._advance(sweep, revision, reading)
            except JournalUnavailableError:
                raise
            except Exception as error:  # noqa: BLE001 - one sweep's record or parameters: no other sweep notices
                problem = str(error) or repr(error)
                self._report(sweep, problem)
            if problem:
                stuck[sweep.name] = self._stuck.get(sweep.name, (self._clock.now(), ""))[0], problem
        self._stuck = stuck

    def _report(self, sweep: SweepRecord, problem: str) -> None:
        """Say it in the sweep's status, and once in the log."""
        found = self._journal.sweep(sweep.name)
        if found is not None and found[0].uid == sweep.uid and found[0].problem != problem:
            log.warning("a sweep cannot go on", sweep=sweep.name, error=problem)
            self._journal.put_sweep(replace(found[0], problem=problem), found[1], self._leader.guard())

    def _advance(self, sweep: SweepRecord, revision: int, reading: Reading) -> str:
        """Do what is to be done for a sweep. Returns why that is not possible now, "" if it is done."""
        now, guard = self._clock.now(), self._leader.guard()
        seen = {each.number: found for each in sweep.members if (found := seen_of(sweep, each, reading, now))}
        decided = decide(sweep, seen)
        problem = ""
        # What is journaled first: whom a takeover must not start.
        if decided.record != sweep:
            revision = self._journal.put_sweep(decided.record, revision, guard)
            if not revision:
                return sweep.problem
        for member in decided.cancel:
            _cancel(self._journal, reading.jobs[sweep.job_name(member)], "its sweep is cancelled", now)
        for member in decided.start:
            problem = self._make(decided.record, revision, member, reading)
            if problem:
                break
        if problem != decided.record.problem:
            self._journal.put_sweep(replace(decided.record, problem=problem), revision, guard)
        return problem

    def _make(self, sweep: SweepRecord, revision: int, member: Member, reading: Reading) -> str:
        """Store a member's job. Returns why that is not possible now, "" if it is stored or was stored before."""
        name = sweep.job_name(member)
        present = reading.jobs.get(name)
        if name in reading.refused or (present is not None and not _is_replaceable(present, sweep.owner)):
            return f"the name {name} is in use: cancel that job, or the sweep"
        job, event = member_job(sweep, member, self._clock.now())
        code = self._journal.find_blob(sweep.code_sha256)
        if code is None:
            return "its code is no longer stored: cancel it, and submit it again"
        run = present.record.run + 1 if present else 1
        unchanged = Compare(self._journal.sweep_key(sweep.name), "mod", revision)
        guard = [*self._leader.guard(), unchanged]
        if self._journal.create_job(replace(job, run=run), event, present, code, guard):
            log.info(event.text, job=job.name)
        return ""


def member_job(sweep: SweepRecord, member: Member, now: float) -> tuple[JobRecord, Event]:
    """Return the record of a member's job, and its first event. Raises UsageError for parameters that cannot be
    right."""
    spec = parse_spec(member_spec(sweep.base, sweep.job_name(member), member.point))
    job = new_job(spec, sweep.code_sha256, sweep.submission(member), now)
    job = replace(job, owner=sweep.owner, starts_at=starts_at(spec.start_after, "", now), next_event=2)
    point = ", ".join(f"{key}={value}" for key, value in member.point)
    text = f"{job.name} submitted by the sweep {sweep.name}: {point}"
    return job, Event(f"{job.task_id}-000001", now, job.name, EventKind.SUBMITTED, text)


def _is_replaceable(view: JobView, owner: str) -> bool:
    gone = all(node.state is NodeState.GONE for node in view.nodes.values())
    return view.record.ended and gone and view.record.owner == owner


def _cancel(journal: Journal, view: JobView, why: str, now: float) -> None:
    """Request a job's end, as a user does. Another look does it again where the job has changed meanwhile."""
    job = view.record
    event = Event(
        f"{job.task_id}-{job.next_event:06d}", now, job.name, EventKind.CANCEL_REQUESTED, f"{job.name}: {why}"
    )
    try:
        cancelled = replace(job, cancel_requested=True, cancel_reason=why, next_event=job.next_event + 1)
        journal.update_job(view, cancelled, event)
    except JournalUnavailableError:
        raise
    except SpotsupError as error:
        log.warning("a member of a sweep is not cancelled yet", job=job.name, error=str(error))
