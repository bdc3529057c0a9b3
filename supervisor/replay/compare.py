"""One job on one recording, by this daemon and by others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from supervisor.errors import UsageError
from supervisor.replay import baselines, oracle
from supervisor.replay.costs import Costs
from supervisor.replay.ledger import Result
from supervisor.replay.recording import Recording
from supervisor.replay.run import Replay
from supervisor.spec import JobSpec

RIGID = "rigid"
# What a useful node-hour is worth to the oracle where no on-demand price says it: more than any machine costs.
WORTH_USD = 1000.0


def replayed(recording: Recording, spec: JobSpec, costs: Costs, seed: int, work_node_h: float | None) -> Replay:
    """The daemon's own planner on the recording. Raises UsageError for a job that no recording can play."""
    if spec.kind != "training" or spec.placement.spread != "zone":
        raise UsageError(f"{spec.name}: only training jobs whose nodes share one zone can be simulated")
    return Replay(recording, spec, costs, seed, work_node_h)


def others(recording: Recording, spec: JobSpec, costs: Costs, seed: int, work_node_h: float | None) -> Iterator[Result]:
    """The same planner with all nodes or none, the rule that restarts everything, and the oracle."""
    nodes = spec.nodes
    if nodes.min < nodes.desired:
        rigid = spec.model_copy(update={"nodes": nodes.model_copy(update={"min": nodes.desired, "max": nodes.desired})})
        yield replace(replayed(recording, rigid, costs, seed, work_node_h).run(), policy=RIGID)
    yield baselines.restart_all(recording, nodes.desired, costs, work_node_h)
    worth = costs.on_demand_usd_per_hour or WORTH_USD
    yield oracle.best(recording, nodes.min, nodes.desired, costs, worth, work_node_h)
