"""Commands that only read: what runs, why, what it printed and what it costs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import (
    FOLLOW_S,
    all_output,
    connected,
    is_over,
    job_path,
    output_option,
    print_json,
    read_output,
    warn,
)
from supervisor.cli.completing import complete_jobs
from supervisor.errors import DaemonUnreachableError, SpotsupError

if TYPE_CHECKING:
    from spotsup.transport import Transport

    from supervisor.cli.logs import LogPrinter

TOP_S = 2.0
# As supervisor.model.JobState, which is too heavy to load here.
STATES = (
    *("queued", "starting", "running", "degraded", "waiting"),
    *("paused", "succeeded", "failed", "cancelled"),
)
# `logs -f` waits so long for a daemon that restarts.
AWAY_S = 60.0


def _show(context: click.Context, path: str, output: str, view: str, *, ask: str = "", **options: bool) -> None:
    """Read `path`, and print it as JSON or with the function `view` of show.py. `ask`: the name of what else is asked
    for, such as earlier runs (past)."""
    with connected(context) as daemon:
        found = daemon.get(path, **({ask: "true"} if ask else {}))
    if output == "json":
        print_json(found)
        return
    from supervisor.cli import show

    getattr(show, view)(found, **options)


def _all_option(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("-a", "--all", "show_all", is_flag=True, help=what)


@click.command("list")
@click.argument("pattern", required=False)
@_all_option("Also list all jobs that have ended, and earlier ones whose names were used again (JOB.1).")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--owner", help="Only jobs of this user.")
@click.option("--mine", is_flag=True, help="Only your own jobs.")
@output_option
@click.pass_context
def list_jobs(
    context: click.Context,
    pattern: str | None,
    output: str,
    states: tuple[str, ...],
    owner: str | None,
    *,
    mine: bool,
    show_all: bool,
) -> None:
    """List jobs, newest first; with PATTERN, such as 'res*', only those with such names."""
    past = show_all or output == "json"
    with connected(context) as daemon:
        found = daemon.get("/v1/jobs", past="true" if past else "")
    if mine:
        import getpass

        owner = getpass.getuser()
    shown = [job for job in found if _wanted(job, pattern, states, owner)]
    if output == "json":
        print_json(shown)
        return
    if found and not shown:
        click.echo(f"none of {len(found)} jobs is such a one; `spotsupctl list` without options shows all")
        return
    from supervisor.cli.show import show_jobs

    # Who asks for states wants all that are in them.
    show_jobs(shown, show_all=show_all or bool(states))


def _wanted(job: Mapping[str, Any], pattern: str | None, states: Collection[str], owner: str | None) -> bool:
    if pattern and not fnmatch(job["name"], pattern):
        return False
    return (not states or job["state"] in states) and (owner is None or job["owner"] == owner)


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@_all_option("List every node, also those that are gone.")
@output_option
@click.pass_context
def status(context: click.Context, job: str, output: str, *, show_all: bool) -> None:
    """Show a job, its state and its nodes.

    The first line says what the daemon does for the job, and why.
    """
    _show(context, job_path(job), output, "show_job", show_all=show_all)


@click.command()
@_all_option("List every node, also those that are gone.")
@output_option
@click.pass_context
def nodes(context: click.Context, output: str, *, show_all: bool) -> None:
    """List the nodes of all jobs."""
    _show(context, "/v1/nodes", output, "show_nodes", show_all=show_all)


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option("--jobs", "of_jobs", is_flag=True, help="Without JOB: also list the events of all jobs.")
@click.option("--raw", is_flag=True, help="List each event, with its kind, as -o json has it.")
@_all_option("List all that is kept, not only the newest.")
@output_option
@click.pass_context
def events(context: click.Context, job: str | None, output: str, *, of_jobs: bool, raw: bool, show_all: bool) -> None:
    """Tell what happened to a job, oldest first: a line for each happening, with all that came of it.

    Nodes that are lost within a minute are one happening. Requests, refusals, rounds and pauses are in the line of what
    caused them; --raw lists them one by one. Without JOB: what happened to the cluster as a whole, such as budgets,
    leaders and machines of no job.
    """
    if job and of_jobs:
        raise click.UsageError(f"--jobs lists the events of all jobs: leave it out, or leave out {job}")
    if job is None or raw or output == "json":
        path = job_path(job, "/events") if job else "/v1/events"
        _show(context, path, output, "show_events", ask="jobs" if of_jobs else "", show_all=show_all)
        return
    with connected(context) as daemon:
        found, row = daemon.get(job_path(job, "/events")), daemon.get(job_path(job))
    from supervisor.cli.show import show_story

    show_story(found, row["usd"], show_all=show_all)


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new output until the job ends.")
@click.option("--node", default="", help="Only this node's output.")
@click.option("--grep", "pattern", metavar="REGEX", help="Only lines in which this is found.")
@click.option("--since", metavar="TIME", help="Only what was printed after it: 10m ago, or as 2026-12-24T22:00Z.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines, of all nodes.")
@output_option
@click.pass_context
def logs(
    context: click.Context,
    /,
    job: str,
    follow: bool,
    node: str,
    pattern: str | None,
    since: str | None,
    tail: int | None,
    output: str,
) -> None:
    """Print the output of a job's nodes, from the first line that is kept.

    Includes nodes that are gone, and all recoveries. Each line begins with its node's id, and its rank while it is in
    the round, unless --node is given. A node's lines are in order; those of several nodes as they arrived. --since is
    exact to about half a minute, by the nodes' clocks. A terminal gets no control characters but colours, a pipe all.
    """
    if since and output == "json":
        raise click.UsageError("-o json has everything: leave --since out")
    with connected(context) as daemon:
        if output == "json":
            print_json(all_output(daemon, job, node))
            return
        from supervisor.cli.logs import LogPrinter

        ranks = {} if node else {each["id"]: each["rank"] for each in daemon.get(job_path(job))["node_list"]}
        begins = _begins(daemon, job, node, since) if since else {}
        printer = LogPrinter(named=not node, ranks=ranks, pattern=pattern, tail=tail, begins=begins)
        position = 0
        for part in read_output(daemon, job, node):
            printer.show(part["chunks"])
            position = part["position"]
        printer.end_of_past(open_lines=not follow)
        if follow:
            _follow(daemon, job, node, printer, position)


def _begins(daemon: Transport, job: str, node: str, since: str) -> dict[str, tuple[str, int]]:
    """Return, by node, where output after a time begins. Raises SpotsupError."""
    from supervisor.cli.durations import time_of

    found = daemon.get(job_path(job, "/logs/begins"), node=node, since=repr(time_of(since, time.time())))
    return {each["node"]: (each["chunk"], each["at"]) for each in found["begins"]}


def _follow(daemon: Transport, job: str, node: str, printer: LogPrinter, position: int) -> None:
    """Print what comes after `position` until the job has ended. Raises SpotsupError.

    A daemon that starts again, or waits for etcd, is waited for.
    """
    away_since = 0.0
    while True:
        try:
            over = is_over(daemon.get(job_path(job)))
            for part in read_output(daemon, job, node, position):
                printer.show(part["chunks"])
                position = part["position"]
            if over:
                return
            away_since = 0.0
        except SpotsupError as error:
            if not (isinstance(error, DaemonUnreachableError) or daemon.etcd_away_since):
                raise
            if not away_since:
                away_since = time.monotonic()
                warn([f"{error}; waiting for up to {AWAY_S:g} s"])
            elif time.monotonic() > away_since + AWAY_S:
                raise
        time.sleep(FOLLOW_S)


@click.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option(
    "--by",
    type=click.Choice(["job", "user", "purpose", "month"]),
    default="job",
    show_default=True,
    help="One row for each.",
)
@output_option
@click.pass_context
def cost(context: click.Context, job: str | None, by: str, output: str) -> None:
    """Show what jobs have cost, and cost per hour.

    With JOB: also each of its nodes, what the money was for, and what the same machine hours would have cost on demand.
    """
    if job is not None and by == "user":
        raise click.UsageError("--by user is for all jobs: leave JOB out")
    view = "show_costs" if by == "job" else f"show_costs_by_{by}"
    if job is None:
        _show(context, "/v1/cost", output, view, ask="past")
    else:
        view = "show_cost_of_job" if by == "job" else view
        _show(context, job_path(job, "/cost"), output, view, ask="on_demand")


@click.command()
@output_option
@click.pass_context
def queue(context: click.Context, output: str) -> None:
    """List the jobs that wait, in their order.

    With what each needs, why it does not train, and what would let it start. Jobs without a place in the queue are let
    start, and wait for their cloud.
    """
    _show(context, "/v1/queue", output, "show_queue")


@click.command()
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.2),
    default=TOP_S,
    show_default=True,
    help="Seconds between updates.",
)
@output_option
@click.pass_context
def top(context: click.Context, every_s: float, output: str) -> None:
    """Show everything on one screen, until Ctrl-C.

    Shows it once with -o json, or if stdout is not a terminal.
    """
    from supervisor.cli.show import show_top

    with connected(context) as daemon:
        if output == "json":
            print_json(_everything(daemon))
            return
        while True:
            found = _everything(daemon)
            if not sys.stdout.isatty():
                show_top(found)
                return
            click.clear()
            show_top(found)
            try:
                time.sleep(every_s)
            except KeyboardInterrupt:
                return


def _everything(daemon: Transport) -> dict[str, Any]:
    costs = daemon.get("/v1/cost")
    return {
        "daemon": daemon.get("/v1/health"),
        "usd_per_hour": round(sum(each["usd_per_hour"] for each in costs), 4),
        "usd": round(sum(each["usd"] for each in costs), 4),
        "jobs": daemon.get("/v1/jobs"),
        "nodes": daemon.get("/v1/nodes"),
    }
