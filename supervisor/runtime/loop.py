"""observe -> plan -> journal -> act. One tick is one decision; nothing else writes records or calls a cloud."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import structlog
from spotsup_trainer.etcd import Compare
from spotsup_trainer.wire import Keys

from provisioners.base import Transient
from supervisor.errors import JournalUnavailableError
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
from supervisor.planner.plan import absorb, plan
from supervisor.planner.world import JobView, Rules, Soft, World
from supervisor.runtime.clock import Clock
from supervisor.runtime.journal import Reading

log = structlog.get_logger("spotsupd")


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


class Loop:
    """The daemon's one decision maker. `tick` is called by one thread only; `status` may be read by any."""

    def __init__(
        self, journal: JournalLike, leader: Leader, actor: Actor, clock: Clock, rules: Rules, clouds: tuple[str, ...]
    ) -> None:
        self._journal = journal
        self._leader = leader
        self._actor = actor
        self._clock = clock
        self._rules = rules
        self._clouds = clouds
        self._soft = Soft()
        self._running: dict[str, Action] = {}
        self._in_hand: dict[str, list[NodeOutcome]] = {}
        self._written = 0
        self._led = False
        self._counters: dict[str, int] = {}
        self._said: dict[str, str] = {}
        self._unreadable: set[str] = set()
        self.status = Status(0.0, "starting", MappingProxyType({}), MappingProxyType({}))

    def tick(self) -> None:
        """Decide once. Returns without deciding while etcd is away, while another leads, or before our own last write
        has come back: deciding on old knowledge would only be refused by the guards."""
        reading = self._journal.read()
        self._tell_of_unreadable(reading)
        self._take_outcomes(reading.jobs.values())
        if not reading.live:
            self._say("etcd is away: nothing is decided until it is back; training goes on", {})
        elif not self._leader.leading:
            self._stand_by()
        elif reading.revision >= self._written:
            self._led = True
            self._decide(reading)

    # -- observe -------------------------------------------------------------------------------------------

    def _take_outcomes(self, jobs: Iterable[JobView]) -> None:
        for action, outcome in self._actor.collect():
            self._running.pop(action.key, None)
            if isinstance(outcome, ListDone | LeftoversDone | OffersDone | AlertDone):
                self._soft = absorb(self._soft, outcome, jobs, self._clock.now())
            elif isinstance(outcome, RemoveDone):
                self._count("leftovers_kept" if outcome.error else "leftovers_removed")
            elif outcome.node:
                self._count_code(outcome)
                self._in_hand.setdefault(outcome.node, []).append(outcome)

    def _stand_by(self) -> None:
        if self._led:
            # What we remember of clouds and offers will be old by the time we lead again.
            self._soft, self._led = Soft(), False
            self._in_hand.clear()
        self._say(f"standing by: {self._leader.leader} leads" if self._leader.leader else "waiting to lead", {})

    # -- plan, journal, act --------------------------------------------------------------------------------

    def _decide(self, reading: Reading) -> None:
        now = self._clock.now()
        world = World(
            jobs=reading.jobs,
            soft=self._soft,
            rules=self._rules,
            clouds=self._clouds,
            alerts=reading.alerts,
            busy=frozenset(self._running),
        )
        decision, self._soft = plan(world, self._in_hand, self._journal.keys, now)
        for refusal in decision.refused:
            self._count("illegal_transitions")
            log.error("refused an illegal transition", error=refusal)
        written = {commit.job for commit in decision.commits}
        for commit in decision.commits:
            self._carry_out(commit)
        for name, job in reading.jobs.items():
            if name not in written:
                self._drop_outcomes(job.nodes)
        for action in decision.actions:
            self._start(action)
        self._forget_strays(reading)
        working = sum(not job.record.ended for job in reading.jobs.values())
        self._say(f"{working} jobs under care", decision.sentences)

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
        known = {node for job in reading.jobs.values() for node in job.nodes}
        self._drop_outcomes([node for node in self._in_hand if node not in known])

    # -- tell ----------------------------------------------------------------------------------------------

    def _count(self, name: str) -> None:
        self._counters[name] = self._counters.get(name, 0) + 1

    def _tell_of_unreadable(self, reading: Reading) -> None:
        """A key that nobody of ours wrote is left as it is, and told once."""
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
