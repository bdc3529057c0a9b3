"""A small world under a virtual clock: the real planner, loop, journal and effects; simulated etcd, cloud and nodes.

The world makes no decision for a daemon. The clock jumps to whatever is due next. While nothing happens, daemons tick
less often, because each tick would find what the previous one found; any change makes them tick often again.
"""

from __future__ import annotations

from collections.abc import Callable

from spotsup_simulator.clock import Timeline
from spotsup_simulator.daemon import Daemon, DiedError
from spotsup_simulator.faults import FaultRates
from spotsup_simulator.surroundings import Conditions, Surroundings

MAX_STEPS_AT_ONCE = 500


class World(Surroundings):
    """All parts, stepped together."""

    def __init__(self, conditions: Conditions) -> None:
        super().__init__(conditions)
        # What is scheduled by `schedule`.
        self.timeline = Timeline()
        self.steps = 0
        self._wake_ups = Timeline()
        self._daemons_started = self._cloud_changes = self._at_once = 0
        self.daemons: list[Daemon] = []
        self.daemon = self.start_daemon()
        self.daemon.leader.seize()
        self.set_fault_rates(conditions.fault_rates)

    def set_fault_rates(self, rates: FaultRates) -> None:
        """Set how often each fault occurs from now on."""
        self.fault_rates = self.cloud.fault_rates = self.nodes.fault_rates = rates
        for daemon in self.daemons:
            daemon.client.fault_rates = rates

    # -- daemons -------------------------------------------------------------------------------------------

    @property
    def no_daemon_acts(self) -> bool:
        """True if no running daemon leads and reaches etcd."""
        return not any(d.runs and d.leader.leading and d.client.connected for d in self.daemons)

    def start_daemon(self) -> Daemon:
        """Start one more process; it leads once no other does."""
        self._daemons_started += 1
        max_error_s = self.conditions.max_clock_error_s
        error_s = self.rng.uniform(-max_error_s, max_error_s) if max_error_s else 0.0
        daemon = Daemon(self, f"daemon-{self._daemons_started}", error_s)
        self.daemons.append(daemon)
        return daemon

    def kill(self, daemon: Daemon) -> None:
        """kill -9."""
        daemon.die()

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
