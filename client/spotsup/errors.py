"""All errors of the client. Each has the daemon's sentence."""

from __future__ import annotations


class SpotsupError(Exception):
    """Base of all."""

    # None, or after how many seconds at least the same request may succeed.
    retry_after_s: float | None = None

    def __init__(self, sentence: str, request: str = "") -> None:
        super().__init__(sentence)
        # The id of the request in the daemon's log, "" where none was answered.
        self.request = request


class UsageError(SpotsupError):
    """The input is wrong."""


class PackError(UsageError):
    """The code cannot be packed."""


class NotFoundError(SpotsupError):
    """There is no such job or node."""


class ForbiddenError(SpotsupError):
    """The token is not valid, or its user may not do this."""


class ConflictError(SpotsupError):
    """Understood, but not possible now."""


class UnreachableError(SpotsupError):
    """No daemon answered."""


class JobFailedError(SpotsupError):
    """A job that was waited for has not succeeded."""
