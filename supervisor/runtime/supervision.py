"""Whether all threads of the daemon still do their work. Each goes on after an error; here that is bounded.

A daemon with a thread that has ended, hangs, or fails again and again looks alive and is not. It ends, with a sentence
that says why: systemd starts it again, a standby takes over, and the nodes train on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spotsup_trainer.vitals import Vitals

from supervisor.errors import ThreadFailedError

# Unforeseen errors of one part within this time.
MAX_FAULTS = 5
FAULTS_WITHIN_S = 600.0
# A longer gap between two looks is not held against anyone: the process may have been stopped.
MAX_GAP_S = 5.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a part. `at`: seconds for which it was watched."""

    at: float = 0.0
    pulse: int | None = None
    # When the pulse last changed.
    changed_at: float = 0.0
    # How many errors were counted, and when the last of them were.
    faults: int = 0
    faults_at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PartHealth:
    """How a part is, for people."""

    stalled_s: float  # for how long it made no progress, although it had something to do
    faults: int  # unforeseen errors that it has outlived


def look(seen: Seen, vitals: Vitals, passed_s: float) -> tuple[Seen, str]:
    """Return what is known of a part after `passed_s` more seconds, and why it cannot be relied on, or ""."""
    at = seen.at + min(passed_s, MAX_GAP_S)
    new = max(0, vitals.faults - seen.faults)
    recent = (*(each for each in seen.faults_at if at - each < FAULTS_WITHIN_S), *[at] * min(new, MAX_FAULTS))
    changed_at = at if vitals.pulse is None or vitals.pulse != seen.pulse else seen.changed_at
    now = Seen(at, vitals.pulse, changed_at, vitals.faults, recent)
    if vitals.ended:
        return now, f"its thread {vitals.ended!r} has ended"
    if len(recent) >= MAX_FAULTS:
        return now, f"{len(recent)} unforeseen errors within {FAULTS_WITHIN_S / 60:g} min, the last: {vitals.fault}"
    if at - changed_at > vitals.limit_s:
        return now, f"it has made no progress for {at - changed_at:.0f} s"
    return now, ""


class Supervision:
    """Asks each part how it is."""

    def __init__(
        self, parts: Mapping[str, Callable[[], Vitals]], steady_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._parts = dict(parts)
        self._steady_s = steady_s
        self._seen: dict[str, Seen] = {}
        self._at = steady_s()

    def watch(self, name: str, vitals: Callable[[], Vitals]) -> None:
        """Watch one more part."""
        self._parts[name] = vitals

    @property
    def counters(self) -> Mapping[str, int]:
        """Return how many unforeseen errors each part has outlived, where there were any."""
        return {f"faults_{name}": seen.faults for name, seen in self._seen.items() if seen.faults}

    @property
    def parts(self) -> Mapping[str, PartHealth]:
        """Return each part, as it was last looked at."""
        return {name: PartHealth(seen.at - seen.changed_at, seen.faults) for name, seen in dict(self._seen).items()}

    def check(self) -> None:
        """Raise ThreadFailedError if a part cannot be relied on any more."""
        now = self._steady_s()
        passed_s, self._at = now - self._at, now
        for name, vitals in self._parts.items():
            self._seen[name], why = look(self._seen.get(name, Seen()), vitals(), passed_s)
            if why:
                raise ThreadFailedError(
                    f"{name}: {why}. This daemon ends; systemd starts it again, and nodes go on training"
                )
