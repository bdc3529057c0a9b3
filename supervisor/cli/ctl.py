"""`spotsupctl`: all that users see.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 daemon not reachable, 4 not found, 5 refused.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from supervisor.cli.client import Client

ENDED = frozenset({"succeeded", "failed", "cancelled"})
FOLLOW_S = 0.5


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


def output_option(command: Callable[..., None]) -> Callable[..., None]:
    """`-o json` on every command."""
    option = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
    return option(command)


@contextmanager
def _daemon(context: click.Context) -> Iterator[Client]:
    """A client; its errors become one sentence and an exit code."""
    from supervisor.cli.client import Client
    from supervisor.errors import SpotsupError

    try:
        yield Client(context.obj)
    except SpotsupError as error:
        click.echo(f"spotsupctl: {error}", err=True)
        sys.exit(error.exit_code)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


# -- submit ------------------------------------------------------------------------------------------------

_JOB_OPTIONS = (
    click.argument("what", nargs=-1, required=True),
    click.option("--name", help="The job's name."),
    click.option("--nodes", type=int, help="How many nodes to ask for."),
    click.option("--min", "min_nodes", type=int, help="Train from this many on."),
    click.option("--max", "max_nodes", type=int, help="May be scaled up to this many."),
    click.option("--spares", type=int, help="Keep this many more, prepared, to step in at once where one is lost."),
    click.option("--gpu", help="GPU type, such as V100."),
    click.option("--gpus-per-node", type=int, help="GPUs per node; one worker each."),
    click.option("--market", type=click.Choice(["spot", "on-demand", "spot-then-on-demand"])),
    click.option("--cloud", help="local, aws, gcp or azure."),
    click.option("--code", help="The folder that is shipped.  [default: the job file's, or .]"),
    click.option("--setup", help="A shell line that prepares the environment, once."),
    click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="May be given several times."),
)


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """A job file, or a command with options: what `submit` and `plan` take."""
    for option in reversed(_JOB_OPTIONS):
        command = option(command)
    return command


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        click.echo(f"spotsupctl: warning: {sentence}", err=True)


@main.command(context_settings={"ignore_unknown_options": False})
@job_options
@click.option("--follow", is_flag=True, help="Stay, and show progress until the job ends.")
@output_option
@click.pass_context
def submit(context: click.Context, /, what: tuple[str, ...], follow: bool, output: str, **options: Any) -> None:
    """Submit a job: JOB.yaml, or [options] -- train.py its arguments.

    Returns the job's name once it is safely stored.
    """
    from supervisor.cli.submission import prepare

    with _daemon(context) as daemon:
        prepared = prepare(what, options)
        _warn(daemon.post("/v1/check", {"spec": prepared.spec})["warnings"])
        stored = daemon.put("/v1/blobs", prepared.pack())
        body = {"spec": prepared.spec, "code_sha256": stored["sha256"], "submission": prepared.submission}
        job = daemon.post("/v1/jobs", body)
        if output == "json":
            _print_json(job)
        else:
            click.echo(job["name"])
        if follow:
            _follow(daemon, job["name"])


@main.command()
@job_options
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="How many offers to show.")
@output_option
@click.pass_context
def plan(context: click.Context, /, what: tuple[str, ...], limit: int, output: str, **options: Any) -> None:
    """What submit would ask the cloud for, with prices. Takes what submit takes, and starts nothing.

    Exit code 5 where the cloud cannot give it, 1 where the cloud did not answer.
    """
    from supervisor.cli.submission import prepare

    with _daemon(context) as daemon:
        found = daemon.post("/v1/plan", {"spec": prepare(what, options).spec})
    if output == "json":
        _print_json({**found, "offers": found["offers"][:limit]})
    else:
        _warn(found["warnings"])
        if found["known"]:
            from supervisor.cli.show import show_plan

            show_plan(found, limit)
    sys.exit(0 if found["known"] else 1)


def _follow(daemon: Client, name: str) -> None:
    """One line per change, on stderr, until the job ends; the exit code says how."""
    said = ""
    while True:
        job = daemon.get(f"/v1/jobs/{name}")
        if job["sentence"] != said:
            said = job["sentence"]
            loss = f"  loss {job['loss']:.4f}" if job["loss"] is not None else ""
            click.echo(f"{time.strftime('%H:%M:%S')}  {job['state']:<9}  {said}{loss}", err=True)
        if job["state"] in ENDED:
            sys.exit(0 if job["state"] == "succeeded" else 1)
        time.sleep(FOLLOW_S)


# -- look --------------------------------------------------------------------------------------------------


def _look(context: click.Context, path: str, output: str, table: str) -> None:
    """Ask, and print what was found, as JSON or by one of the tables of show.py."""
    with _daemon(context) as daemon:
        found = daemon.get(path)
    if output == "json":
        _print_json(found)
        return
    from supervisor.cli import show

    getattr(show, table)(found)


@main.command("list")
@output_option
@click.pass_context
def list_jobs(context: click.Context, output: str) -> None:
    """All jobs, newest first."""
    _look(context, "/v1/jobs", output, "show_jobs")


@main.command()
@click.argument("job")
@output_option
@click.pass_context
def status(context: click.Context, job: str, output: str) -> None:
    """One job: its state, what is being done and why, and its nodes."""
    _look(context, f"/v1/jobs/{job}", output, "show_job")


@main.command()
@output_option
@click.pass_context
def nodes(context: click.Context, output: str) -> None:
    """All nodes of all jobs."""
    _look(context, "/v1/nodes", output, "show_nodes")


@main.command()
@click.argument("job")
@output_option
@click.pass_context
def events(context: click.Context, job: str, output: str) -> None:
    """What happened to a job, in order."""
    _look(context, f"/v1/jobs/{job}/events", output, "show_events")


@main.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Stay, and show new output until the job ends.")
@click.option("--node", default="", help="One node's output only.")
@output_option
@click.pass_context
def logs(context: click.Context, job: str, follow: bool, node: str, output: str) -> None:
    """The newest output of a job's nodes, also of nodes that are gone."""
    with _daemon(context) as daemon:
        chunks = daemon.get(f"/v1/jobs/{job}/logs", node=node)
        if output == "json":
            _print_json(chunks)
            return
        from supervisor.cli.show import LogPrinter

        printer = LogPrinter(named=not node)
        printer.show(chunks)
        while follow:
            ended = daemon.get(f"/v1/jobs/{job}")["state"] in ENDED
            printer.show(daemon.get(f"/v1/jobs/{job}/logs", node=node))
            if ended:
                return
            time.sleep(FOLLOW_S)


# -- change ------------------------------------------------------------------------------------------------


@main.command()
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
    with _daemon(context) as daemon:
        found = daemon.post(f"/v1/jobs/{job}/scale", numbers)
    if output == "json":
        _print_json(found)
    else:
        now = found["nodes"]
        spares = f", spares {now['spares']}" if now["spares"] else ""
        click.echo(f"{job}: {now['desired']} nodes wanted (min {now['min']}, max {now['max']}{spares})")


@main.command()
@click.argument("job")
@output_option
@click.pass_context
def cancel(context: click.Context, job: str, output: str) -> None:
    """End a job and release its machines."""
    with _daemon(context) as daemon:
        found = daemon.post(f"/v1/jobs/{job}/cancel")
    if output == "json":
        _print_json(found)
    else:
        click.echo(f"{job}: will be cancelled, and its {found['nodes']['open']} machines released")


if __name__ == "__main__":
    main()
