"""`spotsupctl tensorboard`: TensorBoard on a node of a job, and its page on the user's own computer."""

from __future__ import annotations

import secrets
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import connected, job_path, sweep_path
from supervisor.cli.completing import complete_jobs
from supervisor.cli.operate import logged_in, run_ssh

if TYPE_CHECKING:
    from spotsup.transport import Transport

# Run on the node: tests and this module read it as text.
PROGRAM = Path(__file__).with_name("on_node_tensorboard.py")
# Of the node's loopback: TensorBoard listens there, and the SSH connection leads to it.
_PORTS = range(20_000, 32_000)


@click.command()
@click.argument("name", metavar="JOB|SWEEP", shell_complete=complete_jobs)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of this computer's loopback. Default: a free one."
)
@click.option("--jump", metavar="USER@HOST", default="", help="Through this host, where nodes cannot be reached.")
@click.pass_context
def tensorboard(context: click.Context, name: str, port: int, jump: str) -> None:
    """Show the curves of a job, or of all jobs of a sweep, until Ctrl-C.

    TensorBoard runs on one of the job's nodes, from the job's own environment, on what the program writes below
    $SPOTSUP_OUTPUT_DIR. Its page is on this computer only: the SSH connection of `spotsupctl ssh` leads there.
    """
    with connected(context) as client:
        node, runs = _find(client, name)
        here, there = port or _free_port(), secrets.choice(_PORTS)
        options = ["-L", f"127.0.0.1:{here}:127.0.0.1:{there}", "-o", "ExitOnForwardFailure=yes"]
        with logged_in(client, node, jump, options) as (ssh, login):
            command = ["python3", "-c", PROGRAM.read_text(encoding="utf-8")]
            command += [login["agent_config"], str(there), f"http://127.0.0.1:{here}/", *runs]
            # A pipe that nothing is written to: TensorBoard ends when it closes, whatever ends this process.
            sys.exit(run_ssh([*ssh, shlex.join(command)], stdin=subprocess.PIPE))


def _find(client: Transport, name: str) -> tuple[str, list[str]]:
    """Return a node that is ready, and NAME=TASK_ID of each run to show. Raises SpotsupError."""
    from supervisor.errors import CommandRefusedError, NotFoundError

    try:
        jobs = [client.get(job_path(name))]
    except NotFoundError as error:
        try:
            sweep = client.get(sweep_path(name))
        except NotFoundError:
            raise error from None
        begun = [each["name"] for each in sweep["members"] if each["state"] != "waiting for its turn"]
        jobs = [client.get(job_path(each)) for each in begun]
    nodes = [node["id"] for job in jobs for node in job["node_list"] if node["state"] in {"member", "ready"}]
    if not nodes:
        raise CommandRefusedError(
            f"no node of {name} is ready, and TensorBoard runs on one; what the job wrote stays on "
            "its storage; try again once `spotsupctl status` shows one"
        )
    return nodes[0], [f"{job['name']}={job['task_id']}" for job in jobs]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
