"""The errors of the client, with the daemon's sentence, and the exit codes of commands that end with them."""

from __future__ import annotations


class SpotsupError(Exception):
    """Base of all errors that are shown to a user."""

    exit_code = 1
    # None, or after how many seconds at least the same request may succeed.
    retry_after_s: float | None = None

    def __init__(self, sentence: str, request: str = "") -> None:
        super().__init__(sentence)
        # The id of the request in the daemon's log, "" where none was answered.
        self.request = request


class UsageError(SpotsupError):
    """The input is wrong."""

    exit_code = 2


class PackError(UsageError):
    """The code cannot be packed, or its requirements not be read."""


class DaemonUnreachableError(SpotsupError):
    """No daemon answered."""

    exit_code = 3


class UntrustedError(DaemonUnreachableError):
    """A daemon answers, and its certificate is not trusted."""


class NotFoundError(SpotsupError):
    """There is no such job, node or context."""

    exit_code = 4


class CommandRefusedError(SpotsupError):
    """The command is valid, but cannot be carried out now."""

    exit_code = 5


class ForbiddenError(CommandRefusedError):
    """The token is not valid, or its user may not do this."""


class JobFailedError(SpotsupError):
    """A job that was waited for has not succeeded."""
