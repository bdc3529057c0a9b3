"""Commands that change a job or a node. Each returns once what was asked for is safely stored."""

from __future__ import annotations

import click

from supervisor.cli.common import connected, output_option, print_json


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
    with connected(context) as daemon:
        found = daemon.post(f"/v1/jobs/{job}/scale", numbers)
    if output == "json":
        print_json(found)
    else:
        now = found["nodes"]
        spares = f", spares {now['spares']}" if now["spares"] else ""
        click.echo(f"{job}: {now['desired']} nodes wanted (min {now['min']}, max {now['max']}{spares})")


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def cancel(context: click.Context, job: str, output: str) -> None:
    """End a job and release its machines."""
    with connected(context) as daemon:
        found = daemon.post(f"/v1/jobs/{job}/cancel")
    if output == "json":
        print_json(found)
    else:
        click.echo(f"{job}: will be cancelled, and its {found['nodes']['open']} machines released")


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def pause(context: click.Context, job: str, output: str) -> None:
    """Have a job checkpoint and release all its machines, until it is resumed."""
    with connected(context) as daemon:
        found = daemon.post(f"/v1/jobs/{job}/pause")
    if output == "json":
        print_json(found)
    elif found["state"] == "paused":
        click.echo(f"{job}: is paused")
    else:
        click.echo(f"{job}: will checkpoint and be paused, and its {found['nodes']['open']} machines released")


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def resume(context: click.Context, job: str, output: str) -> None:
    """Have a paused job go on from its checkpoint."""
    with connected(context) as daemon:
        found = daemon.post(f"/v1/jobs/{job}/resume")
    if output == "json":
        print_json(found)
    else:
        click.echo(f"{job}: {found['nodes']['desired']} nodes wanted")


@click.command()
@click.argument("node")
@output_option
@click.pass_context
def drain(context: click.Context, node: str, output: str) -> None:
    """Have a node replaced: it trains on until its replacement is ready, then leaves in order."""
    with connected(context) as daemon:
        found = daemon.post(f"/v1/nodes/{node}/drain")
    if output == "json":
        print_json(found)
    else:
        click.echo(f"{node}: will leave {found['job']} once it is replaced")
