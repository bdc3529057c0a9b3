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

    If interrupted, run it again. Never overwrites a journal: exit code 5 if etcd has one. For the jobs in FILE nothing
    is launched until `spotsupd adopt`: their machines may be younger than it.
    """
    from supervisor.journal.backup import import_journal

    _copy(partial(import_journal, now=time.time()), file, config, embedded_etcd)
    click.echo("once the daemon runs, see what the journal lacks, and then let it be believed: spotsupd adopt")


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
@click.option(
    "--account",
    "accounts",
    multiple=True,
    metavar="CLOUD",
    help="The account of this cloud's credentials is right: machines that the journal has in another one are gone.",
)
@output_option
@config_options
def adopt(
    release: tuple[str, ...],
    accounts: tuple[str, ...],
    output: str,
    config: Config,
    embedded_etcd: bool,  # noqa: ARG001 - the running daemon knows its etcd
) -> None:
    """Add machines that the journal does not know to it, and believe the journal again.

    For use after etcd was lost or restored from a backup. First submit again the job files of the jobs that should
    continue, and cancel those that had ended since. Until then nothing is launched for the jobs that the journal knows,
    and no machine that it does not know is ended.
    """
    from spotsup.transport import Transport

    found = Transport(config.socket).post("/v1/adopt", {"release": list(release), "accounts": list(accounts)})
    if output == "json":
        print_json(found)
        return
    for each in found:
        click.echo(each["text"])
    if not found:
        click.echo("the journal knows every machine, and is believed")
