"""`spotsupctl submit --sweep`, and `spotsupctl sweep`: several jobs that differ in parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import connected, output_option, print_json, sweep_path
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from spotsup.transport import Transport

    from supervisor.cli.submission import Prepared

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
MAX_VALUES = 100


def axis(text: str) -> tuple[str, list[Any]]:
    """`lr=0.1,0.01` or `seed=1..3`: a name and its values. Those of a key, with a dot, are typed as in a job file.

    Raises UsageError.
    """
    from supervisor.job_text import read_yaml

    name, given, values = text.partition("=")
    if not given or not name or not values:
        raise UsageError(f"--sweep {text}: write NAME=VALUE,VALUE or NAME=1..3")
    if found := _RANGE.fullmatch(values):
        first, last = int(found[1]), int(found[2])
        if not 0 <= last - first < MAX_VALUES:
            raise UsageError(f"--sweep {text}: a range goes upwards, over at most {MAX_VALUES} values")
        return name, list(range(first, last + 1))
    parts = [part.strip() for part in values.split(",")]
    is_typed = "." in name and not name.startswith("env.")
    return name, [read_yaml(part) if is_typed else part for part in parts]


def submit_sweep(
    daemon: Transport,
    prepared: Prepared,
    axes: Sequence[str],
    parallel: int | None,
    by: tuple[str, str],
    agree: Callable[[dict[str, Any], str, int], None] | None,
) -> dict[str, Any]:
    """Store a sweep. Returns it. Raises SpotsupError.

    `by`: the metric, and which of its "min" and "max" is the best. `agree` asks the person first."""
    from spotsup.upload import upload

    parsed = [axis(text) for text in axes]
    count = math.prod(len(values) for _, values in parsed)
    at_once = min(parallel or count, count)
    if agree is not None:
        agree(daemon.post("/v1/plan", {"spec": prepared.spec}), prepared.spec["name"], at_once)
    digest = upload(prepared.pack(), daemon)
    body = {
        "spec": prepared.spec,
        "code_sha256": digest,
        "submission": prepared.submission,
        "axes": [{"name": name, "values": values} for name, values in parsed],
        "parallel": at_once,
        "metric": "" if by[0] == "loss" else by[0],
        "mode": by[1],
    }
    found: dict[str, Any] = daemon.post("/v1/sweeps", body)
    return found


@click.group()
def sweep() -> None:
    """Show and end sweeps: `submit --sweep` begins one."""


@sweep.command("list")
@output_option
@click.pass_context
def list_sweeps(context: click.Context, output: str) -> None:
    """List sweeps, newest first."""
    with connected(context) as daemon:
        found = daemon.get("/v1/sweeps")
    if output == "json":
        print_json(found)
        return
    from supervisor.cli.show_sweep import show_sweeps

    show_sweeps(found)


@sweep.command("show")
@click.argument("name", metavar="SWEEP")
@output_option
@click.pass_context
def show_one(context: click.Context, name: str, output: str) -> None:
    """Show a sweep's jobs with their parameters, the best first, and what they cost."""
    with connected(context) as daemon:
        found = daemon.get(sweep_path(name))
    if output == "json":
        print_json(found)
        return
    from supervisor.cli.show_sweep import show_sweep

    show_sweep(found)


@sweep.command("cancel")
@click.argument("name", metavar="SWEEP")
@output_option
@click.pass_context
def cancel_sweep(context: click.Context, name: str, output: str) -> None:
    """End all jobs of a sweep, and begin no more of them."""
    with connected(context) as daemon:
        found = daemon.post(sweep_path(name, "/cancel"))
    if output == "json":
        print_json(found)
    else:
        click.echo(f"{name}: {found['state']}; `spotsupctl sweep show {name}` shows its jobs")
