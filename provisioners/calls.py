"""What a call to a cloud may come to, by whether anything can have happened; and how long calls may take together."""

from __future__ import annotations

import time


class NotSentError(Exception):
    """The cloud was not asked: nothing can have happened."""


class NoAnswerError(Exception):
    """The cloud was asked, and did not answer, or not what it should: anything may have happened."""


class NoCredentialsError(Exception):
    """There is nothing to ask with."""


class Deadline:
    """A moment that calls share."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds until then; negative after."""
        return self._at - time.monotonic()
