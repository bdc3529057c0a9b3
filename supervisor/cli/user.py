"""`spotsupd user`: who may use the daemon's API over the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import config_options, output_option, print_json

if TYPE_CHECKING:
    from supervisor.access import TokenRecord
    from supervisor.config import Config
    from supervisor.journal.journal import Journal

DAYS = 90
MAX_DAYS = 3650
MAX_TOKENS = 1000
DAY_S = 86400.0


@click.group()
def user() -> None:
    """Add, list and revoke users of the API over HTTPS. Users of this computer need none: they have the socket."""


@user.command("add")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "submitter", "admin"]),
    required=True,
    help="viewer: look. submitter: also submit jobs, and change their own. admin: all but the cluster's SSH key.",
)
@click.option(
    "--days",
    type=click.IntRange(1, MAX_DAYS),
    default=DAYS,
    show_default=True,
    help="The token expires after so many days.",
)
@output_option
@config_options
def add(name: str, role: str, days: int, output: str, config: Config, embedded_etcd: bool) -> None:
    """Make a token for NAME, and print it, once: only its hash is stored.

    A user may have several, for instance one per computer, and with roles of their own. Jobs that NAME submits from
    this computer, through the socket, have the same owner.
    """
    import re
    import secrets
    import time

    from supervisor.access import USER_NAME, Role, TokenRecord, sha256_of, token_text
    from supervisor.errors import CommandRefusedError, UsageError

    if not re.fullmatch(USER_NAME, name, re.ASCII):
        raise UsageError(f"{name!r} is no user's name: a letter first, then up to 63 letters, digits, dots, _ and -")
    secret, now = secrets.token_bytes(32), time.time()
    made = TokenRecord(secrets.token_hex(6), name, Role(role), sha256_of(secret), now, now + days * DAY_S)
    with _journal(config, embedded_etcd=embedded_etcd) as journal:
        if len(journal.tokens()) >= MAX_TOKENS:
            raise CommandRefusedError(f"there are {MAX_TOKENS} tokens: revoke some first")
        if not journal.add_token(made):
            raise CommandRefusedError("there is a token with this id already: try again")
    text = token_text(made.id, secret)
    if output == "json":
        print_json({**_row(made, now), "token": text})
        return
    click.echo(text)
    if shown := _how_to_login(config):
        click.echo(shown, err=True)
    click.echo(
        f"{name}, {role}, until {_day(made.expires_at)}. It is shown this once: keep it like a password.", err=True
    )


@user.command("list")
@output_option
@config_options
def list_users(output: str, config: Config, embedded_etcd: bool) -> None:
    """List tokens, without themselves."""
    import time

    now = time.time()
    with _journal(config, embedded_etcd=embedded_etcd) as journal:
        rows = [
            _row(each, now) for each in sorted(journal.tokens().values(), key=lambda each: (each.user, each.created_at))
        ]
    if output == "json":
        print_json(rows)
        return
    for row in rows:
        until = "expired on" if row["expired"] else "until"
        click.echo(f"{row['user']}  {row['role']}  {row['id']}  {until} {_day(row['expires_at'])}")
    if not rows:
        click.echo("no users: `spotsupd user add NAME --role submitter` makes one")


@user.command("revoke")
@click.argument("name")
@click.option("--token", "token_id", default="", metavar="ID", help="Only this one, as `user list` shows it.")
@config_options
def revoke(name: str, token_id: str, config: Config, embedded_etcd: bool) -> None:
    """Revoke NAME's tokens: they are refused at once. Jobs go on. Exit code 4 if there are none."""
    from supervisor.errors import NotFoundError

    with _journal(config, embedded_etcd=embedded_etcd) as journal:
        ids = [each.id for each in journal.tokens().values() if each.user == name and token_id in {"", each.id}]
        if not ids:
            raise NotFoundError(f"{name} has no {f'token {token_id}' if token_id else 'tokens'}; `spotsupd user list`")
        journal.delete_tokens(ids)
    click.echo(f"revoked {len(ids)} of {name}'s tokens" if len(ids) > 1 else f"revoked {name}'s token {ids[0]}")


def _how_to_login(config: Config) -> str:
    """Return the command for the user, where the daemon has listened with a certificate of its own."""
    from spotsup.contexts import fingerprint

    from supervisor.api.security.tls import own_files
    from supervisor.endpoints import host_of

    ca = own_files(config).ca
    if not config.api.listen or config.api.cert or not ca.exists():
        return ""
    host = next(iter(config.api.names), host_of(config.api.listen))
    where = f"[{host}]" if ":" in host else host
    port = config.api.listen.rpartition(":")[2]
    return f"spotsupctl login https://{where}:{port} --fingerprint {fingerprint(ca.read_text())}"


def _row(token: TokenRecord, now: float) -> dict[str, Any]:
    return {
        "id": token.id,
        "user": token.user,
        "role": token.role,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "expired": not token.is_valid(now),
    }


def _day(at: float) -> str:
    import datetime as dt

    return f"{dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%d}"


@contextmanager
def _journal(config: Config, *, embedded_etcd: bool) -> Iterator[Journal]:
    from spotsup_trainer.wire import Keys

    from supervisor.journal.connection import open_etcd
    from supervisor.journal.journal import Journal
    from supervisor.journal.store import EtcdStore

    keys = Keys(config.cluster)
    with open_etcd(config, embedded_etcd=embedded_etcd) as etcd:
        yield Journal(EtcdStore(etcd, keys.world), keys)
