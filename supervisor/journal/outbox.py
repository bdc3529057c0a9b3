"""The outbox as the mirror has it: events that wait to be sent, which channel has which, and Slack's threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from spotsup_trainer.decoding import printable
from spotsup_trainer.etcd import KeyValue

from supervisor.alerts.stories import Thread, decode_thread
from supervisor.errors import SchemaError
from supervisor.events import EventKind
from supervisor.journal.codec import load
from supervisor.model import MAX_TEXT_CHARACTERS, Event

# Below `world/`: `alerts/<event>`, `alerted/<channel>/<event>`, `threads/<channel>/<task id>`.
ALERTS, ALERTED, THREADS = "alerts", "alerted", "threads"
SECTIONS = frozenset({ALERTS, ALERTED, THREADS})
MAX_AT = 4e9  # in the year 2096


class Outbox:
    """Kept from change to change: thousands of events may wait while a channel is away."""

    def __init__(self) -> None:
        self.events: tuple[Event, ...] = ()
        self.alerted: Mapping[str, frozenset[str]] = MappingProxyType({})
        self.threads: Mapping[str, Mapping[str, Thread]] = MappingProxyType({})
        # By id: when it was first written, as a revision of etcd, and the event.
        self._waiting: dict[str, tuple[int, Event]] = {}

    def update(self, changes: Iterable[tuple[str, str, KeyValue | None]]) -> None:
        """Take changed keys: section, the key below it, what it has now."""
        touched = set()
        alerted = {name: set(ids) for name, ids in self.alerted.items()}
        threads = {name: dict(found) for name, found in self.threads.items()}
        for section, rest, kv in changes:
            touched.add(section)
            channel, _, name = rest.partition("/")
            if section == ALERTS:
                self._take(rest, kv)
            elif section == ALERTED:
                (alerted.setdefault(channel, set()).add if kv else alerted.get(channel, set()).discard)(name)
            else:
                thread = decode_thread(kv.value) if kv else None
                threads.setdefault(channel, {}).pop(name, None)
                if thread is not None:
                    threads[channel][name] = thread
        if ALERTS in touched:
            in_order = sorted(self._waiting.items(), key=lambda each: (each[1][0], each[0]))
            self.events = tuple(event for _, (_, event) in in_order)
        if ALERTED in touched:
            self.alerted = MappingProxyType({name: frozenset(ids) for name, ids in sorted(alerted.items()) if ids})
        if THREADS in touched:
            self.threads = MappingProxyType(
                {name: MappingProxyType(found) for name, found in sorted(threads.items()) if found}
            )

    def _take(self, event_id: str, kv: KeyValue | None) -> None:
        if kv is None:
            self._waiting.pop(event_id, None)
            return
        try:
            event = load(Event, kv.value, kv.key)
        except SchemaError:
            event = None
        if event is not None and event.id == event_id:
            # No message fails for a time that no calendar has, or a text that nobody reads.
            text = printable(event.text, MAX_TEXT_CHARACTERS)
            event = replace(event, at=min(max(event.at, 0.0), MAX_AT), text=text)
        else:
            # People are told of it once, and then it is gone.
            text = f"an alert in etcd cannot be read: {printable(kv.key)}"
            event = Event(event_id, 0.0, "", EventKind.UNREADABLE, text)
        self._waiting[event_id] = (kv.create_revision, event)
