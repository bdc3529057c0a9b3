"""The tables `[alerts]` of spotsupd.toml. The text below each key is its entry in docs/reference/spotsupd-toml.md."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from supervisor.alerts.routes import GATHER_S, Channel, QuietHours, gathering
from supervisor.cron import next_run
from supervisor.events import Level
from supervisor.features.waits.record import WaitsRules

LevelName = Literal["info", "warning", "critical", "off"]
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d"
MAX_CHANNELS = 20


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class ChannelSettings(_Strict):
    """What each channel takes."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    """What it is called in the log and in etcd. No two channels share one; a new name gets what waits."""
    level: LevelName = "info"
    """The least important alerts that it gets: `info`, `warning`, `critical` (docs/alerts.md has a list), or `off`."""
    jobs: Annotated[dict[str, LevelName], Field(max_length=1000)] = {}
    """The same for single jobs, by name or pattern: `{"prod-*" = "info"}`. The first that matches counts."""
    cluster: LevelName | None = None
    """The same for alerts of no job, such as budgets. Left out: as `level`."""
    quiet: Annotated[str, Field(pattern=rf"^({_CLOCK}-{_CLOCK})?$")] = ""
    """Hours in which only critical alerts are sent, and the others wait: `22:00-07:00`. Empty: none."""
    timezone: str = "UTC"
    """Of these hours: `Europe/Vienna`."""
    gather_s: Annotated[float, Field(ge=0, le=86_400)] = GATHER_S
    """While much happens, what is not critical is one message in so many seconds (docs/alerts.md). 0: each is sent at
    once."""

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError("no such time zone is known here: write one as `Europe/Vienna`") from error
        return name

    def route(self, *, threads: bool = False) -> Channel:
        """Return the channel as the planner takes it."""
        levels = {pattern: _level(name) for pattern, name in self.jobs.items()}
        cluster = _level(self.cluster) if self.cluster else None
        quiet = None
        if self.quiet:
            begin, end = (int(each[:2]) * 60 + int(each[3:]) for each in self.quiet.split("-"))
            quiet = QuietHours(begin, end, ZoneInfo(self.timezone))
        gather = gathering(self.gather_s)
        return Channel(self.name, _level(self.level), MappingProxyType(levels), cluster, quiet, threads, gather)


class SlackSettings(ChannelSettings):
    """A channel of Slack: by an incoming webhook, or by a bot's token, with one thread per job."""

    webhook_file: str = ""
    """File that holds the incoming webhook's URL, which is a secret."""
    token_file: str = ""
    """File that holds the bot's token (`xoxb-…`, scope `chat:write`). Instead of `webhook_file`."""
    channel: str = ""
    """With a token: the channel's id, or `#name`. The bot is a member of it."""
    api: Annotated[str, Field(pattern=r"^https?://\S+/$")] = "https://slack.com/api/"
    """Where Slack's API is."""

    @model_validator(mode="after")
    def _has_one(self) -> SlackSettings:
        if bool(self.webhook_file) == bool(self.token_file):
            raise ValueError("set one of webhook_file and token_file")
        if bool(self.token_file) != bool(self.channel):
            raise ValueError("token_file and channel belong together: a webhook has its channel in it")
        return self


class WebhookSettings(ChannelSettings):
    """A URL of your own that gets signed JSON: docs/alerts.md."""

    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+\S*$", repr=False)]
    """Where it is sent, by POST."""
    secret_file: str
    """File that holds the secret of the signature, of 16 characters or more."""
    gather_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """As above. A program that reads them wants each at once."""


class AlertSettings(_Strict):
    """Where alerts go, beside `slack`. Without any channel they go to the log only."""

    slack: Annotated[tuple[SlackSettings, ...], Field(max_length=MAX_CHANNELS)] = ()
    """Channels of Slack, `[[alerts.slack]]` each."""
    webhook: Annotated[tuple[WebhookSettings, ...], Field(max_length=MAX_CHANNELS)] = ()
    """Signed webhooks, `[[alerts.webhook]]` each."""
    daily: str = "0 8 * * *"
    """When the daily summary is sent, as a cron expression in UTC. Empty: never."""
    waits_s: Annotated[float, Field(ge=60, le=864_000)] = WaitsRules().alert_s
    """A job that has waited for its first machines for so many seconds is an alert; one that trained, after half an
    hour."""

    @field_validator("daily")
    @classmethod
    def _is_cron(cls, cron: str) -> str:
        if cron:
            next_run(cron, 0.0)
        return cron

    @model_validator(mode="after")
    def _has_names_once(self) -> AlertSettings:
        names = [each.name for each in self.all]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two channels are called {name}: give each a name of its own")
        return self

    @property
    def all(self) -> Iterable[ChannelSettings]:
        """Return all channels."""
        return [*self.slack, *self.webhook]

    def channels(self) -> tuple[Channel, ...]:
        """Return the channels as the planner takes them."""
        slack = [each.route(threads=bool(each.token_file)) for each in self.slack]
        return (*slack, *(each.route() for each in self.webhook))

    def files(self) -> dict[str, str]:
        """Files that hold secrets, by key."""
        named = {f"alerts.slack.{each.name}.webhook_file": each.webhook_file for each in self.slack}
        named |= {f"alerts.slack.{each.name}.token_file": each.token_file for each in self.slack}
        named |= {f"alerts.webhook.{each.name}.secret_file": each.secret_file for each in self.webhook}
        return {key: path for key, path in named.items() if path}


def _level(name: str) -> Level:
    return Level[name.upper()]
