"""What messages say. Pure: for Slack in its mrkdwn, for webhooks in plain text.

Names and errors are chosen by jobs, machines and clouds: in Slack their &, < and > are escaped, so that none of them
is a link or a mention (https://docs.slack.dev/messaging/formatting-message-text).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.alerts.digests import Line, lines_of
from supervisor.alerts.stories import Story
from supervisor.model import Event

# Slack shows at most about 4,000 characters of a message as one.
MAX_TEXT_CHARACTERS = 3800
MAX_EVENT_CHARACTERS = 1500


def escaped(text: str) -> str:
    """Without any character that Slack gives a meaning to."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def slack_text(events: Sequence[Event], *, in_thread: bool = False) -> str:
    """Return the message of some events. `in_thread`: without the job's name."""
    return "\n".join(_slack_lines(events, in_thread=in_thread))


def plain_text(events: Sequence[Event]) -> str:
    """Return the same as plain text, for webhooks."""
    return "\n".join(f"{line.whose or 'spotsup'}: {line.text}" for line in lines_of(events))


def first_message(story: Story) -> str:
    """Return the first message of a job's thread; kept current."""
    return f"*{escaped(story.job)}*: {escaped(story.with_cost())}"


def _slack_lines(events: Sequence[Event], *, in_thread: bool) -> Iterable[str]:
    jobs = {event.job for event in events}
    limit = MAX_EVENT_CHARACTERS if len(events) == 1 or len(jobs) == 1 else MAX_EVENT_CHARACTERS // 3
    for line in lines_of(events):
        yield _slack_line(line, limit, in_thread=in_thread)


def _slack_line(line: Line, limit: int, *, in_thread: bool) -> str:
    name = "" if in_thread else f"*{escaped(line.whose or 'spotsup')}*: "
    text = _cut(line.text, limit) if line.alone else line.text
    while len(found := f"{line.sign} {name}{escaped(text)}") > MAX_TEXT_CHARACTERS and line.alone:
        text = _cut(text, len(text) * 3 // 4)
    return found


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
