"""A live copy of all keys below one prefix: read once, then kept by a watch that resumes after any fault."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from spotsup_trainer.etcd import CompactedError, Etcd, EtcdError, KeyValue, Watch, WatchEvent

RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class View:
    """What the mirror holds: keys as of `revision`. `live` is False while etcd is away and the copy ages."""

    keys: Mapping[str, KeyValue]
    revision: int
    live: bool


class Mirror:
    """Start it, then read `view()` from any thread; `on_change` is called from the mirror's thread after each change.

    While etcd is away the last copy stays readable. A watch whose history was compacted reloads.
    """

    def __init__(self, etcd: Etcd, prefix: str, on_change: Callable[[], None] = lambda: None) -> None:
        self._etcd = etcd
        self._prefix = prefix
        self._on_change = on_change
        self._view = View(MappingProxyType({}), 0, live=False)
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name=f"mirror {prefix}", daemon=True)

    def start(self) -> None:
        """Begin to mirror. Returns at once; `wait_live` waits for the first copy."""
        self._thread.start()

    def view(self) -> View:
        """The current copy; it never changes under the reader."""
        return self._view

    def wait(self, predicate: Callable[[View], bool], timeout_s: float) -> bool:
        """Wait until the copy satisfies `predicate`; False when `timeout_s` ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: predicate(self._view), timeout_s)

    def wait_live(self, timeout_s: float) -> bool:
        """Wait until the copy is complete and watched."""
        return self.wait(lambda view: view.live, timeout_s)

    def close(self) -> None:
        """Stop the thread, at most a few seconds."""
        self._stopping.set()
        watch = self._watch
        if watch is not None:
            watch.close()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._etcd.timeout_s + 1)

    def _run(self) -> None:
        failures = 0
        reload = True
        while not self._stopping.is_set():
            try:
                if reload:
                    self._load()
                    reload = False
                self._follow()
                failures = 0
            except CompactedError:
                reload = True
            except EtcdError:
                if self._view.live:
                    failures = 0
                    self._publish(View(self._view.keys, self._view.revision, live=False))
                self._stopping.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1

    def _load(self) -> None:
        found = self._etcd.range(self._prefix)
        self._publish(View(MappingProxyType({kv.key: kv for kv in found.kvs}), found.revision, live=False))

    def _follow(self) -> None:
        self._watch = watch = self._etcd.watch(self._prefix, start_revision=self._view.revision + 1)
        if self._stopping.is_set():
            watch.close()
        self._publish(View(self._view.keys, self._view.revision, live=True))
        for batch in watch:
            keys = dict(self._view.keys)
            for event in batch.events:
                _apply(keys, event)
            self._publish(View(MappingProxyType(keys), batch.revision, live=True))

    def _publish(self, view: View) -> None:
        with self._changed:
            self._view = view
            self._changed.notify_all()
        self._on_change()


def _apply(keys: dict[str, KeyValue], event: WatchEvent) -> None:
    if event.value is None:
        keys.pop(event.key, None)
    else:
        keys[event.key] = KeyValue(event.key, event.value, event.create_revision, event.mod_revision, event.lease)
