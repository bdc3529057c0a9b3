"""A job's training curve: a bounded summary of how it went, kept in etcd for `spotsupctl report`. Pure.

It decides nothing, and training does without it. A gap in it (no daemon watched) leaves the rest true: steps, samples
and dollars of a point are totals, and a pause that was not watched has no length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

# With all of them a curve has at most about 16 KB. Where there are more, every second point is left out, from then on
# points have twice the distance, and the oldest pauses are only counted.
MAX_POINTS = 128
MAX_PAUSES = 128
MAX_SPEEDS = 64
FIRST_DISTANCE_S = 10.0
MAX_LOSS = 1e300  # a larger one may be infinite once it is rounded, which JSON does not have

Cause = Literal[
    "preempted", "lost", "drained", "unhealthy", "slow", "hung", "failed", "paused", "scaled", "joined", "re-formed"
]


class Point(NamedTuple):
    """How far a job was. Everything but `loss` and `nodes` is a total since its beginning."""

    at: float  # UNIX seconds, by the clock of the node with rank 0
    step: int
    samples: int  # 0 where the program does not report them
    epoch: int  # completed ones
    loss: float | None
    nodes: int
    usd: float
    gpu: float | None = None  # percent of the time that the GPUs of the node with rank 0 were busy; None: not known


class Speed(NamedTuple):
    """What all rounds with so many nodes did, from their first step to their last."""

    nodes: int
    seconds: float
    steps: int
    samples: int


class Pause(NamedTuple):
    """No step was made from the last step of one round to the first of the next."""

    at: float  # when the last step before it was made
    seconds: float | None  # None: no daemon watched it
    round: int  # after it
    nodes: int  # after it
    cause: Cause


class Total(NamedTuple):
    """All pauses of one cause."""

    cause: Cause
    pauses: int
    seconds: float  # of those that were watched


class Epoch(NamedTuple):
    """When an epoch was first seen to be complete."""

    epochs: int  # completed ones
    at: float
    usd: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One job's curve."""

    newest: Point
    round: int  # of `newest`
    first_epoch: int  # the completed epochs with which the job began: those of the job that it resumed from
    first_step_at: float
    distance_s: float = FIRST_DISTANCE_S  # between points
    points: tuple[Point, ...] = ()
    speeds: tuple[Speed, ...] = ()  # by number of nodes
    pauses: tuple[Pause, ...] = ()  # the newest, oldest first
    totals: tuple[Total, ...] = ()  # of all pauses, also older ones
    last_epoch: Epoch | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A job's progress as it was just seen."""

    point: Point
    round: int
    first_step_at: float  # of that round
    cause: Cause = "re-formed"  # why that round is not the one before, if it is not


def begun(seen: Seen) -> Curve:
    """Return the curve of a job whose first steps were just seen."""
    point = _rounded(seen.point)
    return Curve(point, seen.round, point.epoch, round(seen.first_step_at, 2), points=(point,))


def extended(curve: Curve, seen: Seen, *, watched: bool) -> Curve:
    """Return the curve with what was seen; the same object if that is nothing new.

    `watched`: nothing can have been missed since `curve.newest`. Older progress than that is a late message.
    """
    point, last = _rounded(seen.point), curve.newest
    if point.at <= last.at or (seen.round == curve.round and point.step <= last.step):
        return curve
    curve = _with_epoch(curve, point)
    if seen.round == curve.round:
        curve = replace(curve, newest=point, speeds=_with_speed(curve.speeds, last, point))
        return _with_point(curve, point) if point.at >= curve.points[-1].at + curve.distance_s else curve
    curve = _with_pause(curve, seen, watched=watched)
    curve = replace(curve, newest=point, round=seen.round)
    # A step between two numbers of nodes should be seen where it was.
    return _with_point(curve, point) if point.at >= curve.points[-1].at + curve.distance_s / 2 else curve


def with_measured(curve: Curve, seconds: Mapping[int, float]) -> Curve:
    """Return the curve with the lengths of pauses that a node measured, by the round after each. They are better than
    ours."""
    for at, pause in enumerate(curve.pauses):
        measured_s = seconds.get(pause.round)
        if measured_s is None or (measured_s := round(measured_s, 2)) == pause.seconds:
            continue
        more_s = measured_s - (pause.seconds or 0.0)
        pauses = (*curve.pauses[:at], pause._replace(seconds=measured_s), *curve.pauses[at + 1 :])
        totals = tuple(
            each._replace(seconds=round(each.seconds + more_s, 2)) if each.cause == pause.cause else each
            for each in curve.totals
        )
        curve = replace(curve, pauses=pauses, totals=totals)
    return curve


def _rounded(point: Point) -> Point:
    """Return a point in the digits that people see, for its size in etcd."""
    loss = None if point.loss is None or abs(point.loss) > MAX_LOSS else float(f"{point.loss:.5g}")
    gpu = None if point.gpu is None else round(min(max(point.gpu, 0.0), 100.0), 1)
    return point._replace(at=round(point.at, 2), loss=loss, usd=round(point.usd, 4), gpu=gpu)


def _with_point(curve: Curve, point: Point) -> Curve:
    points = (*curve.points, point)
    if len(points) <= MAX_POINTS:
        return replace(curve, points=points)
    return replace(curve, points=points[::2], distance_s=2 * curve.distance_s)


def _with_epoch(curve: Curve, point: Point) -> Curve:
    done = curve.last_epoch.epochs if curve.last_epoch else curve.first_epoch
    return replace(curve, last_epoch=Epoch(point.epoch, point.at, point.usd)) if point.epoch > done else curve


def _with_speed(speeds: tuple[Speed, ...], last: Point, point: Point) -> tuple[Speed, ...]:
    by_nodes = {each.nodes: each for each in speeds}
    before = by_nodes.get(last.nodes, Speed(last.nodes, 0.0, 0, 0))
    by_nodes[last.nodes] = Speed(
        last.nodes,
        round(before.seconds + point.at - last.at, 2),
        before.steps + point.step - last.step,
        before.samples + max(0, point.samples - last.samples),
    )
    if len(by_nodes) > MAX_SPEEDS:
        del by_nodes[min(by_nodes.values(), key=lambda each: each.seconds).nodes]
    return tuple(by_nodes[nodes] for nodes in sorted(by_nodes))


def _with_pause(curve: Curve, seen: Seen, *, watched: bool) -> Curve:
    seconds = round(max(0.0, seen.first_step_at - curve.newest.at), 2) if watched else None
    pause = Pause(curve.newest.at, seconds, seen.round, seen.point.nodes, seen.cause)
    by_cause = {each.cause: each for each in curve.totals}
    before = by_cause.get(seen.cause, Total(seen.cause, 0, 0.0))
    by_cause[seen.cause] = Total(seen.cause, before.pauses + 1, round(before.seconds + (seconds or 0.0), 2))
    return replace(curve, pauses=(*curve.pauses, pause)[-MAX_PAUSES:], totals=tuple(by_cause.values()))
