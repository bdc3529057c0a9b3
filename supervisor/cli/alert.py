"""`spotsupd alert test`: one message to each channel, and what each answered."""

from __future__ import annotations

import socket
import sys
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import config_options, output_option, print_json

if TYPE_CHECKING:
    from supervisor.alerts.senders import Receipt
    from supervisor.config import Config

LIMIT_S = 60.0


@click.group("alert")
def alert() -> None:
    """Alerts to Slack and webhooks."""


@alert.command("test")
@config_options
@output_option
def test(config: Config, embedded_etcd: bool, output: str) -> None:  # noqa: ARG001 - as all commands take it
    """Send one message to each channel, and say what each answered.

    It needs no daemon and no etcd. Levels and quiet hours do not hold it back. Exit code 1 if a channel did not take
    it, or if there is none.
    """
    rows = _send(config)
    ok = bool(rows) and not any(error for _, error, _ in rows)
    if output == "json":
        print_json({"ok": ok, "channels": [_row(*each) for each in rows]})
    else:
        for name, error, took_s in rows:
            click.echo(f"{'failed' if error else 'sent  '}  {name}: {error or f'taken within {took_s:.1f} s'}")
        if not rows:
            click.echo("no channel is set: alerts go to the log only", err=True)
    sys.exit(0 if ok else 1)


def _row(name: str, error: str, took_s: float) -> dict[str, object]:
    return {"channel": name, "ok": not error, "error": error, "seconds": round(took_s, 3)}


def _send(config: Config) -> list[tuple[str, str, float]]:
    """Name, error or "", and seconds, of each channel; all at the same time."""
    from supervisor.alerts.senders import Outgoing
    from supervisor.channels import channels_of, open_senders
    from supervisor.events import EventKind
    from supervisor.model import Event
    from supervisor.runtime.background import in_background

    now = time.time()
    text = f"a test of this channel by `spotsupd alert test` on {socket.gethostname()}; nothing is wrong"
    event = Event(f"test-{int(now)}", now, "", EventKind.DAILY_SUMMARY, text)
    channels_of(config)
    began = time.monotonic()
    running: dict[str, Future[Receipt]] = {
        name: in_background(lambda sender=sender: sender.send(Outgoing((event,), at=now)), f"alert-{name}")  # type: ignore[misc]
        for name, sender in open_senders(config, time.time).items()
    }
    rows = []
    for name, future in running.items():
        try:
            error = future.result(max(0.0, began + LIMIT_S - time.monotonic())).error
        except TimeoutError:
            error = f"it did not answer within {LIMIT_S:g} s"
        rows.append((name, error, time.monotonic() - began))
    return rows
