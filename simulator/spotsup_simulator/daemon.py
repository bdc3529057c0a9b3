"""A daemon process: the real loop, journal and effects, with a simulated lease, and calls that take time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spotsup_trainer.etcd import Compare, EtcdError
from spotsup_trainer.wire import Keys

from spotsup_simulator.clock import NEVER
from spotsup_simulator.cloud import IDENTITY, OWNER
from spotsup_simulator.etcd import CLUSTER, LEADER_KEY
from spotsup_simulator.etcd_clients import EtcdClient
from spotsup_simulator.gateway import SimGateway
from spotsup_simulator.surroundings import Surroundings
from spotsup_simulator.tunnels import SimTunnel
from supervisor.errors import JournalUnavailableError, SpotsupError
from supervisor.journal.journal import Journal, Reading
from supervisor.journal.users import JobUsers
from supervisor.model import JobRecord, NodeRecord
from supervisor.nodes.prepare import REACH_S, without_etcd
from supervisor.nodes.tunnels import Keeper
from supervisor.planner.actions import Action, BootstrapDone, Commit, ListDone, Outcome
from supervisor.planner.continuity import Mark
from supervisor.runtime.actor import Effects, outcome_of_fault
from supervisor.runtime.clock import SystemClock
from supervisor.runtime.lanes import Lanes, lane_of
from supervisor.runtime.leader import Election
from supervisor.runtime.loop import Loop
from supervisor.runtime.marks import Continuity

LEADER_TTL_S = 6.0
# Standbys look at the leader's key four times a second; so much less often here.
MIN_POLL_S = 0.5
CALL_TIMEOUT_S = 60.0
# As runtime.housekeeping.USERS_CRON.
PRUNE_S = 60.0
# Counters of reads: a tick that only reads has found nothing to do.
_READS = ("actions_listinstances", "actions_listleftovers", "actions_fetchoffers", "actions_asknode")


class DiedError(BaseException):
    """The process was killed here. Not an Exception: no handler of the daemon's may catch it."""


class SimLeader(Election):
    """One daemon's election: the real one, step by step.

    While all goes well, its steps differ in nothing: then they are taken when something else happens, too, and its
    lease is renewed without them.
    """

    def __init__(self, world: Surroundings, daemon: Daemon) -> None:
        self._world = world
        self._daemon = daemon
        self._due_at = 0.0
        # Its thread has ended.
        self.unresponsive = False
        gateway = SimGateway(world.etcd, lambda: daemon.client.connected)
        super().__init__(gateway, LEADER_KEY, daemon.name, LEADER_TTL_S, now_s=world.clock.now)

    def seize(self) -> None:
        """Lead at once: the previous leader's lease has ended, and this daemon won the election."""
        found = self._world.etcd.keys.get(LEADER_KEY)
        if found is not None:
            self._world.etcd.revoke(found.lease)
        self._take_step()
        if not self.leading:  # it has noticed just now that it did not lead
            self._take_step()
        assert self.leading

    def step_down(self) -> None:
        self.lose_contact()
        super().step_down()
        self._due_at = self._world.clock.now() + LEADER_TTL_S  # it is about to end

    def lose_contact(self) -> None:
        """Lose contact: it does nothing any more, or etcd does not hear it."""
        lease = self._world.etcd.leases.get(self._lease)
        if lease is not None and lease.kept:
            lease.kept = False
            ends_at = self._world.clock.now() + self._world.rng.uniform(0.7, 1.0) * LEADER_TTL_S
            lease.ends_at = ends_at + self._world.etcd.lateness_s()
            self._renewed_at = self._held_at = ends_at - LEADER_TTL_S

    def lease_valid(self) -> bool:
        lease = self._world.etcd.leases.get(self._lease)
        return self.leading if lease is not None and lease.kept else super().lease_valid()

    def lose_lease(self) -> None:
        """Somebody ends its lease."""
        if self.lease_held:
            self._world.etcd.revoke(self._lease)

    def regain_contact(self) -> None:
        """Regain contact: it goes on: its next step shows how things are."""
        self._due_at = self._world.clock.now() + self._world.rng.uniform(0.1, 1.0)

    def step_if_due(self) -> None:
        """Renew, and hold or seek leadership."""
        if self._world.faultless and self._is_steady():
            return
        if self._world.clock.now() >= self._due_at and not self.unresponsive:
            self._take_step()

    def next_at(self) -> float:
        """Return when the next step may show something."""
        if not self._daemon.client.connected or self.unresponsive or self._is_steady():
            return NEVER
        return self._due_at

    @property
    def lease_held(self) -> bool:
        """True if etcd has its lease."""
        return self._lease in self._world.etcd.leases

    def _take_step(self) -> None:
        led, etcd = self.leading, self._world.etcd
        self.lose_contact()  # of a lease that it gives up
        self.step()
        self._due_at = self._world.clock.now() + max(self.pause_s, MIN_POLL_S)
        if (lease := etcd.leases.get(self._lease)) is not None:
            lease.kept = True
        if led != self.leading:
            self._world.note(f"{self._daemon.name} {'leads' if self.leading else 'notices that it does not lead'}")

    def _is_steady(self) -> bool:
        """True if the leader is there, and each step of it would find the same."""
        etcd = self._world.etcd
        found, mine = etcd.keys.get(LEADER_KEY), etcd.leases.get(self._lease)
        if found is None or mine is None or not mine.kept:
            return False
        if self.leading:
            return found.create_revision == self._revision and found.lease == self._lease
        return found.lease in etcd.leases and etcd.leases[found.lease].kept


@dataclass
class Call:
    """An action under way."""

    action: Action
    # When it takes effect, and when its outcome arrives.
    effect_at: float
    reply_at: float
    outcome: Outcome | None = None
    hung: bool = False


class SimActor:
    """Carries actions out after a while. A crash leaves some done without a reply, and some never begun."""

    def __init__(self, world: Surroundings, daemon: Daemon, perform: Callable[[Action], Outcome]) -> None:
        # Outcomes that the loop has not collected yet, and whether one of them is a reason to look.
        self.done: list[tuple[Action, Outcome]] = []
        self.has_news = False
        self._world = world
        self._daemon = daemon
        self._perform = perform
        self._calls: list[Call] = []
        self._lanes = Lanes(world.lanes)

    def start(self, action: Action) -> None:
        world = self._world
        for hook in world.hooks.action:
            hook(self._daemon, action)
        self._lanes.add(action, world.clock.now())
        self._begin(lane_of(action))

    def _begin(self, lane: str) -> None:
        """Begin what has room now, as ThreadActor does."""
        while (action := self._lanes.take(lane)) is not None:
            self._call(action)

    def _call(self, action: Action) -> None:
        world = self._world
        now, rates = world.clock.now(), world.fault_rates
        if world.rng.inject("hung call", rates.hung_call):
            effect_at = now + 1.0 if world.rng.random.random() < 0.5 else NEVER
            self._calls.append(Call(action, effect_at, now + CALL_TIMEOUT_S, hung=True))
            return
        effect_s, reply_s = world.call_s(action)
        self._calls.append(Call(action, now + effect_s, now + effect_s + reply_s))

    def collect(self) -> list[tuple[Action, Outcome]]:
        done, self.done, self.has_news = self.done, [], False
        return done

    def step(self, now: float) -> None:
        """Carry out the calls that are due, and deliver the replies that are."""
        for call in [call for call in self._calls if call.effect_at <= now and call.outcome is None]:
            if call not in self._calls:
                continue  # the daemon died meanwhile
            call.effect_at = NEVER
            call.outcome = self._carry_out(call)
        for call in [call for call in self._calls if call.reply_at <= self._world.clock.now()]:
            self._calls.remove(call)
            self._lanes.end(call.action)
            self._begin(lane_of(call.action))
            lost = call.hung or call.outcome is None
            outcome = outcome_of_fault(call.action, f"no answer within {CALL_TIMEOUT_S:g} s") if lost else call.outcome
            assert outcome is not None
            if isinstance(outcome, ListDone) and not outcome.error:
                for hook in self._world.hooks.listing:
                    hook(outcome.instances)
            self.done.append((call.action, outcome))
            self.has_news = self.has_news or self._world.is_news(outcome)

    def _carry_out(self, call: Call) -> Outcome:
        kind = type(call.action).__name__
        try:
            outcome = self._perform(call.action)
            self._daemon.at_boundary("after call", kind)
        except RuntimeError as error:  # as ThreadActor handles the unforeseen
            return outcome_of_fault(call.action, str(error))
        return outcome

    def next_at(self) -> float:
        """Return when the next call takes effect or is answered."""
        return min((min(call.effect_at, call.reply_at) for call in self._calls), default=NEVER)

    def crash(self) -> None:
        """Calls under way may still reach the cloud; their outcomes are lost."""
        calls, self._calls, self.done, self.has_news = self._calls, [], [], False
        self._lanes = Lanes(self._world.lanes)
        for call in calls:
            if call.effect_at < NEVER and self._world.rng.random.random() < 0.5:
                self._perform(call.action)


class HostDisk:
    """What daemons keep on their host, which all of them share."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world

    def load(self) -> Mark | None:
        return self._world.mark

    def save(self, mark: Mark) -> None:
        self._world.mark = mark


class WatchedJournal:
    """The real journal; each commit passes boundaries."""

    def __init__(self, daemon: Daemon, journal: Journal) -> None:
        self._daemon = daemon
        self._journal = journal
        self.keys = journal.keys

    def read(self) -> Reading:
        return self._journal.read()

    def commit(self, commit: Commit, leader_guard: Sequence[Compare]) -> int:
        """As Journal.commit. Each kind of action passes one boundary before its intent, and one after it."""
        kinds = sorted({type(action).__name__ for action in commit.actions})
        for kind in kinds:
            self._at_boundary("before intent", kind)
        revision = self._journal.commit(commit, leader_guard)
        if revision:
            self._daemon.world.on_commit(self._daemon, commit)
            for kind in kinds:
                self._at_boundary("after intent", kind)
            for kind in self._daemon.take_outcomes(commit):
                self._at_boundary("after outcome", kind)
        return revision

    def _at_boundary(self, where: str, kind: str) -> None:
        try:
            self._daemon.at_boundary(where, kind)
        except RuntimeError as error:
            raise JournalUnavailableError(str(error)) from error


class Preparer:
    """Prepares nodes as nodes.prepare does: the user of the job is made first."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def prepare(self, node: NodeRecord, job: JobRecord) -> BootstrapDone:
        daemon = self._daemon
        try:
            daemon.users.ensure(job)
        except JournalUnavailableError as error:
            return BootstrapDone(node.id, str(error), unreachable=True)
        if (unreached := daemon.world.nodes.cannot_reach(node)) is not None:
            problem = daemon.tunnels.problem(node, REACH_S)
            return without_etcd(node.id, unreached, problem, live=daemon.client.connected)
        return daemon.world.nodes.prepare(node, job)


class Daemon:
    """One daemon process."""

    def __init__(self, world: Surroundings, name: str, clock_error_s: float = 0.0) -> None:
        self.name = name
        self.world = world
        self.frozen = False  # SIGSTOP
        self.dead = False  # kill -9
        self.clock_error_s = clock_error_s
        self.clock = SystemClock(lambda: world.clock.now() + self.clock_error_s, world.clock.now)
        self.client = EtcdClient(world.etcd, world.rng, name)
        self.client.fault_rates = world.fault_rates
        self.leader = SimLeader(world, self)
        self.journal = Journal(self.client, Keys(CLUSTER))
        self.gateway = SimGateway(world.etcd, lambda: self.client.connected)
        self.users = JobUsers(self.gateway, Keys(CLUSTER), IDENTITY, lambda: "", self.journal.etcd_use)
        self.carriers: list[SimTunnel] = []
        self.tunnels = Keeper(
            self.journal.read,
            self.leader.lease_valid,
            lambda _: world.cloud.by_ssh,
            lambda node: SimTunnel(world, self, node),
        )
        # When it compares etcd's users with the journal next, and as of which of their versions it has.
        self._prunes_at = 0.0
        self._pruned = (-1, -1)
        effects = Effects(
            owner=OWNER,
            provisioners=world.provisioners,
            identity=IDENTITY,
            preparer=Preparer(self),
            evidence=world.nodes,
            senders={channel.name: world for channel in world.rules.channels},
            clock=self.clock,
            pre_terminate=world.conditions.pre_terminate,
            cleaner=world.nodes,
        )
        self.actor = SimActor(world, self, effects.perform)
        watched = WatchedJournal(self, self.journal)
        continuity, clouds = Continuity(store=HostDisk(world)), tuple(world.provisioners)
        self.loop = Loop(watched, self.leader, self.actor, self.clock, world.rules, clouds, continuity)
        self._ticked_at = world.clock.now() - 1.0
        self._ticked_revision = 0
        self._idle_ticks = 0
        # By node: the kind of its action whose outcome the loop has collected, and not yet written.
        self._outcome_kinds: dict[str, str] = {}

    @property
    def runs(self) -> bool:
        return not (self.frozen or self.dead)

    def at_boundary(self, where: str, kind: str) -> None:
        """Let an action of this kind pass a boundary."""
        for hook in self.world.hooks.boundary:
            hook(self, where, kind)

    def take_outcomes(self, commit: Commit) -> list[str]:
        """Return the kinds of actions whose outcomes a commit has written."""
        return [kind for node in commit.nodes if (kind := self._outcome_kinds.pop(node.id, ""))]

    def wake(self) -> None:
        """Something happened in the world: tick often for a while."""
        self._idle_ticks = 0

    def step(self, now: float) -> None:
        """Do what is due now. A process that is stopped does nothing."""
        if not self.runs:
            return
        try:
            led = self.leader.leading
            self.leader.step_if_due()
            if led != self.leader.leading:  # the real leader wakes the loop, too
                self._idle_ticks, self._ticked_at = 0, now - self.world.min_tick_s - self.world.busy_tick_s
            self.actor.step(now)
            for carrier in list(self.carriers):
                carrier.step(now)
            if self.runs and self._tick_at(self.world.clock.now()) <= self.world.clock.now():
                self._tick()
        except DiedError:
            self.die()

    def die(self) -> None:
        """kill -9."""
        if self.dead:
            return
        self.dead = True
        self.actor.crash()
        self.leader.lose_contact()
        for carrier in self.carriers:
            carrier.end()

    def next_at(self, now: float) -> float:
        """Return when `step` has something to do."""
        if not self.runs:
            return NEVER
        carriers = min((carrier.next_at() for carrier in self.carriers), default=NEVER)
        return max(now, min(self.actor.next_at(), self._tick_at(now), self.leader.next_at(), carriers))

    def _tick_at(self, now: float) -> float:
        earliest = self._ticked_at + self.world.min_tick_s
        if self.actor.has_news:
            return max(now, earliest)
        timer = self.world.tick_at(self._ticked_at, self._idle_ticks)
        return min(timer, max(earliest, self.client.next_at(self._ticked_revision)))

    def _tick(self) -> None:
        self._ticked_at = self.world.clock.now()
        self._ticked_revision = self.client.view().revision
        self._note_outcomes(self.actor.done)
        before = self._work_done()
        self.world.ticks += 1
        self.loop.tick()
        if self.world.cloud.by_ssh:  # else there is none to open or close
            self.tunnels.look()
        self._prune(self._ticked_at)
        self._idle_ticks = self._idle_ticks + 1 if before == self._work_done() else 0

    def _prune(self, now: float) -> None:
        """As runtime.housekeeping: once a minute, on the leader only. Where neither users nor records have changed,
        there is nothing to find."""
        if self.world.faultless or now < self._prunes_at or not self.leader.leading:
            return
        reading = self.journal.read()
        if not reading.live or reading.cluster is None or reading.pause is not None:
            return
        self._prunes_at = now + PRUNE_S
        etcd = self.world.etcd
        seen = etcd.record_versions, etcd.auth.version
        if seen == self._pruned:
            return
        try:
            done = self.users.prune()
        except (EtcdError, SpotsupError) as error:
            self.world.note(f"{self.name}: {error}")  # and again in a minute
            return
        self._pruned = seen if not done else (-1, -1)
        if done:
            self.world.note(f"{self.name}: {done}")

    def _work_done(self) -> int:
        """Return how much the daemon has done so far; reads do not count."""
        return sum(count for name, count in self.loop.status.counters.items() if name not in _READS)

    def _note_outcomes(self, done: Iterable[tuple[Action, Outcome]]) -> None:
        for action, outcome in done:
            node = getattr(outcome, "node", "")
            if node:
                self._outcome_kinds[node] = type(action).__name__
