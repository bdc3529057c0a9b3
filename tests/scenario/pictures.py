"""The page's pictures: inline SVG and HTML. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from supervisor.plots import ticks
from supervisor.web.timeline import LEGEND

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1080, 240, 34, 8, 12, 22
HOUR_S = 3600.0


def clock(second: float) -> str:
    """`07:30`, of the day."""
    minutes = int(second // 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def key(entries: Iterable[tuple[str, str]]) -> str:
    """A legend: classes of colours, and what they mean."""
    found = "".join(f'<span><i class="{kind}"></i>{escape(text)}</span>' for kind, text in entries)
    return f'<div class="key">{found}</div>'


def nodes_over_day(
    samples: Sequence[Mapping[str, Any]],
    users: Sequence[str],
    hours: float,
    limit: int,
    marks: Sequence[tuple[float, str]],
) -> str:
    """Nodes that train, by user, one above the other; machines held as a line; what went wrong as marks."""
    most = max([limit, *(each["held"] for each in samples)])
    scale = ticks(0.0, float(most), max_ticks=4, min_step=1.0)
    length_s = hours * HOUR_S

    def x(second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(second / length_s, 0.0), 1.0)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / scale[-1]

    parts = []
    for mark in scale:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    every = 3 if hours > 6 else 0.5
    for number in range(int(hours / every) + 1):
        at = number * every * HOUR_S
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 6}" text-anchor="middle">{clock(at)}</text>')
    below = [0.0] * len(samples)
    for number, user in enumerate(users):
        above = [low + each["training"].get(user, 0) for low, each in zip(below, samples, strict=True)]
        parts.append(f'<path class="u{number % 4}" d="{_area(samples, below, above, x, y)}"/>')
        below = above
    parts.append(
        f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"/>'
        f'<text x="{WIDTH - RIGHT}" y="{y(limit) - 4:.1f}" text-anchor="end">limit of the cluster: {limit} nodes</text>'
    )
    for second, text in marks:
        parts.append(
            f'<line class="when" x1="{x(second):.1f}" x2="{x(second):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{clock(second)} {escape(text)}</title></line>"
        )
    label = "Nodes that train over the day, by user"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _area(samples: Sequence[Mapping[str, Any]], below: list[float], above: list[float], x: Any, y: Any) -> str:
    """Steps: each value lasts until the next."""
    seconds = [each["second"] for each in samples]

    def steps(values: list[float]) -> list[tuple[float, float]]:
        found = [(x(seconds[0]), y(values[0]))]
        for (_, before), (second, value) in pairwise(zip(seconds, values, strict=True)):
            found += [(x(second), y(before)), (x(second), y(value))]
        return found

    if not samples:
        return ""
    points = [*steps(above), *reversed(steps(below))]
    return "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in points) + "Z"


def purposes(usd: Mapping[str, float]) -> str:
    """One bar: what the money was for."""
    total = sum(usd.values()) or 1.0
    order = ("useful", "boot", "pause", "idle", "lost", "unknown")
    parts = "".join(
        f'<i class="{name}" style="width:{100 * usd.get(name, 0.0) / total:.2f}%" title="{name}"></i>' for name in order
    )
    names = {
        "useful": "training",
        "boot": "boot and preparation",
        "pause": "pauses",
        "idle": "ready, outside a round",
        "lost": "steps made again",
        "unknown": "nobody watched",
    }
    entries = [(name, f"{names[name]} ${usd.get(name, 0):,.2f} ({usd.get(name, 0) / total:.1%})") for name in order]
    return f'<div class="bar" role="img" aria-label="What the money was for">{parts}</div>{key(entries)}'


def lanes(timeline: Mapping[str, Any], hours: float) -> str:
    """A job's nodes: each lane is one slot."""
    found = []
    for lane in timeline["lanes"]:
        bars = "".join(
            f'<i class="{kind}" style="left:{left:g}%;width:{width:g}%" title="{escape(text)}"></i>'
            for kind, left, width, text in lane["bars"]
        )
        marks = "".join(f'<u style="left:{left:g}%" title="{escape(text)}"></u>' for left, text in lane["notices"])
        found.append(f'<div class="lane">{bars}{marks}</div>')
    every = max(1, round(hours / 8)) if hours >= 4 else 0.5
    times = "".join(f"<span>{clock(n * every * HOUR_S)}</span>" for n in range(int(hours / every) + 1))
    kinds = [(kind, text) for kind, text in LEGEND if kind not in {"pause", "notice"}]
    return (
        f'<div class="lanes" role="img" aria-label="Nodes over the day">{"".join(found)}'
        f'<div class="hours">{times}</div></div>{key(kinds)}'
    )


def heat(pools: Sequence[Mapping[str, Any]]) -> str:
    """Pools: what each would have granted, hour by hour."""
    rows = [
        (
            '<small class="head">zone, type</small><small class="head">machines that it would grant, by hour</small>'
            '<small class="head">node-hours</small><small class="head">preempted</small>'
        )
    ]
    for pool in pools:
        most = max([1, *pool["capacity"]])
        cells = "".join(
            f'<i title="{hour:02d}:30: {count}, ${usd:.2f}/h"><b style="opacity:{count / most:.2f}"></b></i>'
            for hour, (count, usd) in enumerate(zip(pool["capacity"], pool["usd_per_h"], strict=True))
        )
        rows.append(
            f"<span>{escape(pool['zone'])} <small>{escape(pool['gpu'])}, {escape(pool['cloud'])}</small></span>"
            f'<div class="cells">{cells}</div><span>{pool["node_h"]:.1f}</span><span>{pool["preempted"]}</span>'
        )
    return f'<div class="heat">{"".join(rows)}</div>'
