"""etcd as daemons and nodes use it: revisions, guarded transactions, and mirrors that lag."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from spotsup_trainer.etcd import Compare, Delete, KeyValue, Put, Range, TxnResult
from spotsup_trainer.etcd.mirror import MirrorView
from spotsup_trainer.wire import Keys

from supervisor.errors import JournalRefusedError, JournalUnavailableError
from supervisor.simulation.accounts import SimAccounts
from supervisor.simulation.clock import NEVER, VirtualClock
from supervisor.simulation.faults import FaultRates, FaultRng

CLUSTER = "sim"
LEADER_KEY = f"{Keys(CLUSTER).root}leader"
# How many transactions `roll_back` can undo.
MAX_UNDONE = 300
_MAX_OPERATIONS = 128
_MAX_REQUEST_BYTES = 1536 * 1024
# Messages that launchers do not read: a change of one is no reason for a job's launchers to decide again.
_IGNORED_BY_LAUNCHERS = ("agent", "notice", "progress", "ended")


class SimEtcd:
    """The keys, and what they were a while ago."""

    def __init__(self, clock: VirtualClock) -> None:
        self.keys: dict[str, KeyValue] = {}
        self.revision = 1
        # The keys below run/, by job, and how often those that launchers read have changed.
        self.run_keys: dict[str, dict[str, KeyValue]] = {}
        self.run_versions: dict[str, int] = {}
        # When the last outage ended, and how often `roll_back` was called.
        self.up_since = 0.0
        self.rollbacks = 0
        # Its users; how often the records of jobs and nodes have changed; what nodes wrote that they may not.
        self.accounts = SimAccounts()
        self.record_versions = 0
        self.refused: list[str] = []
        self._down = False
        self._clock = clock
        self._mirrored: Mapping[str, KeyValue] = {}
        self._world_prefix = Keys(CLUSTER).world
        self._run_prefix = f"{Keys(CLUSTER).world}run/"
        self._past: deque[tuple[float, MirrorView]] = deque(maxlen=400)
        self._changes: dict[str, KeyValue | None] = {}
        self._undo: deque[dict[str, KeyValue | None]] = deque(maxlen=MAX_UNDONE)
        self._remember()

    @property
    def down(self) -> bool:
        """Whether no client is answered."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        if self._down and not down:
            self.up_since = self._clock.now()
            self.accounts.forget_tokens()
        self._down = down

    def now(self) -> float:
        return self._clock.now()

    def view_before(self, lag_s: float) -> MirrorView:
        """The view of `lag_s` ago."""
        then = self._clock.now() - lag_s
        return next((view for at, view in reversed(self._past) if at <= then), self._past[0][1])

    def visible_at(self, revision: int, lag_s: float) -> float:
        """When a mirror at `revision` sees the next change; NEVER if there is none."""
        if self.revision == revision:
            return NEVER
        first = self._past[-1][0]
        for at, view in reversed(self._past):
            if view.revision <= revision:
                break
            first = at
        return first + lag_s

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """All operations if every guard holds, else none."""
        _check_operations(operations)
        if not all(self._holds(guard) for guard in guards):
            return TxnResult(False, self.revision)
        self._apply(operations)
        return TxnResult(True, self.revision)

    def put(self, key: str, value: bytes) -> None:
        """A node's own write."""
        if key not in self.keys or self.keys[key].value != value:
            self._apply([Put(key, value)])

    def delete(self, key: str) -> None:
        """A node's own delete, or the end of its lease."""
        if key in self.keys:
            self._apply([Delete(key)])

    def roll_back(self, transactions: int) -> frozenset[str]:
        """Undo the last transactions, as restoring a backup does: revisions count on from there, and no daemon leads.
        Returns the keys that have changed."""
        changed: set[str] = set()
        for _ in range(min(transactions, len(self._undo))):
            for key, before in self._undo.pop().items():
                changed.add(key)
                if before is None:
                    self.keys.pop(key, None)
                else:
                    self.keys[key] = before
            self.revision -= 1
        self._mirrored = {key: kv for key, kv in sorted(self.keys.items()) if key.startswith(self._world_prefix)}
        self.run_keys.clear()
        for key, kv in self._mirrored.items():
            self._index_run_key(key, kv)
        for job in self.run_versions:
            self.run_versions[job] += 1
        self.rollbacks += 1
        self.record_versions += 1
        self.accounts.roll_back(self.revision)
        self._past.clear()
        self._remember()
        self.delete(LEADER_KEY)
        return frozenset(changed)

    def _holds(self, guard: Compare) -> bool:
        found = self.keys.get(guard.key)
        if guard.target == "value":
            return found is not None and found.value == guard.value
        revision = 0 if found is None else found.mod_revision if guard.target == "mod" else found.create_revision
        return revision == guard.value

    def _apply(self, operations: Iterable[Put | Delete]) -> None:
        self.revision += 1
        mirrored = dict(self._mirrored)
        self._changes = {}
        for operation in operations:
            if isinstance(operation, Put):
                before = self.keys.get(operation.key)
                created = before.create_revision if before else self.revision
                self._set(mirrored, operation.key, KeyValue(operation.key, operation.value, created, self.revision))
            else:
                whole = [k for k in self.keys if k.startswith(operation.key)] if operation.prefix else [operation.key]
                for key in whole:
                    self._set(mirrored, key, None)
        self._mirrored = mirrored
        self._undo.append(self._changes)
        self._remember()

    def _set(self, mirrored: dict[str, KeyValue], key: str, value: KeyValue | None) -> None:
        self._changes.setdefault(key, self.keys.get(key))
        for keys in (self.keys, mirrored) if key.startswith(self._world_prefix) else (self.keys,):
            if value is None:
                keys.pop(key, None)
            else:
                keys[key] = value
        self._index_run_key(key, value)

    def _index_run_key(self, key: str, value: KeyValue | None) -> None:
        if not key.startswith(self._run_prefix):
            self.record_versions += 1
            return
        job, _, kind = key.removeprefix(self._run_prefix).partition("/")
        keys = self.run_keys.setdefault(job, {})
        if value is None:
            keys.pop(key, None)
        else:
            keys[key] = value
        if not kind.startswith(_IGNORED_BY_LAUNCHERS):
            self.run_versions[job] = self.run_versions.get(job, 0) + 1

    def _remember(self) -> None:
        """Keep the present for mirrors that lag."""
        self._past.append((self._clock.now(), MirrorView(MappingProxyType(self._mirrored), self.revision, live=True)))


class NodeClient:
    """etcd for the nodes of one job: what its user may write. What it may not is refused, and counted."""

    def __init__(self, etcd: SimEtcd, job: str) -> None:
        self._etcd = etcd
        self._job = job
        granted = Keys(CLUSTER).grants(job)
        self._spans = tuple((grant.begin, grant.end) for grant in granted if grant.kind == "READWRITE")

    def put(self, key: str, value: bytes) -> None:
        """Write a key."""
        if self._may(key):
            self._etcd.put(key, value)

    def delete(self, key: str) -> None:
        """Delete a key."""
        if self._may(key):
            self._etcd.delete(key)

    def _may(self, key: str) -> bool:
        if any(begin <= key < end for begin, end in self._spans):
            return True
        self._etcd.refused.append(f"a node of {self._job} wrote {key}")
        return False


def no_delay() -> None:
    """The default of `EtcdClient.before_txn`."""


class EtcdClient:
    """One daemon's connection to etcd, with the interface of journal.store.Store.

    Without a `name` it belongs to an observer: it sees every write at once, and outages do not concern it.
    """

    def __init__(self, etcd: SimEtcd, rng: FaultRng, name: str = "") -> None:
        self.partitioned = False
        self.fault_rates = FaultRates()
        # Runs once, before the next transaction is sent.
        self.before_txn: Callable[[], None] = no_delay
        self._etcd = etcd
        self._rng = rng
        self._name = name
        self._dead: MirrorView | None = None
        self._live: MirrorView | None = None
        self._outages = 0
        self._rollbacks = etcd.rollbacks
        self._watch_lost_until = 0.0

    @property
    def connected(self) -> bool:
        """Whether etcd answers this daemon."""
        return not (self.partitioned or self._etcd.down)

    def view(self) -> MirrorView:
        seen = self._etcd.view_before(self.fault_rates.mirror_lag_s)
        if not self._name:
            return seen
        if self._rollbacks != self._etcd.rollbacks:
            self._rollbacks, self._outages = self._etcd.rollbacks, self._outages + 1
        if self.connected and self._etcd.now() >= self._watch_lost_until:
            self._dead = None
            live = self._live
            if (
                live is None
                or live.keys is not seen.keys
                or (live.revision, live.outages) != (seen.revision, self._outages)
            ):
                live = self._live = replace(seen, outages=self._outages)
            return live
        if self._dead is None:
            self._outages += 1
            self._dead = MirrorView(seen.keys, seen.revision, live=False, outages=self._outages)
        return self._dead

    def next_at(self, revision: int) -> float:
        """When a reader at `revision` sees the next change."""
        if not self.connected:
            return NEVER
        return max(self._watch_lost_until, self._etcd.visible_at(revision, self.fault_rates.mirror_lag_s))

    def lose_watch(self, seconds: float) -> None:
        """The watch ends, as when its revision was compacted: reading every key again takes so long."""
        self._watch_lost_until = self._etcd.now() + seconds
        self.view()

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        before, self.before_txn = self.before_txn, no_delay
        before()
        if not self.connected:
            raise JournalUnavailableError("etcd is down")
        if sum(len(each.key) + len(each.value) for each in operations if isinstance(each, Put)) > _MAX_REQUEST_BYTES:
            raise JournalRefusedError("etcdserver: request is too large")
        unanswered = self._rng.inject("unanswered commit", self.fault_rates.unanswered_commit)
        if unanswered and self._rng.random.random() < 0.5:
            raise JournalUnavailableError("no answer; the transaction was not applied")
        result = self._etcd.txn(guards, operations)
        if unanswered:
            raise JournalUnavailableError("no answer; the transaction was applied")
        return result

    def range(self, prefix: str) -> Sequence[KeyValue]:
        self._require_connection()
        return [self._etcd.keys[key] for key in sorted(self._etcd.keys) if key.startswith(prefix)]

    def changes(self, prefix: str, after: int) -> Range:
        return Range(tuple(kv for kv in self.range(prefix) if kv.mod_revision > after), self._etcd.revision)

    def get(self, key: str) -> KeyValue | None:
        self._require_connection()
        return self._etcd.keys.get(key)

    def leads(self) -> bool:
        """Whether the leader's key in etcd is this daemon's, whatever the daemon believes."""
        found = self._etcd.keys.get(LEADER_KEY)
        return found is not None and found.value.decode() == self._name

    def _require_connection(self) -> None:
        if self._name and not self.connected:
            raise JournalUnavailableError("etcd is down")


def _check_operations(operations: Sequence[Put | Delete]) -> None:
    """etcd's own limits: at most 128 operations in one transaction, and no key twice."""
    assert len(operations) <= _MAX_OPERATIONS
    puts = [operation.key for operation in operations if isinstance(operation, Put)]
    assert len(puts) == len(set(puts)), puts
    for gone in (operation for operation in operations if isinstance(operation, Delete)):
        assert not any(key.startswith(gone.key) if gone.prefix else key == gone.key for key in puts), gone
