"""`spotsupctl plan --simulate`: a job is played here, not in the daemon, on what that has recorded of its pools."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any

import click
import structlog

from provisioners.base import Market
from provisioners.registry import CLOUDS
from spotsup_simulator.replay import compare
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.kept import recording_of, sentences
from spotsup_simulator.replay.tables import as_json, table
from supervisor.cli.common import print_json, warn
from supervisor.errors import CommandRefusedError
from supervisor.pool_days import from_json
from supervisor.spec import JobSpec, parse_spec

SEED = 1
# People are told how long it may take where more is played: a week takes a minute or two.
LONG_HOURS = 48.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is played, and how it is shown."""

    work_node_h: float | None  # after which the job ends; None: it trains to the end
    hours: float | None  # the last ones of what is recorded; None: all
    baseline: bool
    output: str


def show_simulated(answer: dict[str, Any], spec_value: dict[str, Any], wanted: Wanted) -> int:
    """Print what the job would have done. Returns the exit code. Raises CommandRefusedError where too little is known.

    `answer`: the daemon's, of `/v1/recorded`.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    warn(answer["warnings"])
    if not answer["offers_known"]:
        return 1
    spec = _anywhere(parse_spec(spec_value), answer["cloud"])
    if Market.SPOT not in spec.markets:
        raise CommandRefusedError(
            f"{spec.name} asks for no spot machines (market: {spec.market}), and those are what is recorded: give "
            "--market spot"
        )
    records = [(each["day"], from_json(each)) for each in answer["days"]]
    days = [(day, record) for day, record in records if record is not None]
    unreadable = answer["unreadable"] + len(records) - len(days)
    recording, basis = recording_of(days, answer["usd_per_hour"])
    if wanted.hours is not None:
        recording = recording.cut(max(0.0, recording.end_s - wanted.hours * 3600), recording.end_s)
    elif basis.hours > LONG_HOURS:
        click.echo(f"spotsupctl: playing {basis.hours:.0f} h may take minutes; --hours plays the last ones", err=True)
    costs = Costs(notice_s=CLOUDS[answer["cloud"]].notice_s, on_demand_usd_per_hour=answer["on_demand_usd_per_hour"])
    results = [compare.replayed(recording, spec, costs, SEED, wanted.work_node_h).run()]
    if wanted.baseline:
        results += compare.others(recording, spec, costs, SEED, wanted.work_node_h)
    if wanted.output == "json":
        about = {**asdict(basis), "unreadable": unreadable}
        print_json(
            {
                "job": spec.name,
                "seed": SEED,
                "recording": about,
                "played_hours": recording.end_s / 3600,
                "results": as_json(results),
            }
        )
        return 0
    click.echo(f"{table(results)}\n")
    for sentence in sentences(basis, spec.nodes.desired):
        click.echo(sentence)
    if wanted.hours is not None:
        click.echo(f"Played are the last {recording.end_s / 3600:g} h of them.")
    if unreadable:
        click.echo(f"{unreadable} records could not be read and are left out.")
    click.echo(
        f"Assumed: {costs.boot_s:g} s to boot, {costs.bootstrap_s:g} s to prepare, {costs.pause_s:g} s per pause, a "
        f"checkpoint every {costs.checkpoint_every_s:g} s, {costs.notice_s:g} s of notice."
    )
    return 0


def _anywhere(spec: JobSpec, cloud: str) -> JobSpec:
    """Return the job without its places: the recording has no others than those that it may use."""
    placement = spec.placement.model_copy(update={"cloud": cloud, "regions": (), "zones": ()})
    return spec.model_copy(update={"placement": placement})
