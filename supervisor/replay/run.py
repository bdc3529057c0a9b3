"""Replays a job on a recording: the real planner and loop ask a cloud that knows only what is there now."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from supervisor.api.service import Service
from supervisor.journal.journal import Reading
from supervisor.planner.actions import Action, Bootstrap, Launch
from supervisor.planner.world import Rules
from supervisor.replay.cloud import Bought, RecordedCloud
from supervisor.replay.costs import Costs
from supervisor.replay.ledger import HOUR_S, Rental, Result, moves_of, offered_node_h, usd_of
from supervisor.replay.recording import Recording
from supervisor.simulation.cloud import SimCloud
from supervisor.simulation.daemon import Daemon
from supervisor.simulation.faults import FaultRates
from supervisor.simulation.training import Training
from supervisor.simulation.world import World
from supervisor.spec import MAX_NODES, JobSpec

# What a request to a cloud takes.
CALL_S = 1.0
# Once nothing happens, a simulated daemon looks only so often: while all nodes train, and while some are missing.
STEADY_S = 300.0
MISSING_S = 10.0
CHECK_S = 60.0
# Records of nodes that are gone are for people, who have none to look at here: each decision would read all of them.
GONE_KEPT = 16
POLICY = "spotsup"
LOCAL = SimCloud.name


@dataclass
class Replay:
    """One job in one world. `run` once."""

    recording: Recording
    spec: JobSpec
    costs: Costs
    seed: int = 1
    work_node_h: float | None = None  # useful node-hours after which the program ends
    requests: int = 0
    zones: list[str] = field(default_factory=list)  # in which rounds formed, one after the other
    rounds: list[tuple[float, int]] = field(default_factory=list)  # when they formed, and their nodes

    def run(self) -> Result:
        """Let the recording's time pass, or the job's."""
        self.world = world = _World(
            self.recording, self.costs, self.spec.placement.cloud or LOCAL, self.spec.nodes.desired, self.seed
        )
        world.hooks.action.append(self._count)
        world.hooks.step.append(self._watch)
        self._seen_round = 0
        self._submit()
        end = world.started_at + self.recording.end_s
        if self.work_node_h is None:
            world.run(max(0.0, end - world.clock.now()))
        else:
            world.schedule(world.clock.now() + CHECK_S, partial(self._end_if_done))
            world.run_until(self._has_ended, max(0.0, end - world.clock.now()))
        return self._result()

    def _submit(self) -> None:
        world, cloud = self.world, self.world.cloud.name
        value = self.spec.model_dump(exclude_unset=True) | {"placement": {"cloud": cloud}}
        if "placement" in self.spec.model_fields_set:
            value["placement"] = self.spec.placement.model_dump(exclude_unset=True) | {"cloud": cloud}
        hosted = [cloud] if cloud == LOCAL else []
        service = Service(world.daemon.journal, world.daemon.leader, world.clock, [cloud], self._wait, hosted=hosted)
        service.submit(value, service.put_blob(b"code"), self.spec.name)

    def _wait(self, predicate: Callable[[Reading], bool], timeout_s: float) -> bool:
        self.world.run(min(1.0, timeout_s))
        return predicate(self.world.daemon.journal.read())

    # -- while it runs -------------------------------------------------------------------------------------

    @property
    def _training(self) -> Training | None:
        return self.world.nodes.trainings.get(self.spec.name)

    def _count(self, _daemon: Daemon, action: Action) -> None:
        self.requests += isinstance(action, Launch)

    def _watch(self) -> None:
        """Note each round, and where it is."""
        training = self._training
        formed = training.formed if training else None
        if formed is None or formed.number == self._seen_round:
            return
        self._seen_round = formed.number
        by_node = {bought.machine.instance.node: bought.offer.zone for bought in self.world.recorded.bought}
        self.zones.append(by_node[formed.nodes()[0]])
        self.rounds.append((self._second(), len(formed.nodes())))

    def _end_if_done(self) -> None:
        assert self.work_node_h is not None
        training = self._training
        if training is not None and self._useful(training) >= self.work_node_h * HOUR_S:
            training.finish()
            self.world.wake_daemons()
            return
        self.world.schedule(self.world.clock.now() + CHECK_S, self._end_if_done)

    def _has_ended(self, world: World) -> bool:
        view = world.journal.read().jobs.get(self.spec.name)
        return view is not None and view.record.ended and not any(m.billed for m in world.cloud.machines.values())

    def _second(self) -> float:
        return self.world.clock.now() - self.world.started_at

    def stretches(self) -> list[tuple[float, float, str, int]]:
        """Each time in which a round's nodes trained: start and end in seconds, zone, nodes."""
        training = self._training
        if training is None:
            return []
        began, found = self.world.started_at, []
        for span in training.spans_until(self.world.clock.now()):
            number = bisect_right(self.rounds, (span.start - began, MAX_NODES)) - 1
            found.append((span.start - began, span.end - began, self.zones[number], span.nodes))
        return found

    def machines(self) -> list[Rental]:
        """All that were paid for."""
        return [self._rental(bought) for bought in self.world.recorded.bought]

    def repeated(self) -> list[tuple[float, float, float]]:
        """The times of steps that had to be repeated: from, to, and nodes."""
        training, began = self._training, self.world.started_at
        if training is None:
            return []
        return [
            (loss.at - began - loss.steps * training.step_s, loss.at - began, len(loss.round.nodes()))
            for loss in training.losses
        ]

    # -- afterwards ----------------------------------------------------------------------------------------

    def _useful(self, training: Training) -> float:
        """Node-seconds."""
        spans = training.spans_until(self.world.clock.now())
        trained_s = sum((span.end - span.start) * span.nodes for span in spans)
        return trained_s * self.costs.useful_share - _lost_s(training)

    def _result(self) -> Result:
        training, end_s = self._training, self._second()
        useful_h = self._useful(training) / HOUR_S if training else 0.0
        trained_s = (
            sum(span.end - span.start for span in training.spans_until(self.world.clock.now())) if training else 0.0
        )
        rentals = self.machines()
        paid = sum(each.end_s - each.start_s for each in rentals) / HOUR_S
        on_demand = sum(each.end_s - each.start_s for each in rentals if not each.spot) / HOUR_S
        price = self.costs.on_demand_usd_per_hour
        nodes = self.spec.nodes
        paused_s = self.costs.pause_s * max(0, len(self.rounds) - 1)
        return Result(
            policy=POLICY,
            hours=end_s / HOUR_S,
            finished=self._has_ended(self.world),
            useful_node_h=useful_h,
            desired_node_h=nodes.desired * end_s / HOUR_S,
            offered_node_h=offered_node_h(self.recording, nodes.min, nodes.desired, end_s),
            paid_node_h=paid,
            on_demand_node_h=on_demand,
            usd=usd_of(rentals, self.recording, self.costs),
            usd_at_on_demand=None if price is None else price * useful_h,
            lost_node_h=_lost_s(training) / HOUR_S if training else 0.0,
            paused_h=paused_s / HOUR_S,
            waited_h=max(0.0, end_s - trained_s - paused_s) / HOUR_S,
            pauses=max(0, len(self.rounds) - 1),
            moves=moves_of(self.zones),
            requests=self.requests,
            refusals=self.world.recorded.refusals,
        )

    def _rental(self, bought: Bought) -> Rental:
        began, now = self.world.started_at, self.world.clock.now()
        spot, taken_at = bought.offer.market == "spot", bought.machine.instance.preempt_at
        taken_s = None if taken_at is None else taken_at - began
        return Rental(bought.offer.zone, spot, bought.since - began, bought.until(now) - began, taken_s)


class _World(World):
    """The simulated world, whose cloud is the recording, and without faults."""

    def __init__(self, recording: Recording, costs: Costs, cloud: str, desired: int, seed: int) -> None:
        self._costs = costs
        rules = Rules(notice_s={cloud: costs.notice_s}, gone_kept=GONE_KEPT)
        make = partial(RecordedCloud, name=cloud, recording=recording, costs=costs)
        super().__init__(seed, FaultRates(), rules, make_cloud=make)
        assert isinstance(self.cloud, RecordedCloud)
        self.recorded = self.cloud
        self.busy_tick_s, self._desired = 1.0, desired
        self.nodes.progress_every_s = self.nodes.checkpoint_s = costs.checkpoint_every_s
        self.nodes.saving_s, self.nodes.start_s = costs.checkpoint_s, costs.pause_s

    def tick_s(self, idle_ticks: int) -> float:
        """Seldom while all desired nodes train: time alone brings nothing then. Soon, while some are missing."""
        trainings = self.nodes.trainings.values()
        whole = [
            training.formed is not None and len(training.formed.nodes()) >= self._desired for training in trainings
        ]
        self.idle_tick_s = STEADY_S if whole and all(whole) else MISSING_S
        return super().tick_s(idle_ticks)

    def call_s(self, action: Action) -> tuple[float, float]:
        return (self._costs.bootstrap_s if isinstance(action, Bootstrap) else CALL_S), 0.0


def _lost_s(training: Training) -> float:
    """Node-seconds of steps that were repeated."""
    return sum(loss.steps * training.step_s * len(loss.round.nodes()) for loss in training.losses)
