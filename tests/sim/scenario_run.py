"""Plays a scenario: injects its faults and its users' commands, then checks that everything recovers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from spotsup_simulator.cloud import ZONES
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.surroundings import Conditions
from spotsup_simulator.world import World

from supervisor.events import ALERT_KINDS, EventKind
from supervisor.features.limits.rule import LIFTED
from supervisor.features.queue.rule import PRIORITY
from supervisor.model import ENDED_JOB_STATES, OPEN_NODE_STATES, NodeState
from tests.sim.injector import Injector
from tests.sim.promises import Promises, Violation, jobs_of, settled
from tests.sim.scenario import Scenario
from tests.sim.users import Users

# Once the faults have stopped, every job is as its user wants it within so long.
QUIET_S = 1500.0
# Once all jobs have ended, nothing is left within so long: leftovers are listed seldom, and have to be listed twice;
# and what people are told of it is gathered.
EMPTY_S = 4000.0
# A limit that no scenario reaches.
NO_LIMIT_H = 10_000.0


class ScenarioRun:
    """One world that plays one scenario. Raises Violation if a promise is broken."""

    def __init__(self, scenario: Scenario, mutate: Callable[[World], None] = lambda _: None) -> None:
        self.scenario = scenario
        error_s, by_ssh = scenario.max_clock_error_s, scenario.by_ssh
        rates = FaultRates()
        conditions = Conditions(scenario.seed, rates, scenario.rules, max_clock_error_s=error_s, by_ssh=by_ssh)
        self.world = world = World(conditions)
        world.busy_tick_s, world.idle_tick_s, world.bootstrap_s = 1.0, 60.0, 15.0
        world.nodes.progress_every_s, world.nodes.checkpoint_s = 300.0, 120.0
        world.nodes.reaction_s = scenario.reaction_s
        world.cloud.disk_leak_rate = 0.1
        world.cloud.types = scenario.types
        world.cloud.flex_lasts_s = scenario.flex_lasts_s
        if scenario.has_regions:
            world.cloud.region_of = {zone: f"region-of-{zone}" for zone in ZONES}
        mutate(world)
        self.promises = Promises(world, leak_grace_s=900.0)
        self.users = Users(world)
        self._injector = Injector(world, scenario, self.promises, self.users)

    def run(self) -> None:
        """Inject everything, let the world recover, end all jobs."""
        world, scenario = self.world, self.scenario
        for job in scenario.jobs:
            self._injector.submit(job)
        world.set_fault_rates(scenario.fault_rates)
        for injection in scenario.injections:
            world.schedule(world.started_at + injection.at, partial(self._injector.inject, injection))
        world.run(max(0.0, world.started_at + scenario.hours * 3600 - world.clock.now()))
        self._injector.stop()
        world.run(20.0)
        self._resume()
        for minute in range(1, 20):
            self._injector.later(60.0 * minute, self._drain_silent)
            self._injector.later(60.0 * minute + 30.0, self._adopt)
        for _ in range(10):
            if self.users.adopt():
                break
            world.run(60.0)
        if not world.run_until(settled, QUIET_S):
            raise Violation(f"liveness: jobs are not as wanted {QUIET_S:g} s after the last fault\n{picture(world)}")
        self._finish()
        if not world.run_until(_is_empty, EMPTY_S):
            raise Violation(f"liveness: something is left {EMPTY_S:g} s after all jobs ended\n{picture(world)}")
        self._check_alerts()
        for name in list(jobs_of(self.world))[:1]:
            if not self.users.submit(name, nodes={"min": 1, "desired": 1}):
                raise Violation(f"liveness: {name} has ended, and its name cannot be used again")

    def _check_alerts(self) -> None:
        """Each alert was sent at least once; of each hang there is one."""
        sent = {event.id for event in self.world.sent}
        for job in jobs_of(self.world):
            self._check_told(job)
            for event in self.world.journal.events(job):
                if event.kind in ALERT_KINDS and event.id not in sent:
                    raise Violation(f"alerts: {event.id} was never sent: {event.text}")

    def _check_told(self, job: str) -> None:
        """People are told of each hang once, and of workers that outlive SIGKILL once per node."""
        training = self.world.nodes.trainings.get(job)
        if training is None or self.world.rng.injected["backup restored"] or self.world.rng.injected["writes lost"]:
            return
        events = [event for event in self.world.journal.events(job) if event.id.startswith(training.task_id)]
        told = sum(event.kind is EventKind.STEPS_HANG for event in events)
        stuck = Counter(event.node for event in events if event.kind is EventKind.WORKERS_STUCK)
        for event in (each for each in events if each.kind is EventKind.NODE_SLOW):
            if not training.ranks.was_slow(event.node, event.at - self.scenario.rules.slow.lasts_s, event.at):
                raise Violation(f"alerts: {event.node} was not slow: {event.text}")
        if told > training.hangs or max(stuck.values(), default=0) > 1:
            raise Violation(f"alerts: {told} of {training.hangs} hangs of {job}, of stuck workers {dict(stuck)}")

    # -- the end -------------------------------------------------------------------------------------------

    def _drain_silent(self) -> None:
        """An operator drains silent nodes whose machines hang: where they are many, no daemon gives them up."""
        machines = {machine.node: machine for machine in self.world.cloud.machines.values()}
        for name, job in jobs_of(self.world).items():
            for node in job.nodes.values():
                if node.state is NodeState.SUSPECT and node.id in machines and machines[node.id].silent:
                    self.users.drain(name, node.id)

    def _adopt(self) -> None:
        self.users.adopt()

    def _resume(self) -> None:
        """Users resume all their jobs, and raise all limits."""
        for _ in range(10):
            jobs = {name: job.record for name, job in jobs_of(self.world).items() if not job.record.ended}
            limited = [name for name, job in jobs.items() if (job.spec.limits.hours or NO_LIMIT_H) < NO_LIMIT_H]
            for name in limited:
                self.users.limit(name, NO_LIMIT_H)
            lifted = LIFTED | {PRIORITY}  # without their users
            paused = [n for n, job in jobs.items() if job.pause.at and job.pause.by not in lifted]
            for name in paused:
                self.users.pause(name, on=False)
            if not (paused or limited):
                return
            self.world.run(5.0)
        raise Violation("liveness: no daemon resumes a paused job")

    def _finish(self) -> None:
        self.world.note("all programs end")
        for name, job in jobs_of(self.world).items():
            if not job.record.ended:
                self.world.nodes.trainings[name].finish()
        self.world.wake_daemons()


def _is_empty(world: World) -> bool:
    """All jobs have ended; no machine is billed, nothing is left behind, and no alert is pending."""
    jobs = jobs_of(world).values()
    open_nodes = [node for job in jobs for node in job.nodes.values() if node.state in OPEN_NODE_STATES]
    ended = all(job.record.state in ENDED_JOB_STATES for job in jobs)
    billed = any(machine.billed for machine in world.cloud.machines.values())
    return (
        ended and not open_nodes and not billed and not world.cloud.leftover_by_id and not world.journal.read().alerts
    )


def picture(world: World) -> str:
    """The state of daemons, jobs and machines, for the reader of a failure."""
    lines = [f"{d.name} {d.loop.status.headline} {dict(d.loop.status.sentences)}" for d in world.daemons if d.runs]
    for job in jobs_of(world).values():
        current = job.round.nodes() if job.round else ()
        lines.append(f"{job.record.name} {job.record.state}, round {current}, hint {job.hint}")
        lines += [f"  {node.id} {node.state} {node.error}" for node in job.nodes.values() if node.state != "gone"]
    lines += [f"  {m.instance.id} of {m.node} {m.instance.state}" for m in world.cloud.machines.values() if m.billed]
    return "\n".join([*lines, f"left: {sorted(world.cloud.leftover_by_id)}", f"alerts: {world.journal.read().alerts}"])
