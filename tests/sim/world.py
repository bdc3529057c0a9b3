"""A small world under a virtual clock: the real planner, loop, journal and effects; simulated etcd, cloud and nodes.

Nothing here decides for the daemon. The clock jumps to whatever is due next. While nothing at all happens, a daemon's
ticks become rarer, for each would find what the last one found; whatever happens makes it look often again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

from spotsup_trainer.wire import Keys

from supervisor.journal.journal import Journal
from supervisor.model import Event
from supervisor.planner.actions import Action, Commit
from supervisor.planner.world import Rules
from supervisor.runtime.actor import PreTerminate
from tests.sim.chance import Dice, Faults
from tests.sim.cloud import NEVER, Machine, SimCloud
from tests.sim.daemon import Daemon, DiedError
from tests.sim.nodes import LEASE_S, SimNodes
from tests.sim.store import CLUSTER, Client, SimClock, SimStore

MAX_STEPS_AT_ONCE = 500
LOG_LINES = 4000


class World:
    """Everything, stepped together."""

    def __init__(
        self,
        seed: int,
        faults: Faults,
        rules: Rules,
        pre_terminate: PreTerminate | None = None,
        clocks_off_s: float = 0.0,
    ) -> None:
        self.pre_terminate = pre_terminate
        self.clocks_off_s = clocks_off_s
        self.dice = Dice(seed)
        self.clock = SimClock()
        self.began = self.clock.now()
        self.rules = rules
        self.restored_at = -NEVER
        self.faults = faults
        self.store = SimStore(self.clock)
        self.journal = Journal(Client(self.store, self.dice), Keys(CLUSTER))  # nobody's: for those who check
        self.cloud = SimCloud(self.clock, self.dice)
        self.nodes = SimNodes(self.clock, self.dice, self.store, self.cloud)
        self.nodes.leave_s = rules.leave_margin_s / 2  # as runtime.prepare tells the agents
        self.sent: list[Event] = []
        self.alert_tries: Counter[str] = Counter()
        self.checks: list[Callable[[World], None]] = []
        self.on_start: Callable[[Daemon, Action], None] = lambda _daemon, _action: None
        self.boundary: Callable[[Daemon, str, str], None] = lambda _daemon, _where, _kind: None
        self.plans: list[tuple[float, Callable[[], None]]] = []
        self.bootstrap_s = 0.0
        self.quickest_tick_s = self.slowest_tick_s = 0.25
        self.steps = self.ticks = 0
        self.log: list[str] = []
        self._digest = blake2b(digest_size=8)
        self._stopped: list[tuple[float, Daemon]] = []
        self._born = self._cloud_seen = 0
        self.daemons: list[Daemon] = []
        self.daemon = self.start_daemon()
        self.daemon.leader.seize()
        self.set_faults(faults)

    def set_faults(self, faults: Faults) -> None:
        """How nasty everything is from now on."""
        self.faults = self.cloud.faults = self.nodes.faults = faults
        for daemon in self.daemons:
            daemon.client.faults = faults

    # -- what is written down ------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """A line of what happened; all of them make the digest."""
        line = f"{self.clock.now() - self.began:10.3f} {text}"
        self._digest.update(line.encode())
        self.log.append(line)
        if len(self.log) > LOG_LINES:
            del self.log[: LOG_LINES // 2]

    def digest(self) -> str:
        """The same for two runs that were the same."""
        return self._digest.hexdigest()

    def on_commit(self, daemon: Daemon, commit: Commit) -> None:
        """A daemon's decision is in the journal."""
        for event in commit.events:
            self.say(f"{daemon.name}: {event.text}")
        for action in commit.actions:
            self.say(f"{daemon.name} begins {type(action).__name__} {action.key}")

    def send(self, event: Event) -> str:
        """Alerts end here."""
        if self.dice.hits("alert lost", self.faults.unreachable):
            return "Slack did not answer"
        self.sent.append(event)
        return ""

    # -- what happens to daemons ---------------------------------------------------------------------------

    @property
    def daemon_away(self) -> bool:
        """Whether no daemon can act."""
        return not any(d.runs and d.leader.leading and d.client.connected for d in self.daemons)

    def start_daemon(self) -> Daemon:
        """One more process; it leads once the place is free."""
        self._born += 1
        off_s = self.dice.between(-self.clocks_off_s, self.clocks_off_s) if self.clocks_off_s else 0.0
        daemon = Daemon(self, f"daemon-{self._born}", off_s)
        self.daemons.append(daemon)
        return daemon

    def kill(self, daemon: Daemon) -> None:
        """kill -9."""
        if daemon.dead:
            return
        daemon.dead = True
        daemon.actor.crash()
        daemon.leader.out_of_touch()

    def freeze(self, daemon: Daemon, seconds: float) -> None:
        """SIGSTOP, and SIGCONT so much later. Its lease may end meanwhile."""
        self.say(f"{daemon.name} is stopped for {seconds:.1f} s")
        daemon.frozen = True
        daemon.leader.out_of_touch()
        self._stopped.append((self.clock.now() + seconds, daemon))

    def thaw(self, daemon: Daemon) -> None:
        """SIGCONT."""
        if daemon.dead:
            return
        daemon.frozen = False
        self.say(f"{daemon.name} goes on")
        if daemon.client.connected:
            daemon.leader.in_touch()

    def hang(self, daemon: Daemon, seconds: float) -> None:
        """SIGSTOP in the middle of what it does; when this returns, it goes on there."""
        self.freeze(daemon, seconds)
        self.run(seconds + 0.001)
        if daemon.dead:
            raise DiedError

    def cut(self, daemon: Daemon, off: bool) -> None:
        """Whether the way from this daemon to etcd is broken."""
        daemon.client.cut = off
        if off:
            daemon.leader.out_of_touch()
        elif daemon.runs:
            daemon.leader.in_touch()

    def lose_daemon(self) -> None:
        """kill -9, and nobody starts it again before `crash_daemon`."""
        self.kill(self.daemon)

    def crash_daemon(self) -> None:
        """kill -9, and a new one that leads at once."""
        self.kill(self.daemon)
        self.daemon = self.start_daemon()
        self.daemon.leader.seize()

    # -- time ----------------------------------------------------------------------------------------------

    def plan(self, at: float, do: Callable[[], None]) -> None:
        """Let something happen at a time."""
        self.plans.append((at, do))
        self.plans.sort(key=lambda entry: entry[0])

    def tick_s(self, idle: int) -> float:
        """How long a daemon waits that has found nothing to do for so many ticks."""
        return min(self.slowest_tick_s, self.quickest_tick_s * 2.0 ** min(20, max(0, idle - 2) // 2))

    def attend(self) -> None:
        """Something happened: daemons look often for a while."""
        for daemon in self.daemons:
            daemon.attend()

    def run(self, seconds: float) -> None:
        """Let time go on."""
        end = self.clock.now() + seconds
        self._step()
        at_once = 0
        while self.clock.now() < end:
            due = min(end, self._next_at())
            at_once = at_once + 1 if due <= self.clock.now() else 0
            assert at_once < MAX_STEPS_AT_ONCE, f"time stands still at {self.clock.now() - self.began:.3f}"
            self.clock.time = max(due, self.clock.now())
            self._step()

    def run_until(self, predicate: Callable[[World], bool], most_s: float) -> bool:
        """Until it holds; False when `most_s` virtual seconds did not suffice."""
        end = self.clock.now() + most_s
        self._step()
        while not predicate(self):
            if self.clock.now() >= end:
                return False
            self.clock.time = max(self.clock.now(), min(end, self._next_at()))
            self._step()
        return True

    def _next_at(self) -> float:
        now = self.clock.now()
        due = [self.cloud.next_at(), self.nodes.next_at(), *(d.next_at(now) for d in self.daemons)]
        due += [at for at, _ in self.plans[:1]] + [at for at, _ in self._stopped]
        return min(due)

    def _step(self) -> None:
        self.steps += 1
        while self.plans and self.plans[0][0] <= self.clock.now():
            self.plans.pop(0)[1]()
        for at, daemon in list(self._stopped):
            if at <= self.clock.now():
                self._stopped.remove((at, daemon))
                self.thaw(daemon)
        self.cloud.step()
        if self.cloud.changes != self._cloud_seen:
            self._cloud_seen = self.cloud.changes
            self.attend()
        self.nodes.step()
        for daemon in list(self.daemons):
            daemon.step(self.clock.now())
            over = daemon.dead and daemon.leader.lease_at() == NEVER and not self.store.away
            if over and daemon in self.daemons:  # time may have gone on within its step
                self.daemons.remove(daemon)
        for check in self.checks:
            check(self)


__all__ = ["CLUSTER", "LEASE_S", "Faults", "Machine", "World"]
