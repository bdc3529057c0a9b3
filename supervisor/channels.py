"""Opens the channels that alerts go to: the one place that knows all senders."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.alerts.routes import Channel
from supervisor.alerts.senders import Sender
from supervisor.config import SLACK_CHANNEL, Config, secret_file
from supervisor.errors import UsageError

MIN_SECRET_CHARACTERS = 16


def channels_of(config: Config) -> tuple[Channel, ...]:
    """Return all channels, `slack` first. Raises UsageError."""
    simple = (Channel(SLACK_CHANNEL),) if config.slack_webhook() else ()
    channels = (*simple, *config.alerts.channels())
    if simple and any(each.name == SLACK_CHANNEL for each in config.alerts.all):
        raise UsageError(
            f"[slack] is the channel {SLACK_CHANNEL}: give that of [[alerts]] another name, or leave one out"
        )
    return channels


def open_senders(config: Config, now: Callable[[], float]) -> dict[str, Sender]:
    """Their senders, by name. Raises UsageError for a secret that cannot be read. `now`: UNIX seconds."""
    from supervisor.alerts.signed import SignedWebhook
    from supervisor.alerts.slack import SlackBot, SlackWebhook

    found: dict[str, Sender] = {}
    if webhook := config.slack_webhook():
        found[SLACK_CHANNEL] = SlackWebhook(webhook)
    secrets = {key: secret_file(path, key) for key, path in config.alerts.files().items()}
    for key, secret in secrets.items():
        if not secret or any(character.isspace() for character in secret):
            raise UsageError(f"{key}: the file is empty, or has blanks within what should be one secret")
    for slack in config.alerts.slack:
        key = f"alerts.slack.{slack.name}"
        if slack.token_file:
            found[slack.name] = SlackBot(secrets[f"{key}.token_file"], slack.channel, slack.api)
        else:
            found[slack.name] = SlackWebhook(_url(secrets[f"{key}.webhook_file"], f"{key}.webhook_file"))
    for own in config.alerts.webhook:
        key = f"alerts.webhook.{own.name}.secret_file"
        if len(secrets[key]) < MIN_SECRET_CHARACTERS:
            raise UsageError(f"{key}: the secret is too short: `openssl rand -hex 32` makes one")
        found[own.name] = SignedWebhook(own.url, secrets[key], config.cluster, now)
    return found


def _url(text: str, key: str) -> str:
    if not text.startswith(("https://", "http://")):
        raise UsageError(f"{key}: the file holds no URL: copy it from Slack, as https://hooks.slack.com/services/…")
    return text
