"""`spotsupctl runs`: jobs that have ended, and what two of them differ in."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

import click

from supervisor.cli.common import connected, job_path, output_option, print_json
from supervisor.cli.completing import complete_jobs

RESULTS = ("state", "reason", "trained_s", "step", "loss", "usd")


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB [OTHER]]", shell_complete=complete_jobs)
@click.option("--limit", type=click.IntRange(min=1), default=30, show_default=True, help="How many runs to list.")
@output_option
@click.pass_context
def runs(context: click.Context, jobs: tuple[str, ...], limit: int, output: str) -> None:
    """List the jobs that have ended, newest first; or compare two jobs.

    With JOB (or a pattern such as 'res*'): only its runs, also earlier ones of that name (JOB.1). With JOB and OTHER:
    what differs in their job files and results.
    """
    if len(jobs) > 2:
        raise click.UsageError("name one job, or two to compare")
    with connected(context) as daemon:
        if len(jobs) == 2:
            rows = [daemon.get(job_path(job, "/spec")) for job in jobs]
            found = compared(rows[0], rows[1])
            if output == "json":
                print_json(found)
            else:
                from supervisor.cli.show import show_differences

                show_differences(found)
            return
        ended = [run_row(row) for row in daemon.get("/v1/jobs", past="true") if row["ended_at"]]
    if jobs:
        ended = [row for row in ended if fnmatch(row["name"], jobs[0]) or row["name"].rpartition(".")[0] == jobs[0]]
    if output == "json":
        print_json(ended[:limit])
    else:
        from supervisor.cli.show import show_runs

        show_runs(ended, limit)


def run_row(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of an ended job. `wall_s`: from its submission to its end."""
    kept = {
        key: job[key] for key in ("name", "owner", "state", "reason", "ended_at", "trained_s", "step", "loss", "usd")
    }
    return {**kept, "wall_s": round(job["ended_at"] - job["submitted_at"], 1)}


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs between two replies of `/v1/jobs/JOB/spec`: by key, the two values; None for what is not
    set."""
    mine, its = _flat(one["spec"]), _flat(other["spec"])
    keys = [key for key in dict.fromkeys([*mine, *its]) if mine.get(key) != its.get(key) and key != "name"]
    spec = {key: [mine.get(key), its.get(key)] for key in keys}
    if one["code_sha256"] != other["code_sha256"]:
        spec["code (archive)"] = [one["code_sha256"][:12], other["code_sha256"][:12]]
    results = {key: [one["row"][key], other["row"][key]] for key in RESULTS}
    return {"jobs": [one["row"]["name"], other["row"]["name"]], "spec": spec, "results": results}


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, each in value.items():
        if isinstance(each, Mapping):
            found |= _flat(each, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = each
    return found
