"""A sweep: one job file with several values for some of its keys or arguments, of which some run at a time. Pure.

Its members are plain jobs, NAME-1, NAME-2, …. What it decides is in its record; how its members are is in theirs.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from supervisor.errors import UsageError
from supervisor.job_keys import set_key

MAX_MEMBERS = 100
METRIC = r"[A-Za-z_][A-Za-z0-9_./-]{0,63}"  # as spotsup_trainer.session.metrics
MAX_NAME = 35  # with "-100" a job's name
_AXIS = re.compile(r"[A-Za-z_][\w.-]*")

Value: TypeAlias = str | int | float | bool
Mode: TypeAlias = Literal["min", "max"]
Axis: TypeAlias = tuple[str, tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Result:
    """How a member ended."""

    state: str
    step: int
    loss: float | None
    usd: float
    trained_s: float
    value: float | None = None  # of the sweep's metric, if that is not the loss


@dataclass(frozen=True, slots=True)
class Member:
    """One job of a sweep."""

    number: int
    point: tuple[tuple[str, Value], ...]  # its parameters
    created: bool = False  # its job is stored
    result: Result | None = None  # once its job has ended


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """One sweep."""

    name: str
    uid: str  # makes the uids of its jobs, so that each is made once
    owner: str
    base: Mapping[str, Any] = field(repr=False)  # the job file without the parameters; it has `env`
    code_sha256: str
    submitted_at: float
    parallel: int
    members: tuple[Member, ...]
    cancel_requested: bool = False
    problem: str = ""  # why its next member cannot be made just now
    metric: str = ""  # by which members are compared: what `Session.report` named so; empty: the loss
    mode: Mode = "min"  # which value of it is the best

    @property
    def over(self) -> bool:
        """True if no member is left that runs, or is to."""
        return all(each.result or (self.cancel_requested and not each.created) for each in self.members)

    @property
    def best(self) -> Member | None:
        """Return the one with the best score of those that have ended without a failure."""
        sign = -1.0 if self.mode == "max" else 1.0
        scores = ((self._score(each.result), each) for each in self.members if each.result)
        good = [(sign * score, each.number, each) for score, each in scores if score is not None and not _failed(each)]
        return min(good)[2] if good else None

    def _score(self, result: Result) -> float | None:
        """Return what a result counts by: None while there is nothing."""
        found = result.value if self.metric else result.loss
        return found if found is not None and math.isfinite(found) else None

    def job_name(self, member: Member) -> str:
        """Return the name of a member's job."""
        return f"{self.name}-{member.number}"

    def submission(self, member: Member) -> str:
        """Return the id of the request that makes a member's job: repeated, it means the same job."""
        return f"sweep {self.uid} {member.number}"


@dataclass(frozen=True, slots=True)
class Seen:
    """A member's job as the journal has it now."""

    ended: bool
    active: bool  # it has machines, or is to have some: a paused job has none
    cancelling: bool
    result: Result  # so far


@dataclass(frozen=True, slots=True)
class Decided:
    """What is to be done for a sweep. `record` is stored first."""

    record: SweepRecord
    start: tuple[Member, ...] = ()
    cancel: tuple[Member, ...] = ()


# -- what is asked for ---------------------------------------------------------------------------------------


def expand(axes: Sequence[Axis]) -> tuple[tuple[tuple[str, Value], ...], ...]:
    """Return all combinations, the last key changing fastest. Raises UsageError."""
    keys = [key for key, _ in axes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UsageError(f"--sweep {twice} is given twice: write all its values once, as {twice}=1,2")
    for key, values in axes:
        if not _AXIS.fullmatch(key) or not values:
            raise UsageError(f"--sweep {key!r}: write NAME=VALUE,VALUE or NAME=1..3")
    count = math.prod(len(values) for _, values in axes)
    if not axes or count > MAX_MEMBERS:
        raise UsageError(
            f"the sweep has {count} combinations; 1 to {MAX_MEMBERS} are accepted: leave values "
            "out, or make several sweeps"
        )
    return tuple(tuple(zip(keys, point, strict=True)) for point in itertools.product(*(values for _, values in axes)))


def member_spec(base: Mapping[str, Any], name: str, point: Sequence[tuple[str, Value]]) -> dict[str, Any]:
    """Return a member's job file: `a.b` is a key of it, any other parameter an argument of its script. Raises
    UsageError."""
    spec: dict[str, Any] = {**base, "name": name}
    for key, value in point:
        if "." in key:
            set_key(spec, key, value)
        elif isinstance(spec.get("run"), str):  # else the daemon names what is wrong with it
            spec["run"] = f"{spec['run'].strip()} --{key} {shlex.quote(str(value))}"
    return spec


# -- what happens next ---------------------------------------------------------------------------------------


def decide(sweep: SweepRecord, jobs: Mapping[int, Seen]) -> Decided:
    """Return what is to be done. `jobs`: by number, those of its members' jobs that are there.

    Doing it twice is harmless: a job is made under the sweep's own id, and its cancellation is requested once.
    """
    sweep = replace(sweep, members=tuple(_updated(each, jobs.get(each.number)) for each in sweep.members))
    if sweep.cancel_requested:
        runs = {number for number, seen in jobs.items() if not (seen.ended or seen.cancelling)}
        return Decided(replace(sweep, problem=""), cancel=tuple(each for each in sweep.members if each.number in runs))
    active = sum(seen.active and not seen.ended for seen in jobs.values())
    waiting = [each for each in sweep.members if not each.created]
    return Decided(sweep, tuple(waiting[: max(0, sweep.parallel - active)]))


def _updated(member: Member, seen: Seen | None) -> Member:
    if seen is None:
        # Its job was made, and its name used again before this was seen to end: nothing more is known.
        gone = member.created and member.result is None
        return replace(member, result=Result("unknown", 0, None, 0.0, 0.0)) if gone else member
    member = replace(member, created=True)
    if seen.ended and (member.result is None or member.result.usd != seen.result.usd):
        member = replace(member, result=seen.result)
    return member


def _failed(member: Member) -> bool:
    return member.result is not None and member.result.state in ("failed", "unknown")
