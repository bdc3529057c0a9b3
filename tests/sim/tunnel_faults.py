"""What happens to the tunnels through which nodes of `reach = "ssh"` use etcd."""

from __future__ import annotations

from collections.abc import Callable

from spotsup_simulator.machine import Machine
from spotsup_simulator.tunnels import SimTunnel
from spotsup_simulator.world import World

from tests.sim.scenario import Injection

MAX_STUCK_S = 300.0


class TunnelFaults:
    """What scenarios inject; where no machine has a tunnel, nothing."""

    def __init__(self, world: World) -> None:
        self._world = world

    def on_machine(self, injection: Injection, machine: Machine) -> None:
        """Of one machine, or of every one."""
        chosen = [machine] if injection.number % 2 else list(self._world.cloud.machines.values())
        faults: dict[str, Callable[[Machine], None]] = {
            "tunnels lost": self.lose,
            "tunnels lost unnoticed": lambda each: self.lose(each, noticed=False),
            "tunnels half-open": self.silence,
            "sshd keeps the port": lambda each: self.stick(each, MAX_STUCK_S * injection.size),
        }
        if injection.kind in faults:
            for each in chosen:
                faults[injection.kind](each)
            self._world.wake_daemons()

    def lose(self, machine: Machine, *, noticed: bool = True) -> None:
        """Its connection breaks. `noticed`: by sshd, too; else it keeps the port for a session that nobody has."""
        if machine.port_holder is not None:
            machine.port_holder = None if noticed else _Gone()

    def silence(self, machine: Machine) -> None:
        """It stays connected, and nothing passes."""
        if isinstance(machine.port_holder, SimTunnel):
            machine.port_holder.fall_silent()

    def stick(self, machine: Machine, seconds: float) -> None:
        """Its connection breaks, if it has one, and sshd gives the port to nobody for a while."""
        machine.port_holder = _Gone()
        machine.port_stuck_until = self._world.clock.now() + seconds

    def stop(self) -> None:
        """sshd gives ports away again."""
        for machine in self._world.cloud.machines.values():
            machine.port_stuck_until = 0.0


class _Gone:
    """A session without another end."""

    def carries(self) -> bool:
        return False
