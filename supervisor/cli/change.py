"""Commands that change a job or a node. Each returns once the change is safely stored."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from supervisor.cli.common import connected, exit_on_error, job_path, node_path, output_option, print_json
from supervisor.cli.completing import complete_jobs, complete_nodes
from supervisor.cli.job_options import limit_options
from supervisor.errors import CommandRefusedError, DaemonUnreachableError, SpotsupError


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
@click.argument("job", shell_complete=complete_jobs)
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
@click.argument("job", shell_complete=complete_jobs)
@limit_options
@output_option
@click.pass_context
def limits(context: click.Context, /, job: str, output: str, **changes: float | None) -> None:
    """Show a job's limits, or change them.

    A job that is paused because it has reached a limit goes on once the limit is raised.
    """
    with connected(context) as daemon:
        if any(value is not None for value in changes.values()):
            reply = daemon.post(job_path(job, "/limits"), changes)
        else:
            reply = daemon.get(job_path(job))
    if output == "json":
        print_json({key: reply[key] for key in ("name", "state", "sentence", "limits")})
    else:
        from supervisor.cli.show import show_limits

        show_limits(reply)


def _command(argument: str, path: Callable[[str, str], str]) -> Callable[[Callable[[str, Any], str]], click.Command]:
    """Return a command that POSTs to each of what its argument names. It is written as the sentence of a name and its
    reply.

    Where one is refused, the others are carried out all the same; the exit code is that of the first refusal.
    """

    def made(sentence: Callable[[str, Any], str]) -> click.Command:
        @click.command(sentence.__name__, help=sentence.__doc__)
        @click.argument(
            argument,
            nargs=-1,
            required=True,
            metavar=f"{argument.upper()}...",
            shell_complete=complete_jobs if argument == "job" else complete_nodes,
        )
        @output_option
        @click.pass_context
        def run(context: click.Context, /, output: str, **arguments: tuple[str, ...]) -> None:
            names = tuple(dict.fromkeys(arguments[argument]))
            paths = {name: path(name, f"/{sentence.__name__}") for name in names}
            if len(names) == 1:
                _change(context, paths[names[0]], output, partial(sentence, names[0]))
                return
            sys.exit(_change_each(context, paths, output, sentence))

        return run

    return made


def _change_each(
    context: click.Context, paths: Mapping[str, str], output: str, sentence: Callable[[str, Any], str]
) -> int:
    """POST to each path, and print what was said of each name. Returns the exit code."""
    replies, code = [], 0
    with connected(context) as daemon:
        for name, path in paths.items():
            try:
                reply = daemon.post(path)
            except DaemonUnreachableError:
                raise
            except SpotsupError as error:
                click.echo(f"spotsupctl: {error}", err=True)
                code = code or error.exit_code
                continue
            replies.append(reply)
            if output != "json":
                click.echo(sentence(name, reply))
    if output == "json":
        print_json(replies)
    return code


@_command("job", job_path)
def cancel(job: str, reply: Any) -> str:
    """End jobs and release their machines."""
    if reply["state"] in ("succeeded", "failed"):  # of such a job only its schedule is left to be cancelled
        return f"{job}: its schedule has ended"
    return f"{job}: cancelling; releasing {machines(reply['nodes']['active'])}"


@click.command()
@click.argument("job", nargs=-1, required=True, metavar="JOB...", shell_complete=complete_jobs)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
@click.pass_context
def delete(context: click.Context, /, job: tuple[str, ...], output: str, *, yes: bool) -> None:
    """Delete ended jobs with all that the daemon keeps of them: events, output, curves, costs, earlier runs.

    Their checkpoints stay. What they have cost this month still counts for budgets. Their names are free.
    """
    names = tuple(dict.fromkeys(job))
    paths = {name: job_path(name, "/delete") for name in names}
    question = f"Delete {', '.join(names)}, with events, output, curves and costs? Checkpoints stay."
    if not yes and not click.confirm(question, err=True):
        with exit_on_error("spotsupctl"):
            raise CommandRefusedError("nothing was deleted")
    if len(names) == 1:
        _change(context, paths[names[0]], output, partial(_deleted, names[0]))
    else:
        sys.exit(_change_each(context, paths, output, _deleted))


def _deleted(job: str, reply: Any) -> str:
    stay = f"; its checkpoints stay in {reply['checkpoints']}" if reply["checkpoints"] else ""
    counts = f"; ${reply['month_usd']:.2f} still count for this month" if reply["month_usd"] >= 0.005 else ""
    return f"{job}: deleted{stay}{counts}"


@_command("job", job_path)
def pause(job: str, reply: Any) -> str:
    """Checkpoint jobs and release their machines.

    `spotsupctl resume` continues each from its checkpoint.
    """
    if reply["state"] == "paused":
        return f"{job}: paused"
    return f"{job}: pausing; releasing {machines(reply['nodes']['active'])} after a checkpoint"


@_command("job", job_path)
def resume(job: str, reply: Any) -> str:
    """Continue paused jobs from their checkpoints."""
    return f"{job}: resuming; {reply['nodes']['desired']} nodes wanted"


@_command("node", node_path)
def drain(node: str, reply: Any) -> str:
    """Replace nodes without losing a step.

    A node trains until its replacement is ready, then leaves its round in order.
    """
    return f"{node}: will leave {reply['job']} once it is replaced"
