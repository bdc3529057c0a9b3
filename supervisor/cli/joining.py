"""`spotsupd join-file`: what a further host of this installation needs."""

from __future__ import annotations

import sys

import click

from supervisor.cli.common import exit_on_error


@click.command("join-file")
def join_file() -> None:
    """Print what a further host of this installation needs: configuration, secrets, CA.

    For `spotsupd init --join -` on that host, through a pipe. Who has it has the cluster: it is printed to no terminal,
    and should lie nowhere.
    """
    from supervisor.config import load_config
    from supervisor.errors import StartError, UsageError
    from supervisor.installation.answers import etcd_here
    from supervisor.installation.host import has_address
    from supervisor.installation.joining import CONFIG_FILE, NEXT_CA, joining_files, pack

    with exit_on_error("spotsupd"):
        if sys.stdout.isatty():
            raise UsageError(
                "this prints the cluster's secrets: give it a pipe, as in "
                "`sudo spotsupd join-file | ssh HOST sudo spotsupd init --join -`"
            )
        config = load_config(CONFIG_FILE)
        files, _ = joining_files(config, etcd_here=etcd_here(config, has_address) is not None)
        try:
            found = [path for path in files if path not in NEXT_CA or path.exists()]
            click.echo(pack({path: path.read_bytes() for path in found}), nl=False)
        except OSError as error:
            raise StartError(
                f"{error.filename} cannot be read ({error.strerror}): run this as root, on a host on which "
                "`spotsupd init` has ended"
            ) from error
