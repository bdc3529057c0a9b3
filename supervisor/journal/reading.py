"""Parses the mirrored keys into jobs. A job whose keys did not change keeps the same JobView object."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from spotsup_trainer.decoding import printable
from spotsup_trainer.etcd import KeyValue
from spotsup_trainer.etcd.mirror import MirrorView
from spotsup_trainer.wire import (
    AgentStatus,
    Done,
    Ended,
    Health,
    Hint,
    Keys,
    Member,
    Notice,
    Pauses,
    Progress,
    RankTimes,
    Result,
    Round,
    WireError,
    decode,
)

from supervisor.access import TokenRecord
from supervisor.alerts.stories import Thread
from supervisor.budget import BudgetRecord
from supervisor.errors import SchemaError
from supervisor.journal.codec import Record, load
from supervisor.journal.outbox import SECTIONS, Outbox
from supervisor.market.journaled import CapacityRecord
from supervisor.model import ClusterRecord, DaemonPause, Event, JobRecord, NodeRecord, NodeState, parts_of
from supervisor.planner.world import JobView

# The keys of cluster-wide records, below `world/`.
CLUSTER, PAUSE, CAPACITY, BUDGETS = "cluster", "pause", "capacity", "budgets"
# The section of the API's tokens, below `world/`: mirrored, so that a revoked one is refused at once, everywhere.
TOKENS = "tokens"
# Of users' secrets, sealed, below the root: read when a node is prepared.
SECRETS = "secrets"
ClusterWide = TypeVar("ClusterWide", ClusterRecord, DaemonPause, CapacityRecord, BudgetRecord)
# What stands for a cluster-wide record that cannot be read.
_UNREADABLE: dict[type, ClusterRecord | DaemonPause | CapacityRecord | BudgetRecord] = {
    ClusterRecord: ClusterRecord(0.0, "a spotsupd of another version"),
    DaemonPause: DaemonPause(0.0, "written by a spotsupd of another version"),
    CapacityRecord: CapacityRecord(0.0),  # nothing is known, and the next one replaces it
    BudgetRecord: BudgetRecord(""),  # as above
}
_MESSAGES: dict[str, type[Any]] = {
    "ctl/hint": Hint,
    "round": Round,
    "result": Result,
    "progress": Progress,
    "pauses": Pauses,
    "ranktimes": RankTimes,
    "member": Member,
    "agent": AgentStatus,
    "done": Done,
    "notice": Notice,
    "health": Health,
    "ended": Ended,
}
# Those that each node has of its own, below `<kind>/<node>`.
_OF_NODES = frozenset({"member", "agent", "done", "notice", "health", "ended"})
# What counts only while a job has nodes.
_OF_PRESENT_NODES = frozenset({"ctl/hint", "ctl/ca", "ranktimes"})
# Those without a lease: they stay when a node has gone, and may come late, until the daemon deletes them.
_OUTLIVE_NODES = frozenset({"notice", "health", "ended", "done", "ctl/tombstone"})


@dataclass(frozen=True, slots=True)
class Reading:
    """The journal as of `revision`."""

    jobs: MappingProxyType[str, JobView]
    # Events that wait to be sent, in the order in which they were written.
    alerts: tuple[Event, ...]
    revision: int
    # False while etcd does not answer and this copy ages.
    live: bool
    # By key, the messages that are ignored, and why: they cannot be parsed, or are not of the node of their key.
    unreadable: Mapping[str, str]
    # How often etcd has stopped answering.
    outages: int = 0
    # Jobs with a record that this daemon cannot read, and why; `jobs` has none of them.
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    # Nodes that publish messages and have no record.
    unjournaled: frozenset[str] = frozenset()
    # None if etcd holds no journal: it is new, or has lost its data.
    cluster: ClusterRecord | None = None
    cluster_revision: int = 0  # of that record; 0 where there is none, or one that this daemon cannot read
    pause: DaemonPause | None = None
    # What a leader has last written of its capacity memory.
    capacity: CapacityRecord | None = None
    # Of which spent budgets people were warned, and the record's revision; 0 without one.
    budgets: BudgetRecord | None = None
    budgets_revision: int = 0
    # Of the API's users, by id. One that cannot be read is left out, and so refused.
    tokens: Mapping[str, TokenRecord] = field(default_factory=lambda: MappingProxyType({}))
    # By channel: ids of those events that it has; and its threads, by task id.
    alerted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    threads: Mapping[str, Mapping[str, Thread]] = field(default_factory=dict)


@dataclass(slots=True)
class _Parts:
    """All keys of one job, and what was parsed from them."""

    keys: dict[str, KeyValue] = field(default_factory=dict)
    # By key: its bytes, the record or message (None if unreadable), and the parse error or "".
    parsed: dict[str, tuple[bytes, Any, str]] = field(default_factory=dict)
    # The next three: see Reading.
    refused: str = ""
    unjournaled: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = field(default_factory=dict)


class Reader:
    """Any thread may read. A cluster of 10,000 nodes has 30,000 keys, and only a few change at a time: the mirror says
    which, and all are compared only where it does not know."""

    def __init__(self, keys: Keys) -> None:
        self._world = keys.world
        self._lock = threading.Lock()
        self._seen = MirrorView(MappingProxyType({}), 0, live=False)
        self._over_output: frozenset[str] = frozenset()
        self._parts: dict[str, _Parts] = {}
        self._jobs: MappingProxyType[str, JobView] = MappingProxyType({})
        self._outbox = Outbox()
        self._unreadable: MappingProxyType[str, str] = MappingProxyType({})
        self._refused: MappingProxyType[str, str] = MappingProxyType({})
        self._unjournaled: frozenset[str] = frozenset()
        self._cluster: tuple[ClusterRecord | None, int] = (None, 0)
        self._pause: DaemonPause | None = None
        self._capacity: CapacityRecord | None = None
        self._budgets: tuple[BudgetRecord | None, int] = (None, 0)
        self._tokens: MappingProxyType[str, TokenRecord] = MappingProxyType({})

    def read(self, view: MirrorView, over_output: frozenset[str] = frozenset()) -> Reading:
        """Return the journal as of `view`. `over_output`: jobs with more output in etcd than a job may have."""
        with self._lock:
            if view.keys is not self._seen.keys:
                changed = view.changed_since(self._seen)
                self._update(view.keys, _all_changes(self._seen.keys, view.keys) if changed is None else changed)
                self._mark(view.over | self._seen.over, view.over, self._over_output)
                self._seen = view
            if over_output != self._over_output:
                self._mark(over_output | self._over_output, view.over, over_output)
                self._over_output = over_output
            return Reading(
                self._jobs,
                self._outbox.events,
                view.revision,
                view.live,
                self._unreadable,
                view.outages,
                self._refused,
                self._unjournaled,
                *self._cluster,
                self._pause,
                self._capacity,
                *self._budgets,
                self._tokens,
                alerted=self._outbox.alerted,
                threads=self._outbox.threads,
            )

    def _mark(self, of: frozenset[str], over: frozenset[str], over_output: frozenset[str]) -> None:
        """Say of some jobs whether their nodes write more than is read, or kept."""
        marked = {
            job: replace(self._jobs[job], floods=job in over, floods_output=job in over_output)
            for job in of & self._jobs.keys()
            if (self._jobs[job].floods, self._jobs[job].floods_output) != (job in over, job in over_output)
        }
        if marked:  # nearly always there is none
            self._jobs = MappingProxyType({**self._jobs, **marked})

    def known(self, kind: type[Record], found: KeyValue) -> Record | None:
        """Return the record of a key, where the mirror has shown it with these bytes: it need not be parsed again."""
        job = found.key.removeprefix(self._world).split("/", 2)[1]
        with self._lock:
            parts = self._parts.get(job)
            seen = parts.parsed.get(found.key) if parts else None
        return seen[1] if seen is not None and seen[0] == found.value and isinstance(seen[1], kind) else None

    def _update(self, keys: Mapping[str, KeyValue], changed: Iterable[str]) -> None:
        touched: dict[str, bool] = {}
        cluster_wide = tokens = False
        outbox: list[tuple[str, str, KeyValue | None]] = []
        for key in changed:
            section, _, rest = key.removeprefix(self._world).partition("/")
            if section in SECTIONS:
                outbox.append((section, rest, keys.get(key)))
                continue
            if section == TOKENS and rest:
                tokens = True
                continue
            if not rest:
                cluster_wide = True  # CLUSTER, PAUSE, CAPACITY or BUDGETS
                continue
            job, _, kind = rest.partition("/")
            parts = self._parts.setdefault(job, _Parts())
            if key in keys:
                parts.keys[key] = keys[key]
            else:
                parts.keys.pop(key, None)
                parts.parsed.pop(key, None)
            touched[job] = touched.get(job, True) and section == "run" and kind == "progress"
        if cluster_wide:
            cluster = keys.get(f"{self._world}{CLUSTER}")
            record = _cluster_wide(cluster, ClusterRecord)
            readable = record is not _UNREADABLE[ClusterRecord]
            self._cluster = (record, cluster.mod_revision if cluster and readable else 0)
            self._pause = _cluster_wide(keys.get(f"{self._world}{PAUSE}"), DaemonPause)
            self._capacity = _cluster_wide(keys.get(f"{self._world}{CAPACITY}"), CapacityRecord)
            budgets = keys.get(f"{self._world}{BUDGETS}")
            self._budgets = (_cluster_wide(budgets, BudgetRecord), budgets.mod_revision if budgets else 0)
        if tokens:
            prefix = f"{self._world}{TOKENS}/"
            self._tokens = tokens_of(kv for key, kv in keys.items() if key.startswith(prefix))
        self._outbox.update(outbox)
        if touched:
            self._rebuild(touched)

    def _rebuild(self, touched: Mapping[str, bool]) -> None:
        """Rebuild the touched jobs. `touched`: job -> whether only its progress changed."""
        jobs = dict(self._jobs)
        for job, progress_only in touched.items():
            parts = self._parts[job]
            if progress_only and job in jobs:
                jobs[job] = replace(jobs[job], progress=_progress(self._world, job, parts))
                parts.unreadable = _unreadable(parts)
                continue
            parts.refused, parts.unjournaled = "", frozenset()
            try:
                built = _build(self._world, job, parts)
            except SchemaError as error:
                built, parts.refused = None, printable(str(error))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one job's keys stays with that job
                built, parts.refused = None, f"its keys in etcd cannot be read: {described(error)}"
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
        self._unreadable = MappingProxyType(
            {key: why for parts in self._parts.values() for key, why in sorted(parts.unreadable.items())}
        )


def _all_changes(before: Mapping[str, KeyValue], keys: Mapping[str, KeyValue]) -> list[str]:
    changed = [key for key, kv in keys.items() if before.get(key) is not kv]
    is_gone = len(before) + sum(key not in before for key in changed) != len(keys)
    return [*changed, *(before.keys() - keys.keys() if is_gone else ())]


def tokens_of(found: Iterable[KeyValue]) -> MappingProxyType[str, TokenRecord]:
    """Return the tokens among these keys, by id, without those that cannot be read."""
    tokens = {}
    for kv in found:
        with contextlib.suppress(SchemaError):
            token = load(TokenRecord, kv.value, kv.key)
            if kv.key.endswith(f"/{TOKENS}/{token.id}"):
                tokens[token.id] = token
    return MappingProxyType(tokens)


def _cluster_wide(found: KeyValue | None, kind: type[ClusterWide]) -> ClusterWide | None:
    """Return a cluster-wide record; a placeholder if it exists and cannot be read."""
    if found is None:
        return None
    try:
        return load(kind, found.value, found.key)
    except SchemaError:
        return _UNREADABLE[kind]  # type: ignore[return-value]  # by the table


def described(error: Exception) -> str:
    """Return an unforeseen error in a few words."""
    return f"{type(error).__name__}: {printable(str(error), 300)}"


def _build(world: str, job: str, parts: _Parts) -> JobView | None:
    """Return the view of one job; None for messages of a job without a record. Raises SchemaError for a record that
    this daemon cannot read."""
    record, revision = None, 0
    nodes: dict[str, NodeRecord] = {}
    revisions: dict[str, int] = {}
    messages: dict[str, Any] = {}
    by_node: dict[str, dict[str, Any]] = {}
    tombstones: set[str] = set()
    leftovers: list[str] = []
    passing: list[str] = []
    for key in sorted(parts.keys):
        kv = parts.keys[key]
        section, _, rest = key.removeprefix(world).partition("/")
        kind, node = _kind_of(rest.partition("/")[2])
        if section == "run" and node and kind in _OUTLIVE_NODES and _is_gone(nodes.get(node)):
            leftovers.append(key)
        if section == "run" and kind in _OF_PRESENT_NODES and not node:
            passing.append(key)
        if section == "run" and kind == "ctl/tombstone":
            tombstones.add(node)
            continue
        parse = _parser(section, rest, key, kv.value)
        found = _parsed(parts, key, kv.value, parse) if parse else None
        if found is None:
            continue
        if section == "jobs":
            record, revision = found, kv.mod_revision
        elif section == "nodes":
            nodes[found.id] = found
            revisions[found.id] = kv.mod_revision
        elif node:
            by_node.setdefault(kind, {})[node] = found
        else:
            messages[kind] = found
    current = messages.get("round")
    if record is not None and not record.ended and current is not None:
        # The round goes on without nodes that are done, and needs their messages for as long.
        done = {node for node, said in by_node.get("done", {}).items() if said.round >= current.number}
        kept = {f"{world}run/{job}/done/{node}" for node in done & current.incarnations.keys()}
        leftovers = [key for key in leftovers if key not in kept]
    published = by_node.get("agent", {}).keys() | by_node.get("member", {}).keys()
    # Only nodes of this job: a message below one job says nothing about another.
    parts.unjournaled = frozenset(node for node in published - nodes.keys() if parts_of(node).job == job)
    if record is None:
        return None
    return JobView(
        record=record,
        revision=revision,
        nodes=MappingProxyType(nodes),
        revisions=MappingProxyType(revisions),
        hint=messages.get("ctl/hint"),
        round=current,
        result=messages.get("result"),
        progress=messages.get("progress"),
        pauses=messages.get("pauses"),
        rank_times=messages.get("ranktimes"),
        members=by_node.get("member", {}),
        agents=by_node.get("agent", {}),
        notices=by_node.get("notice", {}),
        healths=by_node.get("health", {}),
        done=by_node.get("done", {}),
        exits=by_node.get("ended", {}),
        tombstones=frozenset(tombstones),
        passing=tuple(passing),
        leftover_messages=tuple(leftovers),
    )


def _is_gone(node: NodeRecord | None) -> bool:
    return node is None or node.state is NodeState.GONE


def _unreadable(parts: _Parts) -> dict[str, str]:
    return {key: error for key, (_, _, error) in parts.parsed.items() if error}


def _progress(world: str, job: str, parts: _Parts) -> Any:
    key = f"{world}run/{job}/progress"
    kv = parts.keys.get(key)
    return _parsed(parts, key, kv.value, partial(_message, Progress, kv.value, "")) if kv else None


def _parser(section: str, rest: str, key: str, value: bytes) -> Callable[[], Any] | None:
    """Return the parser for a key of this section, None if the daemon does not read it. `rest`: the key below the
    section."""
    job, _, below = rest.partition("/")
    if section == "jobs" and not below:
        return partial(_record, JobRecord, value, key, name=job)
    if section == "nodes":
        return partial(_record, NodeRecord, value, key, job=job, id=below)
    kind, node = _kind_of(below)
    if section == "run" and kind in _MESSAGES and bool(node) is (kind in _OF_NODES):
        return partial(_message, _MESSAGES[kind], value, node)
    return None


def _kind_of(below: str) -> tuple[str, str]:
    """Return the kind of a message, and its node or "", from its key below its job's. The daemon's own begin with
    `ctl/`."""
    own = "ctl/" if below.startswith("ctl/") else ""
    kind, _, node = below.removeprefix(own).partition("/")
    return own + kind, node


def _record(kind: type[Record], value: bytes, key: str, **names: str) -> Record:
    """Return a record. Raises SchemaError if it is none, or not that of its key."""
    record = load(kind, value, key)
    for name, expected in names.items():
        if (found := getattr(record, name)) != expected:
            raise SchemaError(f"{key} in etcd is not a valid {kind.__name__}: its {name} is {found!r}")
    return record


def _message(kind: type[Any], value: bytes, node: str) -> Any:
    """Return a message. Raises WireError if it is none, or claims to be of another node than `node`, whose key it
    is."""
    message = decode(kind, value)
    if node and message.node != node:
        raise WireError(f"the {kind.__name__} of another node: {message.node[:200]!r}")
    return message


def _parsed(parts: _Parts, key: str, value: bytes, parse: Callable[[], Any]) -> Any:
    """Return the parsed value of a key, or None. Cached by its bytes: revisions repeat after etcd was restored."""
    known = parts.parsed.get(key)
    if known is None or known[0] != value:
        try:
            known = (value, parse(), "")
        except WireError as error:
            known = (value, None, printable(str(error)))
        parts.parsed[key] = known
    return known[1]
