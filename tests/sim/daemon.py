"""A daemon process: the real loop, journal and effects, with a simulated lease, and calls that take their time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotsup_trainer.etcd import Compare
from spotsup_trainer.wire import Keys

from supervisor.errors import JournalUnavailableError
from supervisor.identity import Identity
from supervisor.journal.journal import Journal, Reading
from supervisor.planner.actions import Action, Bootstrap, Commit, ListDone, Outcome, SendAlert
from supervisor.runtime.actor import Effects, outcome_of_fault
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.loop import Loop
from tests.sim.cloud import NEVER
from tests.sim.store import CLUSTER, LEADER_KEY, Client, SimStore

if TYPE_CHECKING:
    from tests.sim.world import World

LEADER_TTL_S = 6.0
MIN_TICK_S = 0.02
_READS = ("actions_listinstances", "actions_listleftovers", "actions_fetchoffers")
IDENTITY = Identity(b"s" * 32)


class DiedError(BaseException):
    """The process was killed here. Not an Exception: nothing in it may go on."""


class SimLeader:
    """One daemon's leadership: a key in the store under a lease, as the real one keeps."""

    def __init__(self, world: World, client: Client, name: str) -> None:
        self._store: SimStore = world.store
        self._world = world
        self._client = client
        self._name = name
        self._revision = 0
        self._looks_at = 0.0
        self._lease_ends = NEVER

    @property
    def leading(self) -> bool:
        return self._revision > 0

    @property
    def leader(self) -> str:
        found = self._store.keys.get(LEADER_KEY)
        return found.value.decode() if found else ""

    def guard(self) -> Sequence[Compare]:
        return (Compare(LEADER_KEY, "create", self._revision or -1), Compare(LEADER_KEY, "value", self._name.encode()))

    def seize(self) -> None:
        """The old leader's lease has ended, and this one campaigned."""
        self._store.delete(LEADER_KEY)
        self._store.put(LEADER_KEY, self._name.encode())
        self._revision = self._store.keys[LEADER_KEY].create_revision

    def step_down(self) -> None:
        """An orderly end. Where etcd does not answer, the lease ends by itself."""
        if self._holds() and self._client.connected:
            self._store.delete(LEADER_KEY)
            self._revision = 0

    def out_of_touch(self) -> None:
        """Nobody renews the lease any more."""
        if self._lease_ends == NEVER:
            self._lease_ends = self._world.clock.now() + self._world.dice.between(0.7, 1.0) * LEADER_TTL_S

    def in_touch(self) -> None:
        """It renews again; whether it still leads, it learns in a while."""
        self._lease_ends = NEVER
        self._looks_at = self._world.clock.now() + self._world.dice.between(0.1, 1.0)

    def step_lease(self, now: float) -> None:
        """What etcd does with this daemon's lease, whatever the daemon does."""
        if self._store.away and self._lease_ends < NEVER:
            self._lease_ends = max(self._lease_ends, now + LEADER_TTL_S)
        elif now >= self._lease_ends:
            self._lease_ends = NEVER
            if self._holds():
                self._store.delete(LEADER_KEY)

    def step(self, now: float) -> None:
        """Notice what happened to the key; campaign where there is none."""
        if not self._client.connected or now < self._looks_at:
            return
        if self.leading and not self._holds():
            self._revision = 0
            self._world.say(f"{self._name} notices that it does not lead")
        if not self.leading and LEADER_KEY not in self._store.keys:
            self._store.put(LEADER_KEY, self._name.encode())
            self._revision = self._store.keys[LEADER_KEY].create_revision
            self._world.say(f"{self._name} leads")

    def lease_at(self) -> float:
        """When the lease ends."""
        return NEVER if self._store.away else self._lease_ends

    def next_at(self, now: float) -> float:
        """When there is something to notice."""
        if not self._client.connected:
            return NEVER
        free = LEADER_KEY not in self._store.keys
        if self._looks_at > now and (free or self.leading):
            return self._looks_at
        return now + 0.5 if free or (self.leading and not self._holds()) else NEVER

    def _holds(self) -> bool:
        found = self._store.keys.get(LEADER_KEY)
        return found is not None and (found.create_revision, found.value) == (self._revision, self._name.encode())


@dataclass
class Call:
    """An action under way: when it reaches the world, when its answer comes, and what that is."""

    action: Action
    effect_at: float
    answer_at: float
    outcome: Outcome | None = None
    hung: bool = False


class SimActor:
    """Carries actions out after a while. A crash leaves some done and untold, and some not begun."""

    def __init__(self, world: World, daemon: Daemon, perform: Callable[[Action], Outcome]) -> None:
        self._world = world
        self._daemon = daemon
        self._perform = perform
        self._calls: list[Call] = []
        self._done: list[tuple[Action, Outcome]] = []

    @property
    def waiting(self) -> bool:
        """Whether outcomes wait to be collected."""
        return bool(self._done)

    def start(self, action: Action) -> None:
        world = self._world
        world.on_start(self._daemon, action)
        if isinstance(action, SendAlert):
            world.alert_tries[action.event_id] += 1  # one that hangs counts, too
        now, faults = world.clock.now(), world.faults
        if world.dice.hits("hung call", faults.hung_call):
            # Whether it reached the cloud, nobody knows; the time limit ends it.
            effect_at = now + 1.0 if world.dice.rng.random() < 0.5 else NEVER
            self._calls.append(Call(action, effect_at, now + 60.0, hung=True))
            return
        longest = 20.0 if world.dice.hits("slow call", faults.slow_call) else 0.8
        if isinstance(action, Bootstrap):
            longest += world.bootstrap_s
        effect_at = now + world.dice.between(0.0, longest)
        self._calls.append(Call(action, effect_at, effect_at + (0.0 if longest < 1 else 0.5)))

    def collect(self) -> list[tuple[Action, Outcome]]:
        done, self._done = self._done, []
        return done

    def step(self, now: float) -> None:
        for call in [call for call in self._calls if call.effect_at <= now and call.outcome is None]:
            if call not in self._calls:
                continue  # the daemon died meanwhile
            call.effect_at = NEVER
            call.outcome = self._attempt(call)
        for call in [call for call in self._calls if call.answer_at <= self._world.clock.now()]:
            self._calls.remove(call)
            lost = call.hung or call.outcome is None
            outcome = outcome_of_fault(call.action, "no answer within 60 s") if lost else call.outcome
            assert outcome is not None
            if isinstance(outcome, ListDone) and not outcome.error:
                self._world.cloud.heard(outcome.instances)
            self._done.append((call.action, outcome))

    def _attempt(self, call: Call) -> Outcome:
        kind = type(call.action).__name__
        try:
            outcome = self._perform(call.action)
            self._daemon.passes("after call", kind)
        except RuntimeError as error:  # as ThreadActor takes the unforeseen
            return outcome_of_fault(call.action, str(error))
        return outcome

    def next_at(self) -> float:
        """When the next call reaches the world, or is answered."""
        return min((min(call.effect_at, call.answer_at) for call in self._calls), default=NEVER)

    def crash(self) -> None:
        """What was under way may still reach the cloud; nobody hears of it."""
        calls, self._calls, self._done = self._calls, [], []
        for call in calls:
            if call.effect_at < NEVER and self._world.dice.rng.random() < 0.5:
                self._perform(call.action)


class WatchedJournal:
    """The real journal, with a look at what passes through."""

    def __init__(self, daemon: Daemon, journal: Journal) -> None:
        self._daemon = daemon
        self._journal = journal
        self.keys = journal.keys

    def read(self) -> Reading:
        return self._journal.read()

    def commit(self, commit: Commit, leader_guard: Sequence[Compare]) -> int:
        """As Journal.commit. Each kind of action passes a boundary before its intent and one after it."""
        kinds = sorted({type(action).__name__ for action in commit.actions})
        for kind in kinds:
            self._pass("before intent", kind)
        revision = self._journal.commit(commit, leader_guard)
        if revision and not self._daemon.client.leads():
            self._daemon.fenced.append(f"{self._daemon.name} wrote a decision about {commit.job}, but does not lead")
        if revision:
            self._daemon.world.on_commit(self._daemon, commit)
            for kind in kinds:
                self._pass("after intent", kind)
            for kind in self._daemon.told(commit):
                self._pass("after outcome", kind)
        return revision

    def _pass(self, where: str, kind: str) -> None:
        try:
            self._daemon.passes(where, kind)
        except RuntimeError as error:
            raise JournalUnavailableError(str(error)) from error


class Daemon:
    """One daemon process. `frozen`: SIGSTOP; `dead`: kill -9. `ahead_s`: how wrong its time of day is. `fenced`: what
    it wrote without leading (P10)."""

    def __init__(self, world: World, name: str, ahead_s: float = 0.0) -> None:
        self.name = name
        self.world = world
        self.frozen = False
        self.dead = False
        self.ahead_s = ahead_s
        self.clock = SystemClock(lambda: world.clock.now() + self.ahead_s, world.clock.now)
        self.fenced: list[str] = []
        self.client = Client(world.store, world.dice, name)
        self.client.faults = world.faults
        self.leader = SimLeader(world, self.client, name)
        self.journal = Journal(self.client, Keys(CLUSTER))
        effects = Effects(
            cluster=CLUSTER,
            provisioners={"local": world.cloud},
            identity=IDENTITY,
            preparer=world.nodes,
            alerts=world,
            find_alert=self.journal.alert,
            clock=self.clock,
            pre_terminate=world.pre_terminate,
        )
        self.actor = SimActor(world, self, effects.perform)
        watched = WatchedJournal(self, self.journal)
        self.loop = Loop(watched, self.leader, self.actor, self.clock, world.rules, ("local",))
        self._ticked_at = world.clock.now() - 1.0
        self._ticked_revision = 0
        self._idle = 0
        self._carried: dict[str, str] = {}

    @property
    def runs(self) -> bool:
        return not (self.frozen or self.dead)

    def passes(self, where: str, kind: str) -> None:
        """A boundary: tests stop daemons here."""
        self.world.boundary(self, where, kind)

    def told(self, commit: Commit) -> list[str]:
        """The kinds of actions whose outcomes are in the journal now."""
        return [kind for node in commit.nodes if (kind := self._carried.pop(node.id, ""))]

    def attend(self) -> None:
        """Something happened in the world: look often for a while."""
        self._idle = 0

    def step(self, now: float) -> None:
        """What is due now. A process that is stopped does nothing; etcd takes its lease away none the less."""
        self.leader.step_lease(now)
        if not self.runs:
            return
        try:
            led = self.leader.leading
            self.leader.step(now)
            if led != self.leader.leading:  # the real one wakes the loop, too
                self._idle, self._ticked_at = 0, now - MIN_TICK_S - self.world.quickest_tick_s
            self.actor.step(now)
            if self.runs and self._tick_at(self.world.clock.now()) <= self.world.clock.now():
                self._tick()
        except DiedError:
            self.world.kill(self)

    def next_at(self, now: float) -> float:
        """When the next thing is due."""
        if not self.runs:
            return self.leader.lease_at()
        return min(self.actor.next_at(), self._tick_at(now), self.leader.lease_at(), self.leader.next_at(now))

    def _tick_at(self, now: float) -> float:
        least = self._ticked_at + MIN_TICK_S
        if self.actor.waiting:
            return max(now, least)
        timer = self._ticked_at + self.world.tick_s(self._idle)
        return min(timer, max(least, self.client.next_at(self._ticked_revision)))

    def _tick(self) -> None:
        self._ticked_at = self.world.clock.now()
        self._ticked_revision = self.client.view().revision
        self._note_outcomes(self.actor._done)
        before = self._deeds()
        self.world.ticks += 1
        self.loop.tick()
        self._idle = self._idle + 1 if before == self._deeds() else 0

    def _deeds(self) -> int:
        """How much it has done so far; asking its clouds is no deed."""
        return sum(count for name, count in self.loop.status.counters.items() if name not in _READS)

    def _note_outcomes(self, done: Iterable[tuple[Action, Outcome]]) -> None:
        for action, outcome in list(done):
            node = getattr(outcome, "node", "")
            if node:
                self._carried[node] = type(action).__name__
