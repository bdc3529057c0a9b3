"""A small world under a virtual clock: the real planner, loop, journal and effects; simulated etcd, cloud and nodes.

Nothing here decides for the daemon. Every fault is drawn from one seeded source, so a failure replays exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from spotsup_trainer.etcd import Compare, Delete, KeyValue, Put, TxnResult
from spotsup_trainer.mirror import View
from spotsup_trainer.wire import AgentWord, Keys, Notice, encode

from provisioners.base import (
    EndCause,
    Finding,
    Instance,
    InstanceState,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    Scope,
    Throttled,
    Transient,
    Unknown,
    UnreachableError,
)
from supervisor.errors import JournalUnavailableError
from supervisor.identity import Identity
from supervisor.model import Event, JobRecord, NodeRecord
from supervisor.planner.actions import Action, BootstrapDone, Outcome, Terminate
from supervisor.planner.world import Rules
from supervisor.runtime.actor import Effects
from supervisor.runtime.journal import Journal
from supervisor.runtime.loop import Loop
from tests.sim.training import Training

STEP_S = 0.25
CLUSTER = "sim"
LEASE_S = 5.0
ZONES = ("zone-a", "zone-b")


@dataclass(frozen=True)
class Faults:
    """How nasty the world is: probabilities per call, and delays in seconds."""

    transient: float = 0.0
    lost_reply: float = 0.0
    unreachable: float = 0.0
    bootstrap: float = 0.0
    unanswered_commit: float = 0.0
    slow_call: float = 0.0
    listing_lag_s: float = 0.0
    mirror_lag_s: float = 0.0


class SimClock:
    """Time goes on only when the world says so."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time


class SimStore:
    """etcd, as far as the journal and the nodes use it: revisions, guarded transactions, a mirror that lags."""

    def __init__(self, clock: SimClock, rng: random.Random) -> None:
        self.keys: dict[str, KeyValue] = {}
        self.revision = 1
        self.away = False
        self.faults = Faults()
        self._clock = clock
        self._rng = rng
        self._past: list[tuple[float, View]] = []

    def view(self) -> View:
        now = self._clock.now() - self.faults.mirror_lag_s
        seen = [view for at, view in self._past if at <= now]
        newest = seen[-1] if seen else View(MappingProxyType({}), 0, live=False)
        return replace(newest, live=newest.live and not self.away)

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        if self.away:
            raise JournalUnavailableError("etcd is away")
        unanswered = self._rng.random() < self.faults.unanswered_commit
        if unanswered and self._rng.random() < 0.5:
            raise JournalUnavailableError("no answer, and nothing happened")
        _check_operations(operations)
        if not all(self._holds(guard) for guard in guards):
            return TxnResult(False, self.revision)
        self._apply(operations)
        if unanswered:
            raise JournalUnavailableError("no answer, but it happened")
        return TxnResult(True, self.revision)

    def range(self, prefix: str) -> Sequence[KeyValue]:
        return [self.keys[key] for key in sorted(self.keys) if key.startswith(prefix)]

    def get(self, key: str) -> KeyValue | None:
        return self.keys.get(key)

    def put(self, key: str, value: bytes) -> None:
        """A node's own write."""
        if key not in self.keys or self.keys[key].value != value:
            self._apply([Put(key, value)])

    def delete(self, key: str) -> None:
        """A node's own delete, or the end of its lease."""
        if key in self.keys:
            self._apply([Delete(key)])

    def remember(self) -> None:
        """Keep the present for those who see it late."""
        self._past.append((self._clock.now(), View(MappingProxyType(dict(self.keys)), self.revision, live=True)))
        del self._past[:-40]

    def _holds(self, guard: Compare) -> bool:
        found = self.keys.get(guard.key)
        if guard.target == "value":
            return found is not None and found.value == guard.value
        revision = 0 if found is None else found.mod_revision if guard.target == "mod" else found.create_revision
        return revision == guard.value

    def _apply(self, operations: Iterable[Put | Delete]) -> None:
        self.revision += 1
        for operation in operations:
            if isinstance(operation, Put):
                before = self.keys.get(operation.key)
                created = before.create_revision if before else self.revision
                self.keys[operation.key] = KeyValue(operation.key, operation.value, created, self.revision)
            else:
                whole = [k for k in self.keys if k.startswith(operation.key)] if operation.prefix else [operation.key]
                for key in whole:
                    self.keys.pop(key, None)


def _check_operations(operations: Sequence[Put | Delete]) -> None:
    """As etcd: at most 128 in one transaction, and no key is put twice, or both put and deleted."""
    assert len(operations) <= 128
    puts = [operation.key for operation in operations if isinstance(operation, Put)]
    assert len(puts) == len(set(puts)), puts
    for gone in (operation for operation in operations if isinstance(operation, Delete)):
        assert not any(key.startswith(gone.key) if gone.prefix else key == gone.key for key in puts), gone


@dataclass
class Machine:
    """A simulated VM. `silent`: it runs, but nobody hears of it any more."""

    instance: Instance
    runs_at: float
    listed_at: float
    ends_at: float | None = None
    silent: bool = False
    history: list[tuple[float, Instance]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.instance.state in {InstanceState.PENDING, InstanceState.RUNNING}


class SimCloud:
    """A cloud that tells the truth late, loses answers, runs out, and takes machines away."""

    name = "local"

    def __init__(self, clock: SimClock, rng: random.Random) -> None:
        self.machines: dict[str, Machine] = {}
        self.by_token: dict[str, str] = {}
        self.left: dict[str, Leftover] = {}
        self.removals = 0
        self.keeps_leftovers = False
        self.strange_code = ""
        self.sold_out: frozenset[Market] = frozenset()
        self.capacity = dict.fromkeys(ZONES, 16)
        self.faults = Faults()
        self.on_terminate: Callable[[Machine], None] = lambda _: None
        self._clock = clock
        self._rng = rng

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        self._maybe_unreachable()
        times = 3 if query.market is Market.ON_DEMAND else 1
        prices = [times * (0.1 + 0.01 * index) for index in range(len(ZONES))]
        return [
            Offer("local", "local", zone, "small", query.market, price)
            for zone, price in zip(ZONES, prices, strict=True)
        ]

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        if request.token in self.by_token:
            return Launched(self.machines[self.by_token[request.token]].instance)
        if self.strange_code:
            code, self.strange_code = self.strange_code, ""
            return Transient(f"{request.offer.zone} says {code}", unknown_code=code)
        if self._rng.random() < self.faults.transient:
            return Throttled(1.0, "slow down") if self._rng.random() < 0.5 else Transient("internal error")
        zone = request.offer.zone
        if request.offer.market in self.sold_out:
            return NoCapacity(Scope.TYPE_IN_ZONE, 10.0, f"{zone} has no {request.offer.market} machine")
        if sum(m.alive and m.instance.zone == zone for m in self.machines.values()) >= self.capacity[zone]:
            return NoCapacity(Scope.ZONE, 10.0, f"{zone} is full")
        now = self._clock.now()
        instance = Instance(
            id=f"i-{len(self.machines)}",
            cluster=request.cluster,
            node=request.node,
            token=request.token,
            region="local",
            zone=zone,
            instance_type="small",
            state=InstanceState.PENDING,
            launched_at=now,
        )
        machine = Machine(instance, now + self._rng.uniform(0.5, 3.0), now + self.faults.listing_lag_s)
        self.machines[instance.id] = machine
        self.by_token[request.token] = instance.id
        if self._rng.random() < self.faults.lost_reply:
            return Unknown("no answer")
        return Launched(instance)

    def find(self, token: str, timeout_s: float) -> Instance | None:
        self._maybe_unreachable()
        found = self.by_token.get(token)
        return self.machines[found].instance if found else None

    def instances(self, cluster: str, timeout_s: float) -> Sequence[Instance]:
        self._maybe_unreachable()
        then = self._clock.now() - self.faults.listing_lag_s
        listed = []
        for machine in self.machines.values():
            known = [instance for at, instance in machine.history if at <= then]
            if known:
                listed.append(known[-1])
        return listed

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        self._maybe_unreachable()
        machine = self.machines.get(instance_id)
        if machine is not None and machine.alive:
            self.on_terminate(machine)
            self.end(machine, EndCause.USER)

    def leftovers(self, cluster: str, timeout_s: float) -> Sequence[Leftover]:
        self._maybe_unreachable()
        return list(self.left.values())

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        self._maybe_unreachable()
        self.removals += 1
        if not self.keeps_leftovers:
            self.left.pop(leftover.id, None)

    def console(self, instance_id: str, timeout_s: float) -> str:
        self._maybe_unreachable()
        return f"boot\n{instance_id}: no network\n"

    def check(self, timeout_s: float) -> Sequence[Finding]:
        return ()

    def end(self, machine: Machine, cause: EndCause) -> None:
        machine.instance = replace(machine.instance, state=InstanceState.TERMINATED, end_cause=cause)
        machine.history.append((self._clock.now(), machine.instance))

    def preempt(self, machine: Machine, notice_s: float) -> None:
        machine.ends_at = self._clock.now() + notice_s
        machine.instance = replace(machine.instance, preempt_at=machine.ends_at)

    def step(self) -> None:
        now = self._clock.now()
        for machine in self.machines.values():
            if machine.instance.state is InstanceState.PENDING and now >= machine.runs_at:
                address = f"10.0.0.{machine.instance.id[2:]}"
                machine.instance = replace(machine.instance, state=InstanceState.RUNNING, ssh_host=address)
            if machine.alive and machine.ends_at is not None and now >= machine.ends_at:
                self.end(machine, EndCause.PREEMPTED)
            if not machine.history or machine.history[-1][1] != machine.instance:
                machine.history.append((now, machine.instance))

    def _maybe_unreachable(self) -> None:
        if self._rng.random() < self.faults.unreachable:
            raise UnreachableError("no answer within the time limit")


class SimNodes:
    """Agents and launchers on the machines: words in etcd, and rounds by the trainer's own rules."""

    def __init__(self, clock: SimClock, rng: random.Random, store: SimStore, cloud: SimCloud) -> None:
        self.keys = Keys(CLUSTER)
        self.faults = Faults()
        self._clock = clock
        self._rng = rng
        self._store = store
        self._cloud = cloud
        self._started: dict[str, tuple[str, float]] = {}
        self._silent_since: dict[str, float] = {}
        self.trainings: dict[str, Training] = {}

    def prepare(self, node: NodeRecord, job: JobRecord) -> BootstrapDone:
        machine = self._cloud.machines[node.instance_id]
        if not machine.alive or machine.silent:
            return BootstrapDone(node.id, "the connection broke", unreachable=True)
        if self._rng.random() < self.faults.bootstrap:
            return BootstrapDone(node.id, "step environment failed")
        self._started.setdefault(node.id, (job.name, self._clock.now() + self._rng.uniform(0.5, 2.0)))
        self.trainings.setdefault(job.name, Training(self._store, self.keys, job.name))
        return BootstrapDone(node.id)

    def step(self) -> None:
        now = self._clock.now()
        if self._store.away:
            return
        for node, (job, at) in list(self._started.items()):
            machine = self._cloud.machines[self._cloud.by_token[node]]
            if now >= at:
                self._step_node(node, job, machine, now)
        for training in self.trainings.values():
            training.step(now)

    def _step_node(self, node: str, job: str, machine: Machine, now: float) -> None:
        agent = self.keys.agent(job, node)
        if not machine.alive or machine.silent:
            since = self._silent_since.setdefault(node, now)
            self.trainings[job].stop(node)
            if now - since >= LEASE_S:
                self._store.delete(agent)
                self._store.delete(self.keys.member(job, node))
                if not machine.alive:
                    del self._started[node]
            return
        self._silent_since.pop(node, None)
        self._store.put(agent, encode(AgentWord(node, "boot", 1, 0.0, "sim")))
        if machine.instance.preempt_at is not None:
            self._store.put(
                self.keys.notice(job, node), encode(Notice(node, machine.instance.preempt_at, now, "metadata"))
            )
        self.trainings[job].run(node)


class SimLeader:
    """One daemon's leadership: a key in the store, as the real one keeps."""

    def __init__(self, store: SimStore, name: str) -> None:
        self._store = store
        self._key = f"/spotsup/{CLUSTER}/leader"
        self._name = name
        self._revision = 0
        self.leading = False
        self.leader = name

    def seize(self) -> None:
        """The old leader's lease has ended, and this one campaigned."""
        self._store.delete(self._key)
        self._store.put(self._key, self._name.encode())
        self._revision = self._store.keys[self._key].create_revision
        self.leading = True

    def guard(self) -> Sequence[Compare]:
        return (Compare(self._key, "create", self._revision or -1),)


class SimActor:
    """Carries actions out after a while. A crash leaves some done and untold, and some not begun."""

    def __init__(self, clock: SimClock, rng: random.Random, perform: Callable[[Action], Outcome]) -> None:
        self._clock = clock
        self._rng = rng
        self._perform = perform
        self._running: list[tuple[float, Action]] = []
        self._done: list[tuple[Action, Outcome]] = []
        self.slow = 0.0

    def start(self, action: Action) -> None:
        longest = 20.0 if self._rng.random() < self.slow else 0.8
        self._running.append((self._clock.now() + self._rng.uniform(0.0, longest), action))

    def collect(self) -> list[tuple[Action, Outcome]]:
        done, self._done = self._done, []
        return done

    def step(self) -> None:
        due = [entry for entry in self._running if entry[0] <= self._clock.now()]
        for entry in due:
            self._running.remove(entry)
            self._done.append((entry[1], self._perform(entry[1])))

    def crash(self) -> None:
        """What was under way may still reach the cloud; nobody hears of it."""
        for _, action in self._running:
            if self._rng.random() < 0.5:
                self._perform(action)
        self._running, self._done = [], []


class Daemon:
    """One daemon process."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        journal = Journal(world.store, Keys(CLUSTER))
        self.leader = SimLeader(world.store, name)
        effects = Effects(
            cluster=CLUSTER,
            provisioners={"local": world.cloud},
            identity=Identity(b"s" * 32),
            preparer=world.nodes,
            alerts=world,
            find_alert=journal.alert,
            clock=world.clock,
        )
        self.actor = SimActor(world.clock, world.rng, effects.perform)
        self.actor.slow = world.faults.slow_call
        self.journal = journal
        self.loop = Loop(journal, self.leader, self.actor, world.clock, world.rules, ("local",))


class World:
    """Everything, stepped together."""

    def __init__(self, seed: int, faults: Faults, rules: Rules) -> None:
        self.rng = random.Random(seed)
        self.clock = SimClock()
        self.rules = rules
        self.store = SimStore(self.clock, self.rng)
        self.journal = Journal(self.store, Keys(CLUSTER))  # nobody's: for those who check
        self.cloud = SimCloud(self.clock, self.rng)
        self.nodes = SimNodes(self.clock, self.rng, self.store, self.cloud)
        self.sent: list[Event] = []
        self.checks: list[Callable[[World], None]] = []
        self.daemons = 0
        self.daemon_away = False
        self.set_faults(faults)
        self.daemon = self._new_daemon()

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults
        self.store.faults = self.cloud.faults = self.nodes.faults = faults

    def send(self, event: Event) -> str:
        """Alerts end here."""
        if self.rng.random() < self.faults.unreachable:
            return "Slack does not answer"
        self.sent.append(event)
        return ""

    def lose_daemon(self) -> None:
        """kill -9, and nobody starts it again before `crash_daemon`."""
        self.crash_daemon()
        self.daemon_away = True

    def crash_daemon(self) -> None:
        """kill -9, and a new one that leads at once."""
        self.daemon.actor.crash()
        self.daemon = self._new_daemon()
        self.daemon_away = False

    def run(self, seconds: float) -> None:
        """Let time go on."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.clock.time += STEP_S
            self.cloud.step()
            self.nodes.step()
            self.store.remember()
            if not self.daemon_away:
                self.daemon.actor.step()
                self.daemon.loop.tick()
                self.store.remember()
            for check in self.checks:
                check(self)

    def run_until(self, predicate: Callable[[World], bool], most_s: float) -> bool:
        """Until it holds; False when `most_s` virtual seconds did not suffice."""
        end = self.clock.now() + most_s
        while not predicate(self):
            if self.clock.now() >= end:
                return False
            self.run(STEP_S)
        return True

    def _new_daemon(self) -> Daemon:
        self.daemons += 1
        daemon = Daemon(self, f"daemon-{self.daemons}")
        daemon.leader.seize()
        return daemon


__all__ = ["Faults", "Machine", "Terminate", "World"]
