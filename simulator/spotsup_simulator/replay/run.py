"""Replays jobs on a recording: the real planner and loop ask a cloud that knows only what is there now."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from spotsup_simulator.daemon import Daemon
from spotsup_simulator.replay.cloud import Bought
from spotsup_simulator.replay.costs import Costs
from spotsup_simulator.replay.ledger import HOUR_S, Part, Rental, Result, moves_of, offered_node_h, usd_of
from spotsup_simulator.replay.recording import Recording
from spotsup_simulator.replay.world import LOCAL, RecordedWorld
from spotsup_simulator.training import Training
from supervisor.api.service import Service
from supervisor.deadlines import duration_s
from supervisor.errors import UsageError
from supervisor.journal.journal import Reading
from supervisor.planner.actions import Action, Launch
from supervisor.spec import MAX_NODES, JobSpec

CHECK_S = 60.0
POLICY = "spotsup"


@dataclass
class Replay:
    """One job on a recording. `run` once; or `run_together` with others."""

    recording: Recording
    spec: JobSpec
    costs: Costs
    seed: int = 1
    work_node_h: float | None = None  # useful node-hours after which the program ends
    submit_s: float = 0.0  # of the recording
    owner: str = ""  # who submits it
    requests: int = 0
    zones: list[str] = field(default_factory=list)  # in which rounds formed, one after the other
    rounds: list[tuple[float, int]] = field(default_factory=list)  # when they formed, and their nodes
    submitted: bool = False
    ended_s: float | None = None  # when its program and its last machine had ended

    def run(self) -> Result:
        """Let the recording's time pass, or the job's."""
        return run_together([self])[0]

    def join(self, world: RecordedWorld) -> None:
        """This is its world."""
        self.world = world
        world.hooks.action.append(self._count)
        world.hooks.step.append(self._watch)
        self._seen_round = 0

    def submit(self) -> None:
        """Submit the job now."""
        self.submitted = True
        world, cloud = self.world, self.world.cloud.name
        world.expect(self.spec)
        apart = {"start_after", "schedule", "places"}  # it is in one place, the recording's
        if self.spec.finish_by and duration_s(self.spec.finish_by) is None:
            apart |= {"finish_by", "work"}  # a time of the day: recordings have none
        value = self.spec.model_dump(exclude_unset=True, exclude=apart)
        value["placement"] = {"cloud": cloud}
        if "placement" in self.spec.model_fields_set:
            value["placement"] = self.spec.placement.model_dump(exclude_unset=True) | {"cloud": cloud}
        if self.spec.places and self.spec.storage:
            here = [each for each in self.spec.storage if not each.cloud]
            value["storage"] = [each.model_dump(exclude_unset=True) for each in here]
        hosted = [cloud] if cloud == LOCAL else []
        service = Service(world.daemon.journal, world.daemon.leader, world.clock, [cloud], self._wait, hosted=hosted)
        service.submissions.submit(value, service.submissions.put_blob(b"code"), self.spec.name, owner=self.owner)
        if self.work_node_h is not None:
            world.schedule(world.clock.now() + CHECK_S, partial(self._end_if_done))

    def _wait(self, predicate: Callable[[Reading], bool], timeout_s: float) -> bool:
        self.world.run(min(1.0, timeout_s))
        return predicate(self.world.daemon.journal.read())

    # -- while it runs -------------------------------------------------------------------------------------

    @property
    def _training(self) -> Training | None:
        return self.world.nodes.trainings.get(self.spec.name)

    def _count(self, _daemon: Daemon, action: Action) -> None:
        self.requests += isinstance(action, Launch) and action.node.job == self.spec.name

    def _watch(self) -> None:
        """Note each round, and where it is."""
        training = self._training
        formed = training.formed if training else None
        if formed is None or formed.number == self._seen_round:
            return
        self._seen_round = formed.number
        by_node = {bought.machine.instance.node: bought.offer.zone for bought in self._bought()}
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

    def look(self) -> bool:
        """True if it has ended; notes when."""
        if self.ended_s is None and self.submitted:
            view = self.world.journal.read().jobs.get(self.spec.name)
            if view is not None and view.record.ended and not any(bought.machine.billed for bought in self._bought()):
                self.ended_s = self._second()
                self.world.desired.pop(self.spec.name)
        return self.ended_s is not None

    def _until(self) -> float:
        """Now, or when it ended: its last round was not stopped, it only has no machines any more."""
        return self.world.clock.now() if self.ended_s is None else self.world.started_at + self.ended_s

    def _second(self) -> float:
        return self.world.clock.now() - self.world.started_at

    def stretches(self) -> list[tuple[float, float, str, int]]:
        """Return each time in which a round's nodes trained: start and end in seconds, zone, nodes."""
        training = self._training
        if training is None:
            return []
        began, found = self.world.started_at, []
        for span in training.steps.spans_until(self._until()):
            number = bisect_right(self.rounds, (span.start - began, MAX_NODES)) - 1
            found.append((span.start - began, span.end - began, self.zones[number], span.nodes))
        return found

    def _bought(self) -> list[Bought]:
        return self.world.recorded.bought_for.get(self.spec.name, [])

    def machines(self) -> list[Rental]:
        """Return all that were paid for."""
        return [self._rental(bought) for bought in self._bought()]

    def refused(self) -> Sequence[float]:
        """Return when a request was refused, in seconds."""
        return self.world.recorded.refused_at.get(self.spec.name, ())

    def moved(self) -> list[float]:
        """Return when a round formed in another zone than the one before, in seconds."""
        pairs = zip(pairwise(self.zones), self.rounds[1:], strict=True)
        return [second for (before, after), (second, _) in pairs if before != after]

    def repeated(self) -> list[tuple[float, float, float]]:
        """Return the times of steps that had to be repeated: from, to, and nodes."""
        training, began = self._training, self.world.started_at
        if training is None:
            return []
        return [
            (loss.at - began - loss.steps * training.steps.step_s, loss.at - began, len(loss.round.nodes()))
            for loss in training.steps.losses
        ]

    # -- afterwards ----------------------------------------------------------------------------------------

    def _useful(self, training: Training) -> float:
        """Node-seconds."""
        spans = training.steps.spans_until(self._until())
        trained_s = sum((span.end - span.start) * span.nodes for span in spans)
        return trained_s * self.costs.useful_share - _lost_s(training)

    def result(self) -> Result:
        """Return what came of it."""
        training, until_s = self._training, self._until() - self.world.started_at
        end_s = max(0.0, until_s - self.submit_s)
        useful_h = self._useful(training) / HOUR_S if training else 0.0
        trained_s = (
            sum(span.end - span.start for span in training.steps.spans_until(self._until())) if training else 0.0
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
            finished=self.ended_s is not None,
            useful_node_h=useful_h,
            desired_node_h=nodes.desired * end_s / HOUR_S,
            offered_node_h=offered_node_h(self.recording, nodes.min, nodes.desired, until_s)
            - offered_node_h(self.recording, nodes.min, nodes.desired, min(self.submit_s, until_s)),
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
            refusals=len(self.refused()),
        )

    def part(self) -> Part:
        """Return the same, for one of several jobs."""
        stretches = self.stretches()
        first_h = (stretches[0][0] - self.submit_s) / HOUR_S if stretches else None
        return Part(self.spec.name, self.submit_s / HOUR_S, first_h, self.result())

    def _rental(self, bought: Bought) -> Rental:
        began, now = self.world.started_at, self.world.clock.now()
        spot, taken_at = bought.offer.market == "spot", bought.machine.instance.preempt_at
        taken_s = None if taken_at is None else taken_at - began
        return Rental(bought.offer.zone, spot, bought.since - began, bought.until(now) - began, taken_s)


def run_together(
    replays: Sequence[Replay],
    *,
    in_turn: bool = False,
    make_world: Callable[[Recording, Costs, str, int], RecordedWorld] = RecordedWorld,
) -> list[Result]:
    """Let them share one recording, one daemon and one planner. `in_turn`: each is submitted once the one before has
    ended, and not before its time. Raises UsageError for jobs that cannot be in one world."""
    first = replays[0]
    clouds = {replay.spec.placement.cloud or LOCAL for replay in replays}
    if len(clouds) > 1:
        raise UsageError(f"the jobs name the clouds {', '.join(sorted(clouds))}: one recording is of one cloud")
    names = sorted(replay.spec.name for replay in replays)
    if twice := [name for name, other in pairwise(names) if name == other]:
        raise UsageError(f"two jobs are named {twice[0]}: each needs a name of its own")
    world = make_world(first.recording, first.costs, clouds.pop(), first.seed)
    for replay in replays:
        replay.join(world)
    end = world.started_at + first.recording.end_s
    works = [replay for replay in replays if replay.work_node_h is not None]

    def have_ended(_: object) -> bool:
        found = [replay.look() for replay in works if replay.submitted]  # each is looked at: it notes when
        return all(found)

    def pass_time(until: float, *, ends: bool) -> None:
        world.run_until(lambda each: have_ended(each) and ends, max(0.0, until - world.clock.now()))

    for replay in sorted(replays, key=lambda replay: replay.submit_s):  # as they are given, where times are equal
        if world.clock.now() < world.started_at + replay.submit_s:
            pass_time(min(end, world.started_at + replay.submit_s), ends=False)
        if world.clock.now() < end:
            replay.submit()
        if in_turn:
            pass_time(end, ends=True)
    pass_time(end, ends=len(works) == len(replays))
    for replay in replays:
        replay.look()
    return [replay.result() for replay in replays]


def _lost_s(training: Training) -> float:
    """Node-seconds of steps that were repeated."""
    return sum(loss.steps * training.steps.step_s * len(loss.round.nodes()) for loss in training.steps.losses)
