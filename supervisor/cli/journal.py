"""`spotsupd export`, `import` and `adopt`: the journal as a file, and what to do where it is gone."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from supervisor.cli.options import config_of, config_options, one_sentence


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@config_options
def export(
    file: Path, config_path: Path | None, embedded_etcd: bool, state_dir: Path | None, socket_path: Path | None
) -> None:
    """Write the journal to FILE: jobs, nodes, events and code. Daemons may run meanwhile."""
    with one_sentence():
        config = config_of(config_path, state_dir, socket_path)
        from spotsup_trainer.wire import Keys

        from supervisor.journal.backup import export_journal
        from supervisor.journal.connection import open_etcd

        with open_etcd(config, embedded_etcd=embedded_etcd) as etcd:
            copied = export_journal(etcd, Keys(config.cluster), file, time.time())
    click.echo(f"{file}: {copied.jobs} jobs, {copied.nodes} nodes, {copied.keys} keys")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@config_options
def import_(
    file: Path, config_path: Path | None, embedded_etcd: bool, state_dir: Path | None, socket_path: Path | None
) -> None:
    """Write the journal of FILE into an etcd that has none. No daemon may run meanwhile.

    Cut short, it may be repeated. Exit code 5 where etcd has a journal: nothing is overwritten.
    """
    with one_sentence():
        config = config_of(config_path, state_dir, socket_path)
        from spotsup_trainer.wire import Keys

        from supervisor.journal.backup import import_journal
        from supervisor.journal.connection import open_etcd

        with open_etcd(config, embedded_etcd=embedded_etcd) as etcd:
            copied = import_journal(etcd, Keys(config.cluster), file)
    click.echo(f"{file}: {copied.jobs} jobs, {copied.nodes} nodes, {copied.keys} keys")


@click.command()
@click.option(
    "--release", multiple=True, metavar="JOB", help="End the machines of this job. May be given several times."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@config_options
def adopt(
    release: tuple[str, ...],
    output: str,
    config_path: Path | None,
    embedded_etcd: bool,  # noqa: ARG001 - the daemon that runs knows its etcd
    state_dir: Path | None,
    socket_path: Path | None,
) -> None:
    """Take machines that run, and that the journal does not know, into it: etcd was emptied, or set back.

    Submit the job files of what shall go on first; the daemon holds everything until each machine is spoken for.
    """
    with one_sentence():
        config = config_of(config_path, state_dir, socket_path)
        from supervisor.cli.client import Client

        found = Client(config.socket).post("/v1/adopt", {"release": list(release)})
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for each in found:
        click.echo(each["text"])
    if not found:
        click.echo("the journal knows every machine")
