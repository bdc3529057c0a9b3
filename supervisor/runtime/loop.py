"""observe -> plan -> journal -> act. One tick is one decision; nothing else writes records or calls a cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import structlog
from spotsup_trainer.etcd import Compare
from spotsup_trainer.wire import Keys

from provisioners.base import Transient
from supervisor.errors import JournalUnavailableError
from supervisor.journal.journal import Reading
from supervisor.model import ClusterRecord
from supervisor.planner.actions import (
    Action,
    AlertDone,
    Commit,
    LaunchDone,
    LeftoversDone,
    ListDone,
    NodeOutcome,
    OffersDone,
    Outcome,
    RemoveDone,
)
from supervisor.planner.journal_guard import init_journal
from supervisor.planner.plan import absorb, plan
from supervisor.planner.quiescence import Steady, skipped
from supervisor.planner.world import JobView, Rules, VolatileState, World
from supervisor.runtime.clock import Clock

RESTS = 4.0
MAX_REST_S = 0.2
# Between two ticks: more than that is a jump of the clock, or we slept. Threads that read it may be so far apart.
MAX_GAP_S = 60.0
BACKWARDS_S = 1.0

log = structlog.get_logger("spotsupd")


def rest_s(took_s: float) -> float:
    """How long to rest after a tick that took so long: where hundreds of jobs tell of each step, there is always a word
    that would wake the loop, and looking at all of them a few times a second is enough."""
    return min(RESTS * took_s, MAX_REST_S)


class JournalLike(Protocol):
    """What the loop needs of a journal; the real one is runtime.journal.Journal."""

    @property
    def keys(self) -> Keys:
        """Names of the words for nodes."""
        ...

    def read(self) -> Reading:
        """The journal as it is known now."""
        ...

    def commit(self, commit: Commit, leader_guard: Sequence[Compare]) -> int:
        """The new revision, or 0 where a guard did not hold. Raises JournalUnavailableError."""
        ...


class Leader(Protocol):
    """What the loop needs to know of leadership."""

    @property
    def leading(self) -> bool:
        """Whether this daemon may act."""
        ...

    @property
    def leader(self) -> str:
        """Who leads, as far as known."""
        ...

    def guard(self) -> Sequence[Compare]:
        """What each commit must carry."""
        ...


class Actor(Protocol):
    """Carries actions out, elsewhere and in its own time; each is bounded."""

    def start(self, action: Action) -> None:
        """Begin. Returns at once; the outcome comes through `collect`."""
        ...

    def collect(self) -> list[tuple[Action, Outcome]]:
        """What ended since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class Status:
    """What the loop did last: for `spotsupctl status`, the log and systemd."""

    at: float
    headline: str
    sentences: Mapping[str, str]
    counters: Mapping[str, int]

    def about(self, job: str) -> str:
        """What is done for a job and why; where nothing is decided here, why that is."""
        return self.sentences.get(job) or self.headline


class Loop:
    """The daemon's one decision maker. `tick` is called by one thread only; `status` may be read by any."""

    def __init__(
        self,
        journal: JournalLike,
        leader: Leader,
        actor: Actor,
        clock: Clock,
        rules: Rules,
        clouds: tuple[str, ...],
        key_mark: str = "",
        etcd_problem: Callable[[], str] = lambda: "",
    ) -> None:
        """Build an idle loop.

        `key_mark`: identifies the cluster's key, which all its daemons share (`identity.Identity.mark`).
        `etcd_problem`: what is wrong with etcd, as the leader election sees it; "" when nothing is.
        """
        self._journal = journal
        self._leader = leader
        self._actor = actor
        self._clock = clock
        self._rules = rules
        self._clouds = clouds
        self._key_mark = key_mark
        self._etcd_problem = etcd_problem
        self._volatile = VolatileState()
        self._running: dict[str, Action] = {}
        self._in_hand: dict[str, list[NodeOutcome]] = {}
        self._written = 0
        self._outages = 0
        self._timers_paused_until = self._ticked_at = 0.0
        self._journal_ready = False
        self._counters: dict[str, int] = {}
        self._said: dict[str, str] = {}
        self._unreadable: set[str] = set()
        self._refused: set[str] = set()
        self._warnings: tuple[str, ...] = ()
        self._steady: dict[str, Steady] = {}
        self.status = Status(0.0, "starting", MappingProxyType({}), MappingProxyType({}))

    def tick(self) -> None:
        """Decide once. Returns without deciding while something speaks against it, or before our own last write has
        come back: deciding on old knowledge would only be refused by the guards."""
        self._look_at_the_clock()
        reading = self._journal.read()
        self._tell_of_unreadable(reading)
        self._take_outcomes(reading.jobs.values())
        if reading.outages != self._outages:
            # etcd may hold now what it held long ago, or nothing: its revisions say nothing about ours.
            self._outages, self._written = reading.outages, 0
            self._timers_paused_until = self._clock.now()
        if not reading.live:
            self._timers_paused_until = self._clock.now()
        if not self._leader.leading or (reading.cluster is None and self._journal_ready):
            self._forget()
        obstacle = self._obstacle(reading)
        if obstacle:
            self._say(obstacle, {})
        elif reading.cluster is None:
            self._init_journal(reading)
        elif reading.revision >= self._written:
            if not self._journal_ready:
                # Who led before may have written times by a clock that was wrong: they run anew.
                self._journal_ready, self._timers_paused_until = True, self._clock.now()
            self._decide(reading)

    def _look_at_the_clock(self) -> None:
        """After a jump of the time of day, or a long sleep of ours, nobody's silence means anything yet. What we
        remember for a time that is far ahead now would hold up all that is periodic."""
        now, before = self._clock.now(), self._ticked_at
        self._ticked_at = now
        if before and not before - BACKWARDS_S <= now <= before + MAX_GAP_S:
            self._timers_paused_until = now
        if now < before - BACKWARDS_S:
            self._volatile = VolatileState()
            self._steady.clear()

    def _obstacle(self, reading: Reading) -> str:
        """Why nothing is to be decided now; "" where nothing speaks against it."""
        if not reading.live:
            return "etcd is away: nothing is decided until it is back; training goes on"
        if reading.pause is not None:
            why = f" ({reading.pause.reason})" if reading.pause.reason else ""
            return f"paused by a user{why}: this daemon watches and does nothing; `spotsupctl daemon resume` ends that"
        if not self._leader.leading:
            leads = f"standby; {self._leader.leader} leads" if self._leader.leader else "waiting to lead"
            return "; ".join(filter(None, [leads, self._etcd_problem()]))
        if reading.cluster is not None and self._key_mark and reading.cluster.key_mark not in {"", self._key_mark}:
            return "this daemon's cluster.key is not the cluster's: copy it from the state folder of another daemon"
        return ""

    # -- observe -------------------------------------------------------------------------------------------

    def _take_outcomes(self, jobs: Iterable[JobView]) -> None:
        for action, outcome in self._actor.collect():
            self._running.pop(action.key, None)
            if isinstance(outcome, ListDone | LeftoversDone | OffersDone):
                # Of before the clock was set back: as old as can be.
                outcome = replace(outcome, asked_at=min(outcome.asked_at, self._clock.now()))  # noqa: PLW2901
            if isinstance(outcome, ListDone | LeftoversDone | OffersDone | AlertDone):
                self._volatile = absorb(self._volatile, outcome, jobs, self._clock.now())
            elif isinstance(outcome, RemoveDone):
                self._count("leftovers_kept" if outcome.error else "leftovers_removed")
            elif outcome.node:
                self._count_code(outcome)
                self._in_hand.setdefault(outcome.node, []).append(outcome)

    def _forget(self) -> None:
        """Another leads, or the journal is gone: what we remember, and what is answered late, is old when it counts."""
        self._volatile, self._journal_ready = VolatileState(), False
        self._in_hand.clear()
        self._steady.clear()

    def _init_journal(self, reading: Reading) -> None:
        """Begin a new journal, unless machines run that it should know."""
        now = self._clock.now()
        mine = ClusterRecord(now, self._leader.leader, self._key_mark)
        charge = init_journal(self._world(reading), mine, now)
        if charge.commit is not None:
            self._carry_out(charge.commit)
        for action in charge.actions:
            self._start(action)
        self._say(charge.sentence, {})

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
        )

    # -- plan, journal, act --------------------------------------------------------------------------------

    def _decide(self, reading: Reading) -> None:
        now = self._clock.now()
        world = self._world(reading)
        world = replace(world, skipped=skipped(world, self._steady, self._in_hand, now))
        decision, self._volatile = plan(world, self._in_hand, self._journal.keys, now)
        self._steady = {name: self._steady[name] for name in world.skipped}
        self._steady |= {name: Steady(reading.jobs[name], now) for name in decision.steady_jobs}
        for refusal in decision.illegal_transitions:
            self._count("illegal_transitions")
            log.error("refused an illegal transition", error=refusal)
        written = {commit.job for commit in decision.commits}
        for commit in decision.commits:
            self._carry_out(commit)
        if self._in_hand:
            done_with = (job.nodes for name, job in reading.jobs.items() if name not in written)
            self._drop_outcomes([node for nodes in done_with for node in self._in_hand if node in nodes])
        for action in decision.actions:
            self._start(action)
        self._forget_strays(reading)
        working = sum(not job.record.ended for job in reading.jobs.values())
        warnings = (*decision.warnings, *filter(None, [self._etcd_problem()]))
        self._warn(warnings)
        unchanged = {name: self._said.get(name, "") for name in world.skipped}
        self._say(
            "; ".join([f"watching {working} {'job' if working == 1 else 'jobs'}", *warnings]),
            {**unchanged, **decision.sentences},
        )

    def _carry_out(self, commit: Commit) -> None:
        try:
            revision = self._journal.commit(commit, self._leader.guard())
        except JournalUnavailableError as error:
            self._count("commits_unanswered")
            log.warning("no answer from etcd; nothing was started", job=commit.job, error=str(error))
            return
        if not revision:
            self._count("commits_stale")
            return
        self._count("commits")
        if commit.job:
            self._written = max(self._written, revision)
            self._drop_outcomes([node.id for node in commit.nodes])
        for event in commit.events:
            log.info(event.text, job=event.job, kind=str(event.kind))
        for action in commit.actions:
            self._start(action)

    def _start(self, action: Action) -> None:
        self._running[action.key] = action
        self._count(f"actions_{type(action).__name__.lower()}")
        self._actor.start(action)

    def _drop_outcomes(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._in_hand.pop(node, None)

    def _forget_strays(self, reading: Reading) -> None:
        """Outcomes of nodes that the journal does not hold any more have nobody to tell."""
        known = [job.nodes for job in reading.jobs.values()]
        self._drop_outcomes([node for node in self._in_hand if not any(node in nodes for nodes in known)])

    # -- tell ----------------------------------------------------------------------------------------------

    def _count(self, name: str) -> None:
        self._counters[name] = self._counters.get(name, 0) + 1

    def _warn(self, warnings: tuple[str, ...]) -> None:
        for text in warnings:
            if text not in self._warnings:
                self._count("warnings")
                log.error(text)
        self._warnings = warnings

    def _tell_of_unreadable(self, reading: Reading) -> None:
        """A key that nobody of ours wrote is left as it is, and told once. So is a record that is not for us."""
        for _ in set(reading.refused.values()) - self._refused:
            self._count("records_refused")
        self._refused = set(reading.refused.values())
        for text in set(reading.unreadable) - self._unreadable:
            log.error("a key in etcd cannot be read, and is ignored", error=text)
        self._unreadable = set(reading.unreadable)

    def _count_code(self, outcome: NodeOutcome) -> None:
        if isinstance(outcome, LaunchDone) and isinstance(outcome.outcome, Transient) and outcome.outcome.unknown_code:
            self._count("unknown_codes")

    def _say(self, headline: str, sentences: Mapping[str, str]) -> None:
        for job, text in sentences.items():
            if self._said.get(job) != text:
                log.info(text, job=job)
        if headline != self.status.headline:
            log.info(headline)
        self._said = dict(sentences)
        self.status = Status(
            self._clock.now(), headline, MappingProxyType(dict(sentences)), MappingProxyType(dict(self._counters))
        )
