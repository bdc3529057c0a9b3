"""`spotsupctl`: the users' command line."""

from __future__ import annotations

import os
from pathlib import Path

import click
from spotsup_trainer import __version__

from supervisor.cli import bench_network, change, new_file, operate, report, runs, status, submit
from supervisor.cli.common import EXIT_CODES
from supervisor.cli.completing import HelpfulGroup, completion


def default_socket(host: Path, own: Path, *, root: bool) -> Path:
    """The daemon's socket below one of two state folders: the host's for root, and for users without a daemon of their
    own where the host has one.
    """
    folder = host if root or (host.is_dir() and not own.is_dir()) else own
    return folder / "spotsupd.sock"


def default_daemon() -> Path:
    """Where the daemon is that a command without --socket means."""
    return Path(os.environ.get("SPOTSUP_SOCKET") or _default_socket())


def _default_socket() -> Path:
    # As in supervisor.config, without loading pydantic.
    own = Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")).expanduser() / "spotsup"
    return default_socket(Path("/var/lib/spotsup"), own, root=os.geteuid() == 0)


@click.group(
    cls=HelpfulGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}.",
)
@click.version_option(__version__, prog_name="spotsupctl")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    envvar="SPOTSUP_SOCKET",
    help="The daemon's socket. Also SPOTSUP_SOCKET.",
)
@click.pass_context
def main(context: click.Context, socket_path: Path | None) -> None:
    """Train on spot machines: submit a job, and spotsupd keeps it running."""
    context.obj = socket_path or _default_socket()


for command in (
    *(submit.submit, submit.plan),
    *(status.list_jobs, status.status, status.nodes, status.events, status.logs, status.cost, status.queue, status.top),
    report.report,
    *(change.scale, change.limits, change.cancel, change.pause, change.resume, change.drain),
    *(operate.daemon, operate.ssh, operate.audit),
    *(runs.runs, new_file.init, completion),
    bench_network.bench_network,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
