"""The simulated world on a recording: its cloud is the recording, and there are no faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from provisioners.base import Instance, Market
from spotsup_simulator.clock import NEVER
from spotsup_simulator.cloud import SimCloud
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.replay.cloud import RecordedCloud
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.recording import Recording
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World
from supervisor.budget import Budgets
from supervisor.market.admission import QueueRules
from supervisor.market.capacity import CapacityMemory
from supervisor.planner.actions import Action, Bootstrap, ListDone, Outcome
from supervisor.planner.world import Rules
from supervisor.spec import JobSpec

# What a request to a cloud takes.
CALL_S = 1.0
# Once nothing happens, a simulated daemon looks only so often: while all nodes train, and while some are missing. As
# often, steps are reported.
STEADY_S = 900.0
# But where something is to end with time: a job's limits, its deadline, its alternative, or a budget.
TIMED_S = 300.0
# But while on-demand nodes are held: gaps longer than a minute pause a daemon's timers, and they would stay for ever.
PAYING_S = 50.0
MISSING_S = 30.0
IDLE_TICKS = 1  # in a row without anything to do, after which there is nothing more
LOCAL = SimCloud.name


class RecordedWorld(World):
    """The world of one replay, or of several that share it."""

    faultless = True
    # Records of nodes that are gone, and events, are for people, of whom there are none: each decision would read them.
    records_kept = 16

    def __init__(
        self,
        recording: Recording,
        costs: Costs,
        cloud: str,
        seed: int,
        *,
        queue: QueueRules = QueueRules(),  # noqa: B008 - frozen
        queue_hold_s: float = Rules().queue_hold_s,
        budgets: Budgets = Budgets(),  # noqa: B008 - frozen
        changed: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`queue`, `queue_hold_s`, `budgets`: as of Rules. `changed`: other numbers of Rules, or of its
        parts, such as `moves.gain`."""
        self._costs = costs
        # By job that was submitted and has not ended: how many nodes it wants.
        self.desired: dict[str, int] = {}
        rules = Rules(
            notice_s={cloud: costs.notice_s},
            max_notice_s={cloud: costs.notice_s},
            leftovers_s=NEVER,  # nothing is ever left behind
            note_s=NEVER,  # no round ends unseen
            gone_kept=self.records_kept,
            events_kept=self.records_kept,
            queue=queue,
            queue_hold_s=queue_hold_s,
            budgets=budgets,
        )
        for name, value in changed.items():
            rules = _with(rules, name, value)
        make = partial(RecordedCloud, name=cloud, recording=recording, costs=costs)
        super().__init__(Conditions(seed, FaultRates(), rules, make_cloud=make))
        assert isinstance(self.cloud, RecordedCloud)
        self.recorded = self.cloud
        self.min_tick_s = CALL_S  # what a tick has written, and what came of its calls, is looked at once
        self._listed: tuple[Instance, ...] | None = None
        self.nodes.checkpoint_s = costs.checkpoint_every_s
        self.nodes.saving_s, self.nodes.start_s = costs.checkpoint_s, costs.pause_s
        self.nodes.progress_every_s = TIMED_S if budgets.any else STEADY_S

    def expect(self, spec: JobSpec) -> None:
        """Expect a job that is submitted now."""
        self.desired[spec.name] = spec.nodes.desired
        limits = spec.limits
        if spec.finish_by or spec.kinds or limits.hours or limits.usd or limits.usd_per_month:
            self.nodes.progress_every_s = TIMED_S

    def tick_at(self, ticked_at: float, idle_ticks: int) -> float:
        """Soon, while there is something to do. Then seldom, while all desired nodes train: time alone brings nothing.
        While some are missing, now and then, and when a pool may be asked again."""
        soon = ticked_at + self.busy_tick_s
        if idle_ticks < IDLE_TICKS:
            return soon
        if self.desired and all(self._is_whole(job, nodes) for job, nodes in self.desired.items()):
            return ticked_at + (PAYING_S if self._pays_on_demand() else self.nodes.progress_every_s)
        asks_at = min(changes_at(daemon.loop.capacity, ticked_at) for daemon in self.daemons)
        return min(ticked_at + MISSING_S, max(asks_at, soon))

    def _pays_on_demand(self) -> bool:
        if self._costs.on_demand_usd_per_hour is None:
            return False
        return any(each.offer.market is Market.ON_DEMAND and each.machine.alive for each in self.recorded.bought)

    def _is_whole(self, job: str, nodes: int) -> bool:
        training = self.nodes.trainings.get(job)
        formed = training.formed if training is not None and training.steps.under_way else None
        return formed is not None and len(formed.nodes()) >= nodes

    def is_news(self, outcome: Outcome) -> bool:
        """True if a listing is news: one that shows the same as the one before is none."""
        if not isinstance(outcome, ListDone):
            return True
        before, self._listed = self._listed, outcome.instances
        return outcome.instances != before

    def call_s(self, action: Action) -> tuple[float, float]:
        return (self._costs.bootstrap_s if isinstance(action, Bootstrap) else CALL_S), 0.0


def changes_at(memory: CapacityMemory, now: float) -> float:
    """Return when the next of the refusals is not believed any more; NEVER where none is."""
    ends = [each.until for each in memory.refusals]
    ends += [each.until for known in (memory.late, memory.too_few) for each in known.values()]
    return min((end for end in ends if end > now), default=NEVER)


def _with(rules: Rules, name: str, value: float) -> Rules:
    """These rules with one number changed, in a part of them where the name has a dot."""
    part, _, number = name.rpartition(".")
    changed: Any = replace(getattr(rules, part), **{number: value}) if part else value
    return replace(rules, **{part or name: changed})
