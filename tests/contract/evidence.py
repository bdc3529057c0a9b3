"""What a run on an account has seen of its cloud: frozen observations, written to a file as they come."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from provisioners.base import Denied, Instance, InstanceState, Launched, LaunchOutcome, Transient


class Step(StrEnum):
    """The calls and events of a run that assumptions are judged by."""

    LAUNCH = "launch"
    LAUNCH_AGAIN = "launch again"
    LAUNCH_AFTER_END = "launch after its end"
    FIND = "find by token"
    LOGIN = "login"
    CONSOLE = "console"
    TERMINATE = "terminate"
    TERMINATE_AGAIN = "terminate again"
    LEFTOVERS = "leftovers"
    TRAINING = "two nodes train"
    CHECKPOINT = "checkpoint"
    FORCE = "forced end"
    NOTICE = "notice"
    REPLACED = "replaced"
    RESUMED = "resumed"
    FINISHED = "finished"
    SWEPT = "swept"


@dataclass(frozen=True, slots=True)
class Seen:
    """One call or event. Times are UNIX seconds on our clock."""

    step: Step
    at: float  # when it was over
    took_s: float
    answer: str  # of the API, in one line
    ok: bool = True
    machine: str = ""  # the provider's id of the machine that it is about, or that was answered


@dataclass(frozen=True, slots=True)
class Listing:
    """What one owner's listing showed. Kept only where it differs from the one before it."""

    owner: str
    at: float
    machines: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A whole run. `probe` and `job`: the clusters' names in the tags. `notice_s`: what the cloud announces at least.
    `preempts`: whether the forced end is the cloud's own preemption, and not a termination by us."""

    cloud: str
    probe: str
    job: str
    notice_s: float = 0.0
    preempts: bool = False
    seen: tuple[Seen, ...] = ()
    listings: tuple[Listing, ...] = ()

    def first(self, step: Step) -> Seen | None:
        """The first of its kind."""
        return next((each for each in self.seen if each.step is step), None)

    def of(self, machine: str) -> Iterator[tuple[float, Instance | None]]:
        """(when, what was listed of a machine), from its first sighting on; None where a listing lacked it."""
        owner = ""
        for listing in self.listings:
            found = next((each for each in listing.machines if each.id == machine), None)
            owner = owner or (listing.owner if found else "")
            if owner == listing.owner:
                yield listing.at, found

    def ids(self, owner: str) -> list[str]:
        """All machines that an owner's listings ever showed, in order of their first sighting."""
        found = (each.id for listing in self.listings if listing.owner == owner for each in listing.machines)
        return list(dict.fromkeys(found))


@dataclass(slots=True)
class Recorder:
    """Collects evidence; each observation is in `file` before the next is made."""

    file: Path
    clock: Callable[[], float]
    seen: list[Seen] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)

    def add(
        self,
        step: Step,
        answer: str,
        *,
        began: float | None = None,
        ended: float | None = None,
        ok: bool = True,
        machine: str = "",
    ) -> Seen:
        """One call that `began` then, or an event; it is over now, unless `ended` says when it was."""
        at = self.clock() if ended is None else ended
        made = Seen(step, at, at - (at if began is None else began), answer, ok, machine)
        self.seen.append(made)
        self._write("seen", asdict(made))
        return made

    def list(self, owner: str, machines: tuple[Instance, ...]) -> None:
        """One listing, if it differs from the owner's last one."""
        last = next((each for each in reversed(self.listings) if each.owner == owner), None)
        if last is not None and _states(last.machines) == _states(machines):
            return
        made = Listing(owner, self.clock(), machines)
        self.listings.append(made)
        self._write("listing", asdict(made))

    def _write(self, kind: str, content: Mapping[str, Any]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps({"kind": kind, **content}, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _states(machines: tuple[Instance, ...]) -> dict[str, Any]:
    # A preemption's announced time moves with the clock where it is over.
    return {each.id: (each, None) if each.preempt_at is None else each.state for each in machines}


def outcome(answered: LaunchOutcome) -> tuple[str, str]:
    """(what a launch answered, in one line; the machine's id, "" where there is none)."""
    if isinstance(answered, Launched):
        instance = answered.instance
        return f"machine {instance.id}, {instance.state}", instance.id
    code = (
        f" (unknown code {answered.unknown_code})" if isinstance(answered, Transient) and answered.unknown_code else ""
    )
    scope = f" ({answered.scope})" if isinstance(answered, Denied) else ""
    return f"{type(answered).__name__}{scope}{code}: {answered.message}", ""


def is_over(instance: Instance | None) -> bool:
    """Whether a sighting says that the machine is gone: ended, or in no listing."""
    return instance is None or instance.state is InstanceState.TERMINATED
