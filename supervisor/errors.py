"""The daemon's error tree. Every message says what happened, where, and what would be right."""

from __future__ import annotations


class SpotsupError(Exception):
    """Base of all errors that a person may read."""

    exit_code = 1


class UsageError(SpotsupError):
    """The input is wrong."""

    exit_code = 2


class DaemonUnreachableError(SpotsupError):
    """No daemon answers."""

    exit_code = 3


class NotFoundError(SpotsupError):
    """There is no such job or node."""

    exit_code = 4


class CommandRefusedError(SpotsupError):
    """Understood, and not done."""

    exit_code = 5


class StartError(SpotsupError):
    """The daemon cannot start: etcd, a port, a lock, a key."""


class JournalUnavailableError(SpotsupError):
    """etcd did not answer: nothing is known to be done, and nothing more will be until it does."""


class JournalFullError(JournalUnavailableError):
    """etcd refuses to store anything: its space quota is used up."""


class SchemaError(SpotsupError):
    """A record has another schema than this daemon's, or is not a record."""
