"""A story, acted out: what happens to machines, daemons, etcd, and what users ask meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from provisioners.base import Leftover, LeftoverKind
from supervisor.model import ALERT_KINDS, ENDED_JOB_STATES, OPEN_NODE_STATES, JobState
from supervisor.planner.plan import ALERT_TRIES_S
from supervisor.runtime.clock import ACCEPTED_AFTER_S
from tests.sim.chance import Faults
from tests.sim.cloud import ZONES, Machine
from tests.sim.daemon import Daemon
from tests.sim.promises import Promises, Violation, settled, truth
from tests.sim.store import MAX_UNDONE
from tests.sim.story import Job, Story, Strike
from tests.sim.users import Users
from tests.sim.world import LEASE_S, World

# By then everything is as users want it, once the faults have stopped.
QUIET_S = 1500.0
# By then everything that has ended is gone, and what it left behind, too: that is listed twice, and seldom.
EMPTY_S = 2000.0
ROOM = 64


class Chaos:
    """One world, one story. Raises Violation where a promise is broken."""

    def __init__(self, story: Story, mutate: Callable[[World], None] = lambda _: None) -> None:
        self.story = story
        self.world = World(story.seed, Faults(), story.rules, clocks_off_s=story.clocks_off_s)
        world = self.world
        world.quickest_tick_s, world.slowest_tick_s, world.bootstrap_s = 1.0, 60.0, 15.0
        world.nodes.pulse_s, world.nodes.checkpoint_s = 300.0, 120.0
        world.nodes.reaction_s = story.reaction_s
        world.cloud.leaves_disks = 0.1
        mutate(world)
        self.promises = Promises(world, leak_grace_s=900.0)
        self.users = Users(world)
        self._armed: Strike | None = None
        self._handover = False
        world.boundary = self._boundary
        world.checks.append(lambda _: self._nothing_refused())

    def run(self) -> None:
        """All of it: the strikes, then quiet, then the end."""
        world, story = self.world, self.story
        for job in story.jobs:
            self._submit(job)
        world.set_faults(story.faults)
        for strike in story.strikes:
            world.plan(world.began + strike.at, lambda strike=strike: self._strike(strike))  # type: ignore[misc]
        world.run(max(0.0, world.began + story.hours * 3600 - world.clock.now()))
        self._steady()
        world.run(20.0)
        self._resume()
        for _ in range(10):
            if self.users.adopt():
                break
            world.run(60.0)
        if not world.run_until(settled, QUIET_S):
            raise Violation(f"liveness: not as wanted {QUIET_S:g} s after the last fault\n{picture(world)}")
        self._finish()
        if not world.run_until(_is_empty, EMPTY_S):
            raise Violation(f"liveness: not empty {EMPTY_S:g} s after all jobs ended\n{picture(world)}")
        self._all_told()

    def _all_told(self) -> None:
        """Each alert was sent at least once under one id, or tried as often as is promised."""
        sent = {event.id for event in self.world.sent}
        for job in truth(self.world):
            for event in self.world.journal.events(job):
                tries = self.world.alert_tries.get(event.id, 0)
                if event.kind in ALERT_KINDS and event.id not in sent and tries <= len(ALERT_TRIES_S):
                    raise Violation(f"alerts: {event.id} was never sent, and tried {tries} times: {event.text}")

    # -- the end -------------------------------------------------------------------------------------------

    def _steady(self) -> None:
        world = self.world
        world.say("all faults stop")
        world.plans.clear()
        world.set_faults(Faults())
        world.store.away, self._armed, self._handover = False, None, False
        world.cloud.capacity = dict.fromkeys(ZONES, ROOM)
        world.cloud.leaves_disks = 0.0
        for daemon in world.daemons:
            if abs(daemon.ahead_s) > self.story.clocks_off_s:
                daemon.ahead_s = 0.0
            if daemon.client.cut:
                world.cut(daemon, off=False)
        if not any(daemon.runs for daemon in world.daemons):
            world.start_daemon()
        world.attend()

    def _resume(self) -> None:
        """Users want all their jobs back."""
        for _ in range(10):
            paused = [
                name
                for name, job in truth(self.world).items()
                if job.record.pause_requested_at and not job.record.ended
            ]
            for name in paused:
                self.users.pause(name, on=False)
            if not paused:
                return
            self.world.run(5.0)
        raise Violation("liveness: no daemon takes the end of a pause")

    def _finish(self) -> None:
        self.world.say("all programs end")
        for name, job in truth(self.world).items():
            if not job.record.ended:
                self.world.nodes.trainings[name].finish()
        self.world.attend()

    def _nothing_refused(self) -> None:
        for daemon in self.world.daemons:
            refused = daemon.loop.status.counters.get("illegal_transitions", 0)
            if refused:
                sentences = "; ".join(daemon.loop.status.sentences.values())
                raise Violation(f"tables: {daemon.name} met an illegal transition: {sentences}")

    # -- what happens --------------------------------------------------------------------------------------

    def _strike(self, strike: Strike) -> None:
        world = self.world
        world.say(f"strike: {strike.kind} ({strike.number}, {strike.size:.2f})")
        world.dice.injected[strike.kind] += 1
        world.attend()
        victims = [machine for machine in world.cloud.machines.values() if machine.alive]
        daemons = [daemon for daemon in world.daemons if daemon.runs]
        if victims:
            self._on_machine(strike, victims[strike.number % len(victims)])
        if daemons:
            leading = [daemon for daemon in daemons if daemon.leader.leading]
            self._on_daemon(strike, (leading if leading and strike.number % 4 else daemons)[0])
        self._on_world(strike)
        self._on_user(strike)

    def _on_machine(self, strike: Strike, machine: Machine) -> None:
        cloud = self.world.cloud
        match strike.kind:
            case "notice":
                cloud.preempt(machine, (30.0, 60.0, 120.0)[strike.number % 3])
            case "short notice":
                cloud.preempt(machine, 10.0 * strike.size)
            case "notice without kill":
                cloud.preempt(machine, 60.0, comes_true=False)
            case "early kill":
                cloud.preempt(machine, 60.0)
                self._later(30.0 * strike.size, lambda: cloud.preempt(machine, 0.0))
            case "kill":
                cloud.vanish(machine)
            case "stop":
                (cloud.stop if strike.size > 0.5 else self._stop_later)(machine)
            case "silence":
                machine.silent = True
            case "blink":
                self._hush(machine, 1.0 + 30.0 * strike.size)
            case "hidden":
                self._hide(strike, machine)
            case "agent stopped" | "launcher broke":
                self.world.nodes.quit(machine.instance.node, "left" if strike.kind == "agent stopped" else "failure")
            case "program failed":
                self._program_failed(machine)

    def _on_daemon(self, strike: Strike, daemon: Daemon) -> None:
        match strike.kind:
            case "daemon killed":
                self._killed(daemon, 0.5)
            case "daemon away":
                self._killed(daemon, 5.0 + 120.0 * strike.size)
            case "daemon stopped":
                self._ensure_daemon()
                self.world.freeze(daemon, 0.5 + 40.0 * strike.size)
            case "daemon hangs":
                self._armed = strike
            case "daemon cut off":
                self.world.cut(daemon, off=True)
                self._later(1.0 + 60.0 * strike.size, lambda: self.world.cut(daemon, off=False))
            case "watch lost":
                daemon.client.lose_watch(0.05 + 3.0 * strike.size)
            case "second daemon":
                self._ensure_daemon()
            case "upgrade":
                self._upgrade(daemon)
            case "handover":
                self._ensure_daemon()
                self._handover = True
            case "clock set":
                self._set_clock(strike, daemon)

    def _on_world(self, strike: Strike) -> None:
        cloud = self.world.cloud
        match strike.kind:
            case "zone lost":
                self._lose_zone(strike)
            case "full":
                zone = ZONES[strike.number % 2]
                cloud.capacity[zone] = strike.number % 3
                self._later(600.0 + 10_000.0 * strike.size, lambda: cloud.capacity.update({zone: 16}))
            case "room":
                cloud.capacity = dict.fromkeys(ZONES, 16)
            case "cloud away":
                self._faults_for(1.0 + 300.0 * strike.size, unreachable=1.0, lost_reply=1.0)
            case "throttling":
                self._faults_for(1.0 + 120.0 * strike.size, transient=1.0)
            case "stranger":
                cloud.add_stranger(f"stranger-{strike.number}", stopped=strike.size > 0.5)
            case "leftover":
                name = f"nic-{strike.number}"
                cloud.left[name] = Leftover(name, LeftoverKind.NETWORK_INTERFACE, "sim", "", "local")
            case "etcd away":
                self.world.store.away = True
                self._later(0.5 + 120.0 * strike.size, self._etcd_back)
            case "writes lost":
                self._restore(1 + strike.number % 12)
            case "backup restored":
                self._restore(20 + strike.number % MAX_UNDONE)
            case "etcd slow":
                self._faults_for(1.0 + 60.0 * strike.size, unanswered_commit=0.5, mirror_lag_s=3.0)

    def _on_user(self, strike: Strike) -> None:
        match strike.kind:
            case "scale":
                self._scale(strike)
            case "cancel":
                self.users.cancel(self._some_job(strike))
            case "submit":
                self._submit_more(strike)
            case "pause" | "resume":
                self.users.pause(self._some_job(strike), on=strike.kind == "pause")
            case "drain":
                self._drain(strike)
            case "finish":
                training = self.world.nodes.trainings.get(self._some_job(strike))
                if training is not None:
                    training.finish()
            case "two commands":
                self._two_commands(strike)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self.world.plan(self.world.clock.now() + seconds, do)

    def _stop_later(self, machine: Machine) -> None:
        self.world.cloud.preempt(machine, 30.0, stops=True)

    def _hush(self, machine: Machine, seconds: float) -> None:
        machine.silent = True
        self._later(seconds, lambda: setattr(machine, "silent", False))

    def _hide(self, strike: Strike, machine: Machine) -> None:
        """For a moment nobody hears of it, and just then one listing lacks it."""
        self._hush(machine, LEASE_S + 4.0 + 9.0 * strike.size)
        self._later(LEASE_S + 1.0, lambda: setattr(machine, "hidden", 1))

    def _restore(self, writes: int) -> None:
        """etcd goes away, and comes back as it was so many writes ago; some minutes later a person looks after it."""
        world = self.world
        world.store.away = True

        def back() -> None:
            lost = world.store.lose(writes)
            world.say(f"etcd is as it was {writes} writes ago")
            world.restored_at = world.clock.now()
            world.nodes.restored()
            self.promises.restored(lost)
            self.users.restored()
            self._etcd_back()
            self._later(180.0, self._look_after)

        self._later(10.0, back)

    def _look_after(self) -> None:
        if not self.users.adopt():
            self._later(180.0, self._look_after)

    def _lose_zone(self, strike: Strike) -> None:
        zone = ZONES[strike.number % len(ZONES)]
        for machine in list(self.world.cloud.machines.values()):
            if machine.alive and machine.instance.zone == zone:
                self.world.cloud.preempt(machine, 30.0 if strike.size > 0.5 else 0.0)

    def _program_failed(self, machine: Machine) -> None:
        agent = self.world.nodes.agents.get(machine.instance.node)
        training = self.world.nodes.trainings.get(agent.job) if agent else None
        if agent and training and training.fail(agent.node, self.world.clock.now()):
            failures = self.users.program_failures
            failures[agent.job] = failures.get(agent.job, 0) + 1

    def _faults_for(self, seconds: float, **changes: float) -> None:
        """Worse for a while. A later one of these ends an earlier one."""
        self.world.set_faults(replace(self.story.faults, **changes))
        self._later(seconds, self._usual_faults)

    def _usual_faults(self) -> None:
        self.world.set_faults(self.story.faults)
        self.world.attend()

    # -- daemons -------------------------------------------------------------------------------------------

    def _etcd_back(self) -> None:
        self.world.store.away = False
        self.world.attend()

    def _killed(self, daemon: Daemon, back_s: float) -> None:
        self.world.kill(daemon)
        self._later(back_s, self._ensure_daemon)

    def _ensure_daemon(self) -> None:
        """systemd starts it again."""
        if sum(not daemon.dead for daemon in self.world.daemons) < 2:
            self.world.start_daemon()

    def _boundary(self, daemon: Daemon, where: str, kind: str) -> None:
        """Where a hang is armed, the daemon is stopped in the middle of what it does just now; users go on meanwhile.

        Every second one is so short that its lease is kept. Where a handover is armed, it follows on a launch, and
        the next leader reads of that late.
        """
        if self._handover and (where, kind) == ("after intent", "Launch"):
            self._handover = False
            self._faults_for(20.0, mirror_lag_s=3.0)
            self._later(1.0, lambda: self._upgrade(daemon))
        if self._armed is not None:
            strike, self._armed = self._armed, None
            self.world.say(f"{daemon.name} hangs {where} of {kind}")
            self._later(0.2, lambda: self._scale(strike))
            self.world.hang(daemon, 0.5 + (3.0 if strike.number % 2 else 40.0) * strike.size)

    def _set_clock(self, strike: Strike, daemon: Daemon) -> None:
        """Its time of day jumps, and is set right: every second time before that jump is believed."""
        daemon.ahead_s = (90.0, -90.0, 3600.0, -3600.0, 86400.0, -86400.0)[strike.number % 6]
        lasts_s = 50.0 * strike.size if strike.number // 6 % 2 else ACCEPTED_AFTER_S + 600.0 * strike.size
        self._later(lasts_s, lambda: setattr(daemon, "ahead_s", 0.0))

    def _upgrade(self, daemon: Daemon) -> None:
        """An orderly end; another one is there already, or comes soon."""
        if daemon.runs:
            daemon.leader.step_down()
            self._killed(daemon, 1.0)

    # -- users ---------------------------------------------------------------------------------------------

    def _submit(self, job: Job) -> None:
        nodes = {"min": job.low, "desired": job.desired, "max": job.high, "spares": job.spares}
        limits = {"usd_per_hour": job.usd_per_hour} if job.usd_per_hour else {}
        self.users.submit(job.name, kind=job.kind, nodes=nodes, limits=limits, placement={"spread": job.spread})

    def _some_job(self, strike: Strike) -> str:
        names = self.users.names()
        return names[strike.number % len(names)] if names else ""

    def _scale(self, strike: Strike) -> None:
        job = truth(self.world).get(self._some_job(strike))
        if job is not None:
            record = job.record
            desired = record.min_nodes + int(strike.size * (record.max_nodes - record.min_nodes + 1))
            self.users.scale(record.name, desired, strike.number % 3)

    def _two_commands(self, strike: Strike) -> None:
        """Between one's look at the job and its write, others are given."""
        self.users.hesitates_s = 1.0
        self._later(0.3, lambda: self.users.pause(self._some_job(strike), on=strike.size > 0.5))
        self._later(0.6, lambda: self._scale(replace(strike, size=1.0 - strike.size)))
        self._scale(strike)

    def _drain(self, strike: Strike) -> None:
        name = self._some_job(strike)
        job = truth(self.world).get(name)
        nodes = sorted(node.id for node in job.nodes.values() if node.state in OPEN_NODE_STATES) if job else []
        if nodes:
            self.users.drain(name, nodes[strike.number % len(nodes)])

    def _submit_more(self, strike: Strike) -> None:
        """A new job, or the name of one that has ended."""
        ended = [n for n, job in truth(self.world).items() if job.record.state in ENDED_JOB_STATES]
        running = sum(not job.record.ended for job in truth(self.world).values())
        name = ended[strike.number % len(ended)] if ended else f"extra-{strike.number % 3}"
        data = Job(name, 1, 1, 1, 0, kind="data")
        if running < 4:
            self._submit(data if strike.size < 0.1 else Job(name, 1, 1 + strike.number % 3, 4, strike.number % 2))


def _is_empty(world: World) -> bool:
    """All jobs have ended; nothing bills, nothing is left behind, nothing waits to be told."""
    jobs = truth(world).values()
    open_nodes = [node for job in jobs for node in job.nodes.values() if node.state in OPEN_NODE_STATES]
    ended = all(job.record.state in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED} for job in jobs)
    billed = any(machine.billed for machine in world.cloud.machines.values())
    return ended and not open_nodes and not billed and not world.cloud.left and not world.journal.read().alerts


def picture(world: World) -> str:
    """What is stuck, for the reader of a failure."""
    lines = [f"{d.name} {d.loop.status.headline} {dict(d.loop.status.sentences)}" for d in world.daemons if d.runs]
    for job in truth(world).values():
        current = job.round.nodes() if job.round else ()
        lines.append(f"{job.record.name} {job.record.state}, round {current}, hint {job.hint}")
        lines += [f"  {node.id} {node.state} {node.error}" for node in job.nodes.values() if node.state != "gone"]
    lines += [
        f"  {m.instance.id} of {m.instance.node} {m.instance.state}" for m in world.cloud.machines.values() if m.billed
    ]
    return "\n".join([*lines, f"left: {sorted(world.cloud.left)}", f"alerts: {world.journal.read().alerts}"])
