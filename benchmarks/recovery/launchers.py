"""spotsup's launchers on a real etcd, without daemon and cloud: what a spare and a tombstone cost by themselves.

The daemon is replaced: the tombstone and the next hint are written the moment a node's processes are killed, as the
daemon does when the provider reports the loss.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from spotsup_trainer.agent.child import own_program
from spotsup_trainer.etcd import Etcd, Put
from spotsup_trainer.launcher.run_dir import RunDir
from spotsup_trainer.wire import DEFAULT_LEASE_TTL_S, Hint, Keys, Member, Pause, Round, Tombstone, decode, encode

from benchmarks.recovery.grid import (
    LAUNCHERS_COLD,
    LAUNCHERS_COLD_SESSION,
    LAUNCHERS_IMPORT,
    LAUNCHERS_IMPORT_LATE,
    LAUNCHERS_WARM,
    MIN_NODES,
    NODES,
    Cell,
)
from benchmarks.recovery.machines import Machines, address_of, name_of, number_of
from benchmarks.recovery.stock import WORKER
from benchmarks.recovery.watch import CHECKPOINT_STEPS, Job, Turn, Watched
from supervisor.journal.etcd_server import EmbeddedEtcd

DESCRIPTIONS = {
    LAUNCHERS_WARM: (
        "spotsup's launchers on etcd, without daemon and cloud; tombstone and hint are written the moment a node's "
        "processes are killed; workers, with a Session, are forked from a process that has torch imported"
    ),
    LAUNCHERS_COLD: (
        "the same with SPOTSUP_WARM=0: each worker is a new interpreter, and its program the one that torchrun and the "
        "floor run, without a Session"
    ),
    LAUNCHERS_COLD_SESSION: "the same with a Session, whose checkpoints import torch.distributed.checkpoint",
    LAUNCHERS_IMPORT: "as the warm ones, of a program with an import that sleeps 5 s, before its node is in a round",
    LAUNCHERS_IMPORT_LATE: "the same without preload: each worker imports for itself",
}
_WARM = (LAUNCHERS_WARM, LAUNCHERS_IMPORT, LAUNCHERS_IMPORT_LATE)
IMPORT_S = 5.0
# A library whose import takes seconds, and the program of all subjects, by a user who imports it.
SLOW_LIBRARY = f"import time; time.sleep({IMPORT_S})\n"
SLOW_WORKER = f"import bench_slow_library\nimport runpy\nrunpy.run_path({str(WORKER)!r}, run_name='__main__')\n"
START_TIMEOUT_S = 300.0  # only ends what hangs: a busy machine takes minutes to import torch for all
LOOK_S = 0.02
JOB = "bench"
KEYS = Keys("bench")


def end_leftovers(folder: Path) -> None:
    """End what an earlier run below `folder` left: it was killed before it could. Raises BenchError."""
    for subject in DESCRIPTIONS:
        Machines(folder / subject).end()
        EmbeddedEtcd(folder / subject / "etcd").stop()


def measure(subject: str, cells: Sequence[Cell], turn: Turn) -> Generator[tuple[Cell, Watched, Mapping[str, float]]]:
    """Three nodes train and a fourth waits; one after the other is killed, and gets a new spare. Leaves no process.

    The last of what is yielded: what the pause consisted of, by name and in seconds; only what is known.

    Raises BenchError and supervisor.errors.StartError.
    """
    folder = turn.folder / subject
    machines, etcd_server = Machines(folder), EmbeddedEtcd(folder / "etcd")
    etcd_server.stop()
    machines.prepare()
    etcd_server = EmbeddedEtcd(folder / "etcd")
    try:
        etcd_server.start()
        with closing(Etcd([etcd_server.endpoint])) as etcd:
            nodes = Nodes(machines, etcd, etcd_server.endpoint, Job(folder / "marks", turn.stop), subject)
            nodes.hint(range(NODES), NODES)
            for number in range(NODES + 1):
                nodes.start(number)
            for count, cell in enumerate(cells):
                nodes.job.settled(NODES, START_TIMEOUT_S, machines.log_tails)
                spare = NODES + count
                nodes.wait_for_spare(spare)
                old = nodes.job.at_phase(turn.phase)
                gone = old.nodes[cell.victim.rank]
                machines.kill(number_of(gone))
                left = [number_of(node) for node in old.nodes if node != gone]
                nodes.bury(gone, [*left, spare])
                watched = nodes.job.after_fault(old, gone, cell.nodes_after, turn.limit_s)
                yield cell, watched, nodes.parts_of_pause(name_of(left[0])) if measures_pauses(subject) else {}
                nodes.hint([*left, spare], spare + 1)
                nodes.start(spare + 1)
    finally:
        machines.end()
        etcd_server.stop()


def measures_pauses(subject: str) -> bool:
    """Whether its workers say when they completed their steps: those without a Session do not."""
    return subject != LAUNCHERS_COLD


class Nodes:
    """The launchers, and the messages that the daemon would write for them."""

    def __init__(self, machines: Machines, etcd: Etcd, endpoint: str, job: Job, subject: str) -> None:
        self.job = job
        self._machines = machines
        self._etcd = etcd
        self._endpoint = endpoint
        self._subject = subject

    def start(self, number: int) -> None:
        node, folder = name_of(number), self._machines.folder
        command = [*own_program(sys.executable, "main"), "--nnodes", f"{MIN_NODES}:{NODES}"]
        command += ["--nproc-per-node", "1", "--rdzv-backend", "spotsup", "--rdzv-endpoint", self._endpoint]
        command += ["--rdzv-id", JOB, "--rdzv-conf", f"lease_ttl={DEFAULT_LEASE_TTL_S:g}"]
        command += ["--local-addr", address_of(number)]
        slow = self._subject in {LAUNCHERS_IMPORT, LAUNCHERS_IMPORT_LATE}
        command += [
            str(self._slow_program() if slow else WORKER),
            "--marks",
            str(self.job.marks),
            "--checkpoint-every",
            str(CHECKPOINT_STEPS),
        ]
        command += ["--checkpoint", str(folder / "checkpoint.pt")]
        command += [] if self._subject == LAUNCHERS_COLD else ["--session"]
        environ = {
            "SPOTSUP_CLUSTER": KEYS.cluster,
            "SPOTSUP_NODE_ID": node,
            "SPOTSUP_RUN_DIR": str(folder / f"run-{node}"),
            "SPOTSUP_CHECKPOINT_DIR": str(folder / "checkpoint"),
            "SPOTSUP_WARM": "1" if self._subject in _WARM else "0",
        }
        environ |= {"PYTHONPATH": str(folder / "site")} if slow else {}
        environ |= {"SPOTSUP_PRELOAD": ""} if self._subject == LAUNCHERS_IMPORT_LATE else {}
        self._machines.start(number, command, environ)

    def _slow_program(self) -> Path:
        """Made in this benchmark's folder."""
        site, program = self._machines.folder / "site", self._machines.folder / "slow_worker.py"
        site.mkdir(exist_ok=True)
        (site / "bench_slow_library.py").write_text(SLOW_LIBRARY)
        program.write_text(SLOW_WORKER)
        return program

    def wait_for_spare(self, number: int) -> None:
        """Wait until its key says that it waits. Raises BenchError."""
        spare = name_of(number)

        def waits() -> bool:
            found = self._etcd.get(KEYS.member(JOB, spare))
            return found is not None and decode(Member, found.value).state == "waiting"

        late = f"the spare {spare} does not wait after {START_TIMEOUT_S:g} s"
        self.job.stop.until(waits, START_TIMEOUT_S, lambda: f"{late}: {self._machines.log_tails()}", LOOK_S)

    def parts_of_pause(self, node: str) -> Mapping[str, float]:
        """Of the newest round, as the launcher of a node that was in the round before has measured them."""
        raw = self._etcd.get(KEYS.round(JOB))
        number = decode(Round, raw.value).number if raw else 0

        def found() -> Pause | None:
            known = RunDir(self._machines.folder / f"run-{node}").pauses()
            return next((each for each in known.pauses if each.round == number), None) if known else None

        late = f"{node} has not measured the pause before round {number}"
        pause = self.job.stop.until(found, START_TIMEOUT_S, lambda: f"{late}: {self._machines.log_tails()}", LOOK_S)
        return {name: value for name, value in pause.parts().items() if value is not None} if pause else {}

    def hint(self, members: Sequence[int], spare: int) -> None:
        self._etcd.put(KEYS.hint(JOB), encode(_hint(members, spares=[spare])))

    def bury(self, node: str, members: Sequence[int]) -> None:
        """Write the daemon's messages: which node is gone, and which nodes are in the next round."""
        gone = Put(KEYS.tombstone(JOB, node), encode(Tombstone(node, "killed", time.time())))
        self._etcd.txn([], [gone, Put(KEYS.hint(JOB), encode(_hint(members, spares=[])))])


def _hint(members: Sequence[int], spares: Sequence[int]) -> Hint:
    names, waiting = (tuple(name_of(number) for number in each) for each in (members, spares))
    return Hint(names, MIN_NODES, NODES, "bench", waiting)
