"""The soak's machines: each a launcher on its own loopback address, started as a node's agent starts it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsup_trainer.agent.child import Child
from spotsup_trainer.launcher.run_dir import RunDir
from spotsup_trainer.wire import AgentConfig, Metadata

from provisioners.localcloud import processes
from provisioners.localcloud.machine.spec import MARKER_VARIABLE
from provisioners.localcloud.processes import Identity
from tests.support.etcd_members import prefix_of

CLUSTER, JOB = "soak", "soak"
MAX_NODES = 6
_KILL_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 10.0  # ten times what a call to a store may take (spotsup_trainer.launcher.elastic_agent)
_LISTENING = "0A"


class SoakError(Exception):
    """A promise was broken; one sentence."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of a launcher after `round`; `server_kib`: memory of the process that forks its workers."""

    round: int
    trains: bool
    rss_kib: int
    server_kib: int
    files: int
    threads: int
    listening: int
    run_dir: int


class Node:
    """One machine. `launcher`: the current one; the agent starts another when it was killed."""

    def __init__(self, name: str, number: int, network: Network) -> None:
        self.name = name
        self.address = f"{network.address}.{number}"
        self.folder = network.folder / name
        self.marker = f"{network.prefix}{number:04d}"
        self.config = network.config(self)
        self.run_dir = RunDir(Path(self.config.run_dir))
        (self.folder / "tmp").mkdir()
        self.launcher = self._start()

    def start_again(self) -> None:
        """Start another launcher, as the agent does."""
        self.run_dir.take_outcome()
        self.launcher = self._start()

    def _start(self) -> Child:
        return Child(self.config, self.log)

    @property
    def log(self) -> Path:
        """The output of launcher and workers."""
        return self.folder / "node.log"

    def processes(self) -> set[Identity]:
        """All processes on the machine."""
        return processes.find([], lambda marker: marker == self.marker)

    def workers(self) -> set[Identity]:
        """The processes that train: forked by the launcher's child."""
        server = self._server()
        found = processes.snapshot().values()
        return {process.identity for process in found if server is not None and process.parent == server.pid}

    def kill_server(self) -> None:
        """kill -9 of the process that forks the workers."""
        server = self._server()
        if server is not None:
            processes.send(server, signal.SIGKILL)

    def _server(self) -> Identity | None:
        found = processes.snapshot().values()
        return next((process.identity for process in found if process.parent == self.launcher.pid), None)

    def has_ended(self) -> bool:
        """Whether the launcher has ended."""
        return self.launcher.exit_code() is not None

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to every process, twice: one may have been forked meanwhile."""
        for _ in range(2):
            for identity in self.processes():
                processes.send(identity, number)

    def signal_launcher(self, number: signal.Signals) -> None:
        """Send a signal to the launcher alone."""
        os.kill(self.launcher.pid, number)

    def kill(self) -> None:
        """Kill every process. Raises SoakError if one survives."""
        left = processes.kill([processes.Target(self.marker, None)], _KILL_TIMEOUT_S)
        if left:
            raise SoakError(f"processes of {self.name} survive SIGKILL: {sorted(each.pid for each in left)}")
        self.reap()

    def reap(self) -> None:
        """Kill the launcher if it runs, and reap it."""
        if self.launcher.exit_code() is None:
            self.launcher.kill()

    def usage(self, number: int, *, trains: bool) -> Usage:
        """The launcher's resources now."""
        pid = self.launcher.pid
        server = self._server()
        status = _status(pid)
        return Usage(
            round=number,
            trains=trains,
            rss_kib=int(status["VmRSS"].split()[0]),
            server_kib=int(_status(server.pid)["VmRSS"].split()[0]) if server else 0,
            files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
            threads=int(status["Threads"]),
            listening=self._listening(most_listening(trains=trains)),
            run_dir=sum(1 for _ in self.run_dir.path.rglob("*")),
        )

    def _listening(self, most: int) -> int:
        """The number of listening ports, once it is within the limit: a round that broke during its rendezvous leaves a
        store, which stays until the last call to it has ended."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        while len(listening(self.address)) > most and time.monotonic() < deadline:
            time.sleep(0.05)
        return len(listening(self.address))


def most_listening(*, trains: bool) -> int:
    """A launcher that waits has bound a socket for its next round, and may have hosted the store of the last one."""
    return 1 if trains else 2


class Network:
    """The addresses and folders of one soak's machines, distinct from any other soak's."""

    def __init__(self, folder: Path, endpoints: Sequence[str], command: Sequence[str], *, lease_ttl_s: float) -> None:
        self.folder = folder
        self.prefix = prefix_of(folder)
        # 127.0 and 127.1 are used by others
        first, second = bytes.fromhex(self.prefix.split("-")[1])[:2]
        self.address = f"127.{2 + first % 250}.{second}"
        self._endpoints = tuple(endpoints)
        self._command = tuple(command)
        self._lease_ttl_s = lease_ttl_s
        self.nodes: dict[str, Node] = {}

    def start(self, name: str) -> Node:
        """Start a new machine."""
        (self.folder / name).mkdir(parents=True)
        node = Node(name, len(self.nodes) + 1, self)
        self.nodes[name] = node
        return node

    def close(self) -> set[Identity]:
        """Kill all processes; returns the survivors."""
        left = processes.kill_marked(self.prefix, _KILL_TIMEOUT_S)
        for node in self.nodes.values():
            node.reap()
        return left

    def processes(self) -> set[Identity]:
        """The processes of all machines."""
        return processes.find([], lambda marker: marker.startswith(self.prefix))

    def config(self, node: Node) -> AgentConfig:
        """The configuration that bootstrap would write for the node's agent."""
        return AgentConfig(
            cluster=CLUSTER,
            job=JOB,
            task_id=JOB,
            node=node.name,
            addr=node.address,
            etcd_endpoints=self._endpoints,
            metadata=Metadata("none"),
            python=sys.executable,
            code_dir=str(self.folder),
            run_dir=str(node.folder / "run"),
            log_dir=str(node.folder),
            checkpoint_dir=str(self.folder / "checkpoints"),
            command=self._command,
            min_nodes=1,
            max_nodes=MAX_NODES,
            nproc_per_node=1,
            env={
                MARKER_VARIABLE: node.marker,
                "TMPDIR": str(node.folder / "tmp"),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                # a killed worker looks like a failure of the program
                "SPOTSUP_APP_FAILURES": "1000000",
            },
            lease_ttl_s=self._lease_ttl_s,
        )


def listening(address: str) -> set[int]:
    """The listening TCP ports of an IPv4 address, or of all addresses with this prefix."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        host, port = local.split(":")
        dotted = ".".join(str(each) for each in reversed(bytes.fromhex(host)))
        if state == _LISTENING and (dotted == address or dotted.startswith(f"{address}.")):
            found.add(int(port, 16))
    return found


def _status(pid: int) -> dict[str, str]:
    """/proc/PID/status (proc_pid_status(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
