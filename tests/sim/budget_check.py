"""Budgets, as a check on a world: once the cloud has billed one whole, no machine is requested on it."""

from __future__ import annotations

from collections.abc import Mapping

from provisioners.base import Market
from supervisor.budget import CLUSTER
from supervisor.planner.world import JobView
from supervisor.simulation.cloud import OWNER, Machine
from supervisor.simulation.world import World

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
        self._owners |= {name: each.record.owner for name, each in jobs.items()}
        if before is None or not budgets.any or not job.nodes.keys() - before.nodes.keys():
            return ""
        if any(world.rng.injected[kind] for kind in UNCOUNTED):
            return ""
        owner = job.record.owner
        limits = {CLUSTER: budgets.usd_per_month, f"user {owner}": budgets.of_user(owner)}
        for scope, limit in limits.items():
            spent = self.spent(None if scope == CLUSTER else owner)
            if limit is not None and spent > limit * (1 + SLACK_SHARE) + SLACK_USD:
                return (
                    f"P13: {job.record.name} requested a machine, and ${spent:.2f} of ${limit:g} of {scope} are spent"
                )
        return ""

    def spent(self, owner: str | None = None) -> float:
        """US dollars for all machines, or for those of one user's jobs."""
        machines = self._world.cloud.machines.values()
        ours = [each for each in machines if each.instance.owner == OWNER]
        return sum(self._usd(each) for each in ours if owner is None or self._owner_of(each) == owner)

    def _owner_of(self, machine: Machine) -> str | None:
        return self._owners.get(machine.node.rsplit("-", 2)[0])

    def _usd(self, machine: Machine) -> float:
        instance, cloud = machine.instance, self._world.cloud
        until = self._world.clock.now() if machine.ended_at is None else machine.ended_at
        price = cloud.price_of(instance.zone, instance.instance_type, Market.SPOT)
        return price * max(0.0, until - machine.history[0][0]) / 3600.0
