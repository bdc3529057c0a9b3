"""Submissions that were checked a moment ago: what is submitted next is not parsed, admitted and quoted again."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from supervisor.api.quote import Quote
from supervisor.spec import JobSpec

# A quote is of so recent prices. A person at a terminal may take longer to agree: then it is asked for again.
MAX_AGE_S = 60.0
MAX_KEPT = 32  # each at most as large as a request


@dataclass(frozen=True, slots=True)
class Checked:
    """A job that may be submitted."""

    spec: JobSpec
    quote: Quote | None  # None: this daemon asks no cloud
    at: float  # UNIX seconds


class LastChecked:
    """The last of them. For any number of threads; whatever is not here is checked again, as by another daemon."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[str, Any, Checked]] = deque(maxlen=MAX_KEPT)

    def keep(self, owner: str, value: Any, checked: Checked) -> None:
        """Remember what came of a user's job file."""
        with self._lock:
            self._kept.append((owner, value, checked))

    def find(self, owner: str, value: Any, now: float) -> Checked | None:
        """What came of the same one of the same user, if that is not long ago."""
        with self._lock:
            kept = tuple(self._kept)
        for whose, what, checked in reversed(kept):
            if whose == owner and now - checked.at < MAX_AGE_S and bool(what == value):
                return checked
        return None
