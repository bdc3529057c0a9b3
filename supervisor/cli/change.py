"""Commands that change a job or a node. Each returns once what was asked for is safely stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from supervisor.cli.common import connected, output_option, print_json


def _change(
    context: click.Context, path: str, output: str, say: Callable[[Any], str], body: dict[str, Any] | None = None
) -> None:
    """Ask for it, and print the answer as JSON, or what `say` makes of it."""
    with connected(context) as daemon:
        found = daemon.post(path, body)
    if output == "json":
        print_json(found)
    else:
        click.echo(say(found))


@click.command()
@click.argument("job")
@click.argument("desired", type=int, required=False, metavar="[N]")
@click.option("--min", "min_nodes", type=int, help="Train from this many on.")
@click.option("--max", "max_nodes", type=int, help="May be scaled up to this many.")
@click.option("--spares", type=int, help="Keep this many more, prepared, to step in at once where one is lost.")
@output_option
@click.pass_context
def scale(context: click.Context, /, job: str, output: str, **numbers: int | None) -> None:
    """Change how many nodes a job wants, while it runs."""
    if all(number is None for number in numbers.values()):
        raise click.UsageError("say how many nodes: a number, or --min, --max, or --spares")

    def say(found: Any) -> str:
        now = found["nodes"]
        spares = f", spares {now['spares']}" if now["spares"] else ""
        return f"{job}: {now['desired']} nodes wanted (min {now['min']}, max {now['max']}{spares})"

    _change(context, f"/v1/jobs/{job}/scale", output, say, numbers)


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def cancel(context: click.Context, job: str, output: str) -> None:
    """End a job and release its machines."""

    def say(found: Any) -> str:
        return f"{job}: will be cancelled, and its {found['nodes']['open']} machines released"

    _change(context, f"/v1/jobs/{job}/cancel", output, say)


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def pause(context: click.Context, job: str, output: str) -> None:
    """Have a job checkpoint and release all its machines, until it is resumed."""

    def say(found: Any) -> str:
        if found["state"] == "paused":
            return f"{job}: is paused"
        return f"{job}: will checkpoint and be paused, and its {found['nodes']['open']} machines released"

    _change(context, f"/v1/jobs/{job}/pause", output, say)


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def resume(context: click.Context, job: str, output: str) -> None:
    """Have a paused job go on from its checkpoint."""

    def say(found: Any) -> str:
        return f"{job}: {found['nodes']['desired']} nodes wanted"

    _change(context, f"/v1/jobs/{job}/resume", output, say)


@click.command()
@click.argument("node")
@output_option
@click.pass_context
def drain(context: click.Context, node: str, output: str) -> None:
    """Have a node replaced: it trains on until its replacement is ready, then leaves in order."""

    def say(found: Any) -> str:
        return f"{node}: will leave {found['job']} once it is replaced"

    _change(context, f"/v1/nodes/{node}/drain", output, say)
