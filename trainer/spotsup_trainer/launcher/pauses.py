"""What a pause of training consists of, by the monotonic clock of one node, which saw all of it.

docs/glossary.md says from where to where each part is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from spotsup_trainer.decoding import MAX_INTEGER
from spotsup_trainer.launcher.run_dir import RunDir
from spotsup_trainer.moments import Moments
from spotsup_trainer.wire import Pause, Pauses

MAX_PAUSES = 10  # that a node keeps; the daemon has an event for each
_LOOK_S = 1.0


@dataclass(frozen=True)
class Stopped:
    """How training came to stand still here."""

    # When the last step before it was completed; None where no worker said so.
    last_step_at: float | None
    # When the launcher knew that the round had ended, and why.
    known_at: float
    # All workers were parked then: their checkpoint was complete.
    parked: bool
    # The number of the last step before it; None where no worker said so.
    last_step: float | None = None


def pause_of(number: int, stopped: Stopped | None, agreed_at: float, moments: Moments, at: float) -> Pause | None:
    """Return the pause before round `number`, whose launcher had agreed on it at `agreed_at`; None as long as no step
    of it is completed. `at`: when that was, in UNIX seconds. `stopped`: None where this node was in no round before."""
    first = moments.first_step_at
    if first is None:
        return None
    last = stopped.last_step_at if stopped else None
    parts: dict[str, float | None] = dict.fromkeys(("detect_s", "checkpoint_s", "agree_s"))
    if stopped is not None:
        until_known_s = None if last is None else max(0.0, stopped.known_at - last)
        parts["detect_s"] = _zero(until_known_s) if stopped.parked else until_known_s
        parts["checkpoint_s"] = until_known_s if stopped.parked else _zero(until_known_s)
        parts["agree_s"] = max(0.0, agreed_at - max(stopped.known_at, last or 0.0))
    called, restored = moments.called_at, moments.restored_at
    connected_s = moments.restored_connect_s if restored is not None else moments.called_connect_s
    parts["connect_s"] = connected_s
    if called is not None:
        parts["start_s"] = called - agreed_at - (moments.called_connect_s or 0.0)
    if called is not None and restored is not None:
        parts["restore_s"] = restored - called - ((connected_s or 0.0) - (moments.called_connect_s or 0.0))
    begun = next((each for each in (restored, called) if each is not None), agreed_at)
    parts["first_step_s"] = first - begun
    pause_s = None if last is None else max(0.0, first - last)
    rounded = {name: None if value is None else round(max(0.0, value), 4) for name, value in parts.items()}
    read = {name: _whole(getattr(moments, name)) for name in ("own_bytes", "peers_bytes", "storage_bytes")}
    again = _again(stopped.last_step if stopped else None, moments.first_step)
    fields: dict[str, Any] = {**rounded, **read, "steps_again": again}
    return Pause(number, at, None if pause_s is None else round(pause_s, 4), **fields)


def _again(last_step: float | None, first_step: float | None) -> int | None:
    """Steps from the first one of a round to the last one before it."""
    if last_step is None or first_step is None:
        return None
    return _whole(max(0.0, last_step - first_step + 1))


def _whole(size: float | None) -> int | None:
    """Programs may write anything there; None: not known."""
    return int(size) if size is not None and 0 <= size <= MAX_INTEGER else None


def _zero(known: float | None) -> float | None:
    """0 for a part that did not take place in a time that is known."""
    return None if known is None else 0.0


def with_another(known: Pauses | None, node: str, pause: Pause) -> Pauses:
    """Return the last pauses that a node has measured, with one more. Those of a job before it, under the same name,
    go."""
    before = [each for each in (known.pauses if known else ()) if each.round < pause.round]
    return Pauses(node, (*before, pause)[-MAX_PAUSES:])


class PauseWatch:
    """Measures the pauses before the rounds of one node, and leaves them in its run folder. Times are monotonic."""

    def __init__(self, run_dir: RunDir, node: str) -> None:
        self._run_dir = run_dir
        self._node = node
        self._stopped: Stopped | None = None
        # The round whose first step is waited for, and since when it was agreed on; 0: none.
        self._number, self._agreed_at = 0, 0.0
        self._looked_at = 0.0

    def agreed(self, number: int, at: float, lost_at: float | None) -> None:
        """Workers are about to start in a round. `lost_at`: when the last member of the round before was known to be
        lost, which may have been after this node's workers had failed."""
        if self._stopped is not None and not self._stopped.parked and lost_at is not None:
            self._stopped = replace(self._stopped, known_at=max(self._stopped.known_at, lost_at))
        # Before the first round there is nothing to pause.
        self._number, self._agreed_at = (number, at) if number > 1 else (0, 0.0)

    def look(self, now: float) -> None:
        """Note the pause, once the first step after it is completed. Looks once a second."""
        if self._number and now >= self._looked_at + _LOOK_S:
            self._looked_at = now
            self._note()

    def stopped(self, number: int, at: float, *, parked: bool) -> None:
        """Take note that the workers of a round have ended, as was decided at `at`. A round without a step prolongs the
        pause."""
        if self._number:
            self._note()
        found = self._run_dir.moments(number)
        if self._stopped is None or found.first_step_at is not None:
            self._stopped = Stopped(found.last_step_at or found.first_step_at, at, parked, found.last_step)

    def _note(self) -> None:
        found = self._run_dir.moments(self._number)
        at = time.time() - time.monotonic() + (found.first_step_at or 0.0)
        pause = pause_of(self._number, self._stopped, self._agreed_at, found, at)
        if pause is not None:
            self._run_dir.write_pauses(with_another(self._run_dir.pauses(), self._node, pause))
            self._number = 0
