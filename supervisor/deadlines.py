"""By when a job has to have finished, and how much work that is, as job files say it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from provisioners.base import Market
from supervisor.errors import UsageError
from supervisor.spec_markets import markets_of
from supervisor.starting_time import FORMS, MAX_AHEAD_S, moment, unix_time

UNITS_S: Mapping[str, float] = MappingProxyType({"m": 60.0, "h": 3600.0, "d": 86400.0})
WORK_FORMS = "`48h`, the time that it trains on all `nodes.desired` nodes, or `90000 steps`"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([mhd])")
_STEPS = re.compile(r"(\d+) steps?")


@dataclass(frozen=True, slots=True)
class Work:
    """What a job has to do: one of both."""

    seconds: float = 0.0  # of training on all of its desired nodes
    steps: int = 0


def duration_s(text: str) -> float | None:
    """Seconds of `90m`, `52h` or `3d`; None where that is no duration."""
    found = _DURATION.fullmatch(text)
    return float(found[1]) * UNITS_S[found[2]] if found else None


def work_of(text: str) -> Work:
    """Raise ValueError: one sentence."""
    steps = _STEPS.fullmatch(text)
    found = Work(steps=int(steps[1])) if steps else Work(seconds=duration_s(text) or 0.0)
    if found == Work():
        raise ValueError(f"{text!r} is no amount of work; write {WORK_FORMS}")
    return found


def check_finish_by(text: str) -> None:
    """Raise ValueError: one sentence."""
    length_s = duration_s(text)
    if length_s is None and text[:1].isdigit() and text[-1:].isalpha() and "T" not in text:
        raise ValueError(f"{text!r} is no duration; write one such as 90m, 52h or 3d, or a time such as {FORMS}")
    if length_s is None:
        unix_time(text)
    elif length_s <= 0:
        raise ValueError("it is no time at all; write a duration such as 52h")


def why_not(kind: str, market: str, checkpoints: str, schedule: str, finish_by: str, work: str) -> str:
    """Return why a job with these keys cannot have a deadline, and what to write; "" if it can, or has none."""
    if not finish_by:
        return "`work` says what has to be done by `finish_by`: write both, or neither" if work else ""
    if kind == "data":
        return "a data job has no checkpoints, and begins anew on a new machine: leave `finish_by` out"
    if not work:
        return f"`finish_by` needs `work`: {WORK_FORMS}"
    if markets_of(market)[-1] is Market.SPOT:
        return (
            "`finish_by` cannot be kept where spot machines are the last resort: write `market: spot-then-on-demand`, "
            "which pays for on-demand machines as far as the deadline needs them, or `market: on-demand`"
        )
    if checkpoints == "none":
        return "`finish_by` needs checkpoints, as a preempted job would begin anew: name a place in `checkpoints`"
    if schedule and duration_s(finish_by) is None:
        return "with `schedule`, `finish_by` is a duration after each start: write one such as 8h"
    return ""


def finish_by_at(finish_by: str, work: str, starts_at: float, now: float) -> float:
    """Return by when a job submitted at `now` has to have finished, in UNIX seconds; 0: at any time. A duration counts
    from when the job may begin. Raises UsageError where that is past, or leaves less time than the work takes."""
    if not finish_by:
        return 0.0
    begins, length_s = max(starts_at, now), duration_s(finish_by)
    at = unix_time(finish_by) if length_s is None else begins + length_s
    if at - now > MAX_AHEAD_S:
        raise UsageError(f"`finish_by` is {moment(at)}, more than a year ahead: write an earlier time")
    if at <= begins:
        raise UsageError(
            f"`finish_by` is {moment(at)}, which is not after the job begins ({moment(begins)}): write a later time"
        )
    needed_s = work_of(work).seconds
    if needed_s > at - begins:
        hours, left = needed_s / 3600.0, (at - begins) / 3600.0
        raise UsageError(
            f"{hours:.1f} h of `work` do not fit into the {left:.1f} h until `finish_by`: write a later time, or give "
            "the job more nodes, and as much less work"
        )
    return at
