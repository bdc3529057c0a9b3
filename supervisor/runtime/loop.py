"""observe -> plan -> journal -> act: one tick is one decision.

This loop alone commits what the daemon decides about jobs, and its actor alone changes clouds. Who else writes to the
journal, and reads from clouds, is listed in tests/unit/test_writers_and_callers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Protocol

import structlog
from spotsup_trainer.decoding import printable
from spotsup_trainer.etcd import Compare
from spotsup_trainer.vitals import Vitals
from spotsup_trainer.wire import Keys

from provisioners.base import Transient
from supervisor.alerts.senders import Receipt
from supervisor.errors import JournalFullError, JournalUnavailableError
from supervisor.events import EventKind
from supervisor.journal.journal import Reading
from supervisor.market.admission import Admission
from supervisor.market.capacity import CapacityMemory
from supervisor.market.journaled import CapacityRecord, memory_of
from supervisor.model import ClusterRecord
from supervisor.planner.actions import (
    Action,
    AlertsDone,
    AskDone,
    Commit,
    Fault,
    LaunchDone,
    LeftoversDone,
    ListDone,
    NodeOutcome,
    OffersDone,
    Outcome,
    ReadOutcome,
    RemoveDone,
)
from supervisor.planner.boundary import MAX_REPORTS_AT_ONCE, Boundary, Budget, fault, owner_of, report, unreadable
from supervisor.planner.continuity import RESTORED, doubted, mark_of, of_account
from supervisor.planner.journal_guard import init_journal
from supervisor.planner.plan import absorb, plan
from supervisor.planner.quiescence import Steady, skipped
from supervisor.planner.unwritten import as_unwritten
from supervisor.planner.world import JobView, Problem, Rules, VolatileState, World
from supervisor.runtime.clock import Clock
from supervisor.runtime.marks import Continuity

# After a tick the loop rests for this many times what the tick took, at most MAX_REST_S.
REST_FACTOR = 4.0
MAX_REST_S = 0.2
# A longer gap between two ticks means that the clock jumped, or that this process was suspended.
MAX_GAP_S = 60.0
# The clock may go back by this much: threads read it at slightly different times.
BACKWARDS_S = 1.0

# So long all ticks may fail before the daemon ends: the next one begins with what etcd and clouds say.
FAILING_S = 60.0
# Causes of faults of one job, or one part, that are logged and reported within an hour.
MAX_REPORTED = 20
WATCHING = "watching"  # how the headline of a leader begins that decides about jobs

log = structlog.get_logger("spotsupd")


def rest_s(took_s: float) -> float:
    """Return how long to rest after a tick that took `took_s`.

    Hundreds of jobs that report each step would wake the loop all the time; a few ticks a second are enough.
    """
    return min(REST_FACTOR * took_s, MAX_REST_S)


class JournalLike(Protocol):
    """What the loop needs of a journal; the real one is `journal.journal.Journal`."""

    @property
    def keys(self) -> Keys:
        """Names of the keys in etcd."""
        ...

    def read(self) -> Reading:
        """Return the journal as the mirror has it now."""
        ...

    def commit(self, commit: Commit, leader_guard: Sequence[Compare]) -> int:
        """Return the new revision, or 0 if a guard did not hold. Raises JournalUnavailableError."""
        ...


class Leader(Protocol):
    """What the loop needs to know about leadership."""

    @property
    def leading(self) -> bool:
        """True if this daemon leads."""
        ...

    @property
    def leader(self) -> str:
        """Return the name of the leader, "" if unknown."""
        ...

    def guard(self) -> Sequence[Compare]:
        """Return the guards that every commit carries."""
        ...


class Actor(Protocol):
    """Runs actions in the background, each with a time limit."""

    def start(self, action: Action) -> None:
        """Start an action. Returns at once; `collect` returns the outcome."""
        ...

    def collect(self) -> list[tuple[Action, Outcome]]:
        """Return the actions that ended since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class Status:
    """What the last tick did: for `spotsupctl status`, the log and systemd."""

    at: float
    headline: str
    sentences: Mapping[str, str]
    counters: Mapping[str, int]
    # Since when etcd has not answered; 0 while it does.
    etcd_away_since: float = 0.0
    # By job, what the operator's limits leave for it; empty without limits, and on a daemon that does not lead.
    admissions: Mapping[str, Admission] = field(default_factory=lambda: MappingProxyType({}))

    def about(self, job: str) -> str:
        """Return what is done for a job and why; the headline if this daemon decides nothing at all."""
        if job in self.sentences or not self.headline.startswith(WATCHING):
            return self.sentences.get(job) or self.headline
        return "stored; the daemon takes it up within seconds"


class Loop:
    """The only decision maker of the daemon. One thread calls `tick`; any thread may read `status`."""

    def __init__(  # noqa: PLR0913, PLR0917 - it connects all parts
        self,
        journal: JournalLike,
        leader: Leader,
        actor: Actor,
        clock: Clock,
        rules: Rules,
        clouds: tuple[str, ...],
        continuity: Continuity | None = None,
        etcd_problem: Callable[[], str] = lambda: "",
        outside: Callable[[], Iterable[Problem]] = tuple,
    ) -> None:
        """Build an idle loop.

        `continuity`: what is known of the journal from elsewhere; without it nothing.
        `etcd_problem`: what is wrong with etcd, as the leader election sees it; "" when nothing is.
        `outside`: problems of the daemon's other parts, of which people are told as of the planner's.
        """
        self._journal = journal
        self._leader = leader
        self._actor = actor
        self._clock = clock
        self._rules = rules
        self._clouds = clouds
        self._etcd_problem = etcd_problem
        self._outside = outside
        self._continuity = continuity or Continuity()
        self._volatile = VolatileState()
        self._running: dict[str, Action] = {}
        # By node: outcomes that no commit has taken into the journal yet.
        self._outcomes: dict[str, list[NodeOutcome]] = {}
        # The revision of our own last commit: nothing is decided from an older reading.
        self._own_revision = 0
        self._outages = 0
        self._timers_paused_until = self._ticked_at = self._etcd_away_since = 0.0
        self._journal_ready = self._caught_up = False
        self._counters: dict[str, int] = {}
        self._sentences: dict[str, str] = {}
        self._admissions: Mapping[str, Admission] = {}
        self._unreadable: Mapping[str, str] = {}
        # What failed since the last decision; the causes that were logged, and those that had an alert.
        self._faults: list[Fault] = []
        self._unwritten: set[str] = set()  # jobs of which the last decision did not reach etcd
        self._unanswered = ""  # why etcd took no commit lately
        self._logged, self._reported = Budget(MAX_REPORTED), Budget(MAX_REPORTED)
        self._refused: set[str] = set()
        self._warnings: tuple[str, ...] = ()
        self._steady: dict[str, Steady] = {}
        # How many ticks did not fail.
        self._ticked = 0
        self.status = Status(0.0, "starting", MappingProxyType({}), MappingProxyType({}))

    @property
    def capacity(self) -> CapacityMemory:
        """Return what clouds last answered, as this daemon remembers it."""
        return self._volatile.capacity

    def tick(self) -> None:
        """Decide once, unless something blocks it or the mirror lacks our own last commit.

        The guards would refuse every decision that is made from an older reading. Whatever is raised leaves all as it
        is until the next tick.
        """
        try:
            self._tick()
            self._ticked += 1
        except Exception as error:  # noqa: BLE001 - it is logged with its traceback, once per cause
            self._count("ticks_failed")
            failed = fault("nothing is decided: the daemon itself failed", "loop", error)
            self._log_once([failed])
            self._set_status(failed.sentence, self._sentences)

    def vitals(self) -> Vitals:
        """Return how its thread is. A daemon of which each tick fails looks alive and decides nothing."""
        return Vitals(self._ticked, FAILING_S)

    def _tick(self) -> None:
        self._check_clock()
        reading = self._journal.read()
        self._report_unreadable(reading)
        self._collect_outcomes(reading)
        is_older = not self._sees(reading)
        if reading.outages != self._outages:
            # etcd may have been restored from a backup, or emptied: its revisions cannot be compared with ours.
            self._outages, self._own_revision = reading.outages, 0
            self._timers_paused_until = self._clock.now()
        self._etcd_away_since = 0.0 if reading.live else self._etcd_away_since or self._clock.now()
        if not reading.live:
            self._timers_paused_until = self._clock.now()
        if not self._leader.leading or (reading.cluster is None and self._journal_ready):
            self._forget()
        blocked = self._blocked_reason(reading)
        if blocked:
            self._set_status(blocked, {})
        elif reading.cluster is None:
            self._init_journal(reading)
        elif is_older:
            self._doubt(reading)
        elif reading.revision >= self._own_revision and self._catch_up(reading):
            if not self._journal_ready:
                # The previous leader may have written times by a wrong clock: all timeouts restart.
                self._journal_ready, self._timers_paused_until = True, self._clock.now()
                self._believe(reading.capacity)
            self._decide(reading)

    def _sees(self, reading: Reading) -> bool:
        """Take note of how new the journal is. False if it was newer before: etcd was put back to an older state."""
        if reading.cluster is None or not (reading.live and reading.cluster_revision):
            return True
        return self._continuity.see(mark_of(reading.cluster, reading.revision), self._clock.now())

    def _doubt(self, reading: Reading) -> None:
        """Write into the journal that it is not to be believed: all daemons go by that, and an operator ends it."""
        assert reading.cluster is not None
        after = doubted(reading.cluster, RESTORED, self._clock.now(), self._continuity.newest)
        if self._commit(Commit("", {}, cluster=after, cluster_revision=reading.cluster_revision)):
            self._continuity.begin(mark_of(after, reading.revision))
        self._set_status(f"etcd's journal is not believed: {RESTORED}", {})

    def _catch_up(self, reading: Reading) -> bool:
        """True if the mirror shows all that earlier leaders have written. A new leader writes something first: no
        commit of theirs comes after that, and what the mirror shows with it has all of them."""
        if self._caught_up:
            return True
        now = self._clock.now()
        self._caught_up = self._commit(Commit("", {}, capacity=reading.capacity or CapacityRecord(now)))
        waits = "begins to lead: waits until etcd has taken a write, and shows it"
        self._set_status("; ".join(filter(None, [waits, self._etcd_problem()])), {})
        return False

    def _check_clock(self) -> None:
        """Restart all timeouts after the clock jumped or this process was suspended: silence meanwhile means nothing.

        When the clock went back, what is remembered for a later time is dropped: it would hold up all periodic work.
        """
        now, before = self._clock.now(), self._ticked_at
        self._ticked_at = now
        if before and not before - BACKWARDS_S <= now <= before + MAX_GAP_S:
            self._timers_paused_until = now
        if now < before - BACKWARDS_S:
            self._volatile = VolatileState()
            self._steady.clear()

    def _blocked_reason(self, reading: Reading) -> str:
        """Return why nothing may be decided now, or ""."""
        if not reading.live:
            return "etcd does not answer: no decisions until it does; training goes on"
        if reading.pause is not None:
            why = f" ({reading.pause.reason})" if reading.pause.reason else ""
            return f"paused by a user{why}: this daemon changes nothing until `spotsupctl daemon resume`"
        if not self._leader.leading:
            role = f"standby; {self._leader.leader} leads" if self._leader.leader else "waiting to lead"
            return "; ".join(filter(None, [role, self._etcd_problem()]))
        return self._continuity.refusal(reading.cluster) if reading.cluster else ""

    # -- observe -------------------------------------------------------------------------------------------

    def _collect_outcomes(self, reading: Reading) -> None:
        jobs = reading.jobs.values()
        for action, outcome in self._actor.collect():
            self._running.pop(action.key, None)
            if isinstance(outcome, ListDone | LeftoversDone | OffersDone):
                # The clock may have been set back since; a call that failed unforeseen has no time.
                now = self._clock.now()
                outcome = replace(outcome, asked_at=min(outcome.asked_at or now, now))  # noqa: PLW2901
            if isinstance(outcome, ListDone):
                outcome = of_account(outcome, reading.cluster, jobs)  # noqa: PLW2901
            if isinstance(outcome, ListDone | LeftoversDone | OffersDone | AskDone | AlertsDone):
                self._absorb(action, outcome, jobs)
            elif isinstance(outcome, RemoveDone):
                self._count("leftovers_kept" if outcome.error else "leftovers_removed")
            elif outcome.node:
                self._count_code(outcome)
                self._outcomes.setdefault(outcome.node, []).append(outcome)

    def _absorb(self, action: Action, outcome: ReadOutcome | AlertsDone, jobs: Iterable[JobView]) -> None:
        """Remember what was read. What does not fit is dropped, and counts as a read that failed."""
        now = self._clock.now()
        try:
            self._volatile = absorb(self._volatile, outcome, jobs, now)
        except Exception as error:  # noqa: BLE001 - one answer of one cloud
            self._count("outcomes_dropped")
            self._faults.append(fault(f"the outcome of {action.key} is dropped", action.key, error))
            why = "its answer does not fit"
            if isinstance(outcome, AlertsDone):
                outcome = replace(outcome, receipt=Receipt(error=why))
            else:
                outcome = replace(outcome, error=why)
            self._volatile = absorb(self._volatile, outcome, jobs, now)

    def _forget(self) -> None:
        """Drop all volatile state: another daemon leads, or the journal is gone."""
        self._volatile, self._journal_ready, self._caught_up = VolatileState(), False, False
        self._reported.clear()
        self._outcomes.clear()
        self._steady.clear()

    def _believe(self, record: CapacityRecord | None) -> None:
        """Go on believing what clouds answered to the previous leader."""
        known = Boundary().within("(capacity)", lambda: memory_of(record, self._clock.now()), CapacityMemory())
        self._volatile = replace(self._volatile, capacity=known)

    def _init_journal(self, reading: Reading) -> None:
        """Create the journal, unless instances run that it should have recorded."""
        now = self._clock.now()
        mine = ClusterRecord(now, self._leader.leader, self._continuity.key_mark)
        init = init_journal(self._world(reading), mine, now)
        if init.commit is not None:
            self._commit(init.commit)
        for action in init.actions:
            self._start(action)
        self._set_status(init.sentence, {})

    def _world(self, reading: Reading) -> World:
        return World(
            jobs=reading.jobs,
            volatile=self._volatile,
            rules=self._rules,
            clouds=self._clouds,
            alerts=reading.alerts,
            busy=frozenset(self._running),
            unreadable_jobs=reading.refused,
            unjournaled=reading.unjournaled,
            timers_paused_until=self._timers_paused_until,
            cluster=reading.cluster,
            cluster_revision=reading.cluster_revision,
            capacity=reading.capacity,
            budget_record=reading.budgets,
            budget_revision=reading.budgets_revision,
            alerted=reading.alerted,
            threads=reading.threads,
            outside=tuple(self._outside()),
        )

    # -- plan, journal, act --------------------------------------------------------------------------------

    def _decide(self, reading: Reading) -> None:
        now = self._clock.now()
        world = self._world(reading)
        boundary = Boundary()
        idle = boundary.within("(quiescence)", lambda: skipped(world, self._steady, self._outcomes, now), frozenset())
        world = replace(world, skipped=idle) if idle else world
        before = self._volatile
        decision, self._volatile = plan(world, self._outcomes, self._journal.keys, now)
        self._steady = {name: self._steady[name] for name in world.skipped}
        self._steady |= {name: Steady(reading.jobs[name], now) for name in decision.steady_jobs}
        sentences = {name: self._sentences.get(name, "") for name in world.skipped} | dict(decision.sentences)
        for name in decision.undecided:
            self._count("undecided")
            if name in reading.jobs and any(node in self._outcomes for node in reading.jobs[name].nodes):
                self._count("outcomes_dropped")  # below: the next plan may succeed without them
        self._unwritten.clear()
        for commit in decision.commits:
            part = commit.job or "(a change of the cluster)"
            if not boundary.within(part, partial(self._commit, commit), None):
                self._volatile = as_unwritten(commit, before, self._volatile)
        sentences |= {
            name: f"not written to etcd yet: {sentences[name]}" for name in self._unwritten & sentences.keys()
        }
        self._drop_outcomes_without_commit(decision.commits, reading)
        for action in decision.actions:
            boundary.within(action.key, partial(self._start, action), None)
        sentences |= {name: found.sentence for name, found in boundary.faults.items() if name in sentences}
        self._faults += [*decision.undecided.values(), *boundary.faults.values()]
        boundary.within("(reports)", lambda: self._report_faults(reading), None)
        ended = {name for name, job in reading.jobs.items() if job.record.ended}
        open_jobs = len(reading.jobs) - len(ended)
        warnings = (*decision.warnings, *filter(None, [self._etcd_problem()]))
        self._warn(warnings)
        headline = f"{WATCHING} {open_jobs} {'job' if open_jobs == 1 else 'jobs'}"
        if not reading.jobs.keys() <= idle:
            self._admissions = decision.admissions
        self._set_status("; ".join([headline, *warnings]), sentences, self._admissions, ended)

    def _commit(self, commit: Commit) -> bool:
        """Write a commit, then start its actions. Raises what is wrong with the commit itself."""
        try:
            revision = self._journal.commit(commit, self._leader.guard())
        except JournalUnavailableError as error:
            if isinstance(error, JournalFullError):  # nodes get no new lease meanwhile: their silence means nothing
                self._timers_paused_until = self._clock.now()
            self._count("commits_unanswered")
            self._unwritten.add(commit.job)
            if str(error) != self._unanswered:  # the next plans try again, each second
                self._unanswered = str(error)
                log.warning("etcd did not answer a commit; no action was started", job=commit.job, error=str(error))
            return False
        except Exception:
            self._count("commits_refused")
            raise
        if not revision:
            self._count("commits_stale")
            return False
        self._count("commits")
        self._unanswered = ""
        # Of a transaction that wrote nothing etcd names a revision of somebody else.
        if commit.shows_in_mirror and (commit.job or not self._journal_ready):
            self._own_revision = max(self._own_revision, revision)
        if commit.job:
            self._drop_outcomes([node.id for node in commit.nodes])
        for event in commit.events:
            log.info(event.text, job=event.job, kind=str(event.kind))
        for action in commit.actions:
            self._start(action)
        return True

    def _start(self, action: Action) -> None:
        self._actor.start(action)
        self._running[action.key] = action
        self._count(f"actions_{type(action).__name__.lower()}")

    def _drop_outcomes(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._outcomes.pop(node, None)

    def _drop_outcomes_without_commit(self, commits: Iterable[Commit], reading: Reading) -> None:
        """Nothing came of them; or their nodes are unknown by now. A commit that failed is decided again with them."""
        written = [reading.jobs[commit.job].nodes for commit in commits if commit.job in reading.jobs]
        self._drop_outcomes([node for node in self._outcomes if not any(node in nodes for nodes in written)])

    # -- report --------------------------------------------------------------------------------------------

    def _count(self, name: str) -> None:
        self._counters[name] = self._counters.get(name, 0) + 1

    def _report_faults(self, reading: Reading) -> None:
        """Tell people once of each fault, and of each key that cannot be read, since this daemon leads."""
        found, self._faults = self._faults, []
        self._report(EventKind.UNDECIDED, found)
        by_job: dict[str, list[tuple[str, str]]] = {}
        for name, why in {**reading.refused, **reading.unreadable}.items():
            if self._reported.is_new(owner_of(name), name, self._clock.now()):
                by_job.setdefault(owner_of(name), []).append((printable(name), why))
        # One of each job first: those of a job with many are named last.
        turns = zip_longest(*by_job.values())
        new = dict(each for turn in turns for each in turn if each is not None)
        if self._report(EventKind.UNREADABLE, unreadable(new)):
            self._remember(new)

    def _report(self, kind: EventKind, faults: Sequence[Fault]) -> bool:
        now = self._clock.now()
        self._log_once(faults)
        news = {each.cause: each for each in faults if self._reported.is_new(owner_of(each.cause), each.cause, now)}
        chosen = list(news.values())[:MAX_REPORTS_AT_ONCE]
        written = bool(chosen) and self._commit(report(kind, chosen, now, alerts=self._rules.alerts))
        if written:
            self._remember(each.cause for each in chosen)
        return written

    def _log_once(self, faults: Iterable[Fault]) -> None:
        for each in faults:
            if self._may_log(each.cause):
                log.error(each.sentence, cause=each.cause, traceback=each.traceback)

    def _may_log(self, cause: str) -> bool:
        """Return whether a cause is to be logged, which it then was."""
        owner, now = owner_of(cause), self._clock.now()
        is_new = self._logged.is_new(owner, cause, now)
        if is_new:
            self._logged.add(owner, cause, now)
        return is_new

    def _remember(self, causes: Iterable[str]) -> None:
        for cause in causes:
            self._reported.add(owner_of(cause), cause, self._clock.now())

    def _warn(self, warnings: tuple[str, ...]) -> None:
        for text in warnings:
            if text not in self._warnings:
                self._count("warnings")
                log.error(text)
        self._warnings = warnings

    def _report_unreadable(self, reading: Reading) -> None:
        """Count each refused record, and log and count each unreadable message, once; both are left as they are."""
        for _ in set(reading.refused.values()) - self._refused:
            self._count("records_refused")
        self._refused = set(reading.refused.values())
        if reading.unreadable is not self._unreadable:
            for key, why in reading.unreadable.items():
                if self._unreadable.get(key) != why:
                    self._count("messages_unreadable")
                    if self._may_log(key):
                        log.error("ignored an unreadable message in etcd", key=printable(key), error=why)
            self._unreadable = reading.unreadable

    def _count_code(self, outcome: NodeOutcome) -> None:
        if isinstance(outcome, LaunchDone) and isinstance(outcome.outcome, Transient) and outcome.outcome.unknown_code:
            self._count("unknown_codes")

    def _set_status(
        self,
        headline: str,
        sentences: Mapping[str, str],
        admissions: Mapping[str, Admission] = MappingProxyType({}),
        ended: Collection[str] = (),
    ) -> None:
        for job, text in sentences.items():
            # What had ended before this daemon knew of it is no news.
            if self._sentences.get(job) != text and (job in self._sentences or job not in ended):
                log.info(text, job=job)
        if headline != self.status.headline:
            log.info(headline)
        self._sentences = dict(sentences)
        kept = (MappingProxyType(self._sentences), MappingProxyType(dict(self._counters)))
        self.status = Status(self._clock.now(), headline, *kept, self._etcd_away_since, admissions)
