"""Users' commands to failing daemons, and whether the answers are linearisable: each job's name is a register.

`Users` submit, scale and cancel concurrently through several daemons; `verdict` searches for an order of the commands
that explains every answer. A command without an answer may have taken effect or not.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from spotsup.transport import Transport

from supervisor.errors import CommandRefusedError, DaemonUnreachableError, NotFoundError, SpotsupError
from tests.chaos.linear import NEVER, Call, TooLongError, linearisable

Kind = Literal["submit", "scale", "cancel", "read"]
Answer = Literal["done", "refused", "not found", "none"]

MIN_NODES, MAX_NODES = 1, 9
CALL_TIMEOUT_S = 8.0
# A register is a job that never gets a machine: none is so cheap.
USD_PER_HOUR = 0.000001


@dataclass(frozen=True, slots=True)
class Op:
    """One command and its answer."""

    kind: Kind
    name: str
    answer: Answer
    # The number of nodes requested, or read.
    value: int = 0
    # The client's own id of the submission.
    submission: str = ""
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Register:
    """A job as its users know it; None stands for no job."""

    submission: str
    desired: int
    cancelled: bool = False


def step(state: Register | None, op: Op) -> Iterable[Register | None]:
    """The states to which a command may lead, given its answer.

    A cancelled job ends at any time afterwards; until then it can be changed, and its name is in use.
    """
    for answer, after in _outcomes(state, op):
        if op.answer in (answer, "none"):
            yield after


def _outcomes(state: Register | None, op: Op) -> list[tuple[Answer, Register | None]]:
    if op.kind == "submit":
        new = Register(op.submission, op.value)
        if state is None:
            return [("done", new)]
        if state.submission == op.submission:
            return [("done", state)]
        return [("done", new), ("refused", state)] if state.cancelled else [("refused", state)]
    if state is None:
        return [("not found", None)]
    if op.kind == "cancel":
        return [("done", replace(state, cancelled=True))]
    if op.kind == "read":
        return [("done", state)] if (op.value, op.cancelled) == (state.desired, state.cancelled) else []
    if not MIN_NODES <= op.value <= MAX_NODES:
        return [("refused", state)]
    scaled: tuple[Answer, Register] = ("done", replace(state, desired=op.value))
    return [scaled, ("refused", state)] if state.cancelled else [scaled]


def verdict(history: Sequence[Call[Op]]) -> list[str]:
    """The names whose history no order explains, one sentence each."""
    by_name: defaultdict[str, list[Call[Op]]] = defaultdict(list)
    for call in history:
        by_name[call.op.name].append(call)
    broken = []
    for name, calls in sorted(by_name.items()):
        try:
            if not linearisable(calls, None, step):
                broken.append(
                    f"job {name}: no order of {len(calls)} commands explains their answers: {_describe(calls)}"
                )
        except TooLongError as error:
            broken.append(f"the history of job {name} was not judged: {error}")
    return broken


def _describe(calls: Sequence[Call[Op]]) -> str:
    first = min(call.began for call in calls)
    ordered = sorted(calls, key=lambda call: call.began)
    return "; ".join(
        f"{call.began - first:.2f}-{call.ended - first:.2f} {call.op.kind} {call.op.value or ''} {call.op.answer}"
        for call in ordered
    )


class Users:
    """Threads that give commands, each to a random daemon; `finish` returns the history."""

    def __init__(self, sockets: Sequence[Path], seed: int, *, users: int = 4, names: int = 3, rest_s: float = 0.2):
        self._sockets, self._names, self._rest_s = list(sockets), names, rest_s
        self._generation = 0
        self._prefix = f"reg{seed % 10000}"
        self._calls: list[Call[Op]] = []
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.faults: list[str] = []
        self._threads = [
            threading.Thread(target=self._use, args=(random.Random(f"{seed} {user}"), user), daemon=True)
            for user in range(users)
        ]

    def start(self) -> None:
        """Start giving commands."""
        for thread in self._threads:
            thread.start()

    def use_new_names(self) -> None:
        """Continue with other jobs: commands without an answer make a history expensive to judge."""
        self._generation += 1

    def stop(self) -> None:
        """Stop giving commands."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(CALL_TIMEOUT_S * 3)

    def finish(self, read_from: Path) -> list[Call[Op]]:
        """Stop, cancel and read every job, and return all commands."""
        self.stop()
        client = Transport(read_from, CALL_TIMEOUT_S)
        for name in sorted({call.op.name for call in self._calls}):
            # A read comes from the journal's mirror and may be old; after a command of the same client it is not.
            if self._call(client, "cancel", name) != "done":
                continue
            began = time.monotonic()
            try:
                row = client.get(f"/v1/jobs/{name}")
            except NotFoundError:
                continue
            op = Op("read", name, "done", row["nodes"]["desired"], cancelled=True)
            self._note(Call(op, began, time.monotonic()))
        client.close()
        return list(self._calls)

    def _use(self, rng: random.Random, user: int) -> None:
        clients = [Transport(socket, CALL_TIMEOUT_S) for socket in self._sockets]
        while not self._stopping.wait(self._rest_s * rng.random() * 2):
            name = f"{self._prefix}-{self._generation}-{rng.randrange(self._names)}"
            kind: Kind = rng.choices(["submit", "scale", "cancel"], [4, 6, 1])[0]  # type: ignore[assignment]
            value = rng.randint(MIN_NODES, MAX_NODES + 1 if kind == "scale" else MAX_NODES)
            submission = f"{user}-{rng.getrandbits(60):016x}"
            self._call(rng.choice(clients), kind, name, value, submission)
        for client in clients:
            client.close()

    def _call(self, client: Transport, kind: Kind, name: str, value: int = 0, submission: str = "") -> Answer:
        body: dict[str, Any] | None = {"desired": value} if kind == "scale" else None
        began = time.monotonic()
        try:
            if kind == "submit":
                nodes = {"min": MIN_NODES, "desired": value, "max": MAX_NODES}
                spec = {"name": name, "nodes": nodes, "run": "t.py", "limits": {"usd_per_hour": USD_PER_HOUR}}
                digest = client.put("/v1/blobs", b"a job that never runs")["sha256"]
                client.post("/v1/jobs", {"spec": spec, "code_sha256": digest, "submission": submission})
            else:
                client.post(f"/v1/jobs/{name}/{kind}", body)
            answer: Answer = "done"
        except DaemonUnreachableError as error:
            if isinstance(error.__cause__, (ConnectionRefusedError, FileNotFoundError)):
                return "none"  # never sent: not part of the history
            answer = "none"
        except NotFoundError:
            answer = "not found"
        except CommandRefusedError as error:
            answer = "none" if "changes too fast" in str(error) else "refused"
        except SpotsupError as error:
            answer = "none"
            self._fault(str(error))
        ended = NEVER if answer == "none" else time.monotonic()
        self._note(Call(Op(kind, name, answer, value, submission), began, ended))
        return answer

    def _fault(self, text: str) -> None:
        """An answer that is not one of the daemon's own sentences: it has failed inside."""
        if text.startswith("spotsupd answers"):
            self.faults.append(text)

    def _note(self, call: Call[Op]) -> None:
        with self._lock:
            self._calls.append(call)
