"""The boundary around each decision: what is raised within one leaves that one as it is, and no other (P11)."""

from __future__ import annotations

import hashlib
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


class Boundary:
    """Collects what failed within it, by name."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}

    def within(self, name: str, decide: Callable[[], Result], otherwise: Otherwise) -> Result | Otherwise:
        """The decision about `name`; `otherwise` if anything is raised."""
        try:
            return decide()
        except Exception as error:  # noqa: BLE001 - the loop logs it with its traceback
            self.faults[name] = fault(f"{name} is left as it is: deciding about it failed", name, error)
            return otherwise


def fault(what: str, source: str, error: Exception) -> Fault:
    """An unforeseen exception as a sentence for an alert. `source`: the job, node or part that it concerns."""
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
    """The commit that writes faults to the cluster's events, and to the outbox: each under the same id, if repeated."""
    events = [Event(_id(kind, each.cause), now, "", kind, each.sentence) for each in faults]
    return Commit(job="", guards={}, events=events, alerts=events if alerts else ())


def _id(kind: EventKind, cause: str) -> str:
    return f"{kind}-{hashlib.sha256(cause.encode()).hexdigest()[:16]}"
