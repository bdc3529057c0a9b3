"""Starts launchers as a spotsup node would, and reads the events that the training program writes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from spotsup_trainer.agent.child import own_program
from spotsup_trainer.etcd import Etcd
from spotsup_trainer.wire import Hint, Keys, Member, Result, Round, Tombstone, decode, encode

# What nodes' programs run with, and what they need of the environment: `make test-torch` sets another one than ours.
NODE_PYTHON = os.environ.get("SPOTSUP_TEST_NODE_PYTHON", sys.executable)
NODE_ENVIRON = (
    {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "trainer")} if sys.executable != NODE_PYTHON else {}
)
STEPS = Path(__file__).with_name("steps.py")
Found = TypeVar("Found")
BUSY_S = 600.0  # for programs that import a framework in each round: minutes on a very busy machine


def eventually(what: str, look: Callable[[], Found | None], timeout_s: float = 60.0) -> Found:
    """Wait until `look` finds something true, and return it."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.02)
    return found


def processes_with(variable: str, value: str) -> list[int]:
    """All processes with this in their environment, except zombies: everything that a job has started."""
    wanted = f"{variable}={value}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def kill_all(pids: Iterable[int]) -> None:
    """End processes, of which some may end with another one before."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass
class Nodes:
    """Nodes of one job below `folder`, each on its own loopback address."""

    endpoint: str
    folder: Path
    job: str
    script: Path = STEPS
    program: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    nnodes: str = "1:4"
    nproc: int = 1
    # A launcher of the test's own; "" for that of nodes.
    module: str = ""
    max_restarts: int = 0
    ttl_s: float = 2.0
    backend: str = "spotsup"
    rdzv_conf: str = ""
    # Further options of torchrun.
    options: tuple[str, ...] = ()
    launchers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = Keys("test")
        self.etcd = Etcd([self.endpoint])
        self.events_file = self.folder / "events"
        self.end_file = self.folder / "enough"
        self.checkpoint_dir = self.folder / "checkpoint"
        self.temporary = self.folder / "tmp"
        for folder in (self.checkpoint_dir, self.temporary):
            folder.mkdir(parents=True, exist_ok=True)

    # -- starting and ending -------------------------------------------------------------------------------

    def start(self, *nodes: str, via: str = "", place: tuple[str, str] | None = None, **env: str) -> None:
        """Start launchers, which reach etcd `via` another endpoint if given. `place`: a network namespace, and the
        address there."""
        for node in nodes:
            address = place[1] if place else f"127.0.0.{10 + sum(map(ord, node)) % 200}"
            inside = ["ip", "netns", "exec", place[0]] if place else []
            program = [NODE_PYTHON, "-m", self.module] if self.module else own_program(NODE_PYTHON, "main")
            command = [*inside, *program, "--nnodes", self.nnodes]
            command += ["--nproc-per-node", str(self.nproc)]
            command += ["--rdzv-backend", self.backend, "--rdzv-endpoint", via or self.endpoint, "--rdzv-id", self.job]
            command += ["--rdzv-conf", self.rdzv_conf or f"lease_ttl={self.ttl_s:.0f}", "--local-addr", address]
            command += ["--max-restarts", str(self.max_restarts), *self.options]
            settings = {"events": str(self.events_file), "until": str(self.end_file)} | dict(self.program)
            command += [str(self.script), *(f"{key}={value}" for key, value in settings.items())]
            with self.log(node).open("ab") as log:
                self.launchers[node] = subprocess.Popen(
                    command, env=self.environment(node) | env, stdout=log, stderr=log, start_new_session=True
                )

    def form(self, *nodes: str) -> dict[str, Any]:
        """Start launchers and wait for the first step of a round of all of them, whichever comes first."""
        self.hint(*nodes, minimum=len(nodes))
        self.start(*nodes)
        step = self.stepping(len(nodes))
        self.hint(*nodes)
        return step

    def environment(self, node: str) -> dict[str, str]:
        """What bootstrap would set."""
        return dict(os.environ) | {
            "SPOTSUP_CLUSTER": "test",
            "SPOTSUP_NODE_ID": node,
            "SPOTSUP_TEST_NODE": f"{self.folder}/{node}",
            "SPOTSUP_RUN_DIR": str(self.folder / f"run-{node}"),
            "SPOTSUP_CHECKPOINT_DIR": str(self.checkpoint_dir),
            "TMPDIR": str(self.temporary),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            # It has no optimizer; what torch imports for one would be a third of a launcher's CPU time.
            **({"SPOTSUP_PRELOAD": "torch"} if self.script == STEPS else {}),
            **NODE_ENVIRON,
            **self.env,
        }

    def log(self, node: str) -> Path:
        """Where a launcher and its workers print."""
        return self.folder / f"{node}.log"

    def processes(self, node: str) -> list[int]:
        """All processes of a node that still run."""
        return processes_with("SPOTSUP_TEST_NODE", f"{self.folder}/{node}")

    def kill(self, node: str) -> None:
        """Kill all processes of a node at once, as when a machine vanishes."""
        kill_all(self.processes(node))

    def exit_code(self, node: str, timeout_s: float = 60.0) -> int:
        """Wait for a launcher's end."""
        try:
            return self.launchers[node].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{node} did not end within {timeout_s:.0f} s:\n{self.log(node).read_text()}"
            ) from None

    def end(self) -> None:
        """Kill all processes of all nodes, and wait until none is left."""
        self.etcd.close()
        for node in self.launchers:
            self.kill(node)
        for node, launcher in self.launchers.items():
            launcher.wait()
            # again: a process may have been started between the listing and the kill
            eventually(f"no process of {node} is left", partial(self._kill_again, node))

    def _kill_again(self, node: str) -> bool:
        self.kill(node)
        return not self.processes(node)

    # -- watching ------------------------------------------------------------------------------------------

    def events(self, kind: str = "", **fields: Any) -> list[dict[str, Any]]:
        """The events that workers wrote, oldest first. A last line that is not whole yet is left out."""
        whole, _, _ = self.events_file.read_text().rpartition("\n") if self.events_file.exists() else ("", "", "")
        lines = whole.splitlines()
        wanted = fields | ({"kind": kind} if kind else {})
        found = [json.loads(line) for line in lines]
        return [event for event in found if all(event.get(key) == value for key, value in wanted.items())]

    def stepping(self, world: int, after_round: int = 0, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait for the first step in a round later than `after_round` with `world` ranks."""

        def look() -> dict[str, Any] | None:
            return next((e for e in self.events("step", world=world) if e["round"] > after_round), None)

        try:
            return eventually(f"a step of {world} ranks after round {after_round}", look, timeout_s)
        except AssertionError as error:
            logs = "\n".join(f"--- {node}\n{self.log(node).read_text()[-3000:]}" for node in self.launchers)
            raise AssertionError(f"{error}\n{logs}") from None

    def ready(self, *nodes: str, timeout_s: float = 60.0) -> None:
        """Wait until these launchers wait to be in a round: their workers are warm."""

        def waits(node: str) -> bool:
            member = self.member(node)
            return member is not None and member.state == "waiting"

        for node in nodes:
            eventually(f"{node} waits", partial(waits, node), timeout_s)

    def last_step(self, number: int) -> int:
        """The last step that was completed in a round: by all ranks, or it does not count."""
        steps = self.events("step", round=number)
        return min(max(int(e["step"]) for e in steps if e["rank"] == rank) for rank in {e["rank"] for e in steps})

    def last_step_at(self, number: int) -> float:
        """When the last step was completed in a round, by the slowest rank; UNIX seconds."""
        steps = self.events("step", round=number)
        return min(max(float(e["at"]) for e in steps if e["rank"] == rank) for rank in {e["rank"] for e in steps})

    def first_step(self, number: int) -> int:
        """The first step that was done in a round."""
        return min(int(e["step"]) for e in self.events("step", round=number))

    def round(self) -> Round:
        """The current round."""
        found = self.etcd.get(self.keys.round(self.job))
        assert found is not None
        return decode(Round, found.value)

    def member(self, node: str) -> Member | None:
        """A launcher's key."""
        found = self.etcd.get(self.keys.member(self.job, node))
        return decode(Member, found.value) if found else None

    def result(self) -> Result | None:
        """The job's result."""
        found = self.etcd.get(self.keys.result(self.job))
        return decode(Result, found.value) if found else None

    # -- the daemon's part ---------------------------------------------------------------------------------

    def hint(self, *nodes: str, minimum: int = 1) -> None:
        """Publish which nodes should be in the round."""
        hint = Hint(nodes, min_nodes=minimum, max_nodes=max(minimum, len(nodes)), reason="test")
        self.etcd.put(self.keys.hint(self.job), encode(hint))

    def write_tombstone(self, node: str) -> None:
        """Publish that a node is gone."""
        self.etcd.put(self.keys.tombstone(self.job, node), encode(Tombstone(node, "test", time.time())))


@contextlib.contextmanager
def nodes(endpoint: str, folder: Path, **options: Any) -> Iterator[Nodes]:
    """Nodes whose processes are killed at the end, even if the test fails."""
    made = Nodes(endpoint, folder, job="job", **options)
    try:
        yield made
    finally:
        made.end()
