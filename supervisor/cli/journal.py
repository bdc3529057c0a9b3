"""`spotsupd export`, `import` and `adopt`: the journal as a file, and recovery when it is lost."""

from __future__ import annotations

import time
from pathlib import Path

import click

from supervisor.cli.common import config_of, config_options, exit_on_error, output_option, print_json


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@config_options
def export(
    file: Path, config_path: Path | None, embedded_etcd: bool, state_dir: Path | None, socket_path: Path | None
) -> None:
    """Write the journal (jobs, nodes, events, code) to FILE. Daemons may be running."""
    with exit_on_error("spotsupd"):
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
    """Write the journal in FILE into an etcd that has none. No daemon may be running.

    If interrupted, run it again. Never overwrites a journal: exit code 5 if etcd has one.
    """
    with exit_on_error("spotsupd"):
        config = config_of(config_path, state_dir, socket_path)
        from spotsup_trainer.wire import Keys

        from supervisor.journal.backup import import_journal
        from supervisor.journal.connection import open_etcd

        with open_etcd(config, embedded_etcd=embedded_etcd) as etcd:
            copied = import_journal(etcd, Keys(config.cluster), file)
    click.echo(f"{file}: {copied.jobs} jobs, {copied.nodes} nodes, {copied.keys} keys")


@click.command()
@click.option(
    "--release", multiple=True, metavar="JOB", help="Terminate this job's machines. May be given several times."
)
@output_option
@config_options
def adopt(
    release: tuple[str, ...],
    output: str,
    config_path: Path | None,
    embedded_etcd: bool,  # noqa: ARG001 - the running daemon knows its etcd
    state_dir: Path | None,
    socket_path: Path | None,
) -> None:
    """Add machines that the journal does not know to it.

    For use after etcd was lost or restored from a backup. First submit again the job files of the jobs that should
    continue. The daemon starts and ends nothing until each machine is adopted or released.
    """
    with exit_on_error("spotsupd"):
        config = config_of(config_path, state_dir, socket_path)
        from supervisor.cli.client import Client

        found = Client(config.socket).post("/v1/adopt", {"release": list(release)})
    if output == "json":
        print_json(found)
        return
    for each in found:
        click.echo(each["text"])
    if not found:
        click.echo("the journal knows every machine")
