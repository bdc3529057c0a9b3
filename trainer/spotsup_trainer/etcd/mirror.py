"""A live copy of all keys below one prefix: read once, then updated by a watch; read again after any fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from types import MappingProxyType

from spotsup_trainer.etcd import Etcd, EtcdError, EtcdUnavailableError, KeyValue, Watch, WatchEvent
from spotsup_trainer.timing import RETRY_S, retry_s


@dataclass(frozen=True, slots=True)
class MirrorView:
    """What the mirror holds."""

    # As of `revision`.
    keys: Mapping[str, KeyValue]
    revision: int
    # False while etcd is away, and the copy is stale.
    live: bool
    # How often etcd went away, however briefly, including before the first copy. After an outage, leases may have
    # ended, and keys and revisions may be those of an older backup, or none.
    outages: int = 0


class Mirror:
    """Start it, then read `view()` from any thread; `on_change` is called from the mirror's thread after each change.

    While etcd is away the last copy stays readable. A broken watch is not resumed: the store may be another one by
    then. A silent watch is probed every `pulse_s`.
    """

    def __init__(
        self, etcd: Etcd, prefix: str, on_change: Callable[[], None] = lambda: None, *, pulse_s: float = 5.0
    ) -> None:
        self._etcd = etcd
        self._prefix = prefix
        self._on_change = on_change
        self._pulse_s = pulse_s
        self._keys: dict[str, KeyValue] = {}
        self._view = MirrorView(MappingProxyType({}), 0, live=False)  # of the last `view()`; `_revision` may be newer
        self._revision = 0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"mirror {prefix}", daemon=True),
            threading.Thread(target=self._probe, name=f"probe {prefix}", daemon=True),
        ]

    def start(self) -> None:
        """Begin to mirror. Returns at once; `wait_live` waits for the first copy."""
        for thread in self._threads:
            thread.start()

    def view(self) -> MirrorView:
        """The current copy; it never changes under the reader.

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
            except EtcdError:
                if time.monotonic() - begun > RETRY_S[-1]:
                    failures = 0
                view = self.view()
                if view.live or not view.outages:
                    self._publish(replace(view, live=False, outages=view.outages + 1))
                self._stopping.wait(retry_s(failures))
                failures += 1

    def _follow(self) -> None:
        """One copy, for as long as its watch lasts. The watch starts first and reports what the copy lacks.

        The copy is a linearizable read: it is current even if this endpoint lags behind its peers.
        """
        with closing(self._etcd.watch(self._prefix)) as watch:
            self._watch = watch
            found = self._etcd.range(self._prefix)
            if self._stopping.is_set():
                return
            keys = MappingProxyType({kv.key: kv for kv in found.kvs})
            self._publish(MirrorView(keys, found.revision, live=True, outages=self._view.outages))
            for batch in watch:
                fresh = [event for event in batch.events if event.mod_revision > found.revision]
                if fresh:
                    self._apply(fresh, batch.revision)
        if not self._stopping.is_set():
            raise EtcdUnavailableError(f"watch given up: {watch.endpoint} no longer answers")

    def _probe(self) -> None:
        while not self._stopping.wait(self._pulse_s):
            watch = self._watch
            if watch is None or not self._view.live:
                continue
            try:
                watch.ping()
            except EtcdUnavailableError:
                watch.close()

    def _current(self) -> MirrorView:
        if self._view.revision != self._revision:
            self._view = replace(self._view, keys=MappingProxyType(dict(self._keys)), revision=self._revision)
        return self._view

    def _publish(self, view: MirrorView) -> None:
        with self._changed:
            self._view, self._keys, self._revision = view, dict(view.keys), view.revision
            self._changed.notify_all()
        self._on_change()

    def _apply(self, events: list[WatchEvent], revision: int) -> None:
        with self._changed:
            for event in events:
                key, value = event.key, event.value
                if value is None:
                    self._keys.pop(key, None)
                else:
                    self._keys[key] = KeyValue(key, value, event.create_revision, event.mod_revision, event.lease)
            self._revision = revision
            self._changed.notify_all()
        self._on_change()
