"""What the long test programs share: a console, an orderly end on Ctrl-C, result files, and two statistics."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from tools.stack import InterruptedByUserError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

console = Console(highlight=False, soft_wrap=True)


def stop_on_signals() -> None:
    """The first of Ctrl-C, SIGTERM and SIGHUP raises InterruptedByUserError; later ones do not disturb the clean-up."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise InterruptedByUserError


def write_result(path: Path, content: Mapping[str, Any]) -> None:
    """Write a result file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    temporary.replace(path)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def largest_gap_s(times: Iterable[float], since: float, until: float) -> float:
    """The longest time between two completed steps that overlaps the given span; `times` are in order."""
    ordered = [*times, float("inf")]
    return max(
        (min(new, until) - max(old, since) for old, new in pairwise(ordered) if new > since and old < until),
        default=until - since,
    )
