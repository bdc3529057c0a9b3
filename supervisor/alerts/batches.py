"""What a channel is sent next, and when it is tried again. Pure: the planner asks, from the time that is passed in.

One message is under way per channel, so that channels do not delay each other, and the order within each is kept.
What needs a person is sent at once, with all that waits; the rest is gathered while much happens.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from supervisor.alerts.routes import UNUSED, Channel, Used
from supervisor.alerts.senders import Outgoing, Receipt
from supervisor.alerts.stories import Thread
from supervisor.alerts.texts import MAX_TEXT_CHARACTERS, slack_text
from supervisor.events import Level
from supervisor.model import Event

MAX_EVENTS = 400  # of one message
RETRY_S = 2.0  # after the first failure; twice that after each further one, with jitter
MAX_RETRY_S = 300.0
MAX_RETRY_AFTER_S = 3600.0  # what a far side asks for is obeyed up to this
# Critical events of one job and kind are urgent so often within so long: one that comes and goes wakes nobody again.
MAX_URGENT, URGENT_S = 3, 3600.0


@dataclass(frozen=True, slots=True)
class ChannelState:
    """What is remembered of a channel outside the journal."""

    used: Used = UNUSED  # of the channel's pace
    gathered: Used = UNUSED  # of what people read: the last message of events, by when it was decided
    next_at: float = 0.0  # nothing is sent before
    failures: int = 0  # in a row
    failing_since: float = 0.0
    error: str = ""  # the last one, "" after a success
    alone: int = 0  # so many events are sent one by one: their message was refused for what is in it
    # When critical events were told within the last hour, by their job and kind.
    urgent: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=lambda: MappingProxyType({}))
    # Ids of events that are delivered, until the outbox shows it.
    delivered: frozenset[str] = frozenset()
    # By task id, threads that are new or changed, until the journal shows it; None: it is gone.
    threads: Mapping[str, Thread | None] = field(default_factory=lambda: MappingProxyType({}))


def next_batch(channel: Channel, state: ChannelState, pending: Sequence[Event], now: float) -> tuple[Event, ...]:
    """Return the events of the next message, () while none is due. `pending`: what the channel has not got yet, in
    order."""
    if not pending or now < state.next_at or not channel.pace.allows(state.used, now):
        return ()
    due = channel.due(pending, now)
    if not due or not (
        channel.gather is None or channel.gather.allows(state.gathered, now) or _cannot_wait(state, due)
    ):
        return ()
    return fitting(due[: 1 if state.alone else MAX_EVENTS])


def _cannot_wait(state: ChannelState, due: Sequence[Event]) -> bool:
    """True if one needs a person now, or is the rest of what the last message had no room for."""
    return bool(state.alone) or any(event.at < state.gathered.at or _is_urgent(state, event) for event in due)


def _is_urgent(state: ChannelState, event: Event) -> bool:
    """True if it is critical, and people were not told of the same often enough within the hour."""
    return event.kind.level >= Level.CRITICAL and len(state.urgent.get(_owner(event), ())) < MAX_URGENT


def _owner(event: Event) -> tuple[str, str]:
    return event.job, str(event.kind)


def fitting(events: Sequence[Event], text: Callable[[Sequence[Event]], str] = slack_text) -> tuple[Event, ...]:
    """Return as many of them, from the first on, as one message has room for; at least one."""
    count = len(events)
    while count > 1 and len(text(events[:count])) > MAX_TEXT_CHARACTERS:
        count = max(1, count * 4 // 5)
    return tuple(events[:count])


def after(channel: Channel, before: ChannelState, message: Outgoing, receipt: Receipt, now: float) -> ChannelState:
    """Return the state after an attempt to send a message."""
    events, sent = message.events, frozenset(receipt.delivered)
    used = channel.pace.after(before.used, now)
    state = replace(before, used=used, delivered=before.delivered | sent)
    if not receipt.error:
        state = _with_gathered(channel, state, message)
        alone = max(0, before.alone - len(sent))
        return replace(state, next_at=now + channel.pace.gap_s, failures=0, failing_since=0.0, error="", alone=alone)
    since = before.failing_since or now
    if receipt.refused:  # the channel works, and does not take this text
        refused = events[0].id if len(events) == 1 else ""
        return replace(
            state,
            next_at=now + channel.pace.gap_s,
            error=receipt.error,
            failing_since=since,
            alone=max(0, before.alone - 1) if refused else len(events),
            delivered=state.delivered | {refused} if refused else state.delivered,
        )
    wait_s = min(MAX_RETRY_S, RETRY_S * 2.0 ** min(before.failures, 20)) * (0.5 + jitter(channel, now))
    if receipt.retry_after_s:
        asked_s = min(receipt.retry_after_s, MAX_RETRY_AFTER_S)
        wait_s = asked_s * (1.0 + 0.1 * jitter(channel, now)) + 0.05
    return replace(state, next_at=now + wait_s, failures=before.failures + 1, failing_since=since, error=receipt.error)


def _with_gathered(channel: Channel, before: ChannelState, message: Outgoing) -> ChannelState:
    """Take note of what people have read now. The rest of a message is no further one."""
    if channel.gather is None or all(event.at < before.gathered.at for event in message.events):
        return before
    since = message.at - URGENT_S
    urgent = {key: kept for key, known in before.urgent.items() if (kept := tuple(at for at in known if at > since))}
    for key in {_owner(event) for event in message.events if event.kind.level >= Level.CRITICAL}:
        urgent[key] = (*urgent.get(key, ()), message.at)[-MAX_URGENT:]
    return replace(before, gathered=channel.gather.after(before.gathered, message.at), urgent=MappingProxyType(urgent))


def jitter(channel: Channel, now: float) -> float:
    """Return a number from 0 to 1, by chance for whoever does not know the time to the microsecond: so many clusters
    that were turned away together do not come back together, and the same input has the same result."""
    return zlib.crc32(f"{channel.name} {now!r}".encode()) / 2**32
