"""Budgets, as a check on a world: once the cloud has billed one whole, no machine is requested on it."""

from __future__ import annotations

from collections.abc import Mapping

from spotsup_simulator.cloud import OWNER
from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World

from supervisor.budget import CLUSTER
from supervisor.planner.world import JobView

# Machines that no journal knows yet, or not any more, are billed, too.
SLACK_SHARE, SLACK_USD = 0.1, 0.03
# What changes prices, or what is known of the money spent.
UNCOUNTED = ("prices change", "backup restored", "writes lost", "unjournaled machine")


class BudgetCheck:
    """Checks each new request against what the cloud's machines have cost."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Of each job that was seen: a machine is known by its job's name.
        self._owners: dict[str, str] = {}

    def check(self, before: JobView | None, job: JobView, jobs: Mapping[str, JobView]) -> str:
        """What is wrong, or ""."""
        budgets, world = self._world.rules.budgets, self._world
        if not budgets.any:
            return ""
        self._owners |= {name: each.record.owner for name, each in jobs.items()}
        if before is None or not job.nodes.keys() - before.nodes.keys():
            return ""
        if any(world.rng.injected[kind] for kind in UNCOUNTED):
            return ""
        owner = job.record.owner
        limits = {CLUSTER: budgets.usd_per_month, f"user {owner}": budgets.of_user(owner)}
        for scope, limit in limits.items():
            if limit is None:
                continue
            spent = self.spent(None if scope == CLUSTER else owner)
            if spent > limit * (1 + SLACK_SHARE) + SLACK_USD:
                name = job.record.name
                return f"P13: {name} requested a machine, and ${spent:.2f} of ${limit:g} of {scope} are spent"
        return ""

    def spent(self, owner: str | None = None) -> float:
        """US dollars for all machines, or for those of one user's jobs."""
        cloud = self._world.cloud
        ours = [each for each in cloud.machines.values() if each.instance.owner == OWNER]
        return sum(cloud.cost_usd(each) for each in ours if owner is None or self._owner_of(each) == owner)

    def _owner_of(self, machine: Machine) -> str | None:
        return self._owners.get(machine.node.rsplit("-", 2)[0])
