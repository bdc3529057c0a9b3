"""What happens to etcd itself, and what its users do to each other's leases."""

from __future__ import annotations

from collections.abc import Callable

from spotsup_simulator.daemon import Daemon
from spotsup_simulator.etcd import LEADER_KEY
from spotsup_simulator.machine import Machine
from spotsup_simulator.world import World

from tests.sim.scenario import Injection

# While etcd elects a leader, nobody is answered.
MAX_ELECTION_S = 3.0
MAX_FULL_S = 900.0
# For how long a thief goes on.
MAX_THEFT_S = 600.0


class EtcdFaults:
    """What scenarios inject; `stop` ends what lasts."""

    def __init__(
        self,
        world: World,
        kill: Callable[[Daemon, float], None],
        etcd_up: Callable[[], None],
        restart: Callable[[], None],
    ) -> None:
        """`kill`: a daemon ends, and is started again after so many seconds. `etcd_up`: an outage is over. `restart`:
        there are two daemons from now on."""
        self._world = world
        self._kill = kill
        self._etcd_up = etcd_up
        self._restart = restart

    def on_world(self, injection: Injection) -> None:
        """Faults of etcd as a whole."""
        match injection.kind:
            case "etcd elects":
                self._elect(injection)
            case "etcd full":
                self._world.etcd.full = True
                self._later(MAX_FULL_S * injection.size, self._make_room)

    def on_machine(self, injection: Injection, machine: Machine) -> None:
        """Leases of agents and launchers."""
        nodes, node = self._world.nodes, machine.node
        match injection.kind:
            case "agent's lease revoked":
                for number in range(1 + injection.number % 3):
                    self._later(2.0 * number, lambda: nodes.revoke_leases(node))
            case "dead agent's lease renewed":
                nodes.renew_leases(node, MAX_THEFT_S * injection.size)
                if injection.number % 2:
                    self._world.cloud.vanish(machine)
                else:
                    machine.silent = True

    def on_daemon(self, injection: Injection, daemon: Daemon) -> None:
        """Leases of daemons: the leader's, or a standby's."""
        match injection.kind:
            case "daemon's lease revoked":
                for number in range(1 + injection.number % 3):
                    self._later(3.0 * number, lambda: self._revoke(daemon))
            case "dead leader's lease renewed":
                self._restart()
                self.renew(MAX_THEFT_S * injection.size)
                if injection.number % 3:
                    self._kill(daemon, 5.0 + 60.0 * injection.size)
                else:
                    self._world.freeze(daemon, 5.0 + 120.0 * injection.size)

    def renew(self, seconds: float) -> None:
        """Somebody renews the leader's lease for so long."""
        found = self._world.etcd.keys.get(LEADER_KEY)
        if found is not None and found.lease in self._world.etcd.leases:
            self._world.etcd.leases[found.lease].stolen_until = self._world.clock.now() + seconds

    def stop(self) -> None:
        """There is room, and no thief."""
        self._world.etcd.full = False
        for lease in self._world.etcd.leases.values():
            lease.stolen_until = 0.0
        for agent in self._world.nodes.agents.values():
            agent.stolen_until = 0.0

    def _revoke(self, daemon: Daemon) -> None:
        if not self._world.etcd.down:
            daemon.leader.lose_lease()

    def _elect(self, injection: Injection) -> None:
        """Mostly nobody is answered meanwhile. Leases begin anew, so those that are about to end do so together."""
        if injection.number % 3:
            self._world.etcd.down = True
            self._later(MAX_ELECTION_S * injection.size, self._etcd_up)
        else:
            self._world.etcd.elect()
            self._world.nodes.extend_leases()

    def _make_room(self) -> None:
        self._world.etcd.full = False
        self._world.wake_daemons()

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self._world.schedule(self._world.clock.now() + seconds, do)
