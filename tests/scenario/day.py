"""Plays the day in a simulated world: the real planner, loop, journal and sweeps; every promise checked after every
event. Raises Violation."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from spotsup_simulator.daemon import Daemon
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.replay.recording import Recording
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.training import Training
from spotsup_simulator.world import World
from spotsup_trainer.etcd import Compare

from provisioners.base import Provisioner
from supervisor.access import Caller, Role
from supervisor.api.rows import SweepRow
from supervisor.api.sweeps import AxisBody, SweepBody, Sweeps
from supervisor.model import Event, JobState, NodeRecord, NodeState
from supervisor.planner.actions import Commit
from supervisor.planner.world import Rules
from supervisor.runtime.sweeps import SweepKeeper
from tests.scenario.market import CLOUDS, NOTICE_S, DayCloud, OneCloud, pools_of
from tests.scenario.outage import AWAY, Outage, begun, judge
from tests.scenario.story import HOUR_S, STORE, Job, Step, Story, Sweep
from tests.sim.promises import Promises, Violation, jobs_of
from tests.sim.users import Terms, Users, service_of

CHECKPOINT_EVERY_S, CHECKPOINT_S, START_S = 600.0, 12.0, 15.0
BOOTSTRAP_S = 60.0
LOOK_S = 30.0  # between two looks at whether programs have done their work
SAMPLE_S = 300.0  # between two points of the report's curves
MAX_STORY = 400


def at_once(call: Callable[[], Any], _: str) -> Future[Any]:
    """Runs a keeper's look as if its thread took no time."""
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - raised where the result is read
        future.set_exception(error)
    return future


class DayWorld(World):
    """A world of several clouds."""

    def __init__(self, seed: int, story: Story, recording: Recording | None) -> None:
        pools = pools_of(seed, story.hours, recording)
        rules = Rules(
            notice_s=NOTICE_S,
            queue=story.queue,
            budgets=story.budgets,
            listing_s=15.0,
            prices_s=600.0,
            gone_kept=50,
            alerts=True,
        )
        super().__init__(Conditions(seed, FaultRates(), rules, make_cloud=partial(DayCloud, pools=pools)))
        self.busy_tick_s, self.idle_tick_s, self.bootstrap_s = 2.0, 60.0, BOOTSTRAP_S
        self.nodes.progress_every_s, self.nodes.checkpoint_s = 300.0, CHECKPOINT_EVERY_S
        self.nodes.saving_s, self.nodes.start_s = CHECKPOINT_S, START_S

    @property
    def clouds(self) -> DayCloud:
        assert isinstance(self.cloud, DayCloud)
        return self.cloud

    @property
    def provisioners(self) -> Mapping[str, Provisioner]:
        return {name: OneCloud(name, self.clouds) for name in CLOUDS}


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stood at one moment."""

    second: float
    held: int  # machines that cost money
    training: Mapping[str, int]  # by user
    usd_per_h: float
    waiting: int  # jobs in the queue, or without enough machines
    leader: bool


@dataclass
class Takeover:
    """Nobody led, for so long."""

    at_s: float
    why: str
    seconds: float | None = None


@dataclass
class Told:
    """A sentence of the day's story."""

    second: float
    kind: str  # user, fault, money, good
    text: str


@dataclass
class Track:
    """What is remembered of a job while the day passes."""

    submitted_s: float
    first_step_s: float | None = None
    waiting_s: float = 0.0  # without enough nodes to train although it was to
    work_done: bool = False


@dataclass
class Day:
    """One day. `play` once."""

    seed: int
    story: Story
    recording: Recording | None = None
    told: list[Told] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)
    tracks: dict[str, Track] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    nodes: dict[str, dict[str, NodeRecord]] = field(default_factory=dict)  # by job and id, as written last
    decisions: Counter[str] = field(default_factory=Counter)
    trained_on: int = 0  # rounds that an outage could have stopped, and did not
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __post_init__(self) -> None:
        self.world = DayWorld(self.seed, self.story, self.recording)
        self.promises = Promises(self.world, leak_grace_s=900.0)
        queue, budgeted = self.story.queue, self.story.budgets.any
        self.users = Users(self.world, Terms(CLOUDS, (), queue, budgeted))
        self.world.start_daemon()  # a standby
        self._keepers: dict[str, SweepKeeper] = {}
        self._works = {job.name: job.work_node_h for job in self.story.jobs}
        self.world.hooks.commit.append(self._on_commit)
        self.world.hooks.step.append(self._watch_leader)

    # -- the day -------------------------------------------------------------------------------------------

    def play(self) -> Day:
        """Let it pass."""
        wall, cpu = time.monotonic(), time.process_time()
        world, story = self.world, self.story
        for job in story.jobs:
            self._at(job.hour, partial(self._submit, job))
        if story.sweep:
            self._at(story.sweep.hour, partial(self._submit_sweep, story.sweep))
        for step in story.steps:
            self._at(step.hour, partial(self._do, step))
        for number in range(int(story.hours * HOUR_S / LOOK_S)):
            world.schedule(world.started_at + number * LOOK_S, self._look)
        world.run(world.started_at + story.hours * HOUR_S - world.clock.now())
        self._sample()
        self.wall_s, self.cpu_s = time.monotonic() - wall, time.process_time() - cpu
        return self

    def second(self) -> float:
        """Of the day."""
        return self.world.clock.now() - self.world.started_at

    def _at(self, hour: float, do: Callable[[], None]) -> None:
        self.world.schedule(self.world.started_at + hour * HOUR_S, do)

    def tell(self, kind: str, text: str) -> None:
        """One more sentence."""
        if len(self.told) < MAX_STORY:
            self.told.append(Told(self.second(), kind, text))

    # -- users ---------------------------------------------------------------------------------------------

    def _submit(self, job: Job) -> None:
        spec = _spec(job.cloud, job.gpu, job.nodes) | {"priority": job.priority, **job.more}
        if job.start_after_h is not None:
            at = self.world.clock.now() + job.start_after_h * HOUR_S
            spec["start_after"] = datetime.fromtimestamp(at, UTC).isoformat()
        if not self.users.submit(job.name, job.owner, **spec):
            raise Violation(f"P6: the submission of {job.name} was not accepted")
        self.tracks[job.name] = Track(self.second())
        low, desired, high = job.nodes
        priority = f", priority {job.priority}" if job.priority else ""
        why = f": {job.why}" if job.why else ""
        nodes = f"{desired} {job.gpu}" if low == high else f"{desired} {job.gpu} ({low} to {high})"
        self.tell("user", f"{job.owner} submits {job.name}, {nodes} on {job.cloud}{priority}{why}.")

    def _submit_sweep(self, sweep: Sweep) -> None:
        daemon = self._leader()
        verbs = self._sweeps(daemon)
        digest = service_of(self.world, daemon, self.users.terms).submissions.put_blob(b"code")
        spec = {"name": sweep.name, "run": "train.py", **_spec(sweep.cloud, sweep.gpu, (1, 1, 1))}
        body = SweepBody(
            spec=spec,
            code_sha256=digest,
            submission=f"sweep {sweep.name}",
            axes=[AxisBody(name="lr", values=list(sweep.values))],
            parallel=sweep.parallel,
        )
        verbs.submit(body, Caller(sweep.owner, Role.SUBMITTER))
        for number in range(1, len(sweep.values) + 1):
            self._works[f"{sweep.name}-{number}"] = sweep.work_node_h
        self.tell(
            "user",
            f"{sweep.owner} submits the sweep {sweep.name}: {len(sweep.values)} learning rates, {sweep.parallel} at a "
            "time.",
        )

    def _do(self, step: Step) -> None:
        """What a user asks for, or what goes wrong."""
        owner = next((job.owner for job in self.story.jobs if job.name == step.job), "")
        refused, what = self.users.refused, ""
        match step.kind:
            case "scale":
                self.users.scale(step.job, step.value, 0)
                what = f"{owner} scales {step.job} to {step.value} nodes"
            case "cancel":
                self.users.cancel(step.job)
                what = f"{owner} cancels {step.job}"
            case "pause" | "resume":
                self.users.pause(step.job, on=step.kind == "pause")
                what = f"{owner} {step.kind}s {step.job}"
            case "limit":
                self.users.limit_usd(step.job, step.value)
                what = f"{owner} raises the limit of {step.job} to ${step.value:g}"
            case "drain":
                job = jobs_of(self.world)[step.job]
                members = [node.id for node in job.nodes.values() if node.state is NodeState.MEMBER]
                if members:
                    self.users.drain(step.job, members[0])
                    what = f"an operator drains a node of {step.job}"
            case _:
                self._go_wrong(step)
        if what:
            state = jobs_of(self.world)[step.job].record.state
            self.tell("user", f"{what}." if self.users.refused == refused else f"{what}: refused, it is {state}.")
        self.world.wake_daemons()

    def _go_wrong(self, step: Step) -> None:
        world = self.world
        if step.kind in AWAY:
            what, seconds = AWAY[step.kind]
            outage = begun(world, what, seconds or step.value)
            world.schedule(outage.until, partial(self._judge, outage))
        match step.kind:
            case "daemon killed":
                daemon = self._leader()
                world.kill(daemon)
                self.takeovers.append(Takeover(self.second(), "killed"))
                self.tell("fault", f"The daemon that leads ({daemon.name}) is killed.")
            case "daemon started":
                self.tell("good", f"systemd starts a daemon again: {world.start_daemon().name} stands by.")
            case "daemon frozen":
                daemon = self._leader()
                world.freeze(daemon, step.value)
                self.takeovers.append(Takeover(self.second(), "frozen"))
                self.tell("fault", f"The daemon that leads ({daemon.name}) stands still for {step.value:g} s.")
            case "etcd away":
                world.etcd.down = True
                world.schedule(world.clock.now() + step.value, self._etcd_back)
                self.tell("fault", f"etcd does not answer for {step.value / 60:g} minutes. Training goes on.")
            case "zone lost":
                zone, seconds = step.value
                zone = zone or self._fullest()
                count = world.clouds.lose_zone(zone, world.clock.now() + seconds)
                self.tell(
                    "fault",
                    f"The zone {zone} goes dark: {count} machines end at once, without a notice, and it grants none "
                    f"for {seconds / 60:g} minutes.",
                )
            case "silence":
                self._silence(step.value)
            case "cloud unreachable":
                world.set_fault_rates(FaultRates(unreachable=1.0))
                world.schedule(world.clock.now() + step.value, lambda: world.set_fault_rates(FaultRates()))
                self.tell("fault", f"No cloud's API answers for {step.value / 60:g} minutes.")
            case "program fails":
                self._fail(step.job)
            case _:
                raise AssertionError(step.kind)

    def _judge(self, outage: Outage) -> None:
        self.trained_on += judge(self.world, self.world.clouds, outage)

    def _etcd_back(self) -> None:
        self.world.etcd.down = False
        self.world.wake_daemons()
        self.tell("good", "etcd answers again.")

    def _silence(self, seconds: float) -> None:
        """A switch fails: every other machine can be reached by nobody for a while."""
        machines = [each for each in self.world.cloud.machines.values() if each.alive][::2]
        for machine in machines:
            machine.cut, machine.ssh = True, "well"

        def speak() -> None:
            for machine in machines:
                machine.cut = False
            self.world.wake_daemons()

        self.world.schedule(self.world.clock.now() + seconds, speak)
        self.tell("fault", f"A network fault cuts {len(machines)} machines off from etcd for {seconds:g} s.")

    def _fail(self, job: str) -> None:
        """The program fails right after its start, and again as soon as it has started anew."""
        training = self.world.nodes.trainings.get(job)
        if training is None or training.formed is None or training.result is not None:
            self.world.schedule(self.world.clock.now() + 60.0, partial(self._fail, job))
            return
        node = training.formed.nodes()[0]
        if training.fail(node, self.world.clock.now(), 1.0):
            self.users.program_fails(job, training)
            if self.users.fails_early(job, training.round_number):
                self.tell("fault", f"The program of {job} fails right after its start.")
                self.world.schedule(self.world.clock.now() + 30.0, partial(self._fail, job))
        else:
            self.world.schedule(self.world.clock.now() + 10.0, partial(self._fail, job))

    def _fullest(self) -> str:
        zones = Counter(each.instance.zone for each in self.world.cloud.machines.values() if each.alive)
        return zones.most_common(1)[0][0] if zones else next(iter(self.world.clouds.pools))[0]

    # -- while it passes -----------------------------------------------------------------------------------

    def _leader(self) -> Daemon:
        running = [daemon for daemon in self.world.daemons if daemon.runs]
        return next((daemon for daemon in running if daemon.leader.leading), running[0])

    def _sweeps(self, daemon: Daemon) -> Sweeps:
        service = service_of(self.world, daemon, self.users.terms)
        return Sweeps(service, daemon.journal, daemon.clock, self.story.queue)

    def sweep_row(self) -> SweepRow | None:
        """The sweep with its members, as `spotsupctl sweep` shows it."""
        if self.story.sweep is None:
            return None
        verbs = self._sweeps(self._leader())
        return verbs.row(verbs.one(self.story.sweep.name))

    def _look(self) -> None:
        """Programs that have done their work end; the sweep goes on; a point for the curves."""
        for daemon in self.world.daemons:
            if daemon.runs:
                keeper = self._keepers.get(daemon.name)
                if keeper is None:
                    keeper = SweepKeeper(daemon.journal, _Leads(daemon), daemon.clock, at_once)
                    self._keepers[daemon.name] = keeper
                keeper.follow()
        jobs = jobs_of(self.world)
        for name, view in jobs.items():
            track = self.tracks.setdefault(name, Track(view.record.submitted_at - self.world.started_at))
            training = self.world.nodes.trainings.get(name)
            if training is not None:
                self._look_at(name, training, track)
            due = self.world.clock.now() >= view.record.starts_at
            wants = view.record.state in {JobState.QUEUED, JobState.STARTING, JobState.WAITING}
            if due and wants:
                track.waiting_s += LOOK_S
        if not self.samples or self.second() >= self.samples[-1].second + SAMPLE_S:
            self._sample()

    def _look_at(self, name: str, training: Training, track: Track) -> None:
        now = self.world.clock.now()
        if training.loss_of is None and self.story.sweep and name.startswith(f"{self.story.sweep.name}-"):
            rate = float(self.story.sweep.values[int(name.rpartition("-")[2]) - 1])
            training.loss_of = partial(loss_after, rate)
        spans = training.steps.spans_until(now)
        if spans and track.first_step_s is None:
            track.first_step_s = spans[0].start - self.world.started_at
        work = self._works.get(name)
        if not track.work_done and work is not None and useful_s(training, now) >= work * HOUR_S:
            track.work_done = True
            training.finish()
            self.world.wake_daemons()

    def _sample(self) -> None:
        jobs, now = jobs_of(self.world), self.world.clock.now()
        training: Counter[str] = Counter()
        for view in jobs.values():
            if view.record.state in {JobState.RUNNING, JobState.DEGRADED} and view.round is not None:
                training[view.record.owner] += len(view.round.nodes())
        held = [(pool, market) for machine, pool, market, _ in self.world.clouds.bought if machine.billed]
        usd = sum(self.world.clouds.price(pool, market) for pool, market in held)
        waiting = sum(
            view.record.state in {JobState.QUEUED, JobState.WAITING, JobState.STARTING} and now >= view.record.starts_at
            for view in jobs.values()
        )
        leads = not self.world.no_daemon_acts and not self.world.etcd.down
        self.samples.append(Sample(self.second(), len(held), dict(training), usd, waiting, leads))

    def _on_commit(self, daemon: Daemon, commit: Commit) -> None:
        self.events += commit.events
        for node in commit.nodes:
            self.nodes.setdefault(node.job, {})[node.id] = node
        for action in commit.actions:
            self.decisions[type(action).__name__] += 1

    def _watch_leader(self) -> None:
        last = self.takeovers[-1] if self.takeovers else None
        if last is not None and last.seconds is None and not self.world.no_daemon_acts:
            last.seconds = self.second() - last.at_s
            leader = self._leader().name
            self.tell("good", f"{leader} has taken over, {last.seconds:.0f} s after the one before was {last.why}.")


class _Leads:
    """A daemon's leader election, as a keeper sees it."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def lease_valid(self) -> bool:
        return self._daemon.leader.leading and self._daemon.client.connected

    def guard(self) -> Sequence[Compare]:
        return self._daemon.leader.guard()


def useful_s(training: Training, now: float) -> float:
    """Node-seconds in which steps were made that had not to be made again, without what checkpoints take."""
    trained = sum((span.end - span.start) * span.nodes for span in training.steps.spans_until(now))
    share = CHECKPOINT_EVERY_S / (CHECKPOINT_EVERY_S + CHECKPOINT_S)
    return trained * share - lost_s(training)


def lost_s(training: Training) -> float:
    """Node-seconds of steps that were made again."""
    return sum(loss.steps * training.steps.step_s * len(loss.round.nodes()) for loss in training.steps.losses)


def loss_after(rate: float, steps: int) -> float:
    """A made-up curve: too small a rate learns slowly, too large a one not at all."""
    best, floor = 0.03, 0.9 if rate > 0.2 else 0.35
    speed = min(rate, best * best / rate) / best
    return round(floor + 2.0 / (1.0 + speed * steps / 2000.0), 5)


def _spec(cloud: str, gpu: str, nodes: tuple[int, int, int]) -> dict[str, Any]:
    low, desired, high = nodes
    return {
        "nodes": {"min": low, "desired": desired, "max": high},
        "resources": {"gpu": gpu, "gpus_per_node": 1},
        "placement": {"cloud": cloud},
        **STORE,
    }
