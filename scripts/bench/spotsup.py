"""spotsup, the whole path: daemon, etcd, local cloud, SSH bootstrap, by the command lines that users have."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence

from scripts.bench.stock import NODES, WORKER, Fault
from scripts.bench.watch import CHECKPOINT_STEPS, Job, Turn, Watched
from scripts.stack import Stack

START_TIMEOUT_S = 120.0
NOTICE_S = 30
SUBJECT = "spotsup"
IN_WORDS = (
    "spotsupd with embedded etcd and local cloud, a job of min 2, desired 3, max 4 nodes; after the fault the "
    f"replacement is asked for, launched and bootstrapped over SSH; a notice is {NOTICE_S} s"
)

JOB_FILE = """\
name: bench
nodes: {{min: 2, desired: 3, max: 4}}
code: {code}
run: >-
  worker.py --marks {marks} --checkpoint-every {every}
env: {{OMP_NUM_THREADS: "1"}}
"""


def measure(faults: Sequence[Fault], turn: Turn) -> Generator[tuple[Fault, Watched]]:
    """Three nodes train; one after the other is struck, by rank, each time once three have trained for a while.

    Leaves no process. Raises StackError or BenchError.
    """
    folder = turn.folder / SUBJECT
    stack = Stack(folder, cluster="bench")
    turn.stop.stack = stack
    try:
        stack.prepare()
        stack.start_daemon()
        job = Job(folder / "marks", turn.stop)
        file = folder / "job.yaml"
        # Quotes for the shell-like splitting of `run`; YAML leaves them alone in a folded text.
        file.write_text(
            JOB_FILE.format(code=json.dumps(str(WORKER.parent)), marks=f"'{job.marks}'", every=CHECKPOINT_STEPS)
        )
        stack.ask("submit", str(file))
        for fault in faults:
            old = job.settled(NODES, turn.steps, START_TIMEOUT_S, stack.last_words)
            gone = old.nodes[fault.number]
            if fault.notice:
                stack.cloud("preempt", gone, "--notice", str(NOTICE_S))
            else:
                stack.cloud("kill", gone)
            yield fault, job.after_fault(old, gone, NODES, turn.limit_s)
    finally:
        turn.stop.stack = None
        stack.close()
