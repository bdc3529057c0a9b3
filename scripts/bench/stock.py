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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provisioners.localcloud import processes
from provisioners.localcloud.machine.spec import MARKER_VARIABLE
from scripts.bench.watch import CHECKPOINT_STEPS, BenchError, Job, Turn, Watched

WORKER = Path(__file__).with_name("worker.py")
START_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 10.0
NODES = 3
FLOOR = "floor"
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
    """Process trees, each found by its mark: like the local cloud's, and always the same for the same `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._prefix = f"local-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}-"
        self._popens: dict[int, subprocess.Popen[bytes]] = {}

    def prepare(self) -> None:
        """End what an earlier run left, and begin with an empty folder."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def start(self, number: int, command: Sequence[str], environ: dict[str, str]) -> None:
        """Start the first process of a machine, which is called node`number`."""
        name = f"node{number}"
        own = {
            MARKER_VARIABLE: self._marker(number),
            "BENCH_NODE": name,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self._popens[number] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | own | environ,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, number: int) -> None:
        """All of a machine's processes, at once and without a word. Raises BenchError where one withstands."""
        _none_may_be_left(processes.kill([processes.Target(self._marker(number), None)], KILL_TIMEOUT_S))
        self._popens[number].wait()

    def terminate(self, number: int) -> None:
        """SIGTERM to a machine's first process."""
        self._popens[number].send_signal(signal.SIGTERM)

    def any_alive(self, numbers: Iterable[int]) -> bool:
        """Whether the first process of any of these machines is there."""
        return any(self._popens[number].poll() is None for number in numbers)

    def end(self) -> None:
        """Kill all of them. Raises BenchError where a process withstands."""
        _none_may_be_left(processes.kill_marked(self._prefix, KILL_TIMEOUT_S))
        for popen in self._popens.values():
            popen.wait()
        self._popens.clear()

    def _marker(self, number: int) -> str:
        return f"{self._prefix}{number:04d}"

    def last_words(self) -> str:
        """The last line of each machine's log."""
        logs = {path.stem: path.read_text(errors="replace").splitlines() for path in sorted(self.folder.glob("*.log"))}
        return " | ".join(f"{name}: {lines[-1]}" for name, lines in logs.items() if lines)


def _none_may_be_left(left: Collection[processes.Identity]) -> None:
    if left:
        raise BenchError(f"these processes withstand SIGKILL: {sorted(each.pid for each in left)}")


def end_leftovers(folder: Path) -> None:
    """End what an earlier run below `folder` left: it was killed before it could. Raises BenchError."""
    for subject in (FLOOR, DEFAULT.name, TUNED.name):
        Machines(folder / subject).end()


def measure_torchrun(tuning: Tuning, fault: Fault, turn: Turn) -> Watched:
    """Three nodes train, one is struck, its replacement is started at that very moment. Leaves no process."""
    folder = turn.folder / tuning.name
    machines = Machines(folder)
    machines.prepare()
    try:
        job = Job(folder / "marks", turn.stop)
        endpoint = f"{_address(0)}:{_free_port(_address(0))}"
        for number in range(NODES):
            _start_agent(machines, tuning, number, endpoint, job.marks)
        old = job.settled(NODES, turn.steps, START_TIMEOUT_S, machines.last_words)
        if fault.replaced:
            _start_agent(machines, tuning, NODES, endpoint, job.marks)
        (machines.terminate if fault.notice else machines.kill)(fault.number)
        full = NODES if fault.replaced else NODES - 1
        # Once they have ended, a replacement alone cannot train: min is 2.
        members = set(range(NODES))
        return job.after_fault(
            old, f"node{fault.number}", full, turn.limit_s, lambda: machines.any_alive(members - {fault.number})
        )
    finally:
        machines.end()


def _start_agent(machines: Machines, tuning: Tuning, number: int, endpoint: str, marks: Path) -> None:
    conf = ",".join([*tuning.rdzv_conf, f"is_host={int(number == 0)}"])
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{NODES - 1}:{NODES}"]
    command += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", endpoint]
    command += ["--rdzv-conf", conf, "--local-addr", _address(number), *tuning.arguments]
    command += ["--log-dir", str(machines.folder / "torchelastic")]
    command += [str(WORKER), "--marks", str(marks), "--checkpoint", str(machines.folder / "checkpoint.pt")]
    command += ["--checkpoint-every", str(CHECKPOINT_STEPS)]
    machines.start(number, command, tuning.environ)


def measure_floor(turn: Turn) -> float:
    """Seconds from the start of three cold processes with fixed ranks to their first step. Leaves no process."""
    folder = turn.folder / FLOOR
    machines = Machines(folder)
    machines.prepare()
    try:
        job = Job(folder / "marks", turn.stop)
        environ = {
            "WORLD_SIZE": str(NODES),
            "MASTER_ADDR": _address(0),
            "MASTER_PORT": str(_free_port(_address(0))),
        }
        command = [sys.executable, str(WORKER), "--marks", str(job.marks), "--steps", str(FLOOR_STEPS)]
        command += ["--checkpoint", str(folder / "checkpoint.pt")]
        began_at = time.time()
        for rank in range(NODES):
            machines.start(rank, command, environ | {"RANK": str(rank)})
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
