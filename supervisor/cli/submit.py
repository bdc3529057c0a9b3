"""`spotsupctl submit` and `plan`: what a job asks for, before and when it is stored."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import ENDED, FOLLOW_S, connected, output_option, print_json, warn

if TYPE_CHECKING:
    from supervisor.cli.client import Client

OFFERS_EXPLAINED = 5

JOB_OPTIONS = (
    click.option("--name", help="The job's name."),
    click.option("--nodes", type=int, help="How many nodes to ask for."),
    click.option("--min", "min_nodes", type=int, help="Train from this many on."),
    click.option("--max", "max_nodes", type=int, help="May be scaled up to this many."),
    click.option("--spares", type=int, help="Keep this many more, prepared, to step in at once where one is lost."),
    click.option("--gpu", help="GPU type, such as V100."),
    click.option("--gpus-per-node", type=int, help="GPUs per node; one worker each."),
    click.option("--market", type=click.Choice(["spot", "on-demand", "spot-then-on-demand"])),
    click.option("--cloud", help="The cloud's name, as in a job file."),
    click.option("--code", help="The folder that is shipped.  [default: the job file's, or .]"),
    click.option("--setup", help="A shell line that prepares the environment, once."),
    click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="May be given several times."),
)


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """A job file, or a command with options: what `submit` and `plan` take."""
    for option in reversed(JOB_OPTIONS):
        command = option(command)
    return click.argument("what", nargs=-1, required=True)(command)


@click.command(context_settings={"ignore_unknown_options": False})
@job_options
@click.option("--follow", is_flag=True, help="Stay, and show progress until the job ends.")
@click.option("--explain", is_flag=True, help="Submit nothing: show what would be asked for, and done on each node.")
@output_option
@click.pass_context
def submit(
    context: click.Context, /, what: tuple[str, ...], follow: bool, explain: bool, output: str, **options: Any
) -> None:
    """Submit a job: JOB.yaml, or [options] -- train.py its arguments.

    Returns the job's name once it is safely stored.
    """
    from supervisor.cli.submission import prepare

    if explain and follow:
        raise click.UsageError("--explain submits nothing, so there is nothing to --follow")
    with connected(context) as daemon:
        prepared = prepare(what, options)
        if explain:
            found = daemon.post("/v1/explain", prepared.describe())
            sys.exit(_show(found, output, OFFERS_EXPLAINED))
        warn(daemon.post("/v1/check", {"spec": prepared.spec})["warnings"])
        stored = daemon.put("/v1/blobs", prepared.pack())
        body = {"spec": prepared.spec, "code_sha256": stored["sha256"], "submission": prepared.submission}
        job = daemon.post("/v1/jobs", body)
        if output == "json":
            print_json(job)
        else:
            click.echo(job["name"])
        if follow:
            _follow(daemon, job["name"])


@click.command()
@job_options
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="How many offers to show.")
@output_option
@click.pass_context
def plan(context: click.Context, /, what: tuple[str, ...], limit: int, output: str, **options: Any) -> None:
    """What submit would ask the cloud for, with prices. Takes what submit takes, and starts nothing.

    Exit code 5 where the cloud cannot give it, 1 where the cloud did not answer.
    """
    from supervisor.cli.submission import prepare

    with connected(context) as daemon:
        found = daemon.post("/v1/plan", {"spec": prepare(what, options).spec})
    sys.exit(_show(found, output, limit))


def _show(found: dict[str, Any], output: str, limit: int) -> int:
    """Offers, and where there are any, the steps on nodes; the exit code."""
    if output == "json":
        print_json({**found, "offers": found["offers"][:limit]})
        return 0 if found["known"] else 1
    from supervisor.cli.show import show_plan
    from supervisor.cli.show_steps import show_steps

    warn(found["warnings"])
    if found["known"]:
        show_plan(found, limit)
    if "kinds" in found:
        show_steps(found["kinds"])
        click.echo("nothing was submitted")
    return 0 if found["known"] else 1


def _follow(daemon: Client, name: str) -> None:
    """One line per change, on stderr, until the job ends; the exit code says how."""
    said: tuple[str, str] = ("", "")
    while True:
        job = daemon.get(f"/v1/jobs/{name}")
        if (job["sentence"], job["progress_text"]) != said:
            said = (job["sentence"], job["progress_text"])
            done = "" if job["fraction"] is None else f"  {job['fraction']:.0%} {job['progress_text']}"
            loss = f"  loss {job['loss']:.4f}" if job["loss"] is not None else ""
            click.echo(f"{time.strftime('%H:%M:%S')}  {job['state']:<9}  {said[0]}{loss}{done}", err=True)
        if job["state"] in ENDED:
            sys.exit(0 if job["state"] == "succeeded" else 1)
        time.sleep(FOLLOW_S)
