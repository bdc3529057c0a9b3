"""The operator's limits, as a check on a world: no request goes beyond them, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from spotsup_simulator.world import World

from supervisor.features.queue.rule import gpus_of
from supervisor.market.admission import Amount
from supervisor.model import NodeState
from supervisor.planner.adoption import REASON as ADOPTED
from supervisor.planner.world import JobView

_CENT = 0.01


def requested(before: JobView, job: JobView) -> set[str]:
    """Return the nodes that were asked for since: machines that were adopted ran before."""
    added = [node for name, node in job.nodes.items() if name not in before.nodes]
    return {node.id for node in added if not node.history or node.history[0].reason != ADOPTED}


class QueueCheck:
    """Checks each new request against what all jobs have."""

    def __init__(self, world: World) -> None:
        self._world = world

    def check(self, before: JobView | None, job: JobView, jobs: Mapping[str, JobView]) -> str:
        """What is wrong, or ""."""
        rules = self._world.rules.queue
        if before is None or not rules.limits_anything or not requested(before, job):
            return ""
        record = job.record
        for scope in rules.scopes(record.owner, record.name):
            use = had = Amount()
            for each in jobs.values():
                if scope in rules.scopes(each.record.owner, each.record.name):
                    use = use.plus(self._use(each))
                    had = had.plus(self._use(before if each.record.name == record.name else each))
            cap, usd = scope.cap, use.usd_per_hour or 0.0
            # Adopted machines may be too many; one of these that is taken is replaced, which makes them no more.
            nodes, gpus = max(cap.nodes or 0, had.nodes), max(cap.gpus or 0, had.gpus)
            if (cap.nodes is not None and use.nodes > nodes) or (cap.gpus is not None and use.gpus > gpus):
                return f"P3: {record.name} requested more than {scope.name} allows: {use} of {cap}"
            # Prices that rise end no machine, and a request may cross such a rise.
            steady = not self._world.rng.injected["prices change"]
            if steady and cap.usd_per_hour is not None and usd > cap.usd_per_hour + _CENT:
                return f"P13: {record.name} requested more than {scope.name} allows: ${usd:.2f} of {cap}"
        return ""

    def _use(self, job: JobView) -> Amount:
        """What a job takes up: whatever bills; dollars count a little longer."""
        there = [node for node in job.nodes.values() if node.state is not NodeState.GONE]
        machines = self._world.cloud.machines
        bills = [node for node in there if node.instance_id not in machines or machines[node.instance_id].billed]
        usd = sum(node.offer.usd_per_hour or 0.0 for node in there)
        return Amount(len(bills), sum(gpus_of(node.offer, job.record.spec) for node in bills), usd)
