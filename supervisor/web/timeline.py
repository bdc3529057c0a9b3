"""A job's nodes over time: lanes of bars, pauses and rounds. Pure.

Places are in percent of the window, so that one picture fits every width of screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from supervisor.api.jobs.views import in_order
from supervisor.curve import Curve
from supervisor.events import EventKind
from supervisor.model import Event, NodeRecord, NodeState
from supervisor.planner.world import JobView
from supervisor.web.formats import duration

MAX_LANES = 160
MAX_MARKS = 400
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_LEAST = 0.15  # percent: a shorter bar cannot be seen
KINDS = {
    NodeState.REQUESTED: "boot",
    NodeState.PENDING: "boot",
    NodeState.BOOTING: "boot",
    NodeState.BOOTSTRAPPING: "bootstrap",
    NodeState.READY: "ready",
    NodeState.MEMBER: "member",
    NodeState.DRAINING: "drain",
    NodeState.TERMINATING: "drain",
    NodeState.CLEANING: "drain",
    NodeState.WARM: "ready",
    NodeState.SUSPECT: "bad",
    NodeState.LOST: "bad",
    NodeState.FAILED: "bad",
}
LEGEND = (
    ("boot", "boots"),
    ("bootstrap", "is prepared"),
    ("ready", "ready, outside the round"),
    ("member", "trains"),
    ("drain", "leaves"),
    ("bad", "silent, lost or failed"),
    ("notice", "preemption notice"),
    ("pause", "pause of training"),
)
# Causes of pauses, for people.
CAUSES = {
    "preempted": "preemption, with notice",
    "lost": "node lost without notice",
    "drained": "node drained",
    "unhealthy": "unhealthy GPU",
    "slow": "slow node",
    "hung": "steps hung",
    "failed": "the program failed",
    "paused": "the job was paused",
    "scaled": "scaled down",
    "joined": "nodes joined",
    "re-formed": "workers restarted",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasted."""

    kind: str
    left: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened."""

    kind: str
    left: float
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One slot for nodes, one after another."""

    name: str  # of the node that has it now, or had it last
    nodes: str  # all of them
    bars: tuple[Bar, ...]
    notices: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time."""

    begin: float
    end: float

    def place(self, at: float) -> float:
        """Return the place in percent."""
        share = (at - self.begin) / max(self.end - self.begin, 1e-9)
        return round(100 * min(max(share, 0.0), 1.0), 3)

    def has(self, begin: float, end: float) -> bool:
        """True if it sees any of it."""
        return end >= self.begin and begin <= self.end

    def bar(self, kind: str, begin: float, end: float, text: str) -> Bar:
        """Return a bar, wide enough to be seen."""
        left, right = self.place(begin), self.place(end)
        width = max(right - left, _LEAST)
        return Bar(kind, min(left, 100 - width), round(width, 3), text)


@dataclass(frozen=True, slots=True)
class Tick:
    """A time below the picture; the browser shows it in its own zone."""

    left: float
    at: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the page draws."""

    window: Window
    lanes: tuple[Lane, ...]
    left_out: int  # lanes that had no room
    pauses: tuple[Bar, ...]
    rounds: tuple[Mark, ...]
    ticks: tuple[Tick, ...]


def window_of(view: JobView, now: float, length_s: float | None) -> Window:
    """Return the whole job, or its last so many seconds."""
    end = view.record.ended_at or now
    begin = min(view.record.submitted_at, end - 1.0)
    return Window(begin if length_s is None else max(begin, end - length_s), end)


def timeline(view: JobView, curve: Curve | None, events: Iterable[Event], window: Window) -> Timeline:
    """Return all that happened in the window."""
    lanes = _lanes(view, window)
    return Timeline(
        window,
        tuple(lanes[:MAX_LANES]),
        max(0, len(lanes) - MAX_LANES),
        tuple(_pauses(curve, window)),
        tuple(_rounds(events, window)),
        tuple(ticks(window)),
    )


def _lanes(view: JobView, window: Window) -> list[Lane]:
    """Return the lanes. Each node takes the lane that has been free for longest; so there are as many as nodes at
    once."""
    slots: list[list[NodeRecord]] = []
    free_from: list[float] = []
    for node in sorted(in_order(view.nodes.values()), key=lambda each: each.created_at):
        end = _end(node, window)
        never_was = node.state is NodeState.GONE and not node.launched_at
        if never_was or not window.has(node.created_at, end):
            continue
        slot = next((n for n, at in enumerate(free_from) if at <= node.created_at), None)
        if slot is None:
            slots.append([node])
            free_from.append(end)
        else:
            slots[slot].append(node)
            free_from[slot] = end
    order = {node.id: number for number, node in enumerate(in_order(view.nodes.values()))}
    return [_lane(nodes, window) for nodes in sorted(slots, key=lambda nodes: order[nodes[0].id])]


def _lane(nodes: Sequence[NodeRecord], window: Window) -> Lane:
    bars = tuple(bar for node in nodes for bar in _bars(node, window))
    notices = tuple(
        Mark("notice", window.place(node.notice.seen_at), f"{node.id}: notice, {duration(_ahead_s(node))} ahead")
        for node in nodes
        if node.notice is not None and window.has(node.notice.seen_at, node.notice.seen_at)
    )
    return Lane(short(nodes[-1].id), ", ".join(node.id for node in nodes), bars, notices)


def short(node: str) -> str:
    """Return the last part of a node's id: its number."""
    return f"n{node.rpartition('-')[2]}" if "-" in node else node


def _ahead_s(node: NodeRecord) -> float:
    return max(0.0, node.notice.deadline - node.notice.seen_at) if node.notice else 0.0


def _end(node: NodeRecord, window: Window) -> float:
    if node.state is not NodeState.GONE:
        return window.end
    return node.ended_at or node.state_since


def _bars(node: NodeRecord, window: Window) -> Iterator[Bar]:
    state, since = (node.history[0].before if node.history else str(node.state)), node.created_at
    for each in node.history:
        yield from _bar(node, state, since, each.at, window)
        state, since = each.after, each.at
    if state != NodeState.GONE:
        yield from _bar(node, state, since, window.end, window)


def _bar(node: NodeRecord, state: str, begin: float, end: float, window: Window) -> Iterator[Bar]:
    kind = KINDS.get(NodeState(state)) if state in set(NodeState) else None
    if kind is not None and end > begin and window.has(begin, end):
        offer = f"{node.offer.instance_type}, {node.offer.zone}, {node.offer.market}"
        yield window.bar(kind, begin, end, f"{node.id} {state} for {duration(end - begin)} ({offer})")


def _pauses(curve: Curve | None, window: Window) -> Iterator[Bar]:
    for each in curve.pauses if curve else ():
        length_s = each.seconds or 0.0
        if window.has(each.at, each.at + length_s):
            lasted = "not watched" if each.seconds is None else duration(each.seconds)
            text = f"pause before round {each.round}: {lasted}, {CAUSES.get(each.cause, each.cause)}"
            yield window.bar("pause", each.at, each.at + length_s, text)


def _rounds(events: Iterable[Event], window: Window) -> Iterator[Mark]:
    found = [each for each in events if each.kind is EventKind.ROUND and window.has(each.at, each.at)]
    for each in found[-MAX_MARKS:]:
        yield Mark("round", window.place(each.at), each.text)


def ticks(window: Window, max_ticks: int = 7) -> Iterator[Tick]:
    """Round times of UTC."""
    length_s = window.end - window.begin
    step = next(
        (each for each in _STEPS_S if length_s / each <= max_ticks), 86400 * math.ceil(length_s / 86400 / max_ticks)
    )
    at = math.ceil(window.begin / step) * step
    while at <= window.end:
        yield Tick(window.place(at), float(at))
        at += step
