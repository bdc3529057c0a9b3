"""Plays a scenario: injects its faults and its users' commands, then checks that everything recovers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from provisioners.base import Leftover, LeftoverKind
from supervisor.model import ALERT_KINDS, ENDED_JOB_STATES, OPEN_NODE_STATES
from supervisor.planner.actions import Action, SendAlert
from supervisor.planner.alerts import RETRIES_S
from supervisor.runtime.clock import ACCEPTED_AFTER_S
from supervisor.simulation.cloud import CAPACITY, ZONES, Machine
from supervisor.simulation.daemon import Daemon
from supervisor.simulation.etcd import MAX_UNDONE
from supervisor.simulation.faults import FaultRates
from supervisor.simulation.nodes import LEASE_S
from supervisor.simulation.world import World
from tests.sim.promises import Promises, Violation, jobs_of, settled
from tests.sim.scenario import Injection, Scenario, Submission
from tests.sim.users import Users

# Once the faults have stopped, every job is as its user wants it within so long.
QUIET_S = 1500.0
# Once all jobs have ended, nothing is left within so long: leftovers are listed seldom, and have to be listed twice.
EMPTY_S = 2000.0
SPACIOUS = 64


class ScenarioRun:
    """One world that plays one scenario. Raises Violation if a promise is broken."""

    def __init__(self, scenario: Scenario, mutate: Callable[[World], None] = lambda _: None) -> None:
        self.scenario = scenario
        self.world = World(scenario.seed, FaultRates(), scenario.rules, max_clock_error_s=scenario.max_clock_error_s)
        world = self.world
        world.busy_tick_s, world.idle_tick_s, world.bootstrap_s = 1.0, 60.0, 15.0
        world.nodes.progress_every_s, world.nodes.checkpoint_s = 300.0, 120.0
        world.nodes.reaction_s = scenario.reaction_s
        world.cloud.disk_leak_rate = 0.1
        mutate(world)
        self.promises = Promises(world, leak_grace_s=900.0)
        self.users = Users(world)
        # Take effect at the next boundary, and at the next launch.
        self._pending_hang: Injection | None = None
        self._pending_handover = False
        self._alert_attempts: Counter[str] = Counter()
        world.hooks.boundary.append(self._at_boundary)
        world.hooks.action.append(self._count_alerts)
        world.hooks.step.append(self._check_transitions)

    def run(self) -> None:
        """Inject everything, let the world recover, end all jobs."""
        world, scenario = self.world, self.scenario
        for job in scenario.jobs:
            self._submit(job)
        world.set_fault_rates(scenario.fault_rates)
        for injection in scenario.injections:
            world.schedule(world.started_at + injection.at, partial(self._inject, injection))
        world.run(max(0.0, world.started_at + scenario.hours * 3600 - world.clock.now()))
        self._stop_faults()
        world.run(20.0)
        self._resume()
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

    def _check_alerts(self) -> None:
        """Each alert was sent at least once, or tried as often as is promised."""
        sent = {event.id for event in self.world.sent}
        for job in jobs_of(self.world):
            for event in self.world.journal.events(job):
                tries = self._alert_attempts[event.id]
                if event.kind in ALERT_KINDS and event.id not in sent and tries <= len(RETRIES_S):
                    raise Violation(f"alerts: {event.id} was never sent, and tried {tries} times: {event.text}")

    # -- the end -------------------------------------------------------------------------------------------

    def _stop_faults(self) -> None:
        world = self.world
        world.note("all faults stop")
        world.timeline.clear()
        world.set_fault_rates(FaultRates())
        world.etcd.down, self._pending_hang, self._pending_handover = False, None, False
        world.cloud.capacity = dict.fromkeys(ZONES, SPACIOUS)
        world.cloud.disk_leak_rate = 0.0
        for daemon in world.daemons:
            if abs(daemon.clock_error_s) > self.scenario.max_clock_error_s:
                daemon.clock_error_s = 0.0
            if daemon.client.partitioned:
                world.partition(daemon, on=False)
        if not any(daemon.runs for daemon in world.daemons):
            world.start_daemon()
        world.wake_daemons()

    def _resume(self) -> None:
        """Users resume all their jobs."""
        for _ in range(10):
            paused = [
                name
                for name, job in jobs_of(self.world).items()
                if job.record.pause_requested_at and not job.record.ended
            ]
            for name in paused:
                self.users.pause(name, on=False)
            if not paused:
                return
            self.world.run(5.0)
        raise Violation("liveness: no daemon resumes a paused job")

    def _finish(self) -> None:
        self.world.note("all programs end")
        for name, job in jobs_of(self.world).items():
            if not job.record.ended:
                self.world.nodes.trainings[name].finish()
        self.world.wake_daemons()

    def _check_transitions(self) -> None:
        for daemon in self.world.daemons:
            refused = daemon.loop.status.counters.get("illegal_transitions", 0)
            if refused:
                sentences = "; ".join(daemon.loop.status.sentences.values())
                raise Violation(f"tables: {daemon.name} tried an illegal transition: {sentences}")

    # -- injections ----------------------------------------------------------------------------------------

    def _count_alerts(self, _daemon: Daemon, action: Action) -> None:
        if isinstance(action, SendAlert):
            self._alert_attempts[action.event_id] += 1

    def _inject(self, injection: Injection) -> None:
        world = self.world
        world.note(f"injected: {injection.kind} ({injection.number}, {injection.size:.2f})")
        world.rng.injected[injection.kind] += 1
        world.wake_daemons()
        victims = [machine for machine in world.cloud.machines.values() if machine.alive]
        daemons = [daemon for daemon in world.daemons if daemon.runs]
        if victims:
            self._on_machine(injection, victims[injection.number % len(victims)])
        if daemons:
            leading = [daemon for daemon in daemons if daemon.leader.leading]
            self._on_daemon(injection, (leading if leading and injection.number % 4 else daemons)[0])
        self._on_world(injection)
        self._on_user(injection)

    def _on_machine(self, injection: Injection, machine: Machine) -> None:
        cloud = self.world.cloud
        match injection.kind:
            case "notice":
                cloud.preempt(machine, (30.0, 60.0, 120.0)[injection.number % 3])
            case "short notice":
                cloud.preempt(machine, 10.0 * injection.size)
            case "notice without kill":
                cloud.preempt(machine, 60.0, comes_true=False)
            case "early kill":
                cloud.preempt(machine, 60.0)
                self._later(30.0 * injection.size, lambda: cloud.preempt(machine, 0.0))
            case "kill":
                cloud.vanish(machine)
            case "stop":
                (cloud.stop if injection.size > 0.5 else self._stop_later)(machine)
            case "silence":
                machine.silent = True
            case "brief silence":
                self._silence(machine, 1.0 + 30.0 * injection.size)
            case "missing in a listing":
                self._hide(injection, machine)
            case "agent stopped" | "launcher failed":
                self.world.nodes.exit(machine.instance.node, "left" if injection.kind == "agent stopped" else "failure")
            case "program failed":
                self._program_failed(machine)

    def _on_daemon(self, injection: Injection, daemon: Daemon) -> None:
        match injection.kind:
            case "daemon killed":
                self._kill(daemon, 0.5)
            case "daemon down":
                self._kill(daemon, 5.0 + 120.0 * injection.size)
            case "daemon frozen":
                self._ensure_daemon()
                self.world.freeze(daemon, 0.5 + 40.0 * injection.size)
            case "daemon hangs":
                self._pending_hang = injection
            case "daemon cut off":
                self.world.partition(daemon, on=True)
                self._later(1.0 + 60.0 * injection.size, lambda: self.world.partition(daemon, on=False))
            case "watch lost":
                daemon.client.lose_watch(0.05 + 3.0 * injection.size)
            case "second daemon":
                self._ensure_daemon()
            case "upgrade":
                self._upgrade(daemon)
            case "handover":
                self._ensure_daemon()
                self._pending_handover = True
            case "clock step":
                self._set_clock(injection, daemon)

    def _on_world(self, injection: Injection) -> None:
        cloud = self.world.cloud
        match injection.kind:
            case "zone lost":
                self._lose_zone(injection)
            case "zone full":
                zone = ZONES[injection.number % 2]
                cloud.capacity[zone] = injection.number % 3
                self._later(600.0 + 10_000.0 * injection.size, lambda: cloud.capacity.update({zone: CAPACITY}))
            case "capacity back":
                cloud.capacity = dict.fromkeys(ZONES, CAPACITY)
            case "cloud unreachable":
                self._faults_for(1.0 + 300.0 * injection.size, unreachable=1.0, lost_reply=1.0)
            case "throttling":
                self._faults_for(1.0 + 120.0 * injection.size, transient=1.0)
            case "unjournaled machine":
                cloud.add_unjournaled(f"unjournaled-{injection.number}", stopped=injection.size > 0.5)
            case "leftover":
                name = f"nic-{injection.number}"
                cloud.leftover_by_id[name] = Leftover(name, LeftoverKind.NETWORK_INTERFACE, "sim", "", "local")
            case "etcd down":
                self.world.etcd.down = True
                self._later(0.5 + 120.0 * injection.size, self._etcd_up)
            case "writes lost":
                self._restore(1 + injection.number % 12)
            case "backup restored":
                self._restore(20 + injection.number % MAX_UNDONE)
            case "etcd slow":
                self._faults_for(1.0 + 60.0 * injection.size, unanswered_commit=0.5, mirror_lag_s=3.0)

    def _on_user(self, injection: Injection) -> None:
        match injection.kind:
            case "scale":
                self._scale(injection)
            case "cancel":
                self.users.cancel(self._some_job(injection))
            case "submit":
                self._submit_more(injection)
            case "pause" | "resume":
                self.users.pause(self._some_job(injection), on=injection.kind == "pause")
            case "drain":
                self._drain(injection)
            case "finish":
                training = self.world.nodes.trainings.get(self._some_job(injection))
                if training is not None:
                    training.finish()
            case "two commands":
                self._two_commands(injection)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self.world.schedule(self.world.clock.now() + seconds, do)

    def _stop_later(self, machine: Machine) -> None:
        self.world.cloud.preempt(machine, 30.0, stops=True)

    def _silence(self, machine: Machine, seconds: float) -> None:
        machine.silent = True

        def speak() -> None:
            machine.silent = False

        self._later(seconds, speak)

    def _hide(self, injection: Injection, machine: Machine) -> None:
        """It is silent for a moment, and one listing lacks it just then."""
        self._silence(machine, LEASE_S + 4.0 + 9.0 * injection.size)

        def hide() -> None:
            machine.hidden = 1

        self._later(LEASE_S + 1.0, hide)

    def _restore(self, writes: int) -> None:
        """etcd goes down, and comes up without its last writes; some minutes later an operator adopts lost machines."""
        world = self.world
        world.etcd.down = True

        def come_up() -> None:
            lost = world.etcd.roll_back(writes)
            world.note(f"etcd has lost its last {writes} writes")
            world.nodes.etcd_rolled_back()
            self.promises.etcd_rolled_back(lost)
            self.users.etcd_rolled_back()
            self._etcd_up()
            self._later(180.0, self._adopt)

        self._later(10.0, come_up)

    def _adopt(self) -> None:
        if not self.users.adopt():
            self._later(180.0, self._adopt)

    def _lose_zone(self, injection: Injection) -> None:
        zone = ZONES[injection.number % len(ZONES)]
        for machine in list(self.world.cloud.machines.values()):
            if machine.alive and machine.instance.zone == zone:
                self.world.cloud.preempt(machine, 30.0 if injection.size > 0.5 else 0.0)

    def _program_failed(self, machine: Machine) -> None:
        agent = self.world.nodes.agents.get(machine.instance.node)
        training = self.world.nodes.trainings.get(agent.job) if agent else None
        if agent and training and training.fail(agent.node, self.world.clock.now()):
            failures = self.users.program_failures
            failures[agent.job] = failures.get(agent.job, 0) + 1

    def _faults_for(self, seconds: float, **changes: float) -> None:
        """Raise some fault rates for a while; a later call replaces an earlier one."""
        self.world.set_fault_rates(replace(self.scenario.fault_rates, **changes))
        self._later(seconds, self._usual_fault_rates)

    def _usual_fault_rates(self) -> None:
        self.world.set_fault_rates(self.scenario.fault_rates)
        self.world.wake_daemons()

    # -- daemons -------------------------------------------------------------------------------------------

    def _etcd_up(self) -> None:
        self.world.etcd.down = False
        self.world.wake_daemons()

    def _kill(self, daemon: Daemon, back_s: float) -> None:
        self.world.kill(daemon)
        self._later(back_s, self._ensure_daemon)

    def _ensure_daemon(self) -> None:
        """systemd starts it again."""
        if sum(not daemon.dead for daemon in self.world.daemons) < 2:
            self.world.start_daemon()

    def _at_boundary(self, daemon: Daemon, where: str, kind: str) -> None:
        """A pending hang freezes the daemon here, in the middle of an operation, while users give commands; half of the
        hangs are shorter than its lease. A pending handover follows a launch, of which the next leader reads late."""
        if self._pending_handover and (where, kind) == ("after intent", "Launch"):
            self._pending_handover = False
            self._faults_for(20.0, mirror_lag_s=3.0)
            self._later(1.0, lambda: self._upgrade(daemon))
        if self._pending_hang is not None:
            injection, self._pending_hang = self._pending_hang, None
            self.world.note(f"{daemon.name} hangs {where} of {kind}")
            self._later(0.2, lambda: self._scale(injection))
            self.world.hang(daemon, 0.5 + (3.0 if injection.number % 2 else 40.0) * injection.size)

    def _set_clock(self, injection: Injection, daemon: Daemon) -> None:
        """Its wall clock jumps and is corrected: half of the times before the daemon accepts the jump."""
        daemon.clock_error_s = (90.0, -90.0, 3600.0, -3600.0, 86400.0, -86400.0)[injection.number % 6]
        lasts_s = 50.0 * injection.size if injection.number // 6 % 2 else ACCEPTED_AFTER_S + 600.0 * injection.size

        def correct() -> None:
            daemon.clock_error_s = 0.0

        self._later(lasts_s, correct)

    def _upgrade(self, daemon: Daemon) -> None:
        """Stop it in order; another daemon runs already, or starts soon."""
        if daemon.runs:
            daemon.leader.step_down()
            self._kill(daemon, 1.0)

    # -- users ---------------------------------------------------------------------------------------------

    def _submit(self, job: Submission) -> None:
        nodes = {"min": job.low, "desired": job.desired, "max": job.high, "spares": job.spares}
        limits = {"usd_per_hour": job.usd_per_hour} if job.usd_per_hour else {}
        self.users.submit(job.name, kind=job.kind, nodes=nodes, limits=limits, placement={"spread": job.spread})

    def _some_job(self, injection: Injection) -> str:
        names = self.users.names()
        return names[injection.number % len(names)] if names else ""

    def _scale(self, injection: Injection) -> None:
        job = jobs_of(self.world).get(self._some_job(injection))
        if job is not None:
            record = job.record
            desired = record.min_nodes + int(injection.size * (record.max_nodes - record.min_nodes + 1))
            self.users.scale(record.name, desired, injection.number % 3)

    def _two_commands(self, injection: Injection) -> None:
        """Give other commands while one is between its read of the job and its write."""
        self.users.delay_s = 1.0
        self._later(0.3, lambda: self.users.pause(self._some_job(injection), on=injection.size > 0.5))
        self._later(0.6, lambda: self._scale(replace(injection, size=1.0 - injection.size)))
        self._scale(injection)

    def _drain(self, injection: Injection) -> None:
        name = self._some_job(injection)
        job = jobs_of(self.world).get(name)
        nodes = sorted(node.id for node in job.nodes.values() if node.state in OPEN_NODE_STATES) if job else []
        if nodes:
            self.users.drain(name, nodes[injection.number % len(nodes)])

    def _submit_more(self, injection: Injection) -> None:
        """A new job, or the name of one that has ended."""
        ended = [n for n, job in jobs_of(self.world).items() if job.record.state in ENDED_JOB_STATES]
        running = sum(not job.record.ended for job in jobs_of(self.world).values())
        name = ended[injection.number % len(ended)] if ended else f"extra-{injection.number % 3}"
        data = Submission(name, 1, 1, 1, 0, kind="data")
        if running < 4:
            self._submit(
                data if injection.size < 0.1 else Submission(name, 1, 1 + injection.number % 3, 4, injection.number % 2)
            )


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
    lines += [
        f"  {m.instance.id} of {m.instance.node} {m.instance.state}" for m in world.cloud.machines.values() if m.billed
    ]
    return "\n".join([*lines, f"left: {sorted(world.cloud.leftover_by_id)}", f"alerts: {world.journal.read().alerts}"])
