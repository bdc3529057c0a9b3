"""Numbers as people read them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float | None) -> str:
    """`4.2 s`, `12 s`, `3 min`, `2 h 5 min`; an empty one is a dash."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for (unit, name), (part, part_name) in pairwise(_UNITS):
        if seconds >= unit:
            rest = int(seconds % unit // part)
            shown = f" {rest} {part_name}" if rest and seconds < 10 * unit else ""
            return f"{int(seconds // unit)} {name}{shown}"
    return f"{int(seconds)} s"


def money(usd: float | None) -> str:
    """`$0.0042`, `$3.10`, `$1,240`."""
    if usd is None or not math.isfinite(usd):
        return "–"
    if usd >= 1000:
        return f"${usd:,.0f}"
    return f"${usd:.4f}" if 0 < usd < 0.1 else f"${usd:.2f}"


def number(value: float | None) -> str:
    """`12,400`, `3.42`, `0.0051`."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """`42 %`."""
    return "–" if share is None else f"{share:.0%}".replace("%", " %")


def moment(at: float) -> str:
    """`2026-11-24 14:02:05 UTC`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def machine_moment(at: float) -> str:
    """Return a moment for the attribute of a `time` element."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
