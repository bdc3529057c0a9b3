"""All errors of the daemon. Every message says what happened, where, and what to do.

Those that clients know, too, are the client's.
"""

from __future__ import annotations

from spotsup.errors import (
    CommandRefusedError,
    DaemonUnreachableError,
    ForbiddenError,
    NotFoundError,
    SpotsupError,
    UsageError,
)

__all__ = [
    "BusyError",
    "CommandRefusedError",
    "DaemonUnreachableError",
    "ForbiddenError",
    "JournalFullError",
    "JournalRefusedError",
    "JournalUnavailableError",
    "NotFoundError",
    "PreconditionError",
    "SchemaError",
    "SpotsupError",
    "StartError",
    "ThreadFailedError",
    "UsageError",
]


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
