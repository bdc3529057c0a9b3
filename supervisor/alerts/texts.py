"""What messages say. Pure: for Slack in its mrkdwn, for webhooks in plain text.

Names and errors are chosen by jobs, machines and clouds: in Slack their &, < and > are escaped, so that none of them
is a link or a mention (https://docs.slack.dev/messaging/formatting-message-text).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from supervisor.alerts.stories import Story
from supervisor.events import EventKind
from supervisor.model import Event

# Slack shows at most about 4,000 characters of a message as one.
MAX_TEXT_CHARACTERS = 3800
MAX_EVENT_CHARACTERS = 1500
MIN_BULK = 3
MIN_BULK_JOBS = 10


def escaped(text: str) -> str:
    """Without any character that Slack gives a meaning to."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def slack_text(events: Sequence[Event], *, in_thread: bool = False) -> str:
    """Return the message of some events, one line for each, or for each bulk. `in_thread`: without the job's name."""
    return "\n".join(_slack_lines(events, in_thread=in_thread))


def plain_text(events: Sequence[Event]) -> str:
    """Return the same as plain text, for webhooks."""
    lines = []
    for group in grouped(events):
        text = bulk_text(group) if len(group) >= MIN_BULK else ""
        lines += [f"{_whose(group)}: {text}"] if text else [_plain_line(event) for event in group]
    return "\n".join(lines)


def first_message(story: Story) -> str:
    """Return the first message of a job's thread; kept current."""
    return f"*{escaped(story.job)}*: {escaped(story.with_cost())}"


def grouped(events: Iterable[Event]) -> list[list[Event]]:
    """Events in order, with those of one bulk (a job's and of one kind that comes in bulk) where its first is.

    Nodes that are replaced while others are noticed take turns, so a bulk reaches over events of other kinds of bulk;
    any other event of the same job ends it: the order of what matters is kept. Where many jobs have the same, and
    nothing else but bulk, all of them are one.
    """
    events = list(events)
    over_jobs = _over_jobs(events)
    groups: list[list[Event]] = []
    open_bulks: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        key = ("" if (event.job, event.kind) in over_jobs else event.job, str(event.kind))
        if not _bulk(event):
            open_bulks = {each: group for each, group in open_bulks.items() if each[0] != event.job}
            groups.append([event])
        elif key in open_bulks:
            open_bulks[key].append(event)
        else:
            open_bulks[key] = [event]
            groups.append(open_bulks[key])
    return groups


def _over_jobs(events: Sequence[Event]) -> set[tuple[str, EventKind]]:
    """Return which jobs and kinds are reported together."""
    others = {event.job for event in events if not _bulk(event)}
    jobs: dict[EventKind, set[str]] = {}
    for event in events:
        if _bulk(event) and event.job not in others:
            jobs.setdefault(event.kind, set()).add(event.job)
    return {(job, kind) for kind, found in jobs.items() if len(found) >= MIN_BULK_JOBS for job in found}


def _bulk(event: Event) -> str:
    """Return what many nodes have in common of which there is this event; "" for a kind that does not come in bulk."""
    return event.kind.alert.bulk if event.kind.alert else ""


def bulk_text(group: Sequence[Event]) -> str:
    """Many events of one kind in one line that names each of their nodes, with the first and the last time and id."""
    first, last = group[0], group[-1]
    names = node_names(event.node or event.id for event in group)
    span = _clock(first.at) if _clock(first.at) == _clock(last.at) else f"{_clock(first.at)} to {_clock(last.at)}"
    return f"{len(group)} nodes {_bulk(first)}: {names}  ({span}, {first.id} to {last.id})"


def node_names(names: Iterable[str]) -> str:
    """Return nodes by name; those that differ in their number only as `job-abcde-1…3, 7`."""
    numbers: dict[str, list[int]] = {}
    others = []
    for name in dict.fromkeys(names):
        matched = re.fullmatch(r"(.*-)([1-9]\d{0,8})", name)
        if matched:
            numbers.setdefault(matched[1], []).append(int(matched[2]))
        else:
            others.append(name)
    return "; ".join([*(f"{stem}{_ranges(found)}" for stem, found in numbers.items()), *others])


def _ranges(numbers: Iterable[int]) -> str:
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}…{high}" for low, high in parts)


def _slack_lines(events: Sequence[Event], *, in_thread: bool) -> Iterable[str]:
    jobs = {event.job for event in events}
    for group in grouped(events):
        if len(group) >= MIN_BULK:
            yield _slack_line(group[0], bulk_text(group), in_thread=in_thread, whose=_whose(group))
            continue
        for event in group:
            limit = MAX_EVENT_CHARACTERS if len(events) == 1 or len(jobs) == 1 else MAX_EVENT_CHARACTERS // 3
            text = f"{_cut(event.text, limit)}  ({_clock(event.at)}, {event.id})"
            yield _slack_line(event, text, in_thread=in_thread)


def _slack_line(event: Event, text: str, *, in_thread: bool, whose: str = "") -> str:
    sign = event.kind.alert.sign if event.kind.alert else ":information_source:"
    name = "" if in_thread else f"*{escaped(whose or event.job or 'spotsup')}*: "
    while len(line := f"{sign} {name}{escaped(text)}") > MAX_TEXT_CHARACTERS:
        text = _cut(text, len(text) * 3 // 4)
    return line


def _whose(group: Sequence[Event]) -> str:
    jobs = {event.job for event in group}
    return f"{len(jobs)} jobs" if len(jobs) > 1 else group[0].job or "spotsup"


def _plain_line(event: Event) -> str:
    return f"{event.job or 'spotsup'}: {event.text}  ({_clock(event.at)}, {event.id})"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")
