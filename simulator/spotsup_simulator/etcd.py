"""etcd as daemons and nodes use it: revisions, guarded transactions, and mirrors that lag.

What it has in common with the real one, where that matters, is listed in docs/verification/track-record.md.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from spotsup_trainer.etcd import Compare, Delete, EtcdRefusedError, KeyValue, Put, TxnResult
from spotsup_trainer.etcd.mirror import MirrorView
from spotsup_trainer.wire import Keys

from spotsup_simulator.auth import SimAuth
from spotsup_simulator.clock import NEVER, VirtualClock

CLUSTER = "sim"
LEADER_KEY = f"{Keys(CLUSTER).root}leader"
# How many transactions `roll_back` can undo.
MAX_UNDONE = 300
_MAX_OPERATIONS = 128
_MAX_REQUEST_BYTES = 1536 * 1024
# Messages that launchers do not read: a change of one is no reason for a job's launchers to decide again.
_IGNORED_BY_LAUNCHERS = ("agent", "notice", "progress", "pauses", "ranktimes", "ended")
# grpc's codes, as etcd sends them: its api/v3rpc/rpctypes/error.go.
_INVALID, _NOT_FOUND, _EXHAUSTED, _OUT_OF_RANGE = 3, 5, 8, 11
# Longer requests end in grpc, below etcd.
_MAX_MESSAGE_BYTES = _MAX_REQUEST_BYTES + 512 * 1024
_OVERHEAD_BYTES = 30
# Shorter leases it does not grant: 1.5 election timeouts, of 1 s each by default (its server/etcdserver/server.go).
MIN_TTL_S = 2
# A new leader lets all leases begin anew, and an election timeout more (its lessor's Promote).
ELECTION_S = 1.0
# It looks for leases that have ended twice a second, and may be busy.
_LATE_S, _VERY_LATE_S = 0.7, 6.0
NO_SPACE = "etcdserver: mvcc: database space exceeded"
NO_LEASE = "etcdserver: requested lease not found"


@dataclass
class Lease:
    """A lease, and the keys under it."""

    ttl_s: int
    # It ends then, unless it is renewed before. While its holder lives and reaches etcd, renewing is not simulated.
    ends_at: float
    # The store's revision when it was granted.
    revision: int
    kept: bool = False
    # Somebody else renews it until then.
    stolen_until: float = 0.0
    keys: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Late:
    """A transaction that is carried out after its sender has given it up."""

    at: float
    guards: Sequence[Compare]
    operations: Sequence[Put | Delete]


class SimEtcd:
    """The keys, and what they were a while ago."""

    def __init__(self, clock: VirtualClock, seed: int = 0) -> None:
        """`seed`: of how late leases end."""
        self.keys: dict[str, KeyValue] = {}
        self.revision = 1
        # The keys below run/, by job, and how often those that launchers read have changed.
        self.run_keys: dict[str, dict[str, KeyValue]] = {}
        self.run_versions: dict[str, int] = {}
        # When the last outage ended, and how often `roll_back` was called.
        self.up_since = 0.0
        self.rollbacks = 0
        # Its users; how often the records of jobs and nodes have changed; what nodes wrote that they may not.
        self.auth = SimAuth()
        self.record_versions = 0
        self.refused: list[str] = []
        # By their ids.
        self.leases: dict[int, Lease] = {}
        self._full = False
        self.compacted = 0
        self._rng = random.Random(f"etcd {seed}")
        self._granted = 0
        self._down = False
        self._clock = clock
        self._mirrored: Mapping[str, KeyValue] = {}
        self._world_prefix = Keys(CLUSTER).world
        self._run_prefix = f"{Keys(CLUSTER).world}run/"
        self._past: deque[tuple[float, MirrorView]] = deque(maxlen=400)
        # What each transaction changed, and the revision before it.
        self._undo: deque[tuple[int, dict[str, KeyValue | None]]] = deque(maxlen=MAX_UNDONE)
        self._late: list[_Late] = []
        self._remember()

    @property
    def down(self) -> bool:
        """True if no client is answered."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        if self._down and not down:
            self.up_since = self._clock.now()
            self.auth.forget_tokens()
            self._extend_leases()
        if down:
            self._late.clear()
        self._down = down

    @property
    def full(self) -> bool:
        """True if its space quota is used up, the alarm NOSPACE: it refuses what needs space, and does all else."""
        return self._full

    @full.setter
    def full(self, full: bool) -> None:
        if self._full and not full:
            self.up_since = self._clock.now()
        self._full = full

    @property
    def mirrored_revision(self) -> int:
        """Return the revision of the newest change that mirrors show. The store's may be ahead: leaders write their key
        again and again."""
        return self._past[-1][1].revision

    def now(self) -> float:
        return self._clock.now()

    def view_before(self, lag_s: float) -> MirrorView:
        """Return the view of `lag_s` ago."""
        then = self._clock.now() - lag_s
        return next((view for at, view in reversed(self._past) if at <= then), self._past[0][1])

    def visible_at(self, revision: int, lag_s: float) -> float:
        """Return when a mirror at `revision` sees the next change; NEVER if there is none."""
        if self.mirrored_revision <= revision:
            return NEVER
        first = self._past[-1][0]
        for at, view in reversed(self._past):
            if view.revision <= revision:
                break
            first = at
        return first + lag_s

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """Carry out all operations if every guard holds, else none. What writes nothing has the revision of the last
        write, of whomever. Raises EtcdRefusedError."""
        _check_operations(guards, operations)
        if self.full and any(isinstance(each, Put) for each in operations):
            raise EtcdRefusedError(NO_SPACE, _EXHAUSTED)
        if not all(self._holds(guard) for guard in guards):
            return TxnResult(False, self.revision)
        self._apply(operations)
        return TxnResult(True, self.revision)

    def txn_later(self, guards: Sequence[Compare], operations: Sequence[Put | Delete], seconds: float) -> None:
        """Carry a transaction out when nobody waits for its answer any more."""
        self._late.append(_Late(self._clock.now() + seconds, guards, operations))

    def step(self) -> None:
        """Handle what is due now."""
        if self._down:
            return
        now = self._clock.now()
        due = [each for each in self._late if each.at <= now]
        self._late = [each for each in self._late if each.at > now]
        for each in due:
            with contextlib.suppress(EtcdRefusedError):
                self.txn(each.guards, each.operations)
        for number in [number for number, lease in self.leases.items() if self._ends_at(lease) <= now]:
            self.revoke(number)

    def next_at(self) -> float:
        """Return when `step` has something to do."""
        if self._down:
            return NEVER
        ends = (self._ends_at(lease) for lease in self.leases.values())
        return min(min(ends, default=NEVER), min((each.at for each in self._late), default=NEVER))

    # -- leases --------------------------------------------------------------------------------------------

    def grant(self, ttl_s: int) -> int:
        """Grant a new lease, of the same length or longer; returns its id. Raises EtcdRefusedError."""
        if self.full:
            raise EtcdRefusedError(NO_SPACE, _EXHAUSTED)
        self._granted += 1
        number, length_s = 7_000_000 + self._granted, max(MIN_TTL_S, ttl_s)
        self.leases[number] = Lease(length_s, self._clock.now() + length_s + self.lateness_s(), self.revision)
        return number

    def keep_alive(self, number: int) -> int:
        """Renew a lease; returns the seconds that it has, 0 if there is none."""
        lease = self.leases.get(number)
        if lease is None:
            return 0
        lease.ends_at = self._clock.now() + lease.ttl_s + self.lateness_s()
        return lease.ttl_s

    def revoke(self, number: int) -> None:
        """End a lease, and delete its keys, all in one revision. Raises EtcdRefusedError."""
        lease = self.leases.pop(number, None)
        if lease is None:
            raise EtcdRefusedError(NO_LEASE, _NOT_FOUND)
        self._apply([Delete(key) for key in sorted(lease.keys)])

    def lateness_s(self) -> float:
        """Return how much later than it should a lease ends."""
        return self._rng.uniform(0.0, _LATE_S if self._rng.random() < 0.9 else _VERY_LATE_S)

    def elect(self) -> None:
        """Another of etcd's members leads: all leases begin anew, and may end together."""
        self._extend_leases()

    def _extend_leases(self) -> None:
        ends_at = self._clock.now() + ELECTION_S
        for lease in self.leases.values():
            lease.ends_at = max(lease.ends_at, ends_at + lease.ttl_s)

    def _ends_at(self, lease: Lease) -> float:
        return NEVER if lease.kept else max(lease.ends_at, lease.stolen_until)

    def compact(self, revision: int) -> None:
        """Delete the history before a revision. Raises EtcdRefusedError."""
        if revision > self.revision:
            raise EtcdRefusedError("etcdserver: mvcc: required revision is a future revision", _OUT_OF_RANGE)
        if revision <= self.compacted:
            raise EtcdRefusedError("etcdserver: mvcc: required revision has been compacted", _OUT_OF_RANGE)
        self.compacted = revision

    def put(self, key: str, value: bytes) -> None:
        """Make a node's own write, or a thief's."""
        if key not in self.keys or self.keys[key].value != value:
            self._apply([Put(key, value)])

    def delete(self, key: str) -> None:
        """Make a node's own delete, or the end of its lease."""
        if key in self.keys:
            self._apply([Delete(key)])

    def roll_back(self, transactions: int) -> frozenset[str]:
        """Undo the last transactions, as restoring a backup does: revisions count on from there. A leader that writes
        its key again counts for none. Returns the keys that have changed."""
        changed: set[str] = set()
        for _ in range(min(transactions, len(self._undo))):
            self.revision, undone = self._undo.pop()
            for key, before in undone.items():
                changed.add(key)
                if before is None:
                    self.keys.pop(key, None)
                else:
                    self.keys[key] = before
        self.compacted = min(self.compacted, self.revision)
        self._restore_leases()
        self._mirrored = {key: kv for key, kv in sorted(self.keys.items()) if key.startswith(self._world_prefix)}
        self.run_keys.clear()
        for key, kv in self._mirrored.items():
            self._index_run_key(key, kv)
        for job in self.run_versions:
            self.run_versions[job] += 1
        self.rollbacks += 1
        self.record_versions += 1
        self.auth.roll_back(self.revision)
        self._late.clear()
        self._past.clear()
        self._remember()
        return frozenset(changed)

    def writes_since_newest(self, prefix: str) -> int:
        """Return how many transactions have to be undone until the newest key below this prefix is gone; 0: that is too
        long ago."""
        for number, (_, undone) in enumerate(reversed(self._undo), 1):
            if any(key.startswith(prefix) and before is None for key, before in undone.items()):
                return number
        return 0

    def _restore_leases(self) -> None:
        """Restore the leases. Those that were granted since are gone; those whose keys are back are, too, and nobody
        renews them."""
        self.leases = {number: lease for number, lease in self.leases.items() if lease.revision <= self.revision}
        for lease in self.leases.values():
            lease.keys.clear()
        for key, kv in self.keys.items():
            if kv.lease:
                lease = self.leases.setdefault(kv.lease, Lease(MIN_TTL_S, self._clock.now(), self.revision))
                lease.keys.add(key)
        self._extend_leases()

    def _holds(self, guard: Compare) -> bool:
        found = self.keys.get(guard.key)
        if guard.target == "value":
            return found is not None and found.value == guard.value
        revision = 0 if found is None else found.mod_revision if guard.target == "mod" else found.create_revision
        return revision == guard.value

    def _apply(self, operations: Iterable[Put | Delete]) -> None:
        """Apply all of them under one revision; none for deletions that find nothing."""
        changes: dict[str, KeyValue | None] = {}
        for operation in operations:
            if isinstance(operation, Put):
                before = self.keys.get(operation.key)
                if operation.lease and operation.lease not in self.leases:
                    raise EtcdRefusedError(NO_LEASE, _NOT_FOUND)
                created, revision = before.create_revision if before else self.revision + 1, self.revision + 1
                changes[operation.key] = KeyValue(operation.key, operation.value, created, revision, operation.lease)
            elif operation.prefix:
                changes |= dict.fromkeys(key for key in self.keys if key.startswith(operation.key))
            elif operation.key in self.keys:
                changes[operation.key] = None
        if not changes:
            return
        undo = {key: self.keys.get(key) for key in changes}
        if self._undo and undo.keys() == {LEADER_KEY}:
            self._undo[-1][1].setdefault(LEADER_KEY, undo[LEADER_KEY])
        else:
            self._undo.append((self.revision, undo))
        self.revision += 1
        mirrored = dict(self._mirrored) if any(key.startswith(self._world_prefix) for key in changes) else None
        for key, value in changes.items():
            self._attach(key, value)
            self._set(mirrored if mirrored is not None else {}, key, value)
        if mirrored is not None:
            self._mirrored = mirrored
            self._remember()

    def _attach(self, key: str, value: KeyValue | None) -> None:
        """Put a key under the lease of its last write, or none."""
        before = self.keys.get(key)
        if before is not None and before.lease in self.leases:
            self.leases[before.lease].keys.discard(key)
        if value is not None and value.lease:
            self.leases[value.lease].keys.add(key)

    def _set(self, mirrored: dict[str, KeyValue], key: str, value: KeyValue | None) -> None:
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


def _check_operations(guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> None:
    """etcd's own limits: 128 guards, 128 operations, 1.5 MiB, and no key twice. Raises EtcdRefusedError."""
    puts = [operation for operation in operations if isinstance(operation, Put)]
    keys = [put.key for put in puts]
    gone = [operation for operation in operations if isinstance(operation, Delete)]
    size = _OVERHEAD_BYTES + sum(len(put.key) + len(put.value) for put in puts)
    if size > _MAX_MESSAGE_BYTES:
        raise EtcdRefusedError(f"grpc: received message larger than max ({size} vs. {_MAX_MESSAGE_BYTES})", _EXHAUSTED)
    if max(len(guards), len(operations)) > _MAX_OPERATIONS:
        raise EtcdRefusedError("etcdserver: too many operations in txn request", _INVALID)
    if len(keys) != len(set(keys)) or any(
        key.startswith(each.key) if each.prefix else key == each.key for each in gone for key in keys
    ):
        raise EtcdRefusedError("etcdserver: duplicate key given in txn request", _INVALID)
    if size > _MAX_REQUEST_BYTES:
        raise EtcdRefusedError("etcdserver: request is too large", _INVALID)
