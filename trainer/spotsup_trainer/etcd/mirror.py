"""A live copy of all keys below one prefix: read once, then updated by a watch; read again after any fault."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from spotsup_trainer.etcd import Etcd, EtcdError, EtcdUnavailableError, KeyValue, Watch, WatchEvent
from spotsup_trainer.etcd.quota import Kept, Quota
from spotsup_trainer.timing import RETRY_S, retry_s
from spotsup_trainer.vitals import Pulse, Vitals

# A mirror whose threads make no progress for so long, beyond the time limits of their calls, hangs.
STALE_S = 30.0
# The mirror of one who trusts all who write there.
UNLIMITED = Quota(lambda _: "", 0, 0, 0)
# So many changed keys are remembered; who looks more seldom compares all.
MAX_LOGGED_KEYS = 10_000


class ChangeLog:
    """Which keys changed between two views, so that readers need not compare all keys. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[tuple[int, tuple[str, ...]]] = deque()
        self._keys = 0
        self._complete_after = 0

    def add(self, serial: int, keys: tuple[str, ...]) -> None:
        """These keys changed with the view `serial`."""
        with self._lock:
            self._entries.append((serial, keys))
            self._keys += len(keys)
            while self._keys > MAX_LOGGED_KEYS:
                self._complete_after, forgotten = self._entries.popleft()
                self._keys -= len(forgotten)

    def forget(self, serial: int) -> None:
        """Any key may have changed with the view `serial`."""
        with self._lock:
            self._entries.clear()
            self._keys, self._complete_after = 0, serial

    def between(self, one: int, other: int) -> list[str] | None:
        """Return the keys in which two views differ, in whichever order they were made; None if that is not known."""
        first, last = min(one, other), max(one, other)
        found: set[str] = set()
        with self._lock:
            if first < self._complete_after:
                return None
            for serial, keys in reversed(self._entries):
                if serial <= first:
                    break
                if serial <= last:
                    found.update(keys)
        return sorted(found)


@dataclass(frozen=True)
class MirrorView:
    """What the mirror holds."""

    # As of `revision`.
    keys: Mapping[str, KeyValue]
    revision: int
    # False while etcd is away or the mirror hangs, and the copy is stale.
    live: bool
    # How often etcd went away, however briefly, including before the first copy. After an outage, leases may have
    # ended, and keys and revisions may be those of an older backup, or none.
    outages: int = 0
    # Counts the changes of `keys`.
    serial: int = 0
    # The groups of keys of which the quota leaves some out.
    over: frozenset[str] = frozenset()
    log: ChangeLog | None = field(default=None, compare=False, repr=False)

    def changed_since(self, before: MirrorView) -> list[str] | None:
        """Return the keys in which it differs from another view; None if that is not known."""
        return self.log.between(before.serial, self.serial) if self.log and self.log is before.log else None


class Mirror:
    """Start it, then read `view()` from any thread; `on_change` is called from the mirror's thread after each change.

    While etcd is away the last copy stays readable. A broken watch is not resumed: the store may be another one by
    then. A silent watch is probed every `pulse_s`. An unforeseen error in a thread counts as an outage.
    """

    def __init__(
        self,
        etcd: Etcd,
        prefix: str,
        on_change: Callable[[], None] = lambda: None,
        *,
        pulse_s: float = 5.0,
        stale_s: float = STALE_S,
        quota: Quota = UNLIMITED,
    ) -> None:
        """`quota`: what is kept of keys that others write; the rest is not in the copy."""
        self._etcd = etcd
        self._quota = quota
        self._kept = Kept(quota)
        self._prefix = prefix
        self._on_change = on_change
        self._pulse_s = pulse_s
        # To open a watch, and to read, it asks each endpoint once; each may ask for a login first.
        self._stale_s = stale_s + pulse_s + 4 * etcd.timeout_s * len(etcd.endpoints)
        self._pulse = Pulse()
        self._beat_at = 0.0
        self._steps = 0  # of the mirror's thread
        self._watching = False  # it has nothing to do but to wait for a change
        self._keys: dict[str, KeyValue] = {}
        self._log = ChangeLog()
        # Of the last `view()`; `_revision` and `_serial` may be newer.
        self._view = MirrorView(MappingProxyType({}), 0, live=False, log=self._log)
        self._revision = self._serial = 0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"mirror {prefix}", daemon=True),
            threading.Thread(target=self._probe, name=f"probe {prefix}", daemon=True),
        ]

    def start(self) -> None:
        """Begin to mirror. Returns at once; `wait_live` waits for the first copy."""
        self._beat_at = time.monotonic()
        for thread in self._threads:
            thread.start()

    def view(self) -> MirrorView:
        """Return the current copy; it never changes under the reader.

        Made on demand: with hundreds of messages per second, a copy of thousands of keys for each would be most of the
        work.
        """
        with self._changed:
            return self._current()

    def wait(self, predicate: Callable[[MirrorView], bool], timeout_s: float) -> bool:
        """Wait until the copy satisfies `predicate`; False when `timeout_s` ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: predicate(self._current()), timeout_s)

    def wait_live(self, timeout_s: float) -> bool:
        """Wait until the copy is complete and watched."""
        return self.wait(lambda view: view.live, timeout_s)

    def vitals(self) -> Vitals:
        """Return how its threads are."""
        return self._pulse.vitals(self._stale_s, *self._threads)

    def close(self) -> None:
        """Stop the threads, within a few seconds."""
        self._stopping.set()
        watch = self._watch
        if watch is not None:
            watch.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=self._etcd.timeout_s + 1)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 - whatever it is: the copy is stale, and is made again
                if not isinstance(error, EtcdError):
                    self._pulse.fault(error)
                if time.monotonic() - begun > RETRY_S[-1]:
                    failures = 0
                self._watching = False
                self._steps += 1
                view = self.view()
                if view.live or not view.outages:
                    self._publish(replace(view, live=False, outages=view.outages + 1))
                self._stopping.wait(retry_s(failures))
                failures += 1

    def _follow(self) -> None:
        """Follow one copy, for as long as its watch lasts. The watch starts first and reports what the copy lacks.

        The copy is a linearizable read: it is current even if this endpoint lags behind its peers.
        """
        with closing(self._etcd.watch(self._prefix)) as watch:
            self._watch = watch
            kept, found, revision = Kept(self._quota), {}, 0
            for page in self._etcd.pages(self._prefix):
                if self._stopping.is_set():
                    return
                found.update({kv.key: kv for kv in page.kvs if kept.put(kv.key, len(kv.value))})
                revision = page.revision
                self._steps += 1
                self._beat_at = time.monotonic()
            serial = self._serial + 1
            self._log.forget(serial)
            keys = MappingProxyType(found)
            self._publish(MirrorView(keys, revision, True, self._view.outages, serial, kept.over, self._log), kept)
            self._watching = True
            for batch in watch:
                self._watching = False
                fresh = [event for event in batch.events if event.mod_revision > revision]
                if fresh:
                    self._apply(fresh, batch.revision)
                self._steps += 1
                self._watching = True
        if not self._stopping.is_set():
            raise EtcdUnavailableError(f"watch given up: {watch.endpoint} no longer answers")

    def _probe(self) -> None:
        seen = self._steps
        while not self._stopping.wait(self._pulse_s):
            try:
                self._ping()
            except Exception as error:  # noqa: BLE001 - whatever it is: a watch that is not probed is not believed
                self._pulse.fault(error)
                continue
            if self._watching or self._steps != seen:
                self._beat_at = time.monotonic()
                self._pulse.beat()
            seen = self._steps

    def _ping(self) -> None:
        watch = self._watch
        if watch is None or not self._view.live:
            return
        try:
            watch.ping()
        except EtcdUnavailableError:
            watch.close()

    def _hangs(self) -> bool:
        if self._stopping.is_set():
            return False
        stale = time.monotonic() - self._beat_at > self._stale_s
        return stale or not all(thread.is_alive() for thread in self._threads)

    def _current(self) -> MirrorView:
        if self._view.live and self._hangs():
            self._view = replace(self._view, live=False, outages=self._view.outages + 1)
            if self._watch is not None:
                self._watch.close()  # if a thread wakes again: the copy is made again
        if self._view.serial != self._serial:
            keys = MappingProxyType(dict(self._keys))
            over = self._kept.over
            self._view = replace(self._view, keys=keys, revision=self._revision, serial=self._serial, over=over)
        return self._view

    def _publish(self, view: MirrorView, kept: Kept | None = None) -> None:
        with self._changed:
            self._view, self._keys = view, dict(view.keys)
            self._kept = kept or self._kept
            self._revision, self._serial = view.revision, view.serial
            self._changed.notify_all()
        self._tell()

    def _apply(self, events: list[WatchEvent], revision: int) -> None:
        with self._changed:
            for event in events:
                key, value = event.key, event.value
                if value is None:
                    self._kept.delete(key)
                if value is None or not self._kept.put(key, len(value)):
                    self._keys.pop(key, None)
                else:
                    self._keys[key] = KeyValue(key, value, event.create_revision, event.mod_revision, event.lease)
            self._revision, self._serial = revision, self._serial + 1
            self._log.add(self._serial, tuple(event.key for event in events))
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        try:
            self._on_change()
        except Exception as error:  # noqa: BLE001 - whatever it is: the copy is right, and goes on
            self._pulse.fault(error)
