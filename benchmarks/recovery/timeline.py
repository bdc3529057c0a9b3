"""What a fault cost, from the lines that all ranks wrote per step. Pure, but for `MarkReader`.

A step is complete when every rank of its round says so; the pause lasts from the last complete step of one round to
the first complete step of the next. Times are UNIX seconds of one machine's clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mark:
    """Rank `rank`, on `node`, completed `step` at `t`, in a round of `world` ranks."""

    t: float
    step: int
    round: int
    node: str
    rank: int
    world: int


@dataclass(frozen=True, slots=True)
class Span:
    """The complete steps of one round. `nodes`: in rank order."""

    round: int
    nodes: tuple[str, ...]
    first_step: int
    last_step: int
    first_at: float
    last_at: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cost of one fault; None: it did not happen while it was watched.

    `first_s`: from the last step before it to the next step of any round. `full_s`: to the first step of a round of
    full size. `paused_s`: time without training until then; less than `full_s` where a smaller round trained meanwhile.
    `steps_lost`: steps that were complete and had to be done again, until then.
    """

    first_s: float | None = None
    full_s: float | None = None
    paused_s: float | None = None
    steps_lost: int | None = None


@dataclass
class _Open:
    """A round as known so far. `partial`: step -> node by rank, and the time of the last rank."""

    nodes: dict[int, str] = field(default_factory=dict)
    partial: dict[int, list[float]] = field(default_factory=dict)
    span: Span | None = None


class Timeline:
    """The rounds of one job, as their marks come in."""

    def __init__(self) -> None:
        self._rounds: dict[int, _Open] = {}

    def add(self, marks: Iterable[Mark]) -> None:
        """Take in marks; those of one process in the order in which it wrote them."""
        for mark in marks:
            known = self._rounds.setdefault(mark.round, _Open())
            known.nodes[mark.rank] = mark.node
            times = known.partial.setdefault(mark.step, [])
            times.append(mark.t)
            if len(times) == mark.world:
                del known.partial[mark.step]
                known.span = _extended(known, mark, max(times))

    def spans(self) -> list[Span]:
        """The rounds that have completed a step, by the time of their first one."""
        return sorted((known.span for known in self._rounds.values() if known.span), key=lambda span: span.first_at)


def _extended(known: _Open, mark: Mark, at: float) -> Span:
    old = known.span
    if old is None:
        nodes = tuple(known.nodes[rank] for rank in sorted(known.nodes))
        return Span(mark.round, nodes, mark.step, mark.step, at, at)
    return Span(old.round, old.nodes, old.first_step, mark.step, old.first_at, at)


def outcome(spans: Sequence[Span], before: int, gone: str, full: int) -> Outcome:
    """What it cost that node `gone` was taken from round `before`, until a round of `full` nodes without it.

    `spans` in the order of time. Raises ValueError where `before` is not among them.
    """
    start = next((place for place, span in enumerate(spans) if span.round == before), None)
    if start is None:
        raise ValueError(f"round {before} is not among the {len(spans)} that have completed a step")
    old, after = spans[start], spans[start + 1 :]
    if not after:
        return Outcome()
    first_s = after[0].first_at - old.last_at
    end = next((place for place, span in enumerate(after) if len(span.nodes) == full and gone not in span.nodes), None)
    if end is None:
        return Outcome(first_s)
    changes = list(pairwise([old, *after[: end + 1]]))
    return Outcome(
        first_s=first_s,
        full_s=after[end].first_at - old.last_at,
        paused_s=sum(new.first_at - last.last_at for last, new in changes),
        steps_lost=sum(max(0, last.last_step + 1 - new.first_step) for last, new in changes),
    )


def parse(text: bytes) -> tuple[list[Mark], int]:
    """The marks of the complete lines, and how many bytes they take; the rest is not written yet."""
    whole = text.rfind(b"\n") + 1
    return [Mark(**json.loads(line)) for line in text[:whole].splitlines()], whole


class MarkReader:
    """Reads what is new in a folder of marks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> list[Mark]:
        """The marks since the last call."""
        marks: list[Mark] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            begin = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(begin)
                found, length = parse(file.read())
            self._read[path] = begin + length
            marks += found
        return marks
