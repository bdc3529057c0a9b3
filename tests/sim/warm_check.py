"""Warm machines, as a check on a world: each has one job at most, and one user; none waits too long."""

from __future__ import annotations

from collections.abc import Mapping

from spotsup_simulator.world import World

from supervisor.model import OPEN_NODE_STATES, WAITING_NODE_STATES, NodeState
from supervisor.planner.world import JobView


class WarmCheck:
    """Checks the records whenever they have changed."""

    def __init__(self, world: World, grace_s: float) -> None:
        self._world = world
        self._grace_s = grace_s
        self._owners: dict[str, str] = {}  # by machine, of the job that had it last
        self._waits_since: dict[str, float] = {}  # by node, by the world's clock

    def check(self, jobs: Mapping[str, JobView]) -> str:
        """What is wrong, or ""."""
        rules, now = self._world.rules.warm, self._world.clock.now()
        nodes_of: dict[str, str] = {}
        waiting: set[str] = set()
        for job in jobs.values():
            for node in job.nodes.values():
                if node.state not in OPEN_NODE_STATES or not node.instance_id:
                    continue
                other = nodes_of.setdefault(node.instance_id, node.id)
                if other != node.id:
                    return f"P2: {node.instance_id} is the machine of {other} and of {node.id}"
                owner = self._owners.setdefault(node.instance_id, job.record.owner)
                leaves = node.state is NodeState.TERMINATING
                if owner != job.record.owner and not (rules.other_users or leaves):
                    return f"warm: {node.id} of {job.record.owner!r} has a machine of {owner!r}"
                self._owners[node.instance_id] = job.record.owner
                if node.state in WAITING_NODE_STATES:
                    waiting.add(node.id)
        self._waits_since = {node: self._waits_since.get(node, now) for node in waiting}
        limit_s = 2 * rules.keep_s + self._grace_s + 2 * self._world.conditions.max_clock_error_s
        cluster = self._world.journal.read().cluster
        if cluster is not None and cluster.doubted_at:
            self._waits_since.clear()  # what the journal has as waiting may be at work
        late = [node for node, since in self._waits_since.items() if now - since > limit_s]
        if late and not self._world.etcd.full:
            return f"warm: {late[0]} has waited for {now - self._waits_since[late[0]]:.0f} s"
        agents: dict[int, str] = {}
        for agent in self._world.nodes.agents.values():
            if agent.machine.alive and not agent.exited:
                other = agents.setdefault(id(agent.machine), agent.node)
                if other != agent.node:
                    return f"P2: {agent.machine.instance.id} runs the agents of {other} and of {agent.node}"
        return ""
