"""A job's events as a story: one line for each happening, with all that came of it. Pure.

Losses of nodes within a minute are one happening. Requests, refusals, rounds, pauses and the steps that are made again
belong to the happening that caused them. What is folded here is whole in `spotsupctl events --raw` and `-o json`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from supervisor.cli.durations import duration

BULK_S = 60.0  # losses within it are one
FOLD_S = 900.0  # what comes so long after all else of a happening is a happening of its own
MAX_NAMES = 4
# What begins a happening of which more may come; others stand as they are.
_CHANGES = frozenset(
    {"submitted", "adopted", "scaled", "resumed", "drain-requested", "moved", "pause-requested", "displaced"}
    | {"limit-reached", "budget-reached", "cancel-requested", "limits-changed"}
)
_NEAR = frozenset({"limit-near", "budget-near"})
_LOSSES = frozenset({"notice", "node-lost", "node-unhealthy"})
_ENDS = frozenset({"job-done", "job-failed", "job-cancelled", "paused"})
_CONSEQUENCES = frozenset(
    {"launch-requested", "replacement-requested", "taken-over", "launch-refused", "node-failed", "replacement-joined"}
    | {"round", "training-paused"}
)
# Ends of logs and consoles: many lines each.
_TAILS = frozenset({"console-tail", "log-tail"})


class Line(NamedTuple):
    """One happening."""

    at: float
    kind: str  # of its first event
    text: str


class Totals(NamedTuple):
    """What all of it came to."""

    rounds: int
    lost: int  # nodes, with and without notice
    pauses: int
    pause_s: float
    pause_usd: float
    steps_again: int

    def sentence(self) -> str:
        """Return a sentence for the line below the story; "" where there was nothing."""
        parts = []
        if self.lost:
            parts.append(f"{_counted(self.lost, 'node')} lost or taken")
        if self.pauses:
            cost = f" ({dollars(self.pause_usd)})" if self.pause_usd else ""
            parts.append(f"{_counted(self.pauses, 'pause')}, {length(self.pause_s)} together{cost}")
            parts.append(f"{_counted(self.steps_again, 'step')} made again" if self.steps_again else "no step lost")
        return "; ".join(parts)


@dataclass
class _Open:
    """A happening as it is put together."""

    at: float
    kind: str
    text: str = ""
    until: float = 0.0
    times: int = 1  # it happened, the same each time
    noticed: dict[str, float] = field(default_factory=dict)  # node: seconds ahead
    lost: dict[str, str] = field(default_factory=dict)  # node: why
    requested: list[tuple[str, float]] = field(default_factory=list)  # where, and how long after it was known
    refused: Counter[str] = field(default_factory=Counter)  # by place
    refusal: str = ""  # in the cloud's words, the last one
    unprepared: int = 0
    taken_over: int = 0
    joined: dict[str, float] = field(default_factory=dict)  # node: when
    rounds: list[tuple[float, int, int]] = field(default_factory=list)  # when, number, nodes
    pauses: list[float | None] = field(default_factory=list)
    steps_again: int | None = None

    @property
    def nodes(self) -> list[str]:
        return [*self.noticed, *(each for each in self.lost if each not in self.noticed)]

    def may_have(self, at: float) -> bool:
        return at <= max(self.at, self.until) + FOLD_S


def story(events: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the events of one job, oldest first, as happenings."""
    found: list[_Open] = []
    causes: dict[str, _Open] = {}  # by node that was lost, or requested in its place
    for event in events:
        kind = event["kind"]
        if kind in _TAILS:
            continue
        if kind in _LOSSES:
            _lose(found, causes, event)
        elif kind in _CONSEQUENCES:
            _follow(found, causes, event)
        else:
            _tell(found, event)
    return [Line(each.at, each.kind, _sentence(each)) for each in found]


def totals(events: Iterable[Mapping[str, Any]]) -> Totals:
    """Return sums over all events."""
    lost: set[str] = set()
    rounds = pauses = steps = 0
    pause_s = usd = 0.0
    for event in events:
        data = event["data"]
        if event["kind"] in _LOSSES:
            lost.add(event["node"] or event["id"])
        rounds += event["kind"] == "round"
        if event["kind"] == "training-paused":
            pauses += 1
            pause_s += data.get("pause_s") or 0.0
            usd += data.get("usd") or 0.0
            steps += int(data.get("steps_again") or 0)
    return Totals(rounds, len(lost), pauses, pause_s, usd, steps)


# -- which event belongs to what ---------------------------------------------------------------------------


def _tell(found: list[_Open], event: Mapping[str, Any]) -> None:
    last = found[-1] if found else None
    if last and last.kind == event["kind"] and _alike(last, event):
        last.times, last.until, last.text = last.times + 1, event["at"], event["text"]
        return
    found.append(_Open(event["at"], event["kind"], event["text"]))


def _alike(last: _Open, event: Mapping[str, Any]) -> bool:
    """True if it is the same again. What people asked for, and what they should see, is not folded for its numbers."""
    text = str(event["text"])
    if last.kind in _CHANGES | _NEAR:
        return last.text == text
    return re.sub(r"\d+", "", last.text) == re.sub(r"\d+", "", text)


def _lose(found: list[_Open], causes: dict[str, _Open], event: Mapping[str, Any]) -> None:
    node = event["node"] or ""
    open_ = causes.get(node)
    if open_ is None or not (open_.noticed or open_.lost):
        last = next((each for each in reversed(found) if each.kind in _LOSSES | _ENDS), None)
        together = last is not None and last.kind in _LOSSES and event["at"] <= last.at + BULK_S
        open_ = last if together and last is not None else _Open(event["at"], event["kind"])
        if not together:
            found.append(open_)
    causes[node] = open_
    open_.until = event["at"]
    if event["kind"] == "notice":
        data = event["data"]
        open_.noticed[node] = max(0.0, data["deadline"] - data["seen_at"]) if "seen_at" in data else 0.0
    else:
        open_.lost[node] = event["text"].partition(": ")[2] or event["text"]


def _follow(found: list[_Open], causes: dict[str, _Open], event: Mapping[str, Any]) -> None:
    open_ = _cause(found, causes, event)
    at, node, data = event["at"], event["node"] or "", event["data"]
    open_.until = max(open_.until, at)
    match event["kind"]:
        case "launch-requested" | "replacement-requested":
            causes[node] = open_
            known_at = data.get("seen_at", open_.at)
            place = f"{data['zone']} ({data['instance_type']})" if "zone" in data else ""
            open_.requested.append((place, max(0.0, at - known_at)))
        case "taken-over":
            causes[node] = open_
            open_.taken_over += 1
        case "launch-refused":
            open_.refused[str(data.get("zone", "the cloud"))] += 1
            open_.refusal = str(data.get("why", ""))
        case "node-failed":
            open_.unprepared += 1
        case "replacement-joined":
            open_.joined[node] = at
        case "round":
            open_.rounds.append((at, int(data.get("round", 0)), int(data.get("nodes", 0))))
        case _:
            open_.pauses.append(data.get("pause_s"))
            if "steps_again" in data:
                open_.steps_again = (open_.steps_again or 0) + int(data["steps_again"])


def _cause(found: list[_Open], causes: dict[str, _Open], event: Mapping[str, Any]) -> _Open:
    """Return the happening that an event comes of: by its node, else the newest of which something may come."""
    named = causes.get(str(event["data"].get("replaces", ""))) or causes.get(event["node"] or "")
    measured = event["kind"] == "training-paused"
    if measured:  # its node is the one that measured
        number = int(event["data"].get("round", 0))
        of_round = (each for each in reversed(found) if any(each_[1] == number for each_ in each.rounds))
        named = next(of_round, None)
    if named is not None and named.may_have(event["at"]):
        return named
    for each in reversed(found):
        if each.kind in _ENDS:
            break
        if (each.kind in _CHANGES | _LOSSES | _CONSEQUENCES) and each.may_have(event["at"]):
            return each
    # Nothing is known that it could come of.
    text = event["text"] if event["kind"] in {"round", "training-paused", "node-failed"} else ""
    open_ = _Open(event["at"], event["kind"], text)
    found.append(open_)
    return open_


# -- words -------------------------------------------------------------------------------------------------


def _sentence(happening: _Open) -> str:
    head = _losses(happening) if happening.nodes else happening.text
    if happening.times > 1:
        head += f" ({happening.times} times within {duration(happening.until - happening.at)})"
    clauses = [*([head] if head else []), *_clauses(happening)]
    return "; ".join(clauses)


def _losses(happening: _Open) -> str:
    parts = []
    if happening.noticed:
        ahead_s = min(happening.noticed.values())
        verb = "gets" if len(happening.noticed) == 1 else "get"
        ahead = f", {length(ahead_s)} ahead" if ahead_s else ""
        parts.append(f"{_called(happening.noticed)} {verb} a preemption notice{ahead}")
    silent = {node: why for node, why in happening.lost.items() if node not in happening.noticed}
    if silent:
        why = Counter(_without_ids(each) for each in silent.values()).most_common(1)[0][0]
        parts.append(f"{_called(silent)} lost without notice: {why}")
    return "; ".join(parts)


def _clauses(happening: _Open) -> Iterator[str]:
    if happening.requested:
        places = Counter(place for place, _ in happening.requested if place)
        where = f" in {', '.join(places)}" if places else ""
        what = "replacement" if happening.nodes else "node"
        after_s = min(after for _, after in happening.requested)
        when = _after(after_s) if happening.nodes or after_s >= 1 else ""
        yield f"{_counted(len(happening.requested), what)} requested{where}{when}"
    if happening.refused:
        refused = ", ".join(f"{place} refused {count}" for place, count in happening.refused.most_common(MAX_NAMES))
        yield f"{refused}: {happening.refusal}" if happening.refusal else refused
    if happening.taken_over:
        yield f"{_counted(happening.taken_over, 'machine')} of an ended job taken over"
    if happening.unprepared and happening.kind != "node-failed":
        yield f"{_counted(happening.unprepared, 'node')} could not be prepared"
    if happening.joined:
        after = length(max(happening.joined.values()) - happening.at)
        yield f"{_called(happening.joined)} in place after {after}"
    yield from _training(happening)


def _training(happening: _Open) -> Iterator[str]:
    if happening.rounds and happening.kind != "round":
        at, number, nodes = happening.rounds[-1]
        which = f"round {number}" if len(happening.rounds) == 1 else f"rounds {happening.rounds[0][1]} to {number}"
        yield f"{which}, {_counted(nodes, 'node')}, after {length(at - happening.at)}"
    if happening.pauses and happening.kind != "training-paused":
        known = [each for each in happening.pauses if each is not None]
        often = "" if len(happening.pauses) == 1 else f"{len(happening.pauses)} times, "
        lasted = f"{often}{length(sum(known))}{' in all' if often else ''}" if known else "for an unknown time"
        yield f"training paused {lasted}"
    if happening.steps_again is not None:
        again = happening.steps_again
        yield f"{_counted(again, 'step')} made again" if again else "no step lost"


def _called(nodes: Iterable[str]) -> str:
    """`n3`, `3 nodes (n3, n4, n5)`."""
    names = [f"n{each.rpartition('-')[2]}" if "-" in each else each for each in nodes]
    if len(names) == 1:
        return names[0]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{len(names)} nodes ({', '.join(names[:MAX_NAMES])}{more})"


def _without_ids(why: str) -> str:
    """`i-0abc was preempted` as `was preempted`: each node has its own."""
    return re.sub(r"^(its cloud lists )?\S*\d\S* (?=was |as |is not listed)", r"\1it ", why).replace(
        "it was ", "was ", 1
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _after(seconds: float) -> str:
    return f" after {length(seconds)}" if seconds >= 0.01 else " at once"


def length(seconds: float) -> str:
    """0.31 s, 24 s, 3m05s."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.0f} s" if seconds < 60 else duration(seconds)


def dollars(usd: float) -> str:
    """$12.34, $0.0123."""
    return f"${usd:.2f}" if usd >= 1 else f"${usd:.4f}"
