"""Commands that change a job or a node. Each returns once the change is safely stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from supervisor.cli.common import connected, job_path, node_path, output_option, print_json


def _change(
    context: click.Context, path: str, output: str, sentence: Callable[[Any], str], body: dict[str, Any] | None = None
) -> None:
    """POST, and print the reply as JSON or as a sentence."""
    with connected(context) as daemon:
        reply = daemon.post(path, body)
    if output == "json":
        print_json(reply)
    else:
        click.echo(sentence(reply))


def machines(count: int) -> str:
    """1 machine, 2 machines."""
    return "1 machine" if count == 1 else f"{count} machines"


@click.command()
@click.argument("job")
@click.argument("desired", type=int, required=False, metavar="[N]")
@click.option("--min", "min_nodes", type=int, help="Train with at least this many nodes.")
@click.option("--max", "max_nodes", type=int, help="The largest N that is accepted.")
@click.option("--spares", type=int, help="Extra prepared nodes that replace a lost node at once.")
@output_option
@click.pass_context
def scale(context: click.Context, /, job: str, output: str, **numbers: int | None) -> None:
    """Change how many nodes a job has.

    N is the number that is wanted now. It stays between --min and --max, which can be changed too.
    """
    if all(number is None for number in numbers.values()):
        raise click.UsageError("give a number of nodes, --min, --max or --spares")

    def sentence(reply: Any) -> str:
        now = reply["nodes"]
        spares = f", spares {now['spares']}" if now["spares"] else ""
        return f"{job}: {now['desired']} nodes wanted (min {now['min']}, max {now['max']}{spares})"

    _change(context, job_path(job, "/scale"), output, sentence, numbers)


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def cancel(context: click.Context, job: str, output: str) -> None:
    """End a job and release its machines."""

    def sentence(reply: Any) -> str:
        return f"{job}: cancelling; releasing {machines(reply['nodes']['active'])}"

    _change(context, job_path(job, "/cancel"), output, sentence)


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def pause(context: click.Context, job: str, output: str) -> None:
    """Checkpoint a job and release its machines.

    `spotsupctl resume` continues it from the checkpoint.
    """

    def sentence(reply: Any) -> str:
        if reply["state"] == "paused":
            return f"{job}: paused"
        return f"{job}: pausing; releasing {machines(reply['nodes']['active'])} after a checkpoint"

    _change(context, job_path(job, "/pause"), output, sentence)


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def resume(context: click.Context, job: str, output: str) -> None:
    """Continue a paused job from its checkpoint."""

    def sentence(reply: Any) -> str:
        return f"{job}: resuming; {reply['nodes']['desired']} nodes wanted"

    _change(context, job_path(job, "/resume"), output, sentence)


@click.command()
@click.argument("node")
@output_option
@click.pass_context
def drain(context: click.Context, node: str, output: str) -> None:
    """Replace a node without losing a step.

    The node trains until its replacement is ready, then leaves its round in order.
    """

    def sentence(reply: Any) -> str:
        return f"{node}: will leave {reply['job']} once it is replaced"

    _change(context, node_path(node, "/drain"), output, sentence)
