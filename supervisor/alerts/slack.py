"""Slack, through an incoming webhook: https://api.slack.com/messaging/webhooks"""

from __future__ import annotations

import urllib.error
from datetime import UTC, datetime

from supervisor.model import Event, EventKind

TIMEOUT_S = 10
_SIGNS = {
    EventKind.LIMIT_NEAR: ":hourglass:",
    EventKind.LIMIT_REACHED: ":double_vertical_bar:",
    EventKind.BUDGET_NEAR: ":hourglass:",
    EventKind.BUDGET_REACHED: ":double_vertical_bar:",
    EventKind.DISPLACED: ":double_vertical_bar:",
    EventKind.DEADLINE_MISSED: ":alarm_clock:",
    EventKind.NOTICE: ":warning:",
    EventKind.NODE_LOST: ":boom:",
    EventKind.SILENCE: ":mute:",
    EventKind.SILENCE_ENDED: ":loud_sound:",
    EventKind.REPLACEMENT_REQUESTED: ":hourglass_flowing_sand:",
    EventKind.REPLACEMENT_JOINED: ":white_check_mark:",
    EventKind.BOOTSTRAPS_FAILING: ":rotating_light:",
    EventKind.BOOTSTRAPS_RECOVERED: ":white_check_mark:",
    EventKind.CHECKPOINTS_FAILING: ":rotating_light:",
    EventKind.STEPS_HANG: ":rotating_light:",
    EventKind.STEPS_RESUMED: ":white_check_mark:",
    EventKind.WORKERS_STUCK: ":warning:",
    EventKind.CHECKPOINTS_RESUMED: ":floppy_disk:",
    EventKind.CHECKPOINTS_TOO_SLOW: ":hourglass_flowing_sand:",
    EventKind.ACCESS_DENIED: ":lock:",
    EventKind.ACCESS_RESTORED: ":unlock:",
    EventKind.CERTIFICATE_ENDS: ":hourglass:",
    EventKind.UNKNOWN_CODE: ":grey_question:",
    EventKind.NODE_UNHEALTHY: ":face_with_thermometer:",
    EventKind.UNHEALTHY_HELD: ":raised_hand:",
    EventKind.MACHINE_TYPE_BLOCKED: ":shield:",
    EventKind.FOREIGN_HOST: ":no_entry:",
    EventKind.UNDECIDED: ":beetle:",
    EventKind.UNREADABLE: ":see_no_evil:",
    EventKind.JOB_DONE: ":tada:",
    EventKind.JOB_FAILED: ":x:",
}


class Slack:
    """Posts to one channel."""

    def __init__(self, webhook_url: str) -> None:
        from slack_sdk.webhook import WebhookClient  # 0.1 s, and needed only where alerts are on

        self._client = WebhookClient(webhook_url, timeout=TIMEOUT_S)

    def send(self, event: Event) -> str:
        """Post one event. Returns what went wrong, or ""; never raises for a fault of the network or of Slack."""
        try:
            answer = self._client.send(text=message(event))
        except (OSError, urllib.error.URLError) as error:
            return f"Slack did not answer: {error}"
        return "" if answer.status_code == 200 else f"Slack answered {answer.status_code} {answer.body}"

    def try_without_posting(self) -> str:
        """What is wrong with the webhook, or "". Never raises for a fault of the network or of Slack.

        It gets an empty message, which Slack refuses ("no_text", "invalid_payload": 400) before it posts anything. A
        webhook that is gone, or not allowed, answers 403, 404 or 410: "Handling errors" of the page above.
        """
        try:
            answer = self._client.send_dict({})
        except (OSError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", error)
            return f"it does not answer ({reason}): check the webhook's URL, and this computer's way there"
        if answer.status_code in {401, 403, 404, 410}:
            return f"it answers {answer.status_code} {answer.body[:80]}: make a new webhook in Slack, and set it"
        return f"it answers {answer.status_code}: try again later" if answer.status_code >= 500 else ""


def message(event: Event) -> str:
    """One line. Its id shows a reader that a message was repeated."""
    at = datetime.fromtimestamp(event.at, UTC).strftime("%H:%M:%S UTC")
    return (
        f"{_SIGNS.get(event.kind, ':information_source:')} *{event.job or 'spotsup'}*: {event.text}  ({at}, {event.id})"
    )
