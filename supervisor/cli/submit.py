"""`spotsupctl submit` and `plan`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import connected, output_option, print_json, warn
from supervisor.cli.job_options import job_options, planned_job_options

if TYPE_CHECKING:
    from supervisor.cli.submission import Prepared

OFFERS_EXPLAINED = 5


@click.command(context_settings={"ignore_unknown_options": False})
@job_options
@click.option("--follow", is_flag=True, help="Show progress until the job ends; Ctrl-C leaves the job running.")
@click.option(
    "--resume-from",
    default="",
    metavar="JOB",
    help="Begin with the newest checkpoint of a job that has ended or is paused.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, at a terminal, before machines are rented.")
@click.option(
    *("--sweep", "axes"),
    multiple=True,
    metavar="NAME=VALUES",
    help="A job for each value, as lr=0.1,0.01 or seed=1..3: `--lr 0.1` is added to `run`; a name with a dot is a key.",
)
@click.option("--parallel", type=click.IntRange(1, 1000), help="With --sweep: so many jobs at a time.  [default: all]")
@click.option(
    "--metric",
    metavar="NAME",
    help="With --sweep: compare by what the program's `Session.report` names so.  [default: loss]",
)
@click.option(
    "--mode", type=click.Choice(["min", "max"]), help="With --metric: which value is the best.  [default: min]"
)
@click.option("--explain", is_flag=True, help="Submit nothing; show the offers, and each step on the nodes.")
@output_option
@click.pass_context
def submit(  # noqa: PLR0913, PLR0917 - one argument for each option
    context: click.Context,
    /,
    what: tuple[str, ...],
    follow: bool,
    resume_from: str,
    explain: bool,
    yes: bool,
    axes: tuple[str, ...],
    parallel: int | None,
    metric: str | None,
    mode: str | None,
    output: str,
    **options: Any,
) -> None:
    """Submit a job.

    The job is a job file, or a script after `--`, each with arguments: those after a job file are added to its `run`.
    Prints the job's name once the job is safely stored. Options override the job file. At a terminal, prices are shown
    and agreed to before machines are rented. The exit code with --follow is 0 if the job succeeds, else 1.
    """
    if explain and follow:
        raise click.UsageError("--explain submits nothing, so there is nothing to --follow")
    if axes and (follow or resume_from or explain):
        raise click.UsageError("--sweep makes several jobs: leave --follow, --resume-from and --explain out")
    if parallel and not axes:
        raise click.UsageError("--parallel goes with --sweep")
    if (metric and not axes) or (mode and not metric):
        raise click.UsageError("--metric goes with --sweep, and --mode with --metric")
    with connected(context) as daemon:
        prepared = _prepared(what, options)
        if explain:
            quote = daemon.post("/v1/explain", prepared.describe())
            sys.exit(_show(quote, output, OFFERS_EXPLAINED))
        if axes:
            from supervisor.cli.sweep import submit_sweep

            agree = None if yes or output == "json" or not at_a_terminal() else _agree
            sweep = submit_sweep(daemon, prepared, axes, parallel, (metric or "", mode or "min"), agree)
            print_json(sweep) if output == "json" else click.echo(sweep["name"])
            return
        asked = {"spec": prepared.spec, "resume_from": resume_from}
        checked = daemon.post("/v1/check", asked)
        warn(checked["warnings"])
        if checked["plan"] and not yes and output == "text" and at_a_terminal():
            _agree({**checked["plan"], "warnings": []}, checked["name"])
        from spotsup.upload import upload

        digest = upload(prepared.pack(), daemon)
        job = daemon.post("/v1/jobs", {**asked, "code_sha256": digest, "submission": prepared.submission})
        if output == "json":
            print_json(job)
        else:
            click.echo(job["name"])
        if follow:
            from supervisor.cli.following import follow as follow_job

            sys.exit(follow_job(daemon, job["name"]))


@click.command()
@planned_job_options
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
            from supervisor.cli.simulator import Wanted, show_simulated

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


def at_a_terminal() -> bool:
    """True if a person reads what is printed, and can answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _agree(quote: dict[str, Any], name: str, at_once: int = 1) -> None:
    """Ask the person at the terminal, before money is spent. `at_once`: so many jobs like it run together.

    Raises CommandRefusedError if they do not agree.
    """
    from supervisor.errors import CommandRefusedError

    if not quote["rented"]:
        return
    _show(quote, "text", OFFERS_EXPLAINED)
    if at_once > 1:
        click.echo(f"up to {at_once} jobs at a time, each at that price")
    if not click.confirm(f"Submit {name}?", default=True):
        raise CommandRefusedError("nothing was submitted; `--set KEY=VALUE` changes the job, -y does not ask")


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
