"""`spotsupctl submit` and `plan`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import FOLLOW_S, connected, is_over, job_path, output_option, print_json, warn

if TYPE_CHECKING:
    from supervisor.cli.client import Client
    from supervisor.cli.submission import Prepared

OFFERS_EXPLAINED = 5

# Each overrides a key of the job file: docs/reference/job-file.md.
JOB_OPTIONS = (
    click.option("--name", help="The job's name."),
    click.option("--nodes", type=int, help="How many nodes to ask for."),
    click.option("--min", "min_nodes", type=int, help="Train with at least this many nodes."),
    click.option("--max", "max_nodes", type=int, help="The largest number that `scale` accepts."),
    click.option("--spares", type=int, help="Extra prepared nodes that replace a lost node at once."),
    click.option("--gpu", help="GPU type, such as V100."),
    click.option("--gpus-per-node", type=int, help="GPUs on each node; one worker runs per GPU."),
    click.option(
        "--market", type=click.Choice(["spot", "on-demand", "spot-then-on-demand"]), help="How nodes are bought."
    ),
    click.option("--start-after", metavar="TIME", help="No node is asked for before, such as 2026-12-24T22:00Z."),
    click.option("--schedule", metavar="CRON", help="Again and again, at times in UTC, such as '0 22 * * 1-5'."),
    click.option("--priority", type=click.IntRange(-100, 100), help="Jobs of a higher priority come first."),
    click.option("--cloud", help="The cloud to rent from, as in a job file."),
    click.option("--code", help="The folder that is copied to every node.  [default: the job file's, or .]"),
    click.option(
        "--checkpoints", help="Where checkpoints go: a folder on shared storage, s3://…, gs://…, abfs://…, or none."
    ),
    click.option("--setup", help="A shell line that runs once on each node before training."),
    click.option(
        "--env", "env", multiple=True, metavar="NAME=VALUE", help="An environment variable. May be given several times."
    ),
)


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """A job file, or a command with options: what `submit` and `plan` take."""
    for option in reversed(JOB_OPTIONS):
        command = option(command)
    return click.argument("what", nargs=-1, required=True, metavar="JOB.yaml | -- SCRIPT [ARGS]...")(command)


@click.command(context_settings={"ignore_unknown_options": False})
@job_options
@click.option("--follow", is_flag=True, help="Show progress until the job ends; Ctrl-C leaves the job running.")
@click.option(
    "--resume-from",
    default="",
    metavar="JOB",
    help="Begin with the newest checkpoint of a job that has ended or is paused.",
)
@click.option("--explain", is_flag=True, help="Submit nothing; show the offers, and each step on the nodes.")
@output_option
@click.pass_context
def submit(
    context: click.Context,
    /,
    what: tuple[str, ...],
    follow: bool,
    resume_from: str,
    explain: bool,
    output: str,
    **options: Any,
) -> None:
    """Submit a job.

    The job is a job file, or a script with its arguments after `--`. Prints the job's name once the job is safely
    stored. Options override the job file. The exit code with --follow is 0 if the job succeeds, else 1.
    """
    if explain and follow:
        raise click.UsageError("--explain submits nothing, so there is nothing to --follow")
    with connected(context) as daemon:
        prepared = _prepared(what, options)
        if explain:
            quote = daemon.post("/v1/explain", prepared.describe())
            sys.exit(_show(quote, output, OFFERS_EXPLAINED))
        asked = {"spec": prepared.spec, "resume_from": resume_from}
        warn(daemon.post("/v1/check", asked)["warnings"])
        stored = daemon.put("/v1/blobs", prepared.pack())
        job = daemon.post("/v1/jobs", {**asked, "code_sha256": stored["sha256"], "submission": prepared.submission})
        if output == "json":
            print_json(job)
        else:
            click.echo(job["name"])
        if follow:
            _follow(daemon, job["name"])


@click.command()
@job_options
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="How many offers to show.")
@click.option(
    "--simulate",
    is_flag=True,
    help="Instead: what the job would have met in the last days, played on what this cluster's jobs held of its pools.",
)
@click.option(
    "--work", type=click.FloatRange(min=0.0, min_open=True), help="With --simulate: node-hours after which it ends."
)
@click.option(
    "--hours", type=click.FloatRange(min=0.0, min_open=True), help="With --simulate: only the last hours of it."
)
@click.option("--baseline", is_flag=True, help="With --simulate: also what others would have done.")
@output_option
@click.pass_context
def plan(
    context: click.Context,
    /,
    what: tuple[str, ...],
    limit: int,
    simulate: bool,
    work: float | None,
    hours: float | None,
    baseline: bool,
    output: str,
    **options: Any,
) -> None:
    """Show the offers and prices for a job.

    These are the offers that `submit` would ask the cloud for, in order. Starts nothing. Exit code 5 if the cloud has
    no such offer, or too little is recorded for --simulate; 1 if it does not answer.
    """
    if not simulate and (work is not None or hours is not None or baseline):
        raise click.UsageError("--work, --hours and --baseline go with --simulate")
    with connected(context) as daemon:
        if simulate:
            from supervisor.cli.plan_simulated import Wanted, show_simulated

            spec = _prepared(what, options).spec
            wanted = Wanted(work, hours, baseline, output)
            sys.exit(show_simulated(daemon.post("/v1/recorded", {"spec": spec}), spec, wanted))
        quote = daemon.post("/v1/plan", {"spec": _prepared(what, options).spec})
    sys.exit(_show(quote, output, limit))


def _prepared(what: tuple[str, ...], options: dict[str, Any]) -> Prepared:
    from supervisor.cli.submission import prepare
    from supervisor.errors import UsageError

    prepared = prepare(what, options)
    if not prepared.spec.get("name"):
        raise UsageError("the job has no name: give --name, or `name` in a job file")
    return prepared


def _show(quote: dict[str, Any], output: str, limit: int) -> int:
    """Print a quote, and the steps on nodes if it has them. Returns the exit code."""
    if output == "json":
        print_json({**quote, "offers": quote["offers"][:limit]})
        return 0 if quote["offers_known"] else 1
    from supervisor.cli.show import show_node_plans, show_plan

    warn(quote["warnings"])
    if quote["offers_known"]:
        show_plan(quote, limit)
    if "node_plans" in quote:
        show_node_plans(quote["node_plans"])
        click.echo("nothing was submitted")
    return 0 if quote["offers_known"] else 1


def _follow(daemon: Client, name: str) -> None:
    """One line per change, on stderr, until the job ends; the exit code says how. Ctrl-C leaves the job running."""
    try:
        sys.exit(0 if _wait_for_end(daemon, name) == "succeeded" else 1)
    except KeyboardInterrupt:
        click.echo(f"spotsupctl: {name} keeps running; `spotsupctl cancel {name}` ends it", err=True)
        sys.exit(1)


def _wait_for_end(daemon: Client, name: str) -> str:
    printed = ""
    while True:
        job = daemon.get(job_path(name))
        fraction = job["progress_fraction"]
        progress = "" if fraction is None else f"  {fraction:.0%} {job['progress_text']}"
        if (text := f"{job['state']:<9}  {job['sentence']}{progress}") != printed:
            printed = text
            loss = f"  loss {job['loss']:.4f}" if job["loss"] is not None else ""
            click.echo(f"{time.strftime('%H:%M:%S')}  {text}{loss}", err=True)
        if is_over(job):
            return str(job["state"])
        time.sleep(FOLLOW_S)
