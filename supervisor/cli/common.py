"""What the commands of `spotsupctl` have in common."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from supervisor.cli.client import Client

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "wrong usage: a command line, a job file or a configuration that cannot be right",
    3: "the daemon cannot be reached",
    4: "no such job or node",
    5: "refused: understood, but not possible now",
}
ENDED = frozenset({"succeeded", "failed", "cancelled"})
FOLLOW_S = 0.5


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """`-o json` on every command."""
    option = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
    return option(command)


@contextmanager
def connected(context: click.Context) -> Iterator[Client]:
    """A client; its errors become one sentence and an exit code."""
    from supervisor.cli.client import Client
    from supervisor.errors import SpotsupError

    daemon = Client(context.obj)
    try:
        yield daemon
    except SpotsupError as error:
        click.echo(f"spotsupctl: {error}", err=True)
        sys.exit(error.exit_code)
    finally:
        daemon.close()
        if daemon.led_by:
            click.echo(f"spotsupctl: answered by a standby; {daemon.led_by} leads, and acts on commands", err=True)


def warn(sentences: Sequence[str]) -> None:
    """What the daemon thinks should be known, on stderr."""
    for sentence in sentences:
        click.echo(f"spotsupctl: warning: {sentence}", err=True)


def print_json(value: Any) -> None:
    """For scripts."""
    click.echo(json.dumps(value, indent=2))


def look(context: click.Context, path: str, output: str, table: str) -> None:
    """Ask, and print what was found, as JSON or by one of the tables of show.py."""
    with connected(context) as daemon:
        found = daemon.get(path)
    if output == "json":
        print_json(found)
        return
    from supervisor.cli import show

    getattr(show, table)(found)
