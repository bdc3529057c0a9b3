"""All errors of the daemon. Every message says what happened, where, and what to do."""

from __future__ import annotations


class SpotsupError(Exception):
    """Base of all errors that are shown to a user."""

    exit_code = 1
    # For clients: None, or after how many seconds at least the same request may succeed.
    retry_after_s: float | None = None


class UsageError(SpotsupError):
    """The input is wrong."""

    exit_code = 2


class DaemonUnreachableError(SpotsupError):
    """No daemon answered."""

    exit_code = 3


class NotFoundError(SpotsupError):
    """The job or node does not exist."""

    exit_code = 4


class CommandRefusedError(SpotsupError):
    """The command is valid, but cannot be carried out now."""

    exit_code = 5


class ForbiddenError(CommandRefusedError):
    """The caller may not do this."""


class PreconditionError(CommandRefusedError):
    """It was changed since the caller looked at it."""


class BusyError(SpotsupError):
    """The daemon does as much of this as it can: it may be tried again in a moment."""


class StartError(SpotsupError):
    """The daemon cannot start: etcd, a port, a lock, a key."""


class ThreadFailedError(SpotsupError):
    """A thread of the daemon has ended, hangs, or fails again and again: the daemon ends."""


class JournalUnavailableError(SpotsupError):
    """etcd did not answer: a write may or may not have been stored."""


class JournalFullError(JournalUnavailableError):
    """etcd refuses all writes: its space quota is used up."""


class JournalRefusedError(SpotsupError):
    """etcd refuses this one write, for instance as too large: nothing was written, and repeating it does not help."""


class SchemaError(SpotsupError):
    """A record has another schema than this daemon's, or is not a record."""
