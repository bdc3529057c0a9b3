"""Stock torchrun with its c10d rendezvous, tuned and default; and the floor below all subjects."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.recovery import grid
from benchmarks.recovery.grid import FLOOR, FLOOR_SESSION, MIN_NODES, NODES, Cell, Fault, Recovery
from benchmarks.recovery.machines import Machines, address_of, name_of
from benchmarks.recovery.watch import CHECKPOINT_STEPS, Job, Turn, Watched
from provisioners.localcloud.machine.child import free_port

WORKER = Path(__file__).with_name("worker.py")
START_TIMEOUT_S = 60.0
FLOOR_STEPS = 3
# From torch's own debug log.
JOINING = "+torch.distributed.elastic.rendezvous.dynamic_rendezvous"
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Tuning:
    """How torchrun is called. `rdzv_conf` without is_host, which every node gets."""

    name: str
    arguments: tuple[str, ...] = ()
    rdzv_conf: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """For the result file."""
        conf = ("--rdzv-conf", ",".join(self.rdzv_conf)) if self.rdzv_conf else ()
        environ = [f"{key}={value}" for key, value in self.environ.items()]
        return " ".join([*environ, "torchrun --rdzv-backend c10d", *self.arguments, *conf])


# By default --max-restarts is 0: the first lost node would end the job. Both may restart as often as they like.
DEFAULT = Tuning(grid.DEFAULT, ("--max-restarts", "100"))
TUNED = Tuning(
    grid.TUNED,
    ("--max-restarts", "100", "--monitor-interval", "0.05"),
    # last_call_timeout and keep_alive_interval take whole seconds and must be more than 0; fewer than three attempts
    # would declare a node dead that is late by one heartbeat
    ("last_call_timeout=1", "keep_alive_interval=1", "keep_alive_max_attempt=3"),
    # without the first, a replacement never trains in torch 2.13: it waits for an address that is never written
    {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCH_ELASTIC_WORKER_IDENTICAL": "1"},
)


def end_leftovers(folder: Path) -> None:
    """End what an earlier run below `folder` left: it was killed before it could. Raises BenchError."""
    for subject in (FLOOR, FLOOR_SESSION, DEFAULT.name, TUNED.name):
        Machines(folder / subject).end()


def measure_torchrun(tuning: Tuning, cell: Cell, turn: Turn) -> Watched:
    """Three nodes train and a fault hits one; its replacement is started at that very moment, a spare has waited in
    torchrun's redundancy list since before. Leaves no process.
    """
    machines = Machines(turn.folder / tuning.name)
    machines.prepare()
    try:
        job = Job(machines.folder / "marks", turn.stop)
        endpoint = f"{address_of(0)}:{free_port(address_of(0))}"
        for number in range(NODES):
            _start_agent(machines, tuning, number, endpoint, job.marks)
        job.settled(NODES, START_TIMEOUT_S, machines.log_tails)
        if cell.recovery is Recovery.SPARE:
            _start_spare(machines, tuning, endpoint, job)
        old = job.at_phase(turn.phase)
        if cell.recovery is Recovery.REPLACEMENT:
            _start_agent(machines, tuning, NODES, endpoint, job.marks)
        # c10d's ranks are those of the addresses: node0 has rank 0, and hosts the store.
        victim = cell.victim.rank
        inject = {Fault.KILL: machines.kill, Fault.FREEZE: machines.freeze, Fault.SIGTERM: machines.terminate}
        inject[cell.fault](victim)
        # Once these have ended, a replacement alone cannot train: min is 2.
        others = set(range(NODES)) - {victim}
        return job.after_fault(old, name_of(victim), cell.nodes_after, turn.limit_s, lambda: machines.any_alive(others))
    finally:
        machines.end()


def _start_agent(machines: Machines, tuning: Tuning, number: int, endpoint: str, marks: Path, **environ: str) -> None:
    conf = ",".join([*tuning.rdzv_conf, f"is_host={int(number == 0)}"])
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{MIN_NODES}:{NODES}"]
    command += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", endpoint]
    command += ["--rdzv-conf", conf, "--local-addr", address_of(number), *tuning.arguments]
    command += ["--log-dir", str(machines.folder / "torchelastic")]
    command += [str(WORKER), "--marks", str(marks), "--checkpoint", str(machines.folder / "checkpoint.pt")]
    command += ["--checkpoint-every", str(CHECKPOINT_STEPS)]
    machines.start(number, command, tuning.environ | environ)


def _start_spare(machines: Machines, tuning: Tuning, endpoint: str, job: Job) -> None:
    """Start a fourth agent where three are the maximum. Only its debug log shows that it waits."""
    _start_agent(machines, tuning, NODES, endpoint, job.marks, TORCH_LOGS=JOINING)
    job.stop.until(
        lambda: "to the redundancy list" in machines.log(NODES).read_text(errors="replace"),
        START_TIMEOUT_S,
        lambda: f"the spare does not wait after {START_TIMEOUT_S:g} s: {machines.log_tails()}",
        LOOK_S,
    )


def measure_floor(subject: str, turn: Turn) -> float:
    """Seconds from the start of three cold processes with fixed ranks to their first step. Leaves no process."""
    machines = Machines(turn.folder / subject)
    machines.prepare()
    try:
        job = Job(machines.folder / "marks", turn.stop)
        environ = {
            "WORLD_SIZE": str(NODES),
            "MASTER_ADDR": address_of(0),
            "MASTER_PORT": str(free_port(address_of(0))),
        }
        command = [sys.executable, str(WORKER), "--marks", str(job.marks), "--steps", str(FLOOR_STEPS)]
        command += ["--checkpoint", str(machines.folder / "checkpoint")]
        command += ["--session"] if subject == FLOOR_SESSION else []
        began_at = time.time()
        for rank in range(NODES):
            machines.start(rank, command, environ | {"RANK": str(rank)})
        spans = turn.stop.until(
            job.spans,
            START_TIMEOUT_S,
            lambda: f"no step within {START_TIMEOUT_S:g} s of a cold start: {machines.log_tails()}",
            LOOK_S,
        )
        return spans[0].first_at - began_at
    finally:
        machines.end()
