"""Checks from audit lines that every sample was trained on exactly once, and what each interruption cost.

Each rank writes one JSON line per completed optimizer step (`Line`). The lines include steps that were completed and
then lost, because the next round began from an older checkpoint. `analyse` finds the one history that led to the final
weights: each round supersedes the steps of earlier rounds from its own first step on. Standard library only.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


class AuditError(ValueError):
    """The lines are not an audit, or contradict each other."""


@dataclass(frozen=True)
class Line:
    """One rank completed `step` (counted from 1, over all recoveries) with the samples `indices`, at UNIX time `t`."""

    t: float
    round: int
    rank: int
    world: int
    step: int
    epoch: int
    indices: tuple[int, ...]
    loss: float


@dataclass(frozen=True)
class RoundSpan:
    """The steps that one round completed, lost ones included. Times are UNIX seconds."""

    round: int
    world: int
    first_step: int
    last_step: int
    first_at: float
    last_at: float


@dataclass(frozen=True)
class RoundChange:
    """From one round to the next."""

    before: int
    after: int
    # Steps that the old round completed and the new one repeated.
    steps_lost: int
    # From the last step of the old round to the first of the new one.
    pause_s: float


@dataclass(frozen=True)
class Report:
    """The result of an audit. Counts and losses are those of the history that led to the final weights."""

    rounds: tuple[RoundSpan, ...]
    changes: tuple[RoundChange, ...]
    steps: int
    samples: int
    # Sums over epochs.
    samples_repeated: int
    samples_missed: int
    # Means over the samples of the first and of the last five steps.
    loss_first: float
    loss_last: float


def parse(text: str) -> list[Line]:
    """Return the lines of one file. A last line without a newline is ignored: its process was killed while it wrote.

    Raises AuditError for any other invalid line.
    """
    whole, _, _ = text.rpartition("\n")
    lines = []
    for number, raw in enumerate(whole.splitlines(), start=1):
        try:
            parsed = json.loads(raw)
            lines.append(
                Line(
                    t=float(parsed["t"]),
                    round=int(parsed["round"]),
                    rank=int(parsed["rank"]),
                    world=int(parsed["world"]),
                    step=int(parsed["step"]),
                    epoch=int(parsed["epoch"]),
                    indices=tuple(int(index) for index in parsed["indices"]),
                    loss=float(parsed["loss"]),
                )
            )
        except (ValueError, TypeError, KeyError) as error:
            raise AuditError(f"line {number} is not an audit line ({error!r}): {raw[:100]!r}") from error
    return lines


def analyse(lines: Iterable[Line], *, samples: int, global_batch: int) -> Report:
    """Audit all lines of a job that trains on `samples` samples, `global_batch` per step, and keeps the last, smaller
    batch of an epoch. Raises AuditError if there are no lines, or the epoch of a line does not fit its step.
    """
    by_round: defaultdict[int, list[Line]] = defaultdict(list)
    for line in lines:
        by_round[line.round].append(line)
    if not by_round:
        raise AuditError("no audit lines: either no step was completed, or this is not the job's audit directory")
    spans = tuple(_span(by_round[number]) for number in sorted(by_round))
    history = _history(by_round, spans)
    last_step = spans[-1].last_step
    repeated, missed = _exactness(history, last_step, samples, global_batch)
    return Report(
        rounds=spans,
        changes=tuple(_change(old, new) for old, new in zip(spans, spans[1:])),
        steps=last_step,
        samples=sum(len(line.indices) for of_step in history.values() for line in of_step),
        samples_repeated=repeated,
        samples_missed=missed,
        loss_first=_mean_loss(history, sorted(history)[:5]),
        loss_last=_mean_loss(history, sorted(history)[-5:]),
    )


def _span(lines: Sequence[Line]) -> RoundSpan:
    first, last = min(line.step for line in lines), max(line.step for line in lines)
    return RoundSpan(
        round=lines[0].round,
        world=lines[0].world,
        first_step=first,
        last_step=last,
        first_at=min(line.t for line in lines if line.step == first),
        last_at=max(line.t for line in lines if line.step == last),
    )


def _change(old: RoundSpan, new: RoundSpan) -> RoundChange:
    lost = max(0, old.last_step - new.first_step + 1)
    return RoundChange(old.round, new.round, lost, new.first_at - old.last_at)


def _history(by_round: Mapping[int, Sequence[Line]], spans: Sequence[RoundSpan]) -> dict[int, list[Line]]:
    """Step -> its lines, from the last round that did the step and led to the final weights."""
    history: defaultdict[int, list[Line]] = defaultdict(list)
    superseded_from = spans[-1].last_step + 1
    for span in reversed(spans):
        for line in by_round[span.round]:
            if line.step < superseded_from:
                history[line.step].append(line)
        superseded_from = min(superseded_from, span.first_step)
    return dict(history)


def _exactness(
    history: Mapping[int, Sequence[Line]], last_step: int, samples: int, global_batch: int
) -> tuple[int, int]:
    """(repeated, missed): against steps 1 to `last_step`, each of which must have trained on its number of samples."""
    steps_per_epoch = -(-samples // global_batch)
    seen: defaultdict[int, Counter[int]] = defaultdict(Counter)
    expected: Counter[int] = Counter()
    for step in range(1, last_step + 1):
        epoch, turn = divmod(step - 1, steps_per_epoch)
        expected[epoch] += min(global_batch, samples - turn * global_batch)
        for line in history.get(step, ()):
            if line.epoch != epoch:
                raise AuditError(
                    f"step {step} of round {line.round} has epoch {line.epoch}, but with {samples} samples "
                    f"and {global_batch} at a step it belongs to epoch {epoch}"
                )
            seen[epoch].update(line.indices)
    repeated = sum(counts.total() - len(counts) for counts in seen.values())
    missed = sum(max(0, expected[epoch] - len(seen[epoch])) for epoch in expected)
    return repeated, missed


def _mean_loss(history: Mapping[int, Sequence[Line]], steps: Sequence[int]) -> float:
    """Return the mean over samples; a rank without samples of its own does not count."""
    lines = [line for step in steps for line in history[step] if line.indices]
    if not lines:
        return float("nan")
    return sum(line.loss * len(line.indices) for line in lines) / sum(len(line.indices) for line in lines)
