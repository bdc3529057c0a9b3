"""Tunnels of `reach = "ssh"`: a daemon decides by its own code which it keeps; the SSH connections are simulated.

A machine's sshd gives the port that leads to etcd to one session at a time. It may keep it for one whose other end is
gone, without a word or frozen, until another connection has that session ended (bootstrap/reach/free_port.sh).
"""

from __future__ import annotations

from typing import Protocol

from bootstrap.connect import CONNECT_TIMEOUT_S, SILENCE_S
from bootstrap.tunnel import RETRY_S, UNANSWERED_S
from spotsup_simulator.clock import NEVER
from spotsup_simulator.etcd_clients import EtcdClient
from spotsup_simulator.machine import Machine
from spotsup_simulator.surroundings import Surroundings
from supervisor.model import NodeRecord

# From the first packet until the port is forwarded.
_MIN_CONNECT_S, _MAX_CONNECT_S = 0.1, 1.5


class Carrier(Protocol):
    """The daemon that keeps a tunnel."""

    carriers: list[SimTunnel]

    @property
    def runs(self) -> bool:
        """True if its process goes on."""
        ...

    @property
    def client(self) -> EtcdClient:
        """Return its way to etcd."""
        ...


class SimTunnel:
    """One daemon's tunnel to one node, as bootstrap.tunnel.Tunnel."""

    def __init__(self, world: Surroundings, daemon: Carrier, node: NodeRecord) -> None:
        self._world = world
        self._daemon = daemon
        self._node = node
        self._machine: Machine | None = None  # that it is connected to
        self._half_open = False
        self._failures = 0
        self._attempt_at = world.clock.now() + self._connect_s()
        # When it finds out that nothing is answered any more.
        self._finds_out_at = NEVER
        self._carries_since = 0.0
        self._problem = "not connected yet"

    # -- as nodes.tunnels.Carrier --------------------------------------------------------------------------

    def start(self) -> None:
        self._daemon.carriers.append(self)

    def close(self) -> None:
        if self in self._daemon.carriers:
            self._daemon.carriers.remove(self)
        self.end()

    def alive(self) -> bool:
        return True

    def problem(self, carried_s: float = 0.0) -> str:
        if not self._problem and self._world.clock.now() - self._carries_since < carried_s:
            return "its connection was made again just now"
        return self._problem

    # -- what happens to it --------------------------------------------------------------------------------

    def carries(self) -> bool:
        """True if what the node sends arrives at etcd."""
        holds = self._machine is not None and self._machine.port_holder is self
        return holds and not self._half_open and self._daemon.runs and self._daemon.client.connected

    def end(self) -> None:
        """End its process, or close it: sshd learns of that, if anything arrives there."""
        machine, self._machine = self._machine, None
        if machine is not None and machine.port_holder is self and not machine.silent:
            machine.port_holder = None

    def fall_silent(self) -> None:
        """Fall silent: it stays connected, and nothing passes any more."""
        self._half_open = self._machine is not None

    def step(self, now: float) -> None:
        """Handle what is due now."""
        if self._machine is None:
            if now >= self._attempt_at:
                self._connect(now)
            return
        if self._machine.port_holder is not self or not self._machine.alive:
            self._break(now, "the connection broke")
        elif not (self._half_open or self._machine.silent):
            self._finds_out_at = NEVER
        elif self._finds_out_at == NEVER:
            self._finds_out_at = now + (UNANSWERED_S if self._half_open else SILENCE_S)
        elif now >= self._finds_out_at:
            self._break(now, "connected, but nothing is answered")

    def next_at(self) -> float:
        """Return when `step` has something to do, if nothing happens until then."""
        return self._attempt_at if self._machine is None else self._finds_out_at

    def _connect(self, now: float) -> None:
        machines = self._world.cloud.machines.values()
        found = next((m for m in machines if m.alive and m.instance.ssh_host == self._node.ssh_host), None)
        if found is None or found.silent or found.ssh == "hangs":
            self._fail(now + CONNECT_TIMEOUT_S, "no answer")
        elif found.ssh == "refuses" or found.instance.node != self._node.machine_name:
            self._fail(now, "refused, or another machine")
        elif found.port_holder not in {None, self} and now < found.port_stuck_until:
            self._fail(now + 1.0, "sshd does not forward the port")
        else:
            self._machine, found.port_holder, self._half_open = found, self, False
            self._failures, self._finds_out_at, self._carries_since, self._problem = 0, NEVER, now, ""

    def _break(self, now: float, problem: str) -> None:
        """Break the tunnel. What sshd still holds it holds on: it has heard nothing of this."""
        self._machine, self._half_open, self._finds_out_at = None, False, NEVER
        self._fail(now, problem)

    def _fail(self, now: float, problem: str) -> None:
        self._problem = problem
        self._attempt_at = now + RETRY_S[min(self._failures, len(RETRY_S) - 1)] + self._connect_s()
        self._failures += 1

    def _connect_s(self) -> float:
        return self._world.rng.uniform(_MIN_CONNECT_S, _MAX_CONNECT_S)
