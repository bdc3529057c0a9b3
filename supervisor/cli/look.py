"""Commands that look: what runs, why, and what it said."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import ENDED, FOLLOW_S, connected, look, output_option, print_json

if TYPE_CHECKING:
    from supervisor.cli.client import Client

TOP_S = 2.0


@click.command("list")
@output_option
@click.pass_context
def list_jobs(context: click.Context, output: str) -> None:
    """All jobs, newest first."""
    look(context, "/v1/jobs", output, "show_jobs")


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def status(context: click.Context, job: str, output: str) -> None:
    """One job: its state, what is being done and why, and its nodes."""
    look(context, f"/v1/jobs/{job}", output, "show_job")


@click.command()
@output_option
@click.pass_context
def nodes(context: click.Context, output: str) -> None:
    """All nodes of all jobs."""
    look(context, "/v1/nodes", output, "show_nodes")


@click.command()
@click.argument("job")
@output_option
@click.pass_context
def events(context: click.Context, job: str, output: str) -> None:
    """What happened to a job, in order."""
    look(context, f"/v1/jobs/{job}/events", output, "show_events")


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Stay, and show new output until the job ends.")
@click.option("--node", default="", help="One node's output only.")
@output_option
@click.pass_context
def logs(context: click.Context, job: str, follow: bool, node: str, output: str) -> None:
    """The newest output of a job's nodes, also of nodes that are gone."""
    with connected(context) as daemon:
        chunks = daemon.get(f"/v1/jobs/{job}/logs", node=node)
        if output == "json":
            print_json(chunks)
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


@click.command()
@click.argument("job", required=False, default="")
@output_option
@click.pass_context
def cost(context: click.Context, job: str, output: str) -> None:
    """What all jobs, or one with its nodes, have cost, and cost per hour now."""
    look(context, f"/v1/jobs/{job}/cost" if job else "/v1/cost", output, "show_cost_of_job" if job else "show_costs")


@click.command()
@click.option("--every", "every_s", type=click.FloatRange(min=0.2), default=TOP_S, show_default=True, help="Seconds.")
@output_option
@click.pass_context
def top(context: click.Context, every_s: float, output: str) -> None:
    """Everything on one screen, until Ctrl-C; once where output is no terminal, or with -o json."""
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


def _everything(daemon: Client) -> dict[str, Any]:
    costs = daemon.get("/v1/cost")
    return {
        "daemon": daemon.get("/v1/health"),
        "usd_per_hour": round(sum(each["usd_per_hour"] for each in costs), 4),
        "usd": round(sum(each["usd"] for each in costs), 4),
        "jobs": daemon.get("/v1/jobs"),
        "nodes": daemon.get("/v1/nodes"),
    }
