"""`spotsupd etcd-certificates` and `etcd-users`: an etcd of one's own gets TLS and users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import config_options, exit_on_error

if TYPE_CHECKING:
    from supervisor.config import Config


@click.command("etcd-certificates")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="A DNS name or address under which daemons or nodes reach etcd. May be given several times.",
)
def certificates(folder: Path, names: tuple[str, ...]) -> None:
    """Make a private CA and etcd's certificate in FOLDER, or renew the certificate.

    A daemon whose `etcd.ca` is in FOLDER renews it by itself: etcd uses the new one at the next connection, and no job
    notices. Keep `ca.key` to yourself.
    """
    import datetime as dt

    from supervisor.journal.certificates import TlsFiles, ensure_certificates
    from supervisor.journal.etcd_server import secure_options

    files = TlsFiles(folder.absolute())
    with exit_on_error("spotsupd"):
        done = ensure_certificates(files, names, dt.datetime.now(dt.UTC))
    click.echo(f"{folder}: {done or 'nothing to do'}")
    options = secure_options(files)
    click.echo("etcd's options: " + " ".join(options))
    click.echo(f'in spotsupd.toml: [etcd] ca = "{files.ca}"')


@click.command("etcd-users")
@config_options
def users(config: Config, embedded_etcd: bool) -> None:
    """Let the etcd of the configuration answer to users only, and make the daemons' user.

    Makes the user that `etcd.user` names, with the role root, and the password in `etcd.password_file`; where there is
    no such file, a random password is written to it. Does nothing where that was done before. Exit code 5 with an
    embedded etcd: `secure = true` does it there.
    """
    from supervisor.errors import CommandRefusedError

    if embedded_etcd:
        raise CommandRefusedError("an embedded etcd gets its users from the daemon: set `secure = true` in [etcd]")
    click.echo(make_users(config))


def make_users(config: Config) -> str:
    """Let etcd answer to users only; what was done, as a sentence. Raises UsageError, StartError."""
    import contextlib
    from dataclasses import replace

    from spotsup_trainer.etcd import EtcdError

    from supervisor.errors import StartError, UsageError
    from supervisor.journal.connection import login_of
    from supervisor.journal.users import enable_users

    if not config.etcd.user or not config.etcd.password_file:
        raise UsageError("set etcd.user and etcd.password_file first")
    _make_password(Path(config.etcd.password_file))
    login = login_of(config)
    anonymous = replace(login, user="", password="")
    try:
        with contextlib.closing(anonymous.connect()) as outside, contextlib.closing(login.connect()) as inside:
            made = enable_users(outside, inside, login.user, login.password)
    except EtcdError as error:
        raise StartError(f"etcd at {', '.join(login.endpoints)}: {error}") from error
    return f"etcd answers to users only; the daemons' is {login.user}" if made else "nothing to do: etcd has its users"


def _make_password(file: Path) -> None:
    import os
    import secrets

    from supervisor.errors import UsageError

    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(secrets.token_hex(32) + "\n")
    except FileExistsError:
        return
    except OSError as error:
        raise UsageError(f"etcd.password_file names {file}, which cannot be written: {error.strerror}") from error
