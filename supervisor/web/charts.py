"""Curves of a job as the page draws them: a polyline in percent, its scale, and its values for the cursor. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from supervisor.curve import Curve, Point
from supervisor.plots import ticks
from supervisor.web.formats import money, number
from supervisor.web.timeline import Window

Value = tuple[float, float]  # UNIX seconds, and what it was


@dataclass(frozen=True, slots=True)
class Chart:
    """One curve."""

    name: str
    unit: str  # for people, after the name
    line: str  # points of an SVG polyline: x and y in percent
    area: str  # the same, closed at the bottom
    scale: tuple[tuple[float, str], ...]  # y in percent, and the value there
    values: tuple[tuple[float, str], ...]  # x in percent, and the value for people
    newest: str  # the last value
    summary: str  # for who cannot see it

    @property
    def data(self) -> list[list[float | str]]:
        """Return the data for the page's script."""
        return [[x, text] for x, text in self.values]


def charts(curve: Curve | None, window: Window) -> list[Chart]:
    """Loss, speed, GPU use where it is known, nodes and cost; none before the first step."""
    if curve is None:
        return []
    points = _made(curve, window)
    return [
        each
        for each in (
            chart("Loss", "", _of(points, lambda point: point.loss), window, zero=False),
            chart("Speed", "steps per second", rates(points), window),
            chart("GPU use", "percent, of rank 0's node", _of(points, lambda point: point.gpu), window),
            chart("Nodes", "in the round", _of(points, lambda point: point.nodes), window, steps=True),
            chart("Cost", "US dollars", _of(points, lambda point: point.usd), window, as_text=money),
        )
        if each is not None
    ]


def _made(curve: Curve, window: Window) -> list[Point]:
    points = [*curve.points, *([curve.newest] if curve.newest.at > curve.points[-1].at else [])]
    return [each for each in points if each.step and window.begin <= each.at <= window.end + 60]


def _of(points: Iterable[Point], value: Callable[[Point], float | None]) -> list[Value]:
    return [(point.at, float(found)) for point in points if (found := value(point)) is not None]


def rates(points: Sequence[Point]) -> list[Value]:
    """Steps per second between two points; steps that were made again count once."""
    return [
        (two.at, max(0.0, two.step - one.step) / (two.at - one.at)) for one, two in pairwise(points) if two.at > one.at
    ]


def chart(
    name: str,
    unit: str,
    values: Sequence[Value],
    window: Window,
    *,
    steps: bool = False,
    zero: bool = True,
    as_text: Callable[[float], str] = number,
) -> Chart | None:
    """None without values. `steps`: each lasts until the next. `zero`: the scale begins there."""
    if not values:
        return None
    low, high = min(value for _, value in values), max(value for _, value in values)
    if zero and low > 0:
        low = 0.0
    marks = ticks(low, high if high > low else low + 1.0, max_ticks=3)
    low, high = marks[0], marks[-1]

    def y(value: float) -> float:
        return round(100 - 100 * (value - low) / (high - low), 2)

    drawn: list[tuple[float, float]] = []
    for at, value in values:
        if steps and drawn:
            drawn.append((window.place(at), drawn[-1][1]))
        drawn.append((window.place(at), y(value)))
    line = " ".join(f"{x:g},{top:g}" for x, top in drawn)
    area = f"{drawn[0][0]:g},100 {line} {drawn[-1][0]:g},100"
    newest = as_text(values[-1][1])
    return Chart(
        name,
        unit,
        line,
        area,
        tuple((y(mark), as_text(mark)) for mark in (marks if len(marks) <= 4 else marks[::2])),
        tuple((window.place(at), as_text(value)) for at, value in values),
        newest,
        f"{name}: {as_text(values[0][1])} at first, {newest} now, between {as_text(min(v for _, v in values))} and "
        f"{as_text(max(v for _, v in values))}",
    )


def spark(values: Sequence[float], width: float = 100.0, height: float = 24.0) -> str:
    """Points of a small polyline without a scale; "" for fewer than two values."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = width / (len(values) - 1)
    return " ".join(
        f"{at * step:.1f},{height - 2 - (height - 4) * (each - low) / span:.1f}" for at, each in enumerate(values)
    )


def speed(curve: Curve | None) -> float | None:
    """Steps per second just now: between the last two points."""
    if curve is None or not curve.points:
        return None
    points = [*curve.points[-2:], curve.newest]
    found = rates([each for each in points if each.step])
    return found[-1][1] if found else None
