"""What daemons, nodes and clouds of a simulated world share: time, chance, etcd, machines, and the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from spotsup_trainer.wire import Keys

from provisioners.base import Provisioner
from spotsup_simulator.clock import VirtualClock
from spotsup_simulator.cloud import SimCloud
from spotsup_simulator.etcd import CLUSTER, SimEtcd
from spotsup_simulator.etcd_clients import EtcdClient
from spotsup_simulator.faults import FaultRates, FaultRng
from spotsup_simulator.hooks import Daemon, Hooks
from spotsup_simulator.nodes import SimNodes
from supervisor.alerts.senders import Outgoing, Receipt
from supervisor.journal.journal import Journal
from supervisor.model import Event
from supervisor.planner.actions import Action, Bootstrap, Commit, Outcome
from supervisor.planner.continuity import Mark
from supervisor.planner.world import Rules
from supervisor.runtime.actor import PreTerminate
from supervisor.runtime.lanes import LANES

LOG_LINES = 4000


@dataclass(frozen=True)
class Conditions:
    """What a world begins with."""

    seed: int
    fault_rates: FaultRates
    rules: Rules
    pre_terminate: PreTerminate | None = None
    # Each daemon's clock is off by up to so much, for as long as the daemon lives.
    max_clock_error_s: float = 0.0
    # Machines reach etcd through the daemons' tunnels alone.
    by_ssh: bool = False
    make_cloud: Callable[[VirtualClock, FaultRng, Hooks], SimCloud] = SimCloud


class Surroundings:
    """All of a world but its daemons."""

    # Nothing ever fails in it: what only looks for failures, and would find none, is left out.
    faultless = False

    def __init__(self, conditions: Conditions) -> None:
        self.conditions, self.rules, self.fault_rates = conditions, conditions.rules, conditions.fault_rates
        self.rng = FaultRng(conditions.seed)
        self.clock = VirtualClock()
        self.started_at = self.clock.now()
        self.hooks = Hooks()
        self.etcd = SimEtcd(self.clock, conditions.seed)
        # An observer's: neither lag nor outages concern it.
        self.journal = Journal(EtcdClient(self.etcd, self.rng), Keys(CLUSTER))
        self.cloud = conditions.make_cloud(self.clock, self.rng, self.hooks)
        self.cloud.by_ssh = conditions.by_ssh
        self.nodes = SimNodes(self.clock, self.rng, self.etcd, self.cloud)
        self.nodes.leave_margin_s = self.rules.leave_margin_s / 2  # as nodes.prepare configures the agents
        # Of the host's disk: how new the journal was when a daemon last saw it.
        self.mark: Mark | None = None
        # Alerts that were delivered.
        self.sent: list[Event] = []
        # How many actions of a kind a daemon runs at a time.
        self.lanes = LANES
        # How much longer than other calls a bootstrap takes, at most.
        self.bootstrap_s = 0.0
        # Between two ticks of a daemon: while something happens, and after nothing has happened for long.
        self.busy_tick_s = self.idle_tick_s = 1.0  # as a daemon that is configured no other way
        # After a tick, also for a change of the journal or an outcome of an action.
        self.min_tick_s = 0.02
        self.ticks = 0
        self.log: list[str] = []
        self._digest = blake2b(digest_size=8)

    @property
    def provisioners(self) -> Mapping[str, Provisioner]:
        """Return, by name, the clouds that daemons ask. The machines of all are in `cloud`."""
        return {self.cloud.name: self.cloud}

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
        """Take note that a daemon's commit is in etcd."""
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

    # -- calls ---------------------------------------------------------------------------------------------

    def tick_at(self, ticked_at: float, idle_ticks: int) -> float:
        """Return when a daemon ticks that ticked then, after so many ticks that found nothing to do."""
        return ticked_at + min(self.idle_tick_s, self.busy_tick_s * 2.0 ** min(20, max(0, idle_ticks - 2) // 2))

    def is_news(self, outcome: Outcome) -> bool:
        """True if a daemon ticks because an action had this outcome."""
        return True

    def call_s(self, action: Action) -> tuple[float, float]:
        """After how long a call takes effect, and how long after that its reply arrives."""
        max_call_s = 20.0 if self.rng.inject("slow call", self.fault_rates.slow_call) else 0.8
        if isinstance(action, Bootstrap):
            max_call_s += self.bootstrap_s
        return self.rng.uniform(0.0, max_call_s), 0.0 if max_call_s < 1 else 0.5
