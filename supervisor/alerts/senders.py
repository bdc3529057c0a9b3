"""What a sender is given, and what it says of it: the border between decisions and the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from supervisor.alerts.stories import Story, Thread
from supervisor.model import Event

TIMEOUT_S = 10.0  # of each connection, and of each wait for an answer
MAX_ANSWER_BYTES = 64 * 1024
MAX_ANSWER_CHARACTERS = 200  # of an answer, in an error


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One delivery."""

    events: tuple[Event, ...]
    # By task id, for a channel with threads: how these jobs are, and the threads that they have.
    stories: Mapping[str, Story] = field(default_factory=dict)
    threads: Mapping[str, Thread] = field(default_factory=dict)
    at: float = 0.0  # when it was decided, UNIX seconds


@dataclass(frozen=True, slots=True)
class Receipt:
    """How a delivery ended."""

    delivered: tuple[str, ...] = ()  # ids of the events that the far side has, also where the rest failed
    error: str = ""  # empty when all is done; without any secret
    retry_after_s: float = 0.0  # what the far side asks for; 0: nothing
    refused: bool = False  # the far side works, and will never take this text
    # By task id: threads that are new or show another sentence; None: it is gone.
    threads: Mapping[str, Thread | None] = field(default_factory=dict)


class Sender(Protocol):
    """Delivers to one channel. One call at a time."""

    def send(self, message: Outgoing) -> Receipt:
        """Deliver. Never raises for a fault of the network or of the far side."""
        ...

    def try_without_sending(self) -> str:
        """Return what is wrong with the channel as far as that can be found out without a message to people, or ""."""
        ...


def seconds_of(header: str | None) -> float:
    """Return a Retry-After in seconds; 0 where there is none. As an HTTP date, which no one we know of sends, it is
    none."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0


def without(text: str, *secrets: str) -> str:
    """Return a text of the far side, in one line, cut, and without our secrets, which it may echo."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "…")
    return " ".join(text.split())[:MAX_ANSWER_CHARACTERS]
