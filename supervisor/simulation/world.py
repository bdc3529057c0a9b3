"""A small world under a virtual clock: the real planner, loop, journal and effects; simulated etcd, cloud and nodes.

The world makes no decision for a daemon. The clock jumps to whatever is due next. While nothing happens, daemons tick
less often, because each tick would find what the previous one found; any change makes them tick often again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b

from spotsup_trainer.wire import Keys

from provisioners.base import Provisioner
from supervisor.alerts.senders import Outgoing, Receipt
from supervisor.journal.journal import Journal
from supervisor.model import Event
from supervisor.planner.actions import Action, Bootstrap, Commit, Outcome
from supervisor.planner.world import Rules
from supervisor.runtime.actor import PreTerminate
from supervisor.simulation.clock import Timeline, VirtualClock
from supervisor.simulation.cloud import SimCloud
from supervisor.simulation.daemon import Daemon, DiedError
from supervisor.simulation.etcd import CLUSTER, SimEtcd
from supervisor.simulation.etcd_clients import EtcdClient
from supervisor.simulation.faults import FaultRates, FaultRng
from supervisor.simulation.hooks import Hooks
from supervisor.simulation.nodes import SimNodes

MAX_STEPS_AT_ONCE = 500
LOG_LINES = 4000


class World:
    """All parts, stepped together."""

    # Nothing ever fails in it: what only looks for failures, and would find none, is left out.
    faultless = False

    def __init__(
        self,
        seed: int,
        fault_rates: FaultRates,
        rules: Rules,
        pre_terminate: PreTerminate | None = None,
        max_clock_error_s: float = 0.0,
        by_ssh: bool = False,
        make_cloud: Callable[[VirtualClock, FaultRng, Hooks], SimCloud] = SimCloud,
    ) -> None:
        """`max_clock_error_s`: each daemon's clock is off by up to so much, for as long as the daemon lives. `by_ssh`:
        machines reach etcd through the daemons' tunnels alone."""
        self.pre_terminate = pre_terminate
        self.max_clock_error_s = max_clock_error_s
        self.rng = FaultRng(seed)
        self.clock = VirtualClock()
        self.started_at = self.clock.now()
        self.hooks = Hooks()
        self.rules = rules
        self.fault_rates = fault_rates
        self.etcd = SimEtcd(self.clock, seed)
        # An observer's: neither lag nor outages concern it.
        self.journal = Journal(EtcdClient(self.etcd, self.rng), Keys(CLUSTER))
        self.cloud = make_cloud(self.clock, self.rng, self.hooks)
        self.cloud.by_ssh = by_ssh
        self.nodes = SimNodes(self.clock, self.rng, self.etcd, self.cloud)
        self.nodes.leave_margin_s = rules.leave_margin_s / 2  # as nodes.prepare configures the agents
        # What is scheduled by `schedule`.
        self.timeline = Timeline()
        # Alerts that were delivered.
        self.sent: list[Event] = []
        # How much longer than other calls a bootstrap takes, at most.
        self.bootstrap_s = 0.0
        # Between two ticks of a daemon: while something happens, and after nothing has happened for long.
        self.busy_tick_s = self.idle_tick_s = 1.0  # as a daemon that is configured no other way
        # After a tick, also for a change of the journal or an outcome of an action.
        self.min_tick_s = 0.02
        self.steps = self.ticks = 0
        self.log: list[str] = []
        self._digest = blake2b(digest_size=8)
        self._wake_ups = Timeline()
        self._daemons_started = self._cloud_changes = self._at_once = 0
        self.daemons: list[Daemon] = []
        self.daemon = self.start_daemon()
        self.daemon.leader.seize()
        self.set_fault_rates(fault_rates)

    @property
    def provisioners(self) -> Mapping[str, Provisioner]:
        """By name, the clouds that daemons ask. The machines of all are in `cloud`."""
        return {self.cloud.name: self.cloud}

    def set_fault_rates(self, rates: FaultRates) -> None:
        """How often each fault occurs from now on."""
        self.fault_rates = self.cloud.fault_rates = self.nodes.fault_rates = rates
        for daemon in self.daemons:
            daemon.client.fault_rates = rates

    # -- log -----------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Log what happened, and add it to the digest."""
        line = f"{self.clock.now() - self.started_at:10.3f} {text}"
        self._digest.update(line.encode())
        self.log.append(line)
        if len(self.log) > LOG_LINES:
            del self.log[: LOG_LINES // 2]

    def digest(self) -> str:
        """Equal for two runs that were equal."""
        return self._digest.hexdigest()

    def on_commit(self, daemon: Daemon, commit: Commit) -> None:
        """A daemon's commit is in etcd."""
        for hook in self.hooks.commit:
            hook(daemon, commit)
        for event in commit.events:
            self.note(f"{daemon.name}: {event.text}")
        for action in commit.actions:
            self.note(f"{daemon.name} begins {type(action).__name__} {action.key}")

    def send(self, message: Outgoing) -> Receipt:
        """Deliver alerts, as alerts.slack does."""
        if self.rng.inject("alert lost", self.fault_rates.unreachable):
            return Receipt(error="Slack did not answer")
        self.sent += message.events
        return Receipt(delivered=tuple(event.id for event in message.events))

    def try_without_sending(self) -> str:
        """Nothing is wrong."""
        return ""

    # -- daemons -------------------------------------------------------------------------------------------

    @property
    def no_daemon_acts(self) -> bool:
        """Whether no running daemon leads and reaches etcd."""
        return not any(d.runs and d.leader.leading and d.client.connected for d in self.daemons)

    def start_daemon(self) -> Daemon:
        """Start one more process; it leads once no other does."""
        self._daemons_started += 1
        error_s = self.rng.uniform(-self.max_clock_error_s, self.max_clock_error_s) if self.max_clock_error_s else 0.0
        daemon = Daemon(self, f"daemon-{self._daemons_started}", error_s)
        self.daemons.append(daemon)
        return daemon

    def kill(self, daemon: Daemon) -> None:
        """kill -9."""
        if daemon.dead:
            return
        daemon.dead = True
        daemon.actor.crash()
        daemon.leader.lose_contact()
        for carrier in daemon.carriers:
            carrier.end()

    def freeze(self, daemon: Daemon, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`. Its lease may end meanwhile."""
        self.note(f"{daemon.name} is stopped for {seconds:.1f} s")
        daemon.frozen = True
        daemon.leader.lose_contact()
        self._wake_ups.add(self.clock.now() + seconds, lambda: self.thaw(daemon))

    def thaw(self, daemon: Daemon) -> None:
        """SIGCONT."""
        if daemon.dead:
            return
        daemon.frozen = False
        self.note(f"{daemon.name} continues")
        if daemon.client.connected:
            daemon.leader.regain_contact()

    def hang(self, daemon: Daemon, seconds: float) -> None:
        """SIGSTOP in the middle of an operation; when this returns, the daemon continues there."""
        self.freeze(daemon, seconds)
        self.run(seconds + 0.001)
        if daemon.dead:
            raise DiedError

    def partition(self, daemon: Daemon, on: bool) -> None:
        """Cut a daemon off from etcd, or connect it again."""
        daemon.client.partitioned = on
        if on:
            daemon.leader.lose_contact()
        elif daemon.runs:
            daemon.leader.regain_contact()

    def lose_daemon(self) -> None:
        """kill -9 of the current daemon, until `crash_daemon` starts another."""
        self.kill(self.daemon)

    def crash_daemon(self) -> None:
        """kill -9 of the current daemon, and a new one that leads at once."""
        self.kill(self.daemon)
        self.daemon = self.start_daemon()
        self.daemon.leader.seize()

    def wake_daemons(self) -> None:
        """Something happened: daemons tick often for a while."""
        for daemon in self.daemons:
            daemon.wake()

    def tick_at(self, ticked_at: float, idle_ticks: int) -> float:
        """When a daemon ticks that ticked then, after so many ticks that found nothing to do."""
        return ticked_at + min(self.idle_tick_s, self.busy_tick_s * 2.0 ** min(20, max(0, idle_ticks - 2) // 2))

    def is_news(self, outcome: Outcome) -> bool:
        """Whether a daemon ticks because an action had this outcome."""
        return True

    def call_s(self, action: Action) -> tuple[float, float]:
        """After how long a call takes effect, and how long after that its reply arrives."""
        longest = 20.0 if self.rng.inject("slow call", self.fault_rates.slow_call) else 0.8
        if isinstance(action, Bootstrap):
            longest += self.bootstrap_s
        return self.rng.uniform(0.0, longest), 0.0 if longest < 1 else 0.5

    # -- time ----------------------------------------------------------------------------------------------

    def schedule(self, at: float, do: Callable[[], None]) -> None:
        """Run `do` at a time."""
        self.timeline.add(at, do)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.clock.now() + seconds
        self._step()
        while self.clock.now() < end:
            self._advance(end)

    def run_until(self, predicate: Callable[[World], bool], timeout_s: float) -> bool:
        """Let time pass until the predicate holds; False after `timeout_s` virtual seconds."""
        end = self.clock.now() + timeout_s
        self._step()
        while not predicate(self):
            if self.clock.now() >= end:
                return False
            self._advance(end)
        return True

    def _advance(self, end: float) -> None:
        """To whatever is due next."""
        due = min(end, self._next_at())
        self._at_once = self._at_once + 1 if due <= self.clock.now() else 0
        assert self._at_once < MAX_STEPS_AT_ONCE, f"time stands still at {self.clock.now() - self.started_at:.3f}"
        self.clock.time = max(due, self.clock.now())
        self._step()

    def _next_at(self) -> float:
        now = self.clock.now()
        due = [self.cloud.next_at(), self.etcd.next_at(), self.nodes.next_at(), *(d.next_at(now) for d in self.daemons)]
        return min(*due, self.timeline.next_at(), self._wake_ups.next_at())

    def _step(self) -> None:
        self.steps += 1
        self.timeline.run_due(self.clock.now())
        self._wake_ups.run_due(self.clock.now())
        self.cloud.step()
        self.etcd.step()
        if self.cloud.changes != self._cloud_changes:
            self._cloud_changes = self.cloud.changes
            self.wake_daemons()
        self.nodes.step()
        for daemon in list(self.daemons):
            daemon.step(self.clock.now())
            if daemon.dead and not daemon.leader.lease_held and daemon in self.daemons:  # it may have died in its step
                self.daemons.remove(daemon)
        for hook in self.hooks.step:
            hook()
