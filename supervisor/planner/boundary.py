"""The boundary around each decision: what is raised within one leaves that one as it is, and no other (P11)."""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from spotsup_trainer.decoding import printable

from supervisor.events import EventKind
from supervisor.model import Event
from supervisor.planner.actions import Commit, Fault

Result = TypeVar("Result")
Otherwise = TypeVar("Otherwise")
# Events of one commit; and messages that are named one by one, those beyond are counted.
MAX_REPORTS_AT_ONCE = 20
MAX_NAMED = 5
MAX_ERROR_CHARACTERS = 200
MAX_TRACEBACK_CHARACTERS = 10_000
# What was said is news again.
FORGOTTEN_S = 3600.0
MAX_OWNERS = 5000
_KEY_OF_JOB = re.compile(r"(?:^|/)(?:run|jobs|nodes)/([^/]+)")


class Budget:
    """What was said of each job, or part of the daemon: so much an hour of each, so that none uses up another's share
    (P15)."""

    def __init__(self, max_causes: int) -> None:
        """`max_causes`: causes of one owner within an hour."""
        self._max_causes = max_causes
        self._said: dict[str, tuple[float, set[str]]] = {}

    def is_new(self, owner: str, cause: str, now: float) -> bool:
        """True if it was not said within the hour, and there is room for it."""
        said = self._of(owner, now)
        return cause not in said and len(said) < self._max_causes

    def add(self, owner: str, cause: str, now: float) -> None:
        """Remember that it was said."""
        said = self._of(owner, now)
        if len(said) < self._max_causes and len(self._said) < MAX_OWNERS:
            self._said.setdefault(owner, (now, said))[1].add(cause)

    def clear(self) -> None:
        """Forget all of it."""
        self._said.clear()

    def _of(self, owner: str, now: float) -> set[str]:
        since, said = self._said.get(owner, (now, set()))
        if now - since >= FORGOTTEN_S:
            self._said.pop(owner, None)
            return set()
        return said


def owner_of(name: str) -> str:
    """Return the job that a key of etcd is about, or the source of a fault; else the name itself."""
    found = _KEY_OF_JOB.search(name)
    return found[1] if found else name.partition(": ")[0]


class Boundary:
    """Collects what failed within it, by name."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}

    def within(self, name: str, decide: Callable[[], Result], otherwise: Otherwise) -> Result | Otherwise:
        """Return the decision about `name`; `otherwise` if anything is raised."""
        try:
            return decide()
        except Exception as error:  # noqa: BLE001 - the loop logs it with its traceback
            self.faults[name] = fault(f"{name} is left as it is: deciding about it failed", name, error)
            return otherwise


def fault(what: str, source: str, error: Exception) -> Fault:
    """Return an unforeseen exception as a sentence for an alert. `source`: the job, node or part that it concerns."""
    frames = traceback.extract_tb(error.__traceback__)
    # The last two places: many functions raise the same error from one check that they share.
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-2:]]
    described = f"{type(error).__name__}: {printable(str(error), MAX_ERROR_CHARACTERS)}"
    return Fault(
        f"{what} ({described}, in {places[-1]}); please report it with the daemon's log",
        f"{source}: {type(error).__name__} in {' < '.join(reversed(places))}",
        "".join(traceback.format_exception(error))[-MAX_TRACEBACK_CHARACTERS:],
    )


def unreadable(found: Mapping[str, str]) -> list[Fault]:
    """Records and messages that cannot be read, by name -> why: one fault each, and one of all that are too many."""
    faults = [Fault(f"cannot be read, and is left alone: {name}: {why}", name) for name, why in found.items()]
    if len(faults) <= MAX_NAMED:
        return faults
    last = faults[MAX_NAMED - 1]
    text = f"{last.sentence} (and {len(faults) - MAX_NAMED} more; the log has them)"
    return [*faults[: MAX_NAMED - 1], Fault(text, last.cause)]


def report(kind: EventKind, faults: Sequence[Fault], now: float, *, alerts: bool) -> Commit:
    """Return the commit that writes faults to the cluster's events, and to the outbox: each under the same id, if
    repeated."""
    events = [Event(_id(kind, each.cause), now, "", kind, each.sentence) for each in faults]
    return Commit(job="", guards={}, events=events, alerts=events if alerts else ())


def _id(kind: EventKind, cause: str) -> str:
    return f"{kind}-{hashlib.sha256(cause.encode()).hexdigest()[:16]}"
