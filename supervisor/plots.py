"""Plots as SVG, drawn here: a report is one file that asks nobody for anything. Pure.

All plots of a report have the same axis of time, so that they can be read one below the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 860, 200
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 28
MAX_TICKS = 6
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True, slots=True)
class Line:
    """Values over time. `steps`: each lasts until the next one."""

    label: str
    points: Sequence[tuple[float, float]]  # (seconds since the beginning, value)
    colour: str = "a"  # of the style sheet: a, b
    steps: bool = False
    unit: str = ""  # after each value; "$" goes before
    whole: bool = False  # its values are whole numbers


@dataclass(frozen=True, slots=True)
class Band:
    """A time that is marked in every plot."""

    begin_s: float
    end_s: float
    label: str


def ticks(low: float, high: float, max_ticks: int = MAX_TICKS, min_step: float = 0.0) -> list[float]:
    """Round numbers around `low` to `high`: 1, 2 or 5 times a power of ten apart, and `min_step` or more."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low, low + 1.0]
    raw = max(span / max_ticks, min_step)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which an axis of so many seconds is read best, and its name."""
    return next((unit, name) for unit, name in (*_UNITS[:-1], _UNITS[-1]) if seconds >= 2 * unit or unit == 1.0)


def plot(title: str, lines: Sequence[Line], bands: Sequence[Band], length_s: float) -> str:
    """Return one plot over `length_s` seconds. Without a value it says so."""
    drawn = [line for line in lines if line.points]
    body = (
        list(_body(drawn, bands, max(length_s, 1.0)))
        if drawn
        else [_text(WIDTH / 2, HEIGHT / 2, "no values yet", "middle")]
    )
    content = "\n".join(body)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">\n{content}\n</svg>'


def _body(lines: Sequence[Line], bands: Iterable[Band], length_s: float) -> Iterator[str]:
    values = [value for line in lines for _, value in line.points]
    low, high = min(values), max(values)
    if low == high or 0 <= low < high - low:  # an axis that begins at 0 is read best
        low = min(low, 0.0)
    marks = ticks(low, high, min_step=1.0 if all(line.whole for line in lines) else 0.0)
    low, high = marks[0], marks[-1]
    unit, name = time_unit(length_s)

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(seconds / length_s, 0.0), 1.0)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    for mark in marks:
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>'
        yield _text(LEFT - 6, y(mark) + 4, number(mark, lines[0].unit), "end")
    for mark in ticks(0.0, length_s / unit):
        if mark * unit <= length_s:
            yield _text(x(mark * unit), HEIGHT - 8, f"{mark:g} {name}" if mark else "0", "middle")
    for band in bands:
        width = max(1.0, x(band.end_s) - x(band.begin_s))
        yield (
            f'<rect class="pause" x="{x(band.begin_s):.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(band.label)}</title></rect>'
        )
    for line in lines:
        places = [(x(at), y(value)) for at, value in line.points]
        if line.steps:
            places = [places[0], *(each for one, two in pairwise(places) for each in ((two[0], one[1]), two))]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        yield f'<polyline class="{line.colour}" points="{path}"/>'
        for at, value in line.points:
            label = f"{line.label} {number(value, line.unit)} after {at / unit:.4g} {name}"
            yield (
                f'<circle class="{line.colour}" cx="{x(at):.1f}" cy="{y(value):.1f}" r="2">'
                f"<title>{escape(label)}</title></circle>"
            )


def number(value: float, unit: str = "") -> str:
    """Return a number in at most five digits."""
    shown = f"{value:.2e}" if value and not 1e-4 <= abs(value) < 1e5 else f"{value:.5g}"
    return f"${shown}" if unit == "$" else f"{shown}{f' {unit}' if unit else ''}"


def _text(left: float, top: float, text: str, anchor: str) -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
