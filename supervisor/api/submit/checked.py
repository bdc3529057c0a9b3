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

    owner: str
    value: Any  # its job file's content
    spec: JobSpec
    quote: Quote | None  # None: it was not asked for
    at: float  # UNIX seconds


class LastChecked:
    """The last of them. For any number of threads; whatever is not here is checked again, as by another daemon."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Checked] = deque(maxlen=MAX_KEPT)

    def keep(self, checked: Checked) -> None:
        """Remember what came of a user's job file."""
        with self._lock:
            self._kept.append(checked)

    def find(self, owner: str, value: Any, now: float) -> Checked | None:
        """Return what came of the same one of the same user, if that is not long ago."""
        with self._lock:
            kept = [each for each in self._kept if each.owner == owner and now - each.at < MAX_AGE_S]
        return next((each for each in reversed(kept) if each.value == value), None)
