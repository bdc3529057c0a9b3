"""How a part with threads of its own is, for whoever supervises it. Standard library only."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Vitals:
    """How a part is."""

    # Changes while it works; None while it has nothing to do.
    pulse: int | None
    # It hangs if its pulse stays the same for longer.
    limit_s: float
    # How many unforeseen errors its threads have outlived, and the last one.
    faults: int = 0
    fault: str = ""
    # Which thread has ended, although it was not stopped; "" if none has.
    ended: str = ""


class Pulse:
    """What a part's threads leave for its vitals."""

    def __init__(self) -> None:
        self.beats = 0
        self._faults = 0
        self._fault = ""

    def beat(self) -> None:
        """Take note that one more round of work is done."""
        self.beats += 1

    def fault(self, error: BaseException) -> None:
        """Take note that the thread goes on after an unforeseen error. Call it where the error is handled."""
        self._faults += 1
        self._fault = f"{type(error).__name__}: {error}"
        log.error("unforeseen error in thread %r; it goes on", threading.current_thread().name, exc_info=error)

    def vitals(self, limit_s: float, *threads: threading.Thread, idle: bool = False) -> Vitals:
        """Return the vitals of a part that has these threads."""
        ended = next((each.name for each in threads if each.ident is not None and not each.is_alive()), "")
        return Vitals(None if idle else self.beats, limit_s, self._faults, self._fault, ended)
