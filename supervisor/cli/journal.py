"""`spotsupd export`, `import` and `adopt`: the journal as a file, and recovery when it is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import config_options, output_option, print_json

if TYPE_CHECKING:
    from spotsup_trainer.etcd import Etcd
    from spotsup_trainer.wire import Keys

    from supervisor.config import Config
    from supervisor.journal.backup import CopyCounts


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@config_options
def export(file: Path, config: Config, embedded_etcd: bool) -> None:
    """Write the journal (jobs, nodes, events, code) to FILE. Daemons may be running."""
    from supervisor.journal.backup import export_journal

    _copy(partial(export_journal, now=time.time()), file, config, embedded_etcd)


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@config_options
def import_(file: Path, config: Config, embedded_etcd: bool) -> None:
    """Write the journal in FILE into an etcd that has none. No daemon may be running.

    If interrupted, run it again. Never overwrites a journal: exit code 5 if etcd has one.
    """
    from supervisor.journal.backup import import_journal

    _copy(import_journal, file, config, embedded_etcd)


def _copy(copy: Callable[[Etcd, Keys, Path], CopyCounts], file: Path, config: Config, embedded_etcd: bool) -> None:
    from spotsup_trainer.wire import Keys

    from supervisor.journal.connection import open_etcd

    with open_etcd(config, embedded_etcd=embedded_etcd) as etcd:
        copied = copy(etcd, Keys(config.cluster), file)
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
    config: Config,
    embedded_etcd: bool,  # noqa: ARG001 - the running daemon knows its etcd
) -> None:
    """Add machines that the journal does not know to it.

    For use after etcd was lost or restored from a backup. First submit again the job files of the jobs that should
    continue. The daemon starts and ends nothing until each machine is adopted or released.
    """
    from spotsup.transport import Transport

    found = Transport(config.socket).post("/v1/adopt", {"release": list(release)})
    if output == "json":
        print_json(found)
        return
    for each in found:
        click.echo(each["text"])
    if not found:
        click.echo("the journal knows every machine")
