"""`spotsupctl login`, `logout`, `contexts`: daemons over the network."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from supervisor.cli.common import exit_on_error, output_option, print_json

if TYPE_CHECKING:
    from spotsup.contexts import Context, Contexts


@click.command()
@click.argument("url")
@click.option("--name", default="", help="Of the context. By default the host's name.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Read the token from a file; `-`: standard input. Otherwise it is asked for.",
)
@click.option(
    "--ca",
    "ca_file",
    type=click.Path(path_type=Path),
    help="The CA of the daemon's certificate, where that is not the system's, nor the daemon's own.",
)
@click.option(
    "--fingerprint",
    "expected",
    default="",
    help="Of the daemon's own CA, as `spotsupd user add` shows it.",
)
def login(url: str, name: str, token_file: Path | None, ca_file: Path | None, expected: str) -> None:
    """Use the daemon at URL (https://host:port) from now on, with the token that `spotsupd user add` has shown.

    A certificate that the system trusts is taken. For the daemon's own its fingerprint is shown and asked about, once.
    The token is sent only to a daemon that was verified, and kept in ~/.config/spotsup, mode 600.
    """
    with exit_on_error("spotsupctl"):
        from spotsup import contexts
        from spotsup.transport import Transport

        from supervisor.errors import UsageError

        address = contexts.checked_url(url)
        name = name or str(urlsplit(address).hostname)
        if name == contexts.SOCKET:
            raise UsageError(f"{name!r} stands for the Unix socket: choose another --name")
        kept = contexts.load(contexts.file_of_user())
        found = _trusted(contexts.Context(name, address, "", ""), ca_file, expected)
        found = replace(found, token=_token(token_file))
        with closing(Transport(found)) as daemon:
            me = daemon.get("/v1/me")
        found = replace(found, user=me["name"])
        save(contexts.file_of_user(), contexts.Contexts({**kept.found, name: found}, name))
    click.echo(f"{name}: {me['name']}, {me['role']}, at {address}")


def _trusted(context: Context, ca_file: Path | None, expected: str) -> Context:
    """Return the context with the CA by which the daemon is verified from now on. Raises SpotsupError."""
    from spotsup import contexts
    from spotsup.errors import UntrustedError
    from spotsup.transport import Transport

    from supervisor.errors import CommandRefusedError, NotFoundError, UsageError

    if ca_file is not None:
        try:
            context = replace(context, ca=ca_file.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {ca_file}: {error}") from error
    if not expected:
        try:
            with closing(Transport(context)) as daemon:
                daemon.get("/v1/ca")
        except NotFoundError:
            return context
        except UntrustedError:
            if ca_file is not None:
                raise
        else:
            return context
    with closing(Transport(context, verify=False)) as daemon:  # it gets no token
        ca = str(daemon.get("/v1/ca")["ca"])
    found = contexts.fingerprint(ca)
    if expected and found != expected:
        raise CommandRefusedError(
            f"the daemon at {context.url} has the CA {found}, and not {expected}: somebody may be in between"
        )
    if not expected:
        _confirm(f"The daemon at {context.url} has its own CA:\n  {found}\nIs that what `spotsupd user add` showed?")
    return replace(context, ca=ca, own_ca=True)


def _confirm(question: str) -> None:
    from supervisor.errors import CommandRefusedError

    if not sys.stdin.isatty():
        raise CommandRefusedError(f"{question} Nobody can be asked here: give it as --fingerprint")
    if not click.confirm(question, err=True):
        raise CommandRefusedError("nothing was done")


def _token(file: Path | None) -> str:
    from supervisor.errors import UsageError

    try:
        if file is None:
            text = str(click.prompt("Token", hide_input=True, err=True))
        else:
            text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    if not text.strip().isascii() or len(text.split()) != 1:
        raise UsageError("a token is one word, as `spotsupd user add` prints it")
    return text.strip()


@click.command()
@click.argument("name", default="")
def logout(name: str) -> None:
    """Forget a context and its token; by default the current one. An admin revokes the token itself."""
    with exit_on_error("spotsupctl"):
        from spotsup import contexts

        file = contexts.file_of_user()
        kept = contexts.load(file)
        name = name or kept.current
        if kept.get(name) is None:
            from supervisor.errors import CommandRefusedError

            raise CommandRefusedError("the Unix socket needs no login, so there is nothing to forget")
        rest = {key: each for key, each in kept.found.items() if key != name}
        save(file, contexts.Contexts(rest, contexts.SOCKET if name == kept.current else kept.current))
    click.echo(f"forgot {name}")


@click.command("contexts")
@click.argument("name", default="")
@output_option
def list_contexts(name: str, output: str) -> None:
    """List daemons, or use NAME from now on; `socket` is the one of this computer."""
    with exit_on_error("spotsupctl"):
        from spotsup import contexts

        file = contexts.file_of_user()
        kept = contexts.load(file)
        if name:
            kept.get(name)
            kept = replace(kept, current=name)
            save(file, kept)
    rows = [{"name": contexts.SOCKET, "url": None, "user": None, "current": kept.current == contexts.SOCKET}]
    rows += [
        {"name": each.name, "url": each.url, "user": each.user, "current": each.name == kept.current}
        for each in kept.found.values()
    ]
    if output == "json":
        print_json(rows)
        return
    for row in rows:
        where = f"{row['url']}  {row['user']}" if row["url"] else "the Unix socket"
        click.echo(f"{'*' if row['current'] else ' '} {row['name']}  {where}")


def save(file: Path, kept: Contexts) -> None:
    """Write contexts, readable by their user alone. Raises UsageError."""
    import json

    from supervisor.errors import UsageError
    from supervisor.files import replace_file

    rows: dict[str, Any] = {}
    for name, each in kept.found.items():
        rows[name] = asdict(each)
        del rows[name]["name"]
    text = json.dumps({"current": kept.current, "contexts": rows}, indent=2) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(file, text.encode(), 0o600)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
