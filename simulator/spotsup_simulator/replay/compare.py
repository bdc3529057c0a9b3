"""One job on one recording, by this daemon and by others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from spotsup_simulator.replay import baselines, oracle
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.ledger import HOUR_S, Result, Total, total_of
from spotsup_simulator.replay.recording import Recording
from spotsup_simulator.replay.run import POLICY, Replay, run_together
from spotsup_simulator.replay.schedule import Entry
from spotsup_simulator.replay.world import RecordedWorld
from supervisor.budget import Budgets
from supervisor.errors import UsageError
from supervisor.market.admission import QueueRules
from supervisor.spec import JobSpec

RIGID = "rigid"
IN_TURN = "one after another"
# What a useful node-hour is worth to the oracle where no on-demand price says it: more than any machine costs.
WORTH_USD = 1000.0


def replayed(recording: Recording, spec: JobSpec, costs: Costs, seed: int, work_node_h: float | None) -> Replay:
    """Return the daemon's own planner on the recording. Raises UsageError for a job that no recording can play."""
    if spec.kind != "training" or spec.placement.spread != "zone":
        raise UsageError(f"{spec.name}: only training jobs whose nodes share one zone can be simulated")
    return Replay(recording, spec, costs, seed, work_node_h)


def together(
    recording: Recording,
    jobs: Sequence[tuple[JobSpec, Entry]],
    costs: Costs,
    seed: int,
    *,
    in_turn: bool = False,
    queue: QueueRules = QueueRules(),  # noqa: B008 - frozen
    budgets: Budgets = Budgets(),  # noqa: B008 - frozen
) -> tuple[list[Replay], list[Total]]:
    """Jobs that share the recording within the operator's limits, each submitted in its time, and their sum. `in_turn`:
    also the sum if each had been submitted once the one before had ended. Raises UsageError."""
    make_world = partial(RecordedWorld, queue=queue, budgets=budgets)

    def played(*, one_by_one: bool) -> list[Replay]:
        replays = [
            replace(
                replayed(recording, spec, costs, seed, entry.work_node_h),
                submit_s=entry.hours * HOUR_S,
                owner=entry.owner,
            )
            for spec, entry in jobs
        ]
        run_together(replays, in_turn=one_by_one, make_world=make_world)
        return replays

    def total(policy: str, replays: Sequence[Replay]) -> Total:
        return total_of(policy, [replay.part() for replay in replays])

    together = played(one_by_one=False)
    totals = [total(POLICY, together)]
    if in_turn:
        totals.append(total(IN_TURN, played(one_by_one=True)))
    return together, totals


def others(recording: Recording, spec: JobSpec, costs: Costs, seed: int, work_node_h: float | None) -> Iterator[Result]:
    """Yield the results of the same planner with all nodes or none, the rule that restarts everything, and the
    oracle."""
    nodes = spec.nodes
    if nodes.min < nodes.desired:
        rigid = spec.model_copy(update={"nodes": nodes.model_copy(update={"min": nodes.desired, "max": nodes.desired})})
        yield replace(replayed(recording, rigid, costs, seed, work_node_h).run(), policy=RIGID)
    yield baselines.restart_all(recording, nodes.desired, costs, work_node_h)
    worth = costs.on_demand_usd_per_hour or WORTH_USD
    yield oracle.best(recording, nodes.min, nodes.desired, costs, worth, work_node_h)
