"""Many events as few lines, pure: what needs a person first, then a line for each job of what is routine.

Each preempted node is named. What is left out is counted, with the command that lists it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from supervisor.events import EventKind, Level
from supervisor.model import Event

MIN_BULK = 3
MIN_BULK_JOBS = 25
# Of one job in a message, or of one kind where it concerns no job, beside the line of what comes in bulk.
MAX_LINES = 5
K = EventKind
# How nodes come and go: all of it is one line for each job.
EXCHANGE = frozenset({K.NOTICE, K.NODE_LOST, K.NODE_SUSPECT, K.REPLACEMENT_REQUESTED, K.REPLACEMENT_JOINED})


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a message."""

    whose: str  # the job, or how many jobs; "" for the cluster
    level: Level
    sign: str
    text: str
    alone: bool  # it is one event's, whose text may be cut


def lines_of(events: Sequence[Event]) -> list[Line]:
    """Return the lines of a message, in order; those of critical events first."""
    lines: list[Line] = []
    shown, left_out = _chosen(events)
    for group in _groups(shown):
        if len(group) >= MIN_BULK:
            lines.append(_of_many(group))
        else:
            lines += [_of_one(event) for event in group]
    for owner, count in left_out.items():
        job = owner if any(event.job == owner for event in events) else ""
        where = f"`spotsupctl events {job}`" if job else "`spotsupctl events`"
        of_kind = "" if job else f" of the kind {owner}"
        text = f"and {count} more alert{'s' * (count > 1)}{of_kind}: {where} lists {'them' if count > 1 else 'it'}"
        lines.append(Line(job, Level.INFO, ":heavy_plus_sign:", text, alone=True))
    return sorted(lines, key=lambda line: line.level < Level.CRITICAL)


def _chosen(events: Sequence[Event]) -> tuple[list[Event], Counter[str]]:
    """Return the events that are shown, and how many of each owner are not: the newest of the highest level are."""
    alone = [event for event in events if not _class(event)]
    in_order = sorted(enumerate(alone), key=lambda each: (-each[1].kind.level, -each[0]))
    count: Counter[str] = Counter()
    hidden: Counter[str] = Counter()
    ids = set()
    for _, event in in_order:
        owner = event.job or str(event.kind)
        count[owner] += 1
        if count[owner] > MAX_LINES:
            hidden[owner] += 1
            ids.add(event.id)
    return [event for event in events if event.id not in ids], hidden


def _class(event: Event) -> str:
    """Return what is told in bulk together with this event; "" for what is told by itself."""
    if event.kind in EXCHANGE:
        return "exchange"
    return str(event.kind) if event.kind.alert and event.kind.alert.bulk else ""


def _groups(events: Sequence[Event]) -> Iterable[Sequence[Event]]:
    """Return the events in order, with those that are told together where the first of them is: those of a job, or
    those of all jobs where they are very many."""
    jobs: dict[str, set[str]] = {}
    for event in events:
        jobs.setdefault(_class(event), set()).add(event.job)
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        what = _class(event)
        whose = "" if len(jobs[what]) >= MIN_BULK_JOBS else event.job
        groups.setdefault((what, whose) if what else ("", event.id), []).append(event)
    return groups.values()


def _of_one(event: Event) -> Line:
    sign = event.kind.alert.sign if event.kind.alert else ":information_source:"
    return Line(event.job, event.kind.level, sign, f"{event.text}  ({clock(event.at)}, {event.id})", alone=True)


def _of_many(group: Sequence[Event]) -> Line:
    first, last, jobs = group[0], group[-1], {event.job for event in group}
    bulk, sign = first.kind.alert, ":arrows_counterclockwise:"
    if first.kind in EXCHANGE or bulk is None:
        text = exchange_text(group)
    else:
        names = list(dict.fromkeys(event.node or event.id for event in group))
        text, sign = f"{len(names)} nodes {bulk.bulk}: {node_names(names)}", bulk.sign
    span = clock(first.at) if clock(first.at) == clock(last.at) else f"{clock(first.at)} to {clock(last.at)}"
    whose = f"{len(jobs)} jobs" if len(jobs) > 1 else first.job
    level = max(event.kind.level for event in group)
    return Line(whose, level, sign, f"{text}  ({span}, {first.id} to {last.id})", alone=False)


def exchange_text(events: Iterable[Event]) -> str:
    """Return how nodes came and went, with each of them named."""
    nodes: dict[EventKind, dict[str, Event]] = {kind: {} for kind in EXCHANGE}
    for event in events:
        nodes[event.kind][event.node or event.id] = event
    noticed, lost, joined = nodes[K.NOTICE], nodes[K.NODE_LOST], nodes[K.REPLACEMENT_JOINED]
    announced = [name for name, event in lost.items() if "seen_at" in event.data]
    parts = [
        (list(noticed), "preempted"),
        ([name for name in lost if name not in {*announced, *noticed}], "lost without a notice"),
        ([name for name in announced if name not in noticed], "gone as announced before"),
        ([name for name in nodes[K.NODE_SUSPECT] if name not in {*noticed, *lost}], "silent"),
    ]
    texts = [f"{_count(names, 'node')} {what}: {node_names(names)}" for names, what in parts if names]
    coming = [name for name in nodes[K.REPLACEMENT_REQUESTED] if name not in {*joined, *noticed, *lost}]
    for names, what in ((list(joined), "joined"), (coming, "requested")):
        if names:
            texts.append(f"{_count(names, 'replacement')} {what}: {node_names(names)}")
    return "; ".join(texts)


def node_names(names: Iterable[str]) -> str:
    """Return nodes by name; those that differ in their number only as `job-abcde-1…3, 7`."""
    numbers: dict[str, list[int]] = {}
    others = []
    for name in dict.fromkeys(names):
        matched = re.fullmatch(r"(.*-)([1-9]\d{0,8})", name)
        if matched:
            numbers.setdefault(matched[1], []).append(int(matched[2]))
        else:
            others.append(name)
    return "; ".join([*(f"{stem}{_ranges(found)}" for stem, found in numbers.items()), *others])


def _ranges(numbers: Iterable[int]) -> str:
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}…{high}" for low, high in parts)


def _count(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what}{'s' * (len(names) > 1)}"


def clock(at: float) -> str:
    """Return the time of day."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")
