"""`spotsupctl`: all that users see.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 daemon not reachable, 4 not found, 5 refused.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from supervisor.cli import bench_network, change, look, operate, submit


def _default_socket() -> Path:
    # As supervisor.config says, without loading pydantic for it.
    state = "/var/lib/spotsup" if os.geteuid() == 0 else os.environ.get("XDG_STATE_HOME", "~/.local/state") + "/spotsup"
    return Path(state).expanduser() / "spotsupd.sock"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    envvar="SPOTSUP_SOCKET",
    help="The daemon's socket. Also SPOTSUP_SOCKET.",
)
@click.pass_context
def main(context: click.Context, socket_path: Path | None) -> None:
    """Train on spot machines: submit a job, and let spotsupd keep it running."""
    context.obj = socket_path or _default_socket()


for command in (
    *(submit.submit, submit.plan),
    *(look.list_jobs, look.status, look.nodes, look.events, look.logs, look.cost, look.top),
    *(change.scale, change.cancel, change.pause, change.resume, change.drain),
    *(operate.daemon, operate.ssh),
    bench_network.bench_network,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
