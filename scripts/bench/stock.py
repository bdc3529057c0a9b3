"""Stock torchrun with its c10d rendezvous, as well as it can be had; and the floor below everybody.

A "machine" is a tree of processes on its own loopback address. It dies as a machine of the local cloud does: all of
its processes are stopped, then killed, so that none sees another one die.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provisioners.localcloud import processes
from provisioners.localcloud.machine.spec import MARKER_VARIABLE
from scripts.bench.watch import BenchError, Job, Stop, Watched

WORKER = Path(__file__).with_name("worker.py")
START_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 10.0
NODES = 3
FLOOR_STEPS = 3


@dataclass(frozen=True, slots=True)
class Tuning:
    """How torchrun is called. `rdzv_conf` without is_host, which every node gets."""

    name: str
    arguments: tuple[str, ...] = ()
    rdzv_conf: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)

    def in_words(self) -> str:
        """For the result file."""
        conf = ("--rdzv-conf", ",".join(self.rdzv_conf)) if self.rdzv_conf else ()
        environ = [f"{key}={value}" for key, value in self.environ.items()]
        return " ".join([*environ, "torchrun --rdzv-backend c10d", *self.arguments, *conf])


# By default --max-restarts is 0: the first lost node would end the job. Both may restart as often as they like.
DEFAULT = Tuning("torchrun-c10d-default", ("--max-restarts", "100"))
TUNED = Tuning(
    "torchrun-c10d-tuned",
    ("--max-restarts", "100", "--monitor-interval", "0.05"),
    # last_call_timeout and keep_alive_interval take whole seconds and must be more than 0; fewer than three attempts
    # would take a node that is late by one beat for dead
    ("last_call_timeout=1", "keep_alive_interval=1", "keep_alive_max_attempt=3"),
    # without the first, a replacement never trains in torch 2.13: it waits for an address that nobody writes
    {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCH_ELASTIC_WORKER_IDENTICAL": "1"},
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one of three nodes. `number` 0 hosts the c10d store, and has rank 0."""

    case: str
    number: int
    notice: bool = False
    replaced: bool = True


class Machines:
    """Process trees below `folder`, each found by its mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._prefix = f"bench-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}-"
        self._popens: dict[str, subprocess.Popen[bytes]] = {}

    def prepare(self) -> None:
        """End what an earlier run left, and begin with an empty folder."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def start(self, name: str, command: Sequence[str], environ: dict[str, str]) -> None:
        """Start the first process of a machine."""
        own = {
            MARKER_VARIABLE: self._prefix + name,
            "BENCH_NODE": name,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self._popens[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | own | environ,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """All of a machine's processes, at once and without a word. Raises BenchError where one withstands."""
        left = processes.kill([processes.Target(self._prefix + name, None)], KILL_TIMEOUT_S)
        if left:
            raise BenchError(f"processes of {name} cannot be killed: {sorted(each.pid for each in left)}")
        self._popens[name].wait()

    def terminate(self, name: str) -> None:
        """SIGTERM to a machine's first process."""
        self._popens[name].send_signal(signal.SIGTERM)

    def any_alive(self) -> bool:
        """Whether the first process of any machine is there."""
        return any(popen.poll() is None for popen in self._popens.values())

    def end(self) -> None:
        """Kill everything. Raises BenchError where something withstands."""
        left = processes.kill_marked(self._prefix, KILL_TIMEOUT_S)
        if left:
            raise BenchError(f"processes cannot be killed: {sorted(each.pid for each in left)}")
        for popen in self._popens.values():
            popen.wait()
        self._popens.clear()

    def last_words(self) -> str:
        """The last line of each machine's log."""
        logs = {path.stem: path.read_text(errors="replace").splitlines() for path in sorted(self.folder.glob("*.log"))}
        return " | ".join(f"{name}: {lines[-1]}" for name, lines in logs.items() if lines)


def torchrun(tuning: Tuning, fault: Fault, folder: Path, limit_s: float, stop: Stop) -> Watched:
    """Three nodes train, one is struck, its replacement is started at that very moment. Leaves no process."""
    machines = Machines(folder)
    machines.prepare()
    try:
        job = Job(folder / "marks", stop)
        endpoint = f"{_address(0)}:{_free_port(_address(0))}"
        for number in range(NODES):
            _start_agent(machines, tuning, number, endpoint, job.marks)
        old = job.settled(NODES, START_TIMEOUT_S, machines.last_words)
        gone = f"node{fault.number}"
        if fault.replaced:
            _start_agent(machines, tuning, NODES, endpoint, job.marks)
        (machines.terminate if fault.notice else machines.kill)(gone)
        return job.after_fault(old, gone, NODES if fault.replaced else NODES - 1, limit_s, machines.any_alive)
    finally:
        machines.end()


def _start_agent(machines: Machines, tuning: Tuning, number: int, endpoint: str, marks: Path) -> None:
    conf = ",".join([*tuning.rdzv_conf, f"is_host={int(number == 0)}"])
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{NODES - 1}:{NODES}"]
    command += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", endpoint]
    command += ["--rdzv-conf", conf, "--local-addr", _address(number), *tuning.arguments]
    command += [str(WORKER), "--marks", str(marks), "--checkpoint", str(machines.folder / "checkpoint.pt")]
    machines.start(f"node{number}", command, tuning.environ)


def floor(folder: Path, stop: Stop) -> float:
    """Seconds from the start of three cold processes with fixed ranks to their first step. Leaves no process."""
    machines = Machines(folder)
    machines.prepare()
    try:
        job = Job(folder / "marks", stop)
        environ = {
            "WORLD_SIZE": str(NODES),
            "MASTER_ADDR": _address(0),
            "MASTER_PORT": str(_free_port(_address(0))),
        }
        command = [sys.executable, str(WORKER), "--marks", str(job.marks), "--steps", str(FLOOR_STEPS)]
        command += ["--checkpoint", str(folder / "checkpoint.pt")]
        began_at = time.time()
        for rank in range(NODES):
            machines.start(f"node{rank}", command, environ | {"RANK": str(rank)})
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (spans := job.spans()):
            if time.monotonic() > deadline:
                raise BenchError(f"no step within {START_TIMEOUT_S:g} s of a cold start: {machines.last_words()}")
            time.sleep(0.02)
        return spans[0].first_at - began_at
    finally:
        machines.end()


def _address(number: int) -> str:
    return f"127.0.0.{11 + number}"


def _free_port(address: str) -> int:
    """One that is free now; torchrun has to be told."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
