"""From the mirror's keys to the jobs they tell of. What did not change is not read again: it is the same JobView."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from spotsup_trainer.etcd import KeyValue
from spotsup_trainer.etcd.mirror import View
from spotsup_trainer.wire import (
    AgentStatus,
    Ended,
    Hint,
    Keys,
    Member,
    Notice,
    Progress,
    Result,
    Round,
    WireError,
    decode,
)

from supervisor.errors import SchemaError
from supervisor.journal.codec import load
from supervisor.model import ClusterRecord, DaemonPause, JobRecord, NodeRecord
from supervisor.planner.world import JobView

# Records of the cluster as a whole, below `world/`.
CLUSTER, PAUSE = "cluster", "pause"
Whole = TypeVar("Whole", ClusterRecord, DaemonPause)
_UNREADABLE: dict[type, ClusterRecord | DaemonPause] = {
    ClusterRecord: ClusterRecord(0.0, "a spotsupd that this one does not understand"),
    DaemonPause: DaemonPause(0.0, "in words that this spotsupd does not understand"),
}
_WORDS: dict[str, type[Any]] = {
    "hint": Hint,
    "round": Round,
    "result": Result,
    "progress": Progress,
    "member": Member,
    "agent": AgentStatus,
    "notice": Notice,
    "ended": Ended,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """The journal as of `revision`. `live` is False while etcd is away and this copy ages; `outages` counts that.

    `refused`: jobs with a record that this daemon cannot read, and why; `jobs` has none of them. `unjournaled`: nodes
    that speak and have no record. `cluster` is None where no journal was begun, or etcd has lost it.
    """

    jobs: MappingProxyType[str, JobView]
    alerts: tuple[str, ...]
    revision: int
    live: bool
    unreadable: tuple[str, ...]
    outages: int = 0
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    unjournaled: frozenset[str] = frozenset()
    cluster: ClusterRecord | None = None
    pause: DaemonPause | None = None


@dataclass(slots=True)
class _Parts:
    """All keys of one job, and what each of them says. `said`: (the bytes, the word, or why it is none).

    `refused`, `unjournaled` and `unreadable`: see Reading.
    """

    keys: dict[str, KeyValue] = field(default_factory=dict)
    said: dict[str, tuple[bytes, Any, str]] = field(default_factory=dict)
    refused: str = ""
    unjournaled: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()


class Reader:
    """Any thread may read. A cluster of 10,000 nodes has 30,000 keys, of which a few change at a time."""

    def __init__(self, keys: Keys) -> None:
        self._world = keys.world
        self._lock = threading.Lock()
        self._seen: Mapping[str, KeyValue] = {}
        self._parts: dict[str, _Parts] = {}
        self._jobs: MappingProxyType[str, JobView] = MappingProxyType({})
        self._alerts: tuple[str, ...] = ()
        self._unreadable: tuple[str, ...] = ()
        self._refused: MappingProxyType[str, str] = MappingProxyType({})
        self._unjournaled: frozenset[str] = frozenset()
        self._cluster: ClusterRecord | None = None
        self._pause: DaemonPause | None = None

    def read(self, view: View) -> Reading:
        """The world as `view` has it."""
        with self._lock:
            if view.keys is not self._seen:
                self._take(view.keys)
                self._seen = view.keys
            return Reading(
                self._jobs,
                self._alerts,
                view.revision,
                view.live,
                self._unreadable,
                view.outages,
                self._refused,
                self._unjournaled,
                self._cluster,
                self._pause,
            )

    def _take(self, keys: Mapping[str, KeyValue]) -> None:
        seen = self._seen
        changed = [key for key, kv in keys.items() if seen.get(key) is not kv]
        is_gone = len(seen) + sum(key not in seen for key in changed) != len(keys)
        gone = seen.keys() - keys.keys() if is_gone else ()
        touched: dict[str, bool] = {}
        alerts = whole = False
        for key in (*changed, *gone):
            room, _, rest = key.removeprefix(self._world).partition("/")
            if room == "alerts":
                alerts = True
                continue
            if not rest:
                whole = True  # CLUSTER or PAUSE
                continue
            job, _, word = rest.partition("/")
            parts = self._parts.setdefault(job, _Parts())
            if key in keys:
                parts.keys[key] = keys[key]
            else:
                parts.keys.pop(key, None)
                parts.said.pop(key, None)
            touched[job] = touched.get(job, True) and room == "run" and word == "progress"
        if whole:
            self._cluster = _whole(keys.get(f"{self._world}{CLUSTER}"), ClusterRecord)
            self._pause = _whole(keys.get(f"{self._world}{PAUSE}"), DaemonPause)
        if alerts:
            prefix = f"{self._world}alerts/"
            self._alerts = tuple(sorted(key.removeprefix(prefix) for key in keys if key.startswith(prefix)))
        if touched:
            self._rebuild(touched)

    def _rebuild(self, touched: Mapping[str, bool]) -> None:
        """The jobs anew of which something changed; `touched` says whether that is no more than their progress."""
        jobs = dict(self._jobs)
        for job, steps_only in touched.items():
            parts = self._parts[job]
            if steps_only and job in jobs:
                jobs[job] = replace(jobs[job], progress=_progress(self._world, job, parts))
                parts.unreadable = _unreadable(parts)
                continue
            parts.refused, parts.unjournaled = "", frozenset()
            try:
                built = _build(self._world, parts)
            except SchemaError as error:
                built, parts.refused = None, str(error)
            if built is None:
                jobs.pop(job, None)
            else:
                jobs[job] = built
            parts.unreadable = _unreadable(parts)
            if not parts.keys:
                del self._parts[job]
        self._jobs = MappingProxyType(dict(sorted(jobs.items())))
        self._refused = MappingProxyType({name: parts.refused for name, parts in self._parts.items() if parts.refused})
        self._unjournaled = frozenset(node for parts in self._parts.values() for node in parts.unjournaled)
        self._unreadable = tuple(sorted(text for parts in self._parts.values() for text in parts.unreadable))


def _whole(found: KeyValue | None, kind: type[Whole]) -> Whole | None:
    """A record of the cluster as a whole. One that cannot be read is there, and says nothing."""
    if found is None:
        return None
    try:
        return load(kind, found.value, found.key)
    except SchemaError:
        return _UNREADABLE[kind]  # type: ignore[return-value]  # by the table


def _build(world: str, parts: _Parts) -> JobView | None:
    """None for words of a job that is not in the journal: nothing may be decided from them. Raises SchemaError where a
    record is of a newer daemon, or broken."""
    record, revision = None, 0
    nodes: dict[str, NodeRecord] = {}
    revisions: dict[str, int] = {}
    words: dict[str, Any] = {}
    by_node: dict[str, dict[str, Any]] = {}
    tombstones: set[str] = set()
    for key in sorted(parts.keys):
        kv = parts.keys[key]
        room, _, rest = key.removeprefix(world).partition("/")
        kind, _, node = rest.partition("/")[2].partition("/")
        if room == "run" and kind == "tombstone":
            tombstones.add(node)
            continue
        parse = _parser(room, kind, key, kv.value)
        found = _said(parts, key, kv.value, parse) if parse else None
        if found is None:
            continue
        if room == "jobs":
            record, revision = found, kv.mod_revision
        elif room == "nodes":
            nodes[found.id] = found
            revisions[found.id] = kv.mod_revision
        elif node:
            by_node.setdefault(kind, {})[node] = found
        else:
            words[kind] = found
    parts.unjournaled = frozenset((by_node.get("agent", {}).keys() | by_node.get("member", {}).keys()) - nodes.keys())
    if record is None:
        return None
    return JobView(
        record=record,
        revision=revision,
        nodes=MappingProxyType(nodes),
        revisions=MappingProxyType(revisions),
        hint=words.get("hint"),
        round=words.get("round"),
        result=words.get("result"),
        progress=words.get("progress"),
        members=by_node.get("member", {}),
        agents=by_node.get("agent", {}),
        notices=by_node.get("notice", {}),
        exits=by_node.get("ended", {}),
        tombstones=frozenset(tombstones),
    )


def _unreadable(parts: _Parts) -> tuple[str, ...]:
    return tuple(f"{key}: {error}" for key, (_, _, error) in parts.said.items() if error)


def _progress(world: str, job: str, parts: _Parts) -> Any:
    key = f"{world}run/{job}/progress"
    kv = parts.keys.get(key)
    return _said(parts, key, kv.value, partial(decode, Progress, kv.value)) if kv else None


def _parser(room: str, kind: str, key: str, value: bytes) -> Callable[[], Any] | None:
    """How to read a key of this room; None for what is not for us."""
    if room == "jobs":
        return partial(load, JobRecord, value, key)
    if room == "nodes":
        return partial(load, NodeRecord, value, key)
    if room == "run" and kind in _WORDS:
        return partial(decode, _WORDS[kind], value)
    return None


def _said(parts: _Parts, key: str, value: bytes, parse: Callable[[], Any]) -> Any:
    """What a key says, or None. Known by its bytes: a revision says nothing, etcd may count anew."""
    known = parts.said.get(key)
    if known is None or known[0] != value:
        try:
            known = (value, parse(), "")
        except WireError as error:
            known = (value, None, str(error))
        parts.said[key] = known
    return known[1]
