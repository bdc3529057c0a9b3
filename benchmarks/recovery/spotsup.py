"""spotsup, the whole path: daemon, etcd, local cloud, SSH bootstrap, by the command lines that users have."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsup_trainer.wire import DEFAULT_LEASE_TTL_S

from benchmarks.recovery.grid import MIN_NODES, NODES, SPOTSUP, SPOTSUP_CHAR, Cell, Fault, Recovery
from benchmarks.recovery.machines import RES_OPTIONS
from benchmarks.recovery.stock import WORKER
from benchmarks.recovery.timeline import Span
from benchmarks.recovery.watch import CHECKPOINT_STEPS, BenchError, Job, Turn, Watched
from provisioners.localcloud import processes
from tools.stack import Stack

START_TIMEOUT_S = 600.0  # only ends what hangs: a busy machine takes minutes from SSH to the hundredth step
FENCE_TIMEOUT_S = 30.0
NOTICE_S = 30
LEASE_S = DEFAULT_LEASE_TTL_S
CALM_LOOK_S = 0.5
PAUSE_TIMEOUT_S = 30.0
LOOK_S = 0.02
ZONES, ROOM = ("local-a", "local-b"), 16
DESCRIPTIONS = (
    "spotsupd with embedded etcd and local cloud, a job of min 2, desired 3 nodes, with a spare where the case says "
    "so; a replacement is asked for, launched and bootstrapped over SSH; "
    f"leases of {LEASE_S:g} s, listings every second, notices of {NOTICE_S} s"
)

EXAMPLES = WORKER.parents[2] / "trainer" / "examples"
# What a job runs, by subject.
PROGRAMS = {
    SPOTSUP: f"{WORKER.name} --session",
    SPOTSUP_CHAR: f"char_worker.py --examples '{EXAMPLES}'",
}
JOB_FILE = """\
name: {name}
nodes: {{min: {least}, desired: {nodes}, max: {nodes}{spares}}}
code: {code}
run: >-
  {program} --marks {marks} --checkpoint-every {every}
env: {{OMP_NUM_THREADS: "1", RES_OPTIONS: "{res_options}"}}
"""


@dataclass(frozen=True, slots=True)
class Fence:
    """What a frozen node did when it was thawed, after a round had formed without it.

    `stopped_s`: from the command to thaw it until its old workers were gone, the command's own start included; None
    where they were still there when the watch ended. `late_steps`: how many steps of the old round became complete
    then.
    """

    stopped_s: float | None
    late_steps: int


@dataclass(frozen=True, slots=True)
class Struck:
    """The outcome of one cell."""

    cell: Cell
    watched: Watched
    fence: Fence | None = None
    # What the first pause after it consisted of, by name and in seconds, as `status` has it; only what is known.
    parts: Mapping[str, float] = field(default_factory=dict)


def measure(cells: Sequence[Cell], turn: Turn, subject: str = SPOTSUP) -> Generator[Struck]:
    """One installation, a job without a spare and then one with: a fault hits one node after the other, each time once
    all nodes that are wanted are there and have trained for a while.

    Leaves no process. Raises StackError or BenchError.
    """
    stack = Stack(turn.folder / subject, cluster="bench", lease_ttl_s=LEASE_S)
    turn.stop.stack = stack
    try:
        stack.prepare()
        stack.start_daemon()
        for spares, name in enumerate(("plain", "spared")):
            mine = [cell for cell in cells if (cell.recovery is Recovery.SPARE) == bool(spares)]
            if mine:
                patient = _Patient(stack, turn, name, spares, PROGRAMS[subject])
                yield from patient.suffer(mine)
                patient.cancel()
    finally:
        turn.stop.stack = None
        stack.close()


class _Patient:
    """One job, and the faults that hit it."""

    def __init__(self, stack: Stack, turn: Turn, name: str, spares: int, program: str) -> None:
        self._stack, self._turn, self._name, self._spares = stack, turn, name, spares
        self._job = Job(stack.folder / f"marks-{name}", turn.stop)
        self._struck: set[str] = set()
        self._worker = program.partition(" ")[0]
        file = stack.folder / f"{name}.yaml"
        file.write_text(
            JOB_FILE.format(
                name=name,
                program=program,
                least=MIN_NODES,
                nodes=NODES,
                spares=f", spares: {spares}" if spares else "",
                code=json.dumps(str(WORKER.parent)),
                # `run` is split as a shell would; folded YAML leaves quotes alone.
                marks=f"'{self._job.marks}'",
                every=CHECKPOINT_STEPS,
                res_options=RES_OPTIONS,
            )
        )
        stack.ask("submit", str(file))

    def suffer(self, cells: Iterable[Cell]) -> Generator[Struck]:
        for cell in cells:
            self._job.settled(NODES, START_TIMEOUT_S, self._stack.log_tail)
            self._wait_until_calm()
            self._set_room(0 if cell.recovery is Recovery.SHRINKING else ROOM)
            old = self._job.at_phase(self._turn.phase)
            gone = old.nodes[cell.victim.rank]
            number = int(self._stack.ask("status", self._name)["round"])
            self._strike(cell.fault, gone)
            watched = self._job.after_fault(old, gone, cell.nodes_after, self._turn.limit_s)
            parts = self._parts_after(number) if watched.outcome.first_s is not None else {}
            # One that waits for its replacement stays frozen: the daemon gives it up in the meantime.
            thawed = cell.fault is Fault.FREEZE and cell.recovery is not Recovery.REPLACEMENT
            if not thawed:
                self._struck.add(gone)
            yield Struck(cell, watched, self._thaw(gone, old) if thawed else None, parts)
            self._set_room(ROOM)

    def cancel(self) -> None:
        self._stack.ask("cancel", self._name)
        self._stack.wait_for(lambda: not self._stack.machines(), START_TIMEOUT_S, "the cancelled job's machines to go")

    def _parts_after(self, number: int) -> Mapping[str, float]:
        """What the first pause after a round consisted of: its node says so within seconds of the first step."""

        def found() -> Mapping[str, Any] | None:
            known = [each for each in self._stack.ask("status", self._name)["pauses"] if each["round"] > number]
            return known[0]["parts"] if known else None

        late = f"no pause after round {number} of job {self._name} is reported: "
        parts = self._job.stop.until(found, PAUSE_TIMEOUT_S, lambda: late + self._stack.log_tail(), CALM_LOOK_S)
        return {name.removesuffix("_s"): value for name, value in (parts or {}).items() if value is not None}

    def _wait_until_calm(self) -> None:
        wanted = f"{NODES} members and {self._spares} spares"
        self._job.stop.until(
            lambda: is_steady(self._stack.ask("nodes"), self._name, self._spares, self._struck),
            START_TIMEOUT_S,
            lambda: f"job {self._name} has not {wanted} after {START_TIMEOUT_S:g} s: {self._stack.log_tail()}",
            CALM_LOOK_S,
        )

    def _set_room(self, room: int) -> None:
        options = [part for zone in ZONES for part in ("--capacity", f"{zone}={room}")]
        self._stack.cloud("set", *options)

    def _strike(self, fault: Fault, node: str) -> None:
        match fault:
            case Fault.KILL:
                self._stack.cloud("kill", node)
            case Fault.FREEZE:
                self._stack.cloud("freeze", node)
            case Fault.NOTICE:
                self._stack.cloud("preempt", node, "--notice", str(NOTICE_S))
            case Fault.SIGTERM:
                found = [each for each, command in self._stack.processes_of(node).items() if _is_agent(command)]
                if len(found) != 1:
                    raise BenchError(f"{len(found)} agents run on {node}, not one")
                processes.send(found[0], signal.SIGTERM)

    def _thaw(self, node: str, old: Span) -> Fence:
        """Thaw a node that believes it is still in a round: its workers must stop, and their steps must not count."""
        before = self._span(old.round)
        workers = [each for each in self._stack.processes_of(node) if _name(each.pid) == self._worker]
        if not workers:
            raise BenchError(f"no worker is left on {node}, which was frozen with one")
        began = time.monotonic()
        self._stack.cloud("thaw", node)
        while any(processes.is_alive(each) for each in workers) and time.monotonic() - began < FENCE_TIMEOUT_S:
            self._job.pause(LOOK_S)
        stopped_s = None if any(map(processes.is_alive, workers)) else time.monotonic() - began
        return Fence(stopped_s, self._span(old.round).last_step - before.last_step)

    def _span(self, number: int) -> Span:
        (found,) = [span for span in self._job.spans() if span.round == number]
        return found


def is_steady(nodes: Iterable[Mapping[str, Any]], job: str, spares: int, struck: Collection[str] = ()) -> bool:
    """Whether a job, by `spotsupctl nodes -o json`, has all members and spares that it wants, and no others.

    A machine that boots would take the cores of the others; one that was `struck` may look like a spare for a while.
    """
    there = [node for node in nodes if node["job"] == job and node["state"] != "gone"]
    states = sorted(node["state"] for node in there)
    return states == ["member"] * NODES + ["ready"] * spares and not any(node["id"] in struck for node in there)


def _is_agent(command: str) -> bool:
    return "-m spotsup_trainer.agent" in command


def _name(pid: int) -> str:
    """The kernel's name of a process; warm workers carry their program's name."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
