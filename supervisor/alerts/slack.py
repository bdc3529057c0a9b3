"""Slack, through an incoming webhook or, with a bot's token, in one thread per job.

https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
https://docs.slack.dev/reference/methods/chat.postMessage and chat.update
"""

from __future__ import annotations

import http.client
import logging
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from supervisor.alerts.senders import TIMEOUT_S, Outgoing, Receipt, seconds_of, without
from supervisor.alerts.stories import Story, Thread
from supervisor.alerts.texts import first_message, slack_text
from supervisor.model import Event

# A message of more jobs is one digest in the channel, and no reply in each of their threads.
MAX_THREADS_AT_ONCE = 3
# What is wrong with the text itself, and with no other: it would be refused again and again.
_REFUSALS = frozenset({"invalid_payload", "no_text", "msg_too_long", "invalid_blocks", "too_many_attachments"})
_GONE = frozenset({"message_not_found", "thread_not_found", "cant_update_message", "channel_not_found"})


def _quiet_logger() -> logging.Logger:
    """Return a quiet logger: what goes wrong is said in a Receipt. The library logs it too, and with DEBUG also URLs,
    which are secrets."""
    logger = logging.getLogger("spotsup.slack_sdk")
    logger.setLevel(logging.CRITICAL)
    return logger


class SlackWebhook:
    """Posts to the channel of an incoming webhook."""

    def __init__(self, url: str) -> None:
        from slack_sdk.webhook import WebhookClient  # 0.1 s, and needed only where alerts are on

        # No retries: the planner decides when to try again, and what.
        self._client = WebhookClient(url, timeout=int(TIMEOUT_S), logger=_quiet_logger(), retry_handlers=[])
        self._secret = url.partition("://")[2].partition("/")[2]

    def send(self, message: Outgoing) -> Receipt:
        """Post one message of all events."""
        try:
            answer = self._client.send(text=slack_text(message.events), unfurl_links=False)
        except Exception as error:  # noqa: BLE001 - of the network, of HTTP, or of the bytes of the answer
            return Receipt(error=f"Slack did not answer: {_reason(error, self._secret)}")
        body = (answer.body or "").strip()
        if answer.status_code == 200 and not body.startswith("<"):
            return Receipt(delivered=tuple(event.id for event in message.events))
        said = f"Slack answered {answer.status_code} {without(body, self._secret)}".strip()
        refused = answer.status_code == 413 or (answer.status_code == 400 and body in _REFUSALS)
        headers: Mapping[str, Any] = {name.lower(): value for name, value in answer.headers.items()}
        return Receipt(error=said, retry_after_s=seconds_of(headers.get("retry-after")), refused=refused)

    def try_without_sending(self) -> str:
        """Send an empty message, which Slack refuses ("no_text", "invalid_payload": 400) before it posts anything.
        A webhook that is gone, or not allowed, answers 403, 404 or 410: "Handling errors" of the page above.
        """
        try:
            answer = self._client.send_dict({})
        except Exception as error:  # noqa: BLE001 - as above
            why = _reason(error, self._secret)
            return f"it does not answer ({why}): check the webhook's URL, and this computer's way there"
        if answer.status_code in {401, 403, 404, 410}:
            said = without(answer.body[:80], self._secret)
            return f"it answers {answer.status_code} {said}: make a new webhook in Slack, and set it"
        return f"it answers {answer.status_code}: try again later" if answer.status_code >= 500 else ""


class SlackBot:
    """Posts with a bot's token: one thread per job, whose first message says how the job is."""

    def __init__(self, token: str, channel: str, api: str = "https://slack.com/api/") -> None:
        """`channel`: its id or `#name`. `api`: where Slack's API is."""
        from slack_sdk import WebClient

        self._client = WebClient(token, base_url=api, timeout=int(TIMEOUT_S), logger=_quiet_logger(), retry_handlers=[])
        self._channel, self._token = channel, token

    def send(self, message: Outgoing) -> Receipt:
        """Post the events to their jobs' threads, or all of them as one digest, and keep first messages current."""
        done = _Progress(dict(message.threads))
        by_task = _by_task(message)
        named = [task for task in by_task if task]
        try:
            if len(named) > MAX_THREADS_AT_ONCE:
                self._post(slack_text(message.events))
                done.delivered = [event.id for event in message.events]
            else:
                for task, events in by_task.items():
                    self._tell(message, task, events, done)
            for task, story in message.stories.items():
                self._update(story, done, task, message.at)
        except _SlackError as error:
            if error.gone and error.task:
                done.changed[error.task] = None
            return Receipt(
                tuple(done.delivered), error.text, error.retry_after_s, refused=error.refused, threads=done.changed
            )
        return Receipt(tuple(done.delivered), threads=done.changed)

    def try_without_sending(self) -> str:
        """Try whether the token is valid. Whether the bot is in the channel shows with the first message."""
        try:
            self._call(self._client.auth_test)
        except _SlackError as error:
            return f"{error.text}: check the token, and this computer's way to Slack"
        return ""

    def _tell(self, message: Outgoing, task: str, events: Sequence[Event], done: _Progress) -> None:
        story = message.stories.get(task)
        if story is None:
            self._post(slack_text(events))
        else:
            thread = done.threads.get(task)
            if thread is None:
                thread = replace(self._post(first_message(story)), shown=story.sentence(), at=message.at)
                done.set(task, thread)
            self._post(slack_text(events, in_thread=True), thread, task)
        done.delivered += [event.id for event in events]

    def _update(self, story: Story, done: _Progress, task: str, now: float) -> None:
        thread = done.threads.get(task)
        if thread is None or thread.shown == story.sentence():
            return
        text = first_message(story)
        self._call(lambda: self._client.chat_update(channel=thread.channel, ts=thread.ts, text=text), task)
        done.set(task, replace(thread, shown=story.sentence(), at=now))

    def _post(self, text: str, thread: Thread | None = None, task: str = "") -> Thread:
        channel, ts = (thread.channel, thread.ts) if thread else (self._channel, None)
        answer = self._call(
            lambda: self._client.chat_postMessage(
                channel=channel, text=text, thread_ts=ts, unfurl_links=False, unfurl_media=False
            ),
            task,
        )
        return Thread(str(answer.get("channel") or channel), str(answer.get("ts") or ""))

    def _call(self, call: Callable[[], Any], task: str = "") -> Mapping[str, Any]:
        """Make one call of the API. Raises _SlackError."""
        from slack_sdk.errors import SlackApiError

        try:
            return call().data  # type: ignore[no-any-return]
        except SlackApiError as error:
            answer = error.response
            data = answer.data if isinstance(answer.data, dict) else {}
            code = str(data.get("error") or "")
            said = f"Slack answered {answer.status_code} {without(code, self._token)}".strip()
            headers = {name.lower(): value for name, value in answer.headers.items()}
            retry_after_s = seconds_of(headers.get("retry-after"))
            raise _SlackError(said, retry_after_s, code in _REFUSALS, code in _GONE, task) from error
        except Exception as error:
            raise _SlackError(f"Slack did not answer: {_reason(error, self._token)}") from error


class _Progress:
    """What a delivery has done so far."""

    def __init__(self, threads: dict[str, Thread]) -> None:
        self.threads = threads
        self.changed: dict[str, Thread | None] = {}
        self.delivered: list[str] = []

    def set(self, task: str, thread: Thread) -> None:
        self.threads[task] = self.changed[task] = thread


class _SlackError(Exception):
    def __init__(
        self, text: str, retry_after_s: float = 0.0, refused: bool = False, gone: bool = False, task: str = ""
    ) -> None:
        super().__init__(text)
        self.text, self.retry_after_s, self.refused, self.gone, self.task = text, retry_after_s, refused, gone, task


def _by_task(message: Outgoing) -> dict[str, list[Event]]:
    """Return the events by the task id of their job's story; "" for those of no such job. In order within each."""
    found: dict[str, list[Event]] = {}
    for event in message.events:
        task = event.id.rpartition("-")[0]
        found.setdefault(task if task in message.stories else "", []).append(event)
    return found


def _reason(error: Exception, secret: str) -> str:
    """Return why there is no answer, without the URL or the token, which some errors name."""
    reason = getattr(error, "reason", error)
    if isinstance(error, urllib.error.URLError | OSError | http.client.HTTPException):
        return without(f"{reason}", secret) or type(error).__name__
    return type(error).__name__
