"""`spotsupctl secret`: keys of other services, for jobs that name them in `secrets`."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from supervisor.cli.common import connected, exit_on_error, output_option, print_json, secret_path
from supervisor.errors import UsageError

MAX_BYTES = 16 * 1024  # the daemon says so, too


@click.group()
def secret() -> None:
    """Set, list and delete secrets: a job that names one in `secrets` gets its value as a variable."""


@secret.command("set")
@click.argument("name")
@output_option
@click.pass_context
def set_secret(context: click.Context, /, name: str, output: str) -> None:
    """Store a secret of yours, or another value of it.

    The value is asked for at a terminal, and else read from stdin; a last line's end is left out. Nodes that run keep
    the value that they began with.
    """
    with exit_on_error("spotsupctl"):
        value = _value(name)
    with connected(context) as daemon:
        reply = daemon.post(secret_path(name), {"value": value})
    if output == "json":
        print_json(reply)
        return
    running = f"; nodes of {', '.join(reply['jobs'])} have it once they are replaced" if reply["jobs"] else ""
    click.echo(f"{name}: stored for jobs of {reply['owner']} that say `secrets: [{name}]`{running}")


@secret.command("list")
@output_option
@click.pass_context
def list_secrets(context: click.Context, /, output: str) -> None:
    """List your secrets, without values; as an admin, those of all users."""
    with connected(context) as daemon:
        rows = daemon.get("/v1/secrets")
    if output == "json":
        print_json(rows)
        return
    for row in rows:
        used = f"  {', '.join(row['jobs'])}" if row["jobs"] else ""
        click.echo(f"{row['owner']}  {row['name']}  {_day(row['changed_at'])}{used}")
    if not rows:
        click.echo("no secrets: `spotsupctl secret set NAME` stores one")


@secret.command("delete")
@click.argument("name")
@click.option("--owner", default="", metavar="USER", help="Whose secret it is. For admins; by default yours.")
@output_option
@click.pass_context
def delete_secret(context: click.Context, /, name: str, owner: str, output: str) -> None:
    """Delete a secret. Nodes that have it keep it until they end. Exit code 4 if there is none."""
    from urllib.parse import urlencode

    query = f"?{urlencode({'owner': owner})}" if owner else ""
    with connected(context) as daemon:
        reply: Any = daemon.post(f"{secret_path(name, '/delete')}{query}", {})
    if output == "json":
        print_json(reply)
        return
    needing = f"; no further node of {', '.join(reply['jobs'])} can be prepared without it" if reply["jobs"] else ""
    click.echo(f"{name}: deleted{needing}")


def _value(name: str) -> str:
    """Return what is typed, twice and unseen, or comes by stdin. Raises UsageError."""
    if sys.stdin.isatty():
        found: str = click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True, err=True)
        return found
    data = sys.stdin.buffer.read(MAX_BYTES + 3)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"the value of {name} is not UTF-8 text: encode it, for instance with base64") from None
    return text.removesuffix("\n").removesuffix("\r")


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
