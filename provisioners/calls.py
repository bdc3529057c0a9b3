"""How a call to a cloud can fail, by whether it can have had an effect; and a time limit that calls share."""

from __future__ import annotations

import time


class NotSentError(Exception):
    """The request was not sent: it had no effect."""


class NoAnswerError(Exception):
    """The request was sent and there is no usable answer: it may have had any effect."""


class NoCredentialsError(Exception):
    """There are no usable credentials."""


class Deadline:
    """A time limit that several calls share."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds until then; negative after."""
        return self._at - time.monotonic()


def one_line(error: object) -> str:
    """An error's text in one line of at most 300 characters; its type where it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__
