"""etcd, as far as daemons and nodes use it: revisions, guarded transactions, and mirrors that lag."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from spotsup_trainer.etcd import Compare, Delete, KeyValue, Put, TxnResult
from spotsup_trainer.etcd.mirror import View
from spotsup_trainer.wire import Keys

from supervisor.errors import JournalUnavailableError
from tests.sim.chance import Dice, Faults

CLUSTER = "sim"
LEADER_KEY = f"{Keys(CLUSTER).root}leader"
# Words that launchers do not look at, but for their own: they are no reason to decide anew.
MAX_UNDONE = 300
_UNHEARD = ("agent", "notice", "progress", "ended")


class SimClock:
    """Time goes on only when the world says so."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time


class SimStore:
    """The keys, and what they were a while ago. `runs`: the words of each job; `versions`: how often they changed;
    `restores`: how often it was set back."""

    def __init__(self, clock: SimClock) -> None:
        self.keys: dict[str, KeyValue] = {}
        self.revision = 1
        self.back_at = 0.0
        self.restores = 0
        self.runs: dict[str, dict[str, KeyValue]] = {}
        self.versions: dict[str, int] = {}
        self._away = False
        self._clock = clock
        self._mirrored: Mapping[str, KeyValue] = {}
        self._world_prefix = Keys(CLUSTER).world
        self._run_prefix = f"{Keys(CLUSTER).world}run/"
        self._past: deque[tuple[float, View]] = deque(maxlen=400)
        self._changes: dict[str, KeyValue | None] = {}
        self._undo: deque[dict[str, KeyValue | None]] = deque(maxlen=MAX_UNDONE)
        self._remember()

    @property
    def away(self) -> bool:
        """Whether nobody is answered. `back_at`: when that last ended."""
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        if self._away and not away:
            self.back_at = self._clock.now()
        self._away = away

    def now(self) -> float:
        """The time."""
        return self._clock.now()

    def seen(self, lag_s: float) -> View:
        """As it was `lag_s` ago."""
        then = self._clock.now() - lag_s
        return next((view for at, view in reversed(self._past) if at <= then), self._past[0][1])

    def visible_at(self, revision: int, lag_s: float) -> float:
        """When a mirror that is at `revision` sees something new; never where there is nothing."""
        if self.revision == revision:
            return float("inf")
        first = self._past[-1][0]
        for at, view in reversed(self._past):
            if view.revision <= revision:
                break
            first = at
        return first + lag_s

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """All or nothing."""
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

    def lose(self, writes: int) -> frozenset[str]:
        """It is set back to what it was so many transactions ago, and counts its revisions on from there. Nobody leads
        then. The keys that are not as they were."""
        lost: set[str] = set()
        for _ in range(min(writes, len(self._undo))):
            for key, before in self._undo.pop().items():
                lost.add(key)
                if before is None:
                    self.keys.pop(key, None)
                else:
                    self.keys[key] = before
            self.revision -= 1
        self._mirrored = {key: kv for key, kv in sorted(self.keys.items()) if key.startswith(self._world_prefix)}
        self.runs.clear()
        for key, kv in self._mirrored.items():
            self._note(key, kv)
        for job in self.versions:
            self.versions[job] += 1
        self.restores += 1
        self._past.clear()
        self._remember()
        self.delete(LEADER_KEY)
        return frozenset(lost)

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
        self._note(key, value)

    def _note(self, key: str, value: KeyValue | None) -> None:
        if not key.startswith(self._run_prefix):
            return
        job, _, word = key.removeprefix(self._run_prefix).partition("/")
        words = self.runs.setdefault(job, {})
        if value is None:
            words.pop(key, None)
        else:
            words[key] = value
        if not word.startswith(_UNHEARD):
            self.versions[job] = self.versions.get(job, 0) + 1

    def _remember(self) -> None:
        """Keep the present for those who see it late."""
        self._past.append((self._clock.now(), View(MappingProxyType(self._mirrored), self.revision, live=True)))


def at_once() -> None:
    """Without hesitating."""


class Client:
    """One daemon's way to etcd. `name` is empty for those who check: they see everything, at once.

    `hesitate`: what happens before the next transaction is sent, once.
    """

    def __init__(self, store: SimStore, dice: Dice, name: str = "") -> None:
        self.cut = False
        self.faults = Faults()
        self.hesitate: Callable[[], None] = at_once
        self._store = store
        self._dice = dice
        self._name = name
        self._dead: View | None = None
        self._live: View | None = None
        self._outages = 0
        self._restores = store.restores
        self._timers_paused_until = 0.0

    @property
    def connected(self) -> bool:
        """Whether etcd answers this daemon."""
        return not (self.cut or self._store.away)

    def view(self) -> View:
        """As runtime.store.Store."""
        seen = self._store.seen(self.faults.mirror_lag_s)
        if not self._name:
            return seen
        if self._restores != self._store.restores:
            self._restores, self._outages = self._store.restores, self._outages + 1
        if self.connected and self._store.now() >= self._timers_paused_until:
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
            self._dead = View(seen.keys, seen.revision, live=False, outages=self._outages)
        return self._dead

    def next_at(self, revision: int) -> float:
        """When there is something new for whoever has read `revision`."""
        if not self.connected:
            return float("inf")
        return max(self._timers_paused_until, self._store.visible_at(revision, self.faults.mirror_lag_s))

    def lose_watch(self, seconds: float) -> None:
        """Its watch ends, as where its revision was compacted: everything is read anew, which takes so long."""
        self._timers_paused_until = self._store.now() + seconds
        self.view()

    def txn(self, guards: Sequence[Compare], operations: Sequence[Put | Delete]) -> TxnResult:
        """As runtime.store.Store."""
        hesitate, self.hesitate = self.hesitate, at_once
        hesitate()
        if not self.connected:
            raise JournalUnavailableError("etcd is away")
        unanswered = self._dice.hits("unanswered commit", self.faults.unanswered_commit)
        if unanswered and self._dice.rng.random() < 0.5:
            raise JournalUnavailableError("no answer, and nothing happened")
        result = self._store.txn(guards, operations)
        if unanswered:
            raise JournalUnavailableError("no answer, but it happened")
        return result

    def range(self, prefix: str) -> Sequence[KeyValue]:
        """As runtime.store.Store."""
        self._ask()
        return [self._store.keys[key] for key in sorted(self._store.keys) if key.startswith(prefix)]

    def leads(self) -> bool:
        """Whether the leader's key is this daemon's, whatever it believes."""
        found = self._store.keys.get(LEADER_KEY)
        return found is not None and found.value.decode() == self._name

    def get(self, key: str) -> KeyValue | None:
        """As runtime.store.Store."""
        self._ask()
        return self._store.keys.get(key)

    def _ask(self) -> None:
        if self._name and not self.connected:
            raise JournalUnavailableError("etcd is away")


def _check_operations(operations: Sequence[Put | Delete]) -> None:
    """As etcd: at most 128 in one transaction, and no key is put twice, or both put and deleted."""
    assert len(operations) <= 128
    puts = [operation.key for operation in operations if isinstance(operation, Put)]
    assert len(puts) == len(set(puts)), puts
    for gone in (operation for operation in operations if isinstance(operation, Delete)):
        assert not any(key.startswith(gone.key) if gone.prefix else key == gone.key for key in puts), gone
