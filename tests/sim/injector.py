"""What happens in a scenario: its faults and its users' commands, as they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spotsup_simulator.cloud import CAPACITY, ZONES
from spotsup_simulator.daemon import Daemon
from spotsup_simulator.etcd import MAX_UNDONE
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.machine import Machine
from spotsup_simulator.nodes import LEASE_S
from spotsup_simulator.training import OUTLIVE_S, Training
from spotsup_simulator.world import World

from provisioners.base import LeftoverKind
from supervisor.budget import Budgets
from supervisor.events import EventKind
from supervisor.market.admission import QueueRules
from supervisor.model import ENDED_JOB_STATES, OPEN_NODE_STATES
from supervisor.planner.actions import Commit
from supervisor.planner.world import Rules
from supervisor.runtime.clock import ACCEPTED_AFTER_S
from tests.sim.access import AccessFaults
from tests.sim.etcd_faults import EtcdFaults
from tests.sim.harsh import Harsh
from tests.sim.promises import Promises, jobs_of
from tests.sim.scenario import Injection, Scenario, Submission, alternatives
from tests.sim.tunnel_faults import TunnelFaults
from tests.sim.users import Users

SPACIOUS = 64
# Outages: how long at most, and the fault rates meanwhile.
OUTAGES: dict[str, tuple[float, dict[str, float]]] = {
    "cloud unreachable": (300.0, {"unreachable": 1.0, "lost_reply": 1.0}),
    "throttling": (120.0, {"transient": 1.0}),
    "etcd slow": (60.0, {"unanswered_commit": 0.5, "mirror_lag_s": 3.0}),
    "package index away": (3600.0, {"bootstrap": 1.0}),
    "credentials expired": (500.0, {"denied": 1.0}),  # an hour: test_refusals.py
}


class Injector:
    """Injects into one world."""

    def __init__(self, world: World, scenario: Scenario, promises: Promises, users: Users) -> None:
        self._world = world
        self._scenario = scenario
        self._promises = promises
        self._users = users
        self._harsh = Harsh(world, lambda daemon: self._kill(daemon, 0.5), self._submit_if_few)
        self._access = AccessFaults(world, self._restore, self._ensure_daemon)
        self._etcd = EtcdFaults(world, self._kill, self._etcd_up, self._ensure_daemon)
        self._tunnels = TunnelFaults(world)
        # Take effect at the next boundary, and at the next launch.
        self._pending_hang: Injection | None = None
        self._pending_handover = False
        world.hooks.boundary.append(self._at_boundary)
        world.hooks.commit.append(self._on_alert)

    def stop(self) -> None:
        """All faults end, and what they broke works again."""
        world = self._world
        world.note("all faults stop")
        world.timeline.clear()
        world.set_fault_rates(FaultRates())
        world.etcd.down, self._pending_hang, self._pending_handover = False, None, False
        world.cloud.capacity = dict.fromkeys(ZONES, SPACIOUS)
        world.cloud.refused_jobs.clear()
        world.cloud.early_deaths.clear()
        world.cloud.set_prices(1.0)
        world.cloud.unpriced = frozenset()
        world.cloud.disk_leak_rate = 0.0
        for machine in world.cloud.machines.values():
            machine.cut, machine.ssh = False, "well"
        if world.rules.queue != QueueRules() or world.rules.budgets.any:
            # An operator lifts the limits: daemons read them when they start.
            self._restart_with(replace(world.rules, queue=QueueRules(), budgets=Budgets()))
        world.cloud.sold_out_types = frozenset()
        self._harsh.stop()
        self._access.stop()
        self._etcd.stop()
        self._tunnels.stop()
        for training in world.nodes.trainings.values():
            training.stop_faults()
        for agent in world.nodes.agents.values():
            if agent.health is not None and not agent.broken_gpu:
                world.nodes.report_gpus(agent.node, healthy=True, reason="")
        for daemon in world.daemons:
            if abs(daemon.clock_error_s) > self._scenario.max_clock_error_s:
                daemon.clock_error_s = 0.0
            if daemon.client.partitioned:
                world.partition(daemon, on=False)
        if not any(daemon.runs for daemon in world.daemons):
            world.start_daemon()
        world.wake_daemons()

    # -- injections ----------------------------------------------------------------------------------------

    def inject(self, injection: Injection) -> None:
        """Let it happen."""
        world = self._world
        world.note(f"injected: {injection.kind} ({injection.number}, {injection.size:.2f})")
        world.rng.injected[injection.kind] += 1
        world.wake_daemons()
        victims = [machine for machine in world.cloud.machines.values() if machine.alive]
        daemons = [daemon for daemon in world.daemons if daemon.runs]
        if victims:
            machine = victims[injection.number % len(victims)]
            self._on_machine(injection, machine)
            self._on_network(injection, machine)
            self._on_gpus(injection, machine.node)
            self._harsh.on_machine(injection, machine)
            self._etcd.on_machine(injection, machine)
            self._tunnels.on_machine(injection, machine)
        if daemons:
            leading = [daemon for daemon in daemons if daemon.leader.leading]
            daemon = (leading if leading and injection.number % 4 else daemons)[0]
            self._on_daemon(injection, daemon)
            self._harsh.on_daemon(injection, daemon)
            self._etcd.on_daemon(injection, daemon)
        self._on_world(injection)
        self._harsh.on_world(injection)
        self._access.on_world(injection)
        self._etcd.on_world(injection)
        self._on_account(injection)
        self._on_user(injection)
        if injection.kind == "budgets change":
            self._change_budgets(0.5 + 2.0 * injection.size)

    def _on_machine(self, injection: Injection, machine: Machine) -> None:
        cloud = self._world.cloud
        match injection.kind:
            case "notice":
                cloud.preempt(machine, (30.0, 60.0, 120.0)[injection.number % 3])
            case "short notice":
                cloud.preempt(machine, 10.0 * injection.size)
            case "notice without kill":
                cloud.preempt(machine, 60.0, comes_true=False)
            case "early kill":
                cloud.preempt(machine, 60.0)
                self.later(30.0 * injection.size, lambda: cloud.preempt(machine, 0.0))
            case "kill" | "package index away" | "credentials expired":
                cloud.vanish(machine)
            case "stop":
                (cloud.stop if injection.size > 0.5 else self._stop_later)(machine)
            case "agent stopped" | "launcher failed":
                self._world.nodes.exit(machine.node, "left" if injection.kind == "agent stopped" else "failure")
            case _:
                self._on_program(injection, machine)

    def _on_program(self, injection: Injection, machine: Machine) -> None:
        match injection.kind:
            case "program failed" | "program fails early":
                self._program_failed(machine, after_s=1.0 if injection.kind == "program fails early" else 0.0)
            case "ranks end":
                self._ranks_end(injection, machine)
            case "steps hang":
                self._hang(injection, machine)
            case "workers outlive SIGKILL":
                self._outlive(injection, machine)

    def _on_network(self, injection: Injection, machine: Machine) -> None:
        match injection.kind:
            case "silence":
                machine.silent = True
            case "silence without listings":
                self._silence(machine, 30.0 + 300.0 * injection.size)
                self._faults_for(30.0 + 600.0 * injection.size, unreachable=1.0)
            case "brief silence":
                self._silence(machine, 1.0 + 30.0 * injection.size)
            case "missing in a listing":
                self._hide(injection, machine)
            case "nodes cut off":
                self._cut_off(injection)
            case "zone ended":
                for each in self._machines_of(injection):
                    self._world.cloud.vanish(each)

    def _on_gpus(self, injection: Injection, node: str) -> None:
        match injection.kind:
            case "GPU dies":
                self._world.nodes.break_gpu(node, "xid")
            case "GPU ails":
                self._world.nodes.break_gpu(node, "hang" if injection.size > 0.3 else "ecc")
            case "GPU checks are wrong":
                self._doubt_gpus(injection)

    def _on_daemon(self, injection: Injection, daemon: Daemon) -> None:
        match injection.kind:
            case "daemon killed":
                self._kill(daemon, 0.5)
            case "daemon down":
                self._kill(daemon, 5.0 + 120.0 * injection.size)
            case "daemon frozen":
                self._ensure_daemon()
                self._world.freeze(daemon, 0.5 + 40.0 * injection.size)
            case "daemon hangs":
                self._pending_hang = injection
            case "daemon cut off":
                self._world.partition(daemon, on=True)
                self.later(1.0 + 60.0 * injection.size, lambda: self._world.partition(daemon, on=False))
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
        cloud = self._world.cloud
        if injection.kind in OUTAGES:
            max_s, rates = OUTAGES[injection.kind]
            self._faults_for(1.0 + max_s * injection.size, **rates)
        match injection.kind:
            case "zone lost":
                self._lose_zone(injection)
            case "zone full":
                zone = ZONES[injection.number % 2]
                cloud.capacity[zone] = injection.number % 3
                self.later(600.0 + 10_000.0 * injection.size, lambda: cloud.capacity.update({zone: CAPACITY}))
            case "refused for good":
                self._refuse(self._some_job(injection), 600.0 * injection.size)
            case "prices change":
                cloud.set_prices(0.5 + injection.size)
                cloud.unpriced = frozenset(cloud.types) if injection.number % 3 == 0 else frozenset()
            case "early deaths":
                zone = ZONES[injection.number % 2]
                cloud.early_deaths.add(zone)
                self.later(3600.0 * injection.size, lambda: cloud.early_deaths.discard(zone))
            case "capacity back":
                cloud.capacity = dict.fromkeys(ZONES, CAPACITY)
            case "etcd down":
                self._world.etcd.down = True
                self.later(0.5 + 120.0 * injection.size, self._etcd_up)
            case "writes lost":
                self._restore(1 + injection.number % 12)
            case "backup restored":
                newest = self._world.etcd.writes_since_newest(f"{self._world.nodes.keys.world}jobs/")
                # Half of the backups are older than the newest job, if that is young: its etcd user is lost, too.
                self._restore((newest if injection.size > 0.5 else 0) or 20 + injection.number % MAX_UNDONE)

    def _on_account(self, injection: Injection) -> None:
        """What daemons did not ask for appears in the account. Others' nodes may have our names."""
        cloud, stopped = self._world.cloud, injection.size > 0.5
        match injection.kind:
            case "unjournaled machine":
                cloud.add_unjournaled(f"unjournaled-{injection.number}", stopped=stopped)
            case "other installation":
                ours = [each.instance.node for each in cloud.machines.values()] or ["job-other-1"]
                cloud.add_other(injection.number, ours[injection.number % len(ours)], stopped=stopped)
            case "leftover":
                cloud.add_leftover(f"nic-{injection.number}", "", LeftoverKind.NETWORK_INTERFACE)

    def _on_user(self, injection: Injection) -> None:
        match injection.kind:
            case "scale":
                self._scale(injection)
            case "cancel":
                self._users.cancel(self._some_job(injection))
            case "submit":
                self._submit_more(injection)
            case "pause" | "resume":
                self._users.pause(self._some_job(injection), on=injection.kind == "pause")
            case "drain":
                self._drain(injection)
            case "limit":
                name = self._some_job(injection)
                self._users.limit(name, self._hours_of(name) + self._scenario.hours * injection.size / 2)
            case "finish":
                training = self._world.nodes.trainings.get(self._some_job(injection))
                if training is not None:
                    training.finish()
            case "finish but one":
                job = jobs_of(self._world).get(self._some_job(injection))
                nodes = job.round.nodes() if job and job.round else ()
                if job is not None and nodes:
                    self._world.nodes.trainings[job.record.name].finish(nodes[injection.number % len(nodes)])
            case "two commands":
                self._two_commands(injection)

    def _change_budgets(self, factor: float) -> None:
        """Operators change the configuration; daemons read it when they start."""
        budgets = self._world.rules.budgets
        cluster, user = (
            None if usd is None else usd * factor for usd in (budgets.usd_per_month, budgets.user_usd_per_month)
        )
        self._restart_with(replace(self._world.rules, budgets=Budgets(cluster, user)))

    def _restart_with(self, rules: Rules) -> None:
        self._world.rules = rules
        for daemon in self._world.daemons:
            if not daemon.dead:
                self._kill(daemon, 1.0)

    def _refuse(self, job: str, seconds: float) -> None:
        """One job's requests cannot work for a while; that is no reason to end it if it has trained."""
        refused = self._world.cloud.refused_jobs
        refused.add(job)
        self._users.refused_jobs.add(job)
        self.later(seconds, lambda: refused.discard(job))

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Unless the faults have stopped by then."""
        self._world.schedule(self._world.clock.now() + seconds, do)

    def _stop_later(self, machine: Machine) -> None:
        self._world.cloud.preempt(machine, 30.0, stops=True)

    def _silence(self, machine: Machine, seconds: float) -> None:
        machine.silent = True

        def speak() -> None:
            machine.silent = False

        self.later(seconds, speak)

    def _machines_of(self, injection: Injection) -> list[Machine]:
        zone = ZONES[injection.number % len(ZONES)]
        return [each for each in self._world.cloud.machines.values() if each.alive and each.instance.zone == zone]

    def _cut_off(self, injection: Injection) -> None:
        """All machines, those of one zone, or every other one, for 5 s to 80 min: from etcd, or from everything."""
        running = [machine for machine in self._world.cloud.machines.values() if machine.alive]
        scope, wholly, ssh = injection.number % 3, injection.number // 3 % 3 == 0, injection.number // 9 % 4
        chosen = (running, self._machines_of(injection), running[::2])[scope]
        seconds = 5.0 * 10.0 ** (3.0 * injection.size)
        for machine in chosen:
            if wholly:
                self._silence(machine, seconds)
            else:
                machine.cut, machine.ssh = True, ("well", "well", "refuses", "stale")[ssh]

        def connect() -> None:
            for machine in chosen:
                machine.cut = False
            self._world.wake_daemons()

        self.later(seconds, connect)

    def _hide(self, injection: Injection, machine: Machine) -> None:
        """It is silent for a moment, and one listing lacks it just then."""
        self._silence(machine, LEASE_S + 4.0 + 9.0 * injection.size)

        def hide() -> None:
            machine.hidden = 1

        self.later(LEASE_S + 1.0, hide)

    def _doubt_gpus(self, injection: Injection) -> None:
        """An nvidia-smi that no longer fits its driver: all nodes call healthy GPUs unhealthy for a while."""
        nodes = self._world.nodes
        doubted = [agent.node for agent in nodes.agents.values() if not agent.broken_gpu]
        self._promises.doubt(doubted)
        for node in doubted:
            nodes.report_gpus(node, healthy=False, reason="nvidia-smi: Driver/library version mismatch")

        def believe() -> None:
            for node in doubted:
                if node in nodes.agents and not nodes.agents[node].broken_gpu:
                    nodes.report_gpus(node, healthy=True, reason="")

        self.later(60.0 + 900.0 * injection.size, believe)

    def _restore(self, writes: int) -> None:
        """etcd goes down, and comes up without its last writes; some minutes later an operator adopts lost machines."""
        world = self._world
        world.etcd.down = True

        def come_up() -> None:
            lost = world.etcd.roll_back(writes)
            world.note(f"etcd has lost its last {writes} writes")
            world.nodes.etcd_rolled_back()
            self._promises.etcd_rolled_back(lost)
            self._users.etcd_rolled_back()
            self._etcd_up()
            self.later(180.0, self._adopt)

        self.later(10.0, come_up)

    def _on_alert(self, _: Daemon, commit: Commit) -> None:
        """An operator reads that machines are left alone, and looks some minutes later."""
        if any(event.kind is EventKind.UNJOURNALED for event in commit.events):
            self.later(180.0, self._adopt)

    def _adopt(self) -> None:
        if not self._users.adopt():
            self.later(180.0, self._adopt)

    def _lose_zone(self, injection: Injection) -> None:
        for machine in self._machines_of(injection):
            self._world.cloud.preempt(machine, 30.0 if injection.size > 0.5 else 0.0)

    def _training_on(self, machine: Machine) -> Training | None:
        agent = self._world.nodes.agents.get(machine.node)
        return self._world.nodes.trainings.get(agent.job) if agent else None

    def _program_failed(self, machine: Machine, after_s: float) -> None:
        """Early failures are alike, and most have a second one, as soon as the program runs again."""
        training, node = self._training_on(machine), machine.node
        if training is None or not training.fail(node, self._world.clock.now(), after_s):
            return
        job = self._world.nodes.agents[node].job
        self._users.program_fails(job, training)
        if after_s and self._users.fails_early(job, training.round_number):
            self.later(10.0, lambda: self._program_failed(machine, after_s))

    def _ranks_end(self, injection: Injection, machine: Machine) -> None:
        """Those of one node; the others end a while later, unless all have to run again."""
        training = self._training_on(machine)
        if training is None or not training.end_ranks(machine.node, self._world.clock.now()):
            return
        number = training.round_number
        self.later(1200.0 * injection.size, lambda: training.finish() if training.round_number == number else None)

    def _hang(self, injection: Injection, machine: Machine) -> None:
        """Some hangs end by themselves: a file server was away."""
        training = self._training_on(machine)
        if training is not None:
            training.hang(self._world.clock.now())
            self.later(1200.0 * injection.size, training.recover)

    def _outlive(self, injection: Injection, machine: Machine) -> None:
        training, node, lasts_s = self._training_on(machine), machine.node, 120.0 * injection.size
        if training is None or not training.outlive(node, self._world.clock.now()):
            return
        if lasts_s < OUTLIVE_S:
            self.later(lasts_s, lambda: training.revive(node))
        else:
            self.later(OUTLIVE_S, lambda: self._world.nodes.exit(node, "failure"))

    def _faults_for(self, seconds: float, **changes: float) -> None:
        """Raise some fault rates for a while; a later call replaces an earlier one."""
        self._world.set_fault_rates(replace(self._scenario.fault_rates, **changes))
        self.later(seconds, self._usual_fault_rates)

    def _usual_fault_rates(self) -> None:
        self._world.set_fault_rates(self._scenario.fault_rates)
        self._world.wake_daemons()

    # -- daemons -------------------------------------------------------------------------------------------

    def _etcd_up(self) -> None:
        self._world.etcd.down = False
        self._world.wake_daemons()

    def _kill(self, daemon: Daemon, back_s: float) -> None:
        self._world.kill(daemon)
        self.later(back_s, self._ensure_daemon)

    def _ensure_daemon(self) -> None:
        """systemd starts it again."""
        if sum(not daemon.dead for daemon in self._world.daemons) < 2:
            self._world.start_daemon()

    def _at_boundary(self, daemon: Daemon, where: str, kind: str) -> None:
        """A pending hang freezes the daemon here, in the middle of an operation, while users give commands; half of the
        hangs are shorter than its lease. A pending handover follows a launch, of which the next leader reads late."""
        if self._pending_handover and (where, kind) == ("after intent", "Launch"):
            self._pending_handover = False
            self._faults_for(20.0, mirror_lag_s=3.0)
            self.later(1.0, lambda: self._upgrade(daemon))
        if self._pending_hang is not None:
            injection, self._pending_hang = self._pending_hang, None
            self._world.note(f"{daemon.name} hangs {where} of {kind}")
            self.later(0.2, lambda: self._scale(injection))
            self._world.hang(daemon, 0.5 + (3.0 if injection.number % 2 else 40.0) * injection.size)

    def _set_clock(self, injection: Injection, daemon: Daemon) -> None:
        """Its wall clock jumps and is corrected: half of the times before the daemon accepts the jump."""
        daemon.clock_error_s = (90.0, -90.0, 3600.0, -3600.0, 86400.0, -86400.0)[injection.number % 6]
        lasts_s = 50.0 * injection.size if injection.number // 6 % 2 else ACCEPTED_AFTER_S + 600.0 * injection.size

        def correct() -> None:
            daemon.clock_error_s = 0.0

        self.later(lasts_s, correct)

    def _upgrade(self, daemon: Daemon) -> None:
        """Stop it in order; another daemon runs already, or starts soon."""
        if daemon.runs:
            daemon.leader.step_down()
            self._kill(daemon, 1.0)

    # -- users ---------------------------------------------------------------------------------------------

    def submit(self, job: Submission) -> None:
        """A user submits a job."""
        nodes = {"min": job.low, "desired": job.desired, "max": job.high, "spares": job.spares}
        nodes["multiple_of"] = job.multiple_of
        limits: dict[str, object] = {"hang": job.hang}
        limits |= {"usd_per_hour": job.usd_per_hour} if job.usd_per_hour else {}
        limits |= {"usd_per_node_hour": job.usd_per_node_hour} if job.usd_per_node_hour else {}
        limits |= {"hours": job.hours} if job.hours else {}
        more: dict[str, object] = {"priority": job.priority} if job.priority else {}
        more |= {"market": job.market}
        more |= alternatives(job)
        placement = {"spread": job.spread}
        self._users.submit(job.name, job.owner, kind=job.kind, nodes=nodes, limits=limits, placement=placement, **more)

    def _some_job(self, injection: Injection) -> str:
        names = self._users.names()
        return names[injection.number % len(names)] if names else ""

    def _hours_of(self, name: str) -> float:
        job = jobs_of(self._world).get(name)
        return (job.record.spec.limits.hours or 0.0) if job else 0.0

    def _scale(self, injection: Injection) -> None:
        job = jobs_of(self._world).get(self._some_job(injection))
        if job is not None:
            record = job.record
            desired = record.min_nodes + int(injection.size * (record.max_nodes - record.min_nodes + 1))
            self._users.scale(record.name, desired - desired % record.spec.nodes.multiple_of, injection.number % 3)

    def _two_commands(self, injection: Injection) -> None:
        """Give other commands while one is between its read of the job and its write."""
        self._users.delay_s = 1.0
        self.later(0.3, lambda: self._users.pause(self._some_job(injection), on=injection.size > 0.5))
        self.later(0.6, lambda: self._scale(replace(injection, size=1.0 - injection.size)))
        self._scale(injection)

    def _drain(self, injection: Injection) -> None:
        name = self._some_job(injection)
        job = jobs_of(self._world).get(name)
        nodes = sorted(node.id for node in job.nodes.values() if node.state in OPEN_NODE_STATES) if job else []
        if nodes:
            self._users.drain(name, nodes[injection.number % len(nodes)])

    def _submit_more(self, injection: Injection) -> None:
        """A new job, or the name of one that has ended."""
        ended = [n for n, job in jobs_of(self._world).items() if job.record.state in ENDED_JOB_STATES]
        name = ended[injection.number % len(ended)] if ended else f"extra-{injection.number % 3}"
        data = Submission(name, 1, 1, 1, 0, kind="data")
        more = Submission(name, 1, 1 + injection.number % 3, 4, injection.number % 2)
        self._submit_if_few(data if injection.size < 0.1 else more)

    def _submit_if_few(self, job: Submission) -> None:
        if sum(not job.record.ended for job in jobs_of(self._world).values()) < 4:
            self.submit(job)
