"""Tunnels to the nodes of clouds with `reach = "ssh"`: through them these nodes use etcd.

The leader keeps them. When it ends, or another daemon takes over, that is an outage of etcd for the nodes (P7): they
train on, and the next leader opens the same ports.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import structlog
from spotsup_trainer.vitals import Pulse, Vitals

from supervisor.config import Config
from supervisor.endpoints import tunnel_ports, uses_tunnel
from supervisor.identity import Identity
from supervisor.journal.journal import USES_ETCD, Journal, Reading
from supervisor.model import NodeRecord
from supervisor.nodes.prepare import ssh_host_of
from supervisor.runtime.clock import Clock

if TYPE_CHECKING:
    from bootstrap.tunnel import Forward, Tunnel

LOOK_S = 0.5
# One look closes tunnels one after another.
STUCK_S = 600.0

log = structlog.get_logger("spotsupd")


class Carrier(Protocol):
    """A tunnel to one node."""

    def start(self) -> None:
        """Begin to connect, and again whenever the connection breaks."""
        ...

    def close(self) -> None:
        """Break it."""
        ...

    def alive(self) -> bool:
        """True if it still tries."""
        ...

    def problem(self, carried_s: float = 0.0) -> str:
        """Return why it has not carried without a break for so long; "" where it has."""
        ...


class Keeper:
    """Which tunnels there are: of the leader, to all nodes that need one. For one thread; `problem` for any."""

    def __init__(
        self,
        read: Callable[[], Reading],
        leads: Callable[[], bool],
        uses: Callable[[str], bool],
        tunnel_to: Callable[[NodeRecord], Carrier],
    ) -> None:
        """`uses`: whether the nodes of a cloud need tunnels."""
        self._read = read
        self._leads = leads
        self._uses = uses
        self._tunnel_to = tunnel_to
        self._open: dict[str, Carrier] = {}

    def look(self) -> None:
        """Open and close what has to be."""
        if not self._leads():
            self.close()  # the next leader needs the ports
            return
        reading = self._read()
        if reading.live:  # else: those that are open may still carry
            self._keep(tunnelled(reading, self._uses))

    def close(self) -> None:
        """Close all."""
        self._keep({})

    def problem(self, node: NodeRecord, carried_s: float = 0.0) -> str:
        """Return why etcd was not carried to a node for so long; "" where it was, or needs no tunnel."""
        if not self._uses(node.offer.cloud):
            return ""
        tunnel = self._open.get(node.id)
        return tunnel.problem(carried_s) if tunnel else "no tunnel is open to it"

    def _keep(self, nodes: dict[str, NodeRecord]) -> None:
        gone = [node for node, tunnel in self._open.items() if node not in nodes or not tunnel.alive()]
        closing = [threading.Thread(target=self._open.pop(node).close, name=f"close {node}") for node in gone]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        for node in nodes.values():
            if node.id not in self._open:
                self._open[node.id] = self._tunnel_to(node)
                self._open[node.id].start()


class Tunnels(Keeper):
    """One thread that looks which nodes need a tunnel, and one for each of these."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        journal: Journal,
        endpoints: Sequence[str],
        clock: Clock,
        leads: Callable[[], bool],
    ) -> None:
        """`endpoints`: etcd, as this daemon reaches it."""
        super().__init__(journal.read, leads, partial(uses_tunnel, config), self._tunnel)
        self._config = config
        self._identity = identity
        self._endpoints = tuple(endpoints)
        self._clock = clock
        self._pulse = Pulse()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunnels", daemon=True)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Keep tunnels; at the end, which takes seconds, there are none."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join(timeout=10.0)

    def vitals(self) -> Vitals:
        """Return how its thread is."""
        return self._pulse.vitals(STUCK_S, self._thread)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - whatever it is: the next look sees the same nodes
                self._pulse.fault(error)
            self._pulse.beat()
        self.close()

    def _tunnel(self, node: NodeRecord) -> Tunnel:
        from bootstrap.tunnel import Tunnel

        ssh = ssh_host_of(self._config, self._identity, node)
        return Tunnel(ssh, node.id, forwards(node.id, self._endpoints), self._clock.now, partial(_report, node.id))


def tunnelled(reading: Reading, uses: Callable[[str], bool]) -> dict[str, NodeRecord]:
    """Return the nodes that need a tunnel, by id. `uses`: as Keeper's."""
    return {
        node.id: node
        for view in reading.jobs.values()
        for node in view.nodes.values()
        if node.state in USES_ETCD and node.ssh_host and uses(node.offer.cloud)
    }


def forwards(node: str, endpoints: Sequence[str]) -> tuple[Forward, ...]:
    """Return which port of the node leads to which endpoint."""
    from bootstrap.tunnel import Forward

    urls = [urlsplit(endpoint) for endpoint in endpoints]
    ports = tunnel_ports(node, len(urls))
    return tuple(
        Forward(port, url.hostname or "127.0.0.1", url.port or 2379) for port, url in zip(ports, urls, strict=True)
    )


def _report(node: str, problem: str) -> None:
    if problem:
        log.warning("the tunnel to a node carries nothing; will retry", node=node, error=problem)
    else:
        log.info("etcd is carried to a node", node=node)
