"""How nodes and daemons reach the simulated etcd: by its mirror, by transactions, and as its users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

from spotsup_trainer.etcd import Compare, Delete, EtcdRefusedError, KeyValue, Put, Range, TxnResult
from spotsup_trainer.etcd.mirror import MirrorView
from spotsup_trainer.wire import Keys

from spotsup_simulator.clock import NEVER
from spotsup_simulator.etcd import CLUSTER, LEADER_KEY, SimEtcd
from spotsup_simulator.faults import FaultRates, FaultRng
from supervisor.errors import JournalUnavailableError
from supervisor.journal.store import journal_error
from supervisor.runtime.leader import leader_name

# A transaction that etcd has not answered may still be waiting in it, for at most so long: its request timeout is 5 s
# and twice the election timeout.
MAX_LATE_S = 7.0


class NodeClient:
    """etcd for the nodes of one job: what its user may write. What it may not is refused, and counted. While etcd is
    full, SimNodes has them write nothing: they try again and again."""

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
    """Do nothing: the default of `EtcdClient.before_txn`."""


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
        # What its mirror shows; while it is not live, what it has shown when it was.
        self._shown = MirrorView(MappingProxyType({}), 0, live=False)
        self._rollbacks = etcd.rollbacks
        self._watch_lost_until = 0.0

    @property
    def connected(self) -> bool:
        """True if etcd answers this daemon."""
        return not (self.partitioned or self._etcd.down)

    def view(self) -> MirrorView:
        """As trainer's mirror: a copy has the revision of the store, and later only those of the keys that it mirrors.
        It never goes back, except where etcd does."""
        seen = self._etcd.view_before(self.fault_rates.mirror_lag_s if self._name else 0.0)
        if not self._name:
            return seen
        connected = self.connected and self._etcd.now() >= self._watch_lost_until
        if self._shown.live and (self._rollbacks != self._etcd.rollbacks or not connected):
            self._shown = replace(self._shown, live=False, outages=self._shown.outages + 1)
        self._rollbacks = self._etcd.rollbacks
        if not connected:
            return self._shown
        if not self._shown.live:
            copy = self._etcd.view_before(0.0)  # a linearizable read, however far the watch is behind
            self._shown = replace(copy, revision=self._etcd.revision, outages=self._shown.outages)
        elif seen.revision > self._shown.revision:
            self._shown = replace(seen, outages=self._shown.outages)
        return self._shown

    def next_at(self, revision: int) -> float:
        """Return when a reader at `revision` sees the next change."""
        if not self.connected:
            return NEVER
        return max(self._watch_lost_until, self._etcd.visible_at(revision, self.fault_rates.mirror_lag_s))

    def lose_watch(self, seconds: float) -> None:
        """End the watch, as when its revision was compacted: reading every key again takes so long."""
        self._watch_lost_until = self._etcd.now() + seconds
        self.view()

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        before, self.before_txn = self.before_txn, no_delay
        before()
        if not self.connected:
            raise JournalUnavailableError("etcd is down")
        try:
            if self._rng.inject("unanswered commit", self.fault_rates.unanswered_commit):
                return self._break_off(guards, operations)
            return self._etcd.txn(guards, operations)
        except EtcdRefusedError as error:
            raise journal_error(error) from error

    def put_all(self, puts: Sequence[Put]) -> None:
        for put in puts:
            self.txn([], [put])

    def _break_off(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """Break the connection. The client sends it again where it had used the connection before: if etcd has done it
        already, the guards do not hold any more."""
        fate = self._rng.random.random()
        if fate < 0.35:
            raise JournalUnavailableError("no answer; the transaction was not applied")
        if fate < 0.55:
            self._etcd.txn_later(guards, operations, self._rng.uniform(0.05, MAX_LATE_S))
            raise JournalUnavailableError("no answer; the transaction is applied later")
        self._etcd.txn(guards, operations)
        if fate < 0.75:
            return self._etcd.txn(guards, operations)
        raise JournalUnavailableError("no answer; the transaction was applied")

    def range(self, prefix: str) -> Sequence[KeyValue]:
        self._require_connection()
        return [self._etcd.keys[key] for key in sorted(self._etcd.keys) if key.startswith(prefix)]

    def changes(self, prefix: str, after: int) -> Range:
        return Range(tuple(kv for kv in self.range(prefix) if kv.mod_revision > after), self._etcd.revision)

    def get(self, key: str) -> KeyValue | None:
        self._require_connection()
        return self._etcd.keys.get(key)

    def leads(self) -> bool:
        """True if the leader's key in etcd is this daemon's, whatever the daemon believes."""
        found = self._etcd.keys.get(LEADER_KEY)
        return found is not None and leader_name(found.value) == self._name

    def _require_connection(self) -> None:
        if self._name and not self.connected:
            raise JournalUnavailableError("etcd is down")
