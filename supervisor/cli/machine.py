"""`spotsupd machine`: machines that you already have. They are asked directly: no daemon has to run."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import config_options
from supervisor.errors import UsageError
from supervisor.files import replace_file

if TYPE_CHECKING:
    from provisioners.own.provisioner import OwnProvisioner
    from supervisor.config import Config

TIMEOUT_S = 20.0
CLOSED_FOR_S = 10 * 365 * 86400.0


@click.group()
def machine() -> None:
    """Add, list, close and open machines that you already have: hosts that are reached by SSH."""


@machine.command("add")
@click.argument("host", metavar="[USER@]HOST[:PORT]")
@click.option("--name", help="Its name in job files and tables.  [default: HOST up to its first dot]")
@click.option("--gpus", default="", help="Which of its GPUs, such as 0-3.  [default: all]")
@click.option(
    "--available", default="", help="When it may be used, such as `18:00-08:00, weekends`.  [default: always]"
)
@click.option("--key-file", default="", help="The private key to log in with.  [default: the agent, and ~/.ssh]")
@click.option("--yes", is_flag=True, help="Believe the host's SSH key without a question.")
@config_options
@click.pass_context
def add(context: click.Context, /, host: str, name: str | None, yes: bool, config: Config, **rest: Any) -> None:
    """Write a host into the configuration, once it lets us in and can run nodes; or try one that is there.

    Asks whether its SSH key is right, and keeps it where OpenSSH does. Restart the daemon afterwards.
    """
    import tomllib

    from provisioners.base import ProvisionerError
    from provisioners.calls import NotSentError
    from provisioners.own.login import host_key_of
    from provisioners.own.provisioner import OwnProvisioner
    from provisioners.own.settings import OwnSettings, host_named
    from supervisor.config import parse_config
    from supervisor.installation.answers import table_lines

    path: Path | None = context.params["config_path"]
    if path is None:
        raise UsageError("say which configuration to write it into: --config /etc/spotsup/spotsupd.toml")
    own = config.cloud("own")
    known = dict(own.hosts) if isinstance(own, OwnSettings) else {}
    try:
        given, table = host_named(host)
    except ValueError as error:
        raise UsageError(str(error)) from error
    name = name or given
    table |= {key: rest[key] for key in ("gpus", "available", "key_file") if rest[key]}
    is_new = name not in known
    if not is_new and (other := [key for key, value in table.items() if getattr(known[name], key) != value]):
        raise UsageError(
            f"there is a host {name} with another {other[0]} in {path}: change it there, or choose another --name"
        )
    table.setdefault("user", OwnSettings.model_construct().login_user)
    lines = table_lines(["own", "hosts", name], table)
    text = path.read_text(encoding="utf-8")
    text = f"{text.rstrip()}\n" + "\n".join(lines) + "\n" if is_new else text
    try:
        read = parse_config(tomllib.loads(text), f"{path} with {name}").cloud("own")
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"no table [own.hosts.{name}] can follow in {path} ({error}): write it by hand") from error
    assert isinstance(read, OwnSettings)
    try:
        key = host_key_of(read.hosts[name], read, TIMEOUT_S)
        if key.is_new:
            click.echo(f"{name} ({read.hosts[name].address}) has the SSH key {key.fingerprint}")
            if not yes and not (sys.stdin.isatty() and click.confirm("Is that the host's own?")):
                raise UsageError(
                    "compare it with what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` says there, and give --yes"
                )
            key.keep()
        (found,) = OwnProvisioner(read.model_copy(update={"hosts": {name: read.hosts[name]}})).check(TIMEOUT_S)
    except (NotSentError, ProvisionerError) as error:
        raise UsageError(str(error)) from error
    if not found.ok:
        raise UsageError(f"{name}{' is not added' if is_new else ''}: {found.message}")
    if is_new:
        _replace(path, text)
    click.echo(f"{name}: {found.message}" + (f". It is in {path} now: restart the daemon" if is_new else ""))


@machine.command("list")
@config_options
def list_machines(config: Config, **_rest: Any) -> None:
    """Show each host, and what it has, or why it cannot be used."""
    cloud = _cloud(config)
    for finding in cloud.check(TIMEOUT_S):
        click.echo(f"{finding.what:20}  {finding.message}")


@machine.command("close")
@click.argument("name")
@click.option("--until", help="A time such as 18:00 or 2026-12-24T18:00, or for how long: 8h.  [default: until `open`]")
@config_options
def close(name: str, until: str | None, config: Config, **_rest: Any) -> None:
    """Give a host back to its people: its node leaves in order within three minutes, and none is begun there."""
    from supervisor.cli.durations import next_time

    now = time.time()
    end = min(next_time(until, now) if until else now + CLOSED_FOR_S, now + CLOSED_FOR_S)
    names = _set(config, name, end)
    when = f" until {time.strftime('%Y-%m-%d %H:%M', time.localtime(end))}" if until else ""
    are = "is" if names == [name] else f"({', '.join(names)}: one computer) is"
    click.echo(f"{name} {are} closed{when}; the daemon's nodes leave it within three minutes. `machine open` ends that")


@machine.command("open")
@click.argument("name")
@config_options
def open_again(name: str, config: Config, **_rest: Any) -> None:
    """Let nodes have a host again that was closed."""
    _set(config, name, 0.0)
    click.echo(f"{name} may be used")


def _set(config: Config, name: str, until: float) -> list[str]:
    """Return the hosts that are the same computer."""
    from provisioners.base import ProvisionerError

    cloud = _cloud(config)
    hosts = cloud.settings.hosts
    if name in hosts and not hosts[name].user and Path(config.state_dir).stat().st_uid != os.geteuid():
        raise UsageError(f"own.hosts.{name} has no `user`, and you are not the daemon's: write the user there")
    try:
        cloud.close(name, until, TIMEOUT_S)
    except ProvisionerError as error:
        raise UsageError(str(error)) from error
    return [
        each for each, host in hosts.items() if (host.address, host.port) == (hosts[name].address, hosts[name].port)
    ]


def _replace(path: Path, text: str) -> None:
    """Replace a file at once; its owner and mode stay."""
    before = path.stat()
    replace_file(path, text.encode(), before.st_mode & 0o777)
    os.chown(path, before.st_uid, before.st_gid)


def _cloud(config: Config) -> OwnProvisioner:
    from provisioners.own.provisioner import OwnProvisioner
    from provisioners.own.settings import OwnSettings

    own = config.cloud("own")
    if not isinstance(own, OwnSettings):
        raise UsageError("the configuration has no [own.hosts]: `spotsupd machine add USER@HOST` writes the first")
    return OwnProvisioner(own)
