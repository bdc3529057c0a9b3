"""`spotsupd simulate`: what a job would do on a recorded spot market."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import exit_on_error, output_option, print_json

if TYPE_CHECKING:
    from spotsup_simulator.replay.costs import Costs
    from spotsup_simulator.replay.recording import Recording

FILE = click.Path(path_type=Path)
POSITIVE = click.FloatRange(min=0.0, min_open=True)
NOT_NEGATIVE = click.FloatRange(min=0.0)


# Of each field of Costs: its option, the values that it takes, its default, and what it says.
_COSTS = {
    "boot_s": ("boot", NOT_NEGATIVE, 100.0, "Seconds to boot."),
    "bootstrap_s": ("bootstrap", NOT_NEGATIVE, 20.0, "Seconds to prepare a machine."),
    "pause_s": ("pause", NOT_NEGATIVE, 5.0, "Seconds for which a change of nodes stops all."),
    "checkpoint_every_s": ("checkpoint-every", POSITIVE, 300.0, "Seconds between checkpoints."),
    "checkpoint_s": ("checkpoint", NOT_NEGATIVE, 2.0, "Seconds that a checkpoint takes."),
    "notice_s": ("notice", NOT_NEGATIVE, 120.0, "Seconds before a machine is taken."),
    "spot_usd_per_hour": ("spot-usd", NOT_NEGATIVE, None, "USD per spot machine and hour, without a file of prices."),
    "on_demand_usd_per_hour": ("on-demand-usd", NOT_NEGATIVE, None, "USD per on-demand machine and hour, if any."),
}


def _costs(command: Callable[..., None]) -> Callable[..., None]:
    """Return what machines, pauses and checkpoints cost: an option for each number."""

    @wraps(command)
    def run(**options: Any) -> None:
        from spotsup_simulator.replay.costs import Costs

        command(costs=Costs(**{name: options.pop(name) for name in _COSTS}), **options)

    for name, (option, kind, default, text) in reversed(_COSTS.items()):
        run = click.option(f"--{option}", name, type=kind, default=default, show_default=True, help=text)(run)
    return run


@click.command()
@click.argument("recording", type=FILE)
@click.option("--job", "job_path", type=FILE, help="The job file.")
@click.option("--jobs", "folder", type=FILE, help="Instead: a folder of job files, which share the recording.")
@click.option("--every", "every_h", type=NOT_NEGATIVE, default=0.0, help="Hours between the submissions of --jobs.")
@click.option("--config", type=FILE, help="With --jobs: a daemon's configuration, for its [queue] and [budget].")
@click.option("--prices", type=FILE, help="Spot prices of the recording's zones: a CSV `seconds,ZONE…`.")
@click.option("--start", "start_h", type=NOT_NEGATIVE, default=0.0, show_default=True, help="Hours to leave out.")
@click.option("--hours", type=POSITIVE, help="Hours of it to use.  [default: all]")
@click.option("--work", "work_node_h", type=POSITIVE, help="Node-hours after which a job ends.  [default: never]")
@_costs
@click.option("--seed", type=int, default=1, show_default=True, help="Which machines of a zone are taken.")
@click.option("--baseline", is_flag=True, help="Also what others would have done; with --jobs: one after another.")
@output_option
def simulate(recording: Path, costs: Costs, output: str, **options: Any) -> None:
    """Play a job on a RECORDING of a spot market, by this daemon's own planner, and print what came of it.

    The recording is a CSV: `seconds,ZONE,ZONE…` with how many machines each zone would have granted, or
    `seconds,event,node` with the nodes that a group really held. No cloud is asked, and no daemon has to run.
    """
    import structlog

    from spotsup_simulator.replay.recording import read

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if (options["job_path"] is None) is (options["folder"] is None):
        raise click.UsageError("give one of --job JOB.yaml and --jobs FOLDER")
    if options["config"] is not None and options["folder"] is None:
        raise click.UsageError("--config has limits that jobs share: it goes with --jobs FOLDER")
    with exit_on_error("spotsupd"):
        market, start_h, hours = read(recording, options["prices"]), options["start_h"], options["hours"]
        market = market.cut(start_h * 3600, market.end_s if hours is None else (start_h + hours) * 3600)
        play = _play_one if options["folder"] is None else _play_many
        values, text = play(market, costs, options)
    if output == "json":
        print_json({"recording": market.name, **values})
    else:
        click.echo(text)


def _play_one(market: Recording, costs: Costs, options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the result as JSON, and as a table. Raises UsageError."""
    from spotsup_simulator.replay import compare
    from spotsup_simulator.replay.tables import as_json, table
    from supervisor.cli.check_job import read_job

    spec, seed, work_node_h = read_job(options["job_path"]), options["seed"], options["work_node_h"]
    replay = compare.replayed(market, spec, costs, seed, work_node_h)
    results = [replay.run()]
    if options["baseline"]:
        results += compare.others(market, spec, costs, seed, work_node_h)
    return {"job": spec.name, "seed": seed, "results": as_json(results)}, table(results)


def _play_many(market: Recording, costs: Costs, options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the same of several jobs. Raises UsageError."""
    from spotsup_simulator.replay import compare
    from spotsup_simulator.replay.schedule import schedule_of
    from spotsup_simulator.replay.tables import jobs_as_json, table_of_jobs
    from supervisor.cli.check_job import read_job
    from supervisor.config import load_config
    from supervisor.errors import UsageError

    folder, seed = options["folder"], options["seed"]
    entries = schedule_of(folder, options["every_h"], options["work_node_h"])
    if options["baseline"] and any(entry.work_node_h is None for entry in entries):
        raise UsageError("--baseline plays the jobs one after another: give each its work, with --work or the schedule")
    jobs = [(read_job(folder / entry.file), entry) for entry in entries]
    rules = load_config(options["config"]).rules()
    replays, totals = compare.together(
        market, jobs, costs, seed, in_turn=options["baseline"], queue=rules.queue, budgets=rules.budgets
    )
    parts = [replay.part() for replay in replays]
    return {"seed": seed, **jobs_as_json(parts, totals)}, table_of_jobs(parts, totals)
