"""Many rendezvous handlers at once, each in a process of its own as on a node of its own, and how long a round takes.

The processes are forked from this one, which has torch imported: nothing but the rendezvous itself is measured.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from spotsup_trainer.etcd import Etcd
from spotsup_trainer.etcd.access import ACCESS_VARIABLE
from spotsup_trainer.launcher.parent_death import die_with_parent
from spotsup_trainer.rendezvous.membership import Stay
from spotsup_trainer.wire import Keys, Tombstone, encode
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from benchmarks.recovery.watch import BenchError, Stop, last_line
from provisioners.localcloud.machine.child import free_port

LIMIT_S = 60.0
CLUSTER = "bench"
PYTHON_ETCD = "python-etcd==0.4.5"
INSTALL_TIMEOUT_S = 120.0
_LOOK_S = 0.2
_POLL_S = 0.1
_HOST = "127.0.0.1"
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend of `torchrun --rdzv-backend`. `site`: a folder that its processes import from, too."""

    name: str
    backend: str
    describe: str
    site: Path | None = None
    secured: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """An etcd. `connect`: as its administrator. `access`: of a job's members, the path of a file, "" for nothing."""

    endpoint: str
    connect: Callable[[], Etcd]
    access: Callable[[str], str] = lambda _: ""


_STOCK = "torch's own handler with its default settings"
SPOTSUP = Subject("spotsup", "spotsup", "--rdzv-backend spotsup: leases, a watch, one compare-and-swap per round")
SECURED = Subject("spotsup-secured", "spotsup", "the same on an etcd with TLS and a user for the job", secured=True)
C10D = Subject("torchrun-c10d", "c10d", f"--rdzv-backend c10d: {_STOCK}; its TCPStore is there before the first round")
ETCD_V2 = Subject("torchrun-etcd-v2", "etcd-v2", f"--rdzv-backend etcd-v2: {_STOCK}, and {PYTHON_ETCD}")
SUBJECTS = (SPOTSUP, SECURED, C10D, ETCD_V2)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one handler got, and when (the monotonic clock, which all processes of a machine share)."""

    rank: int
    world: int
    at: float


class Crew:
    """`size` handlers of one new job, numbered from 0. `close` leaves no process."""

    def __init__(self, subject: Subject, size: int, store: Store, job: str, log: Path, stop: Stop) -> None:
        self.size = size
        self.job = job
        self._subject = subject
        self._store = store
        self._access = store.access(job)
        self._rdzv_endpoint = _rdzv_endpoint(subject, store.endpoint)
        self._log = log
        self._stop = stop
        self._pipes: dict[int, Connection] = {}
        self._processes: dict[int, BaseProcess] = {}
        for number in range(size):
            self._fork(number)
        if subject is C10D:
            self._ask([0], "make")  # the store is there before the round begins, as etcd is
            self._answers([0], time.monotonic())

    def form(self) -> float:
        """All join a round at once: seconds until the last of them is in it. Raises BenchError."""
        began = time.monotonic()
        self._ask(self._pipes, "join")
        return self._formed(began)

    def replace_one(self) -> float:
        """One vanishes and gets a tombstone; a spare takes its place: seconds until the last is in the new round.

        Of spotsup only: to the others a lost member is lost when its heartbeats have been missed for long enough.
        """
        spare, lost = self.size, self.size // 2
        self._fork(spare)
        self._ask([spare], "join")
        keys, node = Keys(CLUSTER), _node(lost)
        with contextlib.closing(self._store.connect()) as etcd:
            waits = partial(etcd.get, keys.member(self.job, _node(spare)))
            self._stop.until(
                waits, LIMIT_S, lambda: f"waited {LIMIT_S:g} s in vain for the spare to wait", _POLL_S / 10
            )
            self._ask([number for number in self._pipes if number not in {spare, lost}], "stay")
            self._answers([number for number in self._pipes if number not in {spare, lost}], time.monotonic())
            began = time.monotonic()
            self._kill(lost)
            etcd.put(keys.tombstone(self.job, node), encode(Tombstone(node, "killed by the benchmark", time.time())))
        return self._formed(began)

    def close(self) -> None:
        """Kill all that are left."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()
        for pipe in self._pipes.values():
            pipe.close()

    def _fork(self, number: int) -> None:
        mine, theirs = _FORK.Pipe()
        about = (self._subject, self._rdzv_endpoint, self.job, self.size, number)
        arguments = (theirs, os.getpid(), self._log, self._access, about)
        process = _FORK.Process(target=_member, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self._pipes[number], self._processes[number] = mine, process

    def _kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        self._pipes.pop(number).close()
        process.join()

    def _ask(self, numbers: Iterable[int], what: str) -> None:
        for number in numbers:
            self._pipes[number].send(what)

    def _formed(self, began: float) -> float:
        """Wait for all answers; they must be those of one round."""
        answers = self._answers(list(self._pipes), began)
        if sorted(each.rank for each in answers) != list(range(self.size)) or {each.world for each in answers} != {
            self.size
        }:
            raise BenchError(f"{self._subject.name}: {self.size} handlers are not in one round: {answers}")
        last: float = max(each.at for each in answers)
        return last - began

    def _answers(self, numbers: Sequence[int], began: float) -> list[Any]:
        waiting: dict[Any, int] = {self._pipes[number]: number for number in numbers}
        answers = []
        while waiting:
            self._stop.check()
            for pipe in wait(list(waiting), timeout=_LOOK_S):
                number = waiting.pop(pipe)
                assert isinstance(pipe, Connection)
                try:
                    answers.append(pipe.recv())
                except (EOFError, OSError):
                    raise BenchError(f"{self._subject.name}: handler {number} ended: {last_line(self._log)}") from None
            if time.monotonic() - began > LIMIT_S:
                raise BenchError(
                    f"{self._subject.name}: {len(waiting)} of {self.size} handlers wait after {LIMIT_S:g} s"
                )
        return answers


def _rdzv_endpoint(subject: Subject, etcd: str) -> str:
    if subject is not C10D:
        return etcd.removeprefix("http://")
    return f"{_HOST}:{free_port(_HOST)}"


def _node(number: int) -> str:
    return f"node{number:03d}"


def _member(pipe: Connection, parent: int, log: Path, access: str, about: tuple[Subject, str, str, int, int]) -> None:
    """One process: executes commands until it is killed."""
    die_with_parent(parent)
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # A TCPStore asks the name server who connects, for a log text; that is not what is measured, and if one of many
    # answers is lost, the asker waits a second or more.
    os.environ["RES_OPTIONS"] = "attempts:0"
    os.environ[ACCESS_VARIABLE] = access
    # torch's handler looks through its call stack at every operation, for a record. The frames of `python -m`, which
    # the torchrun command does not have, make that 5 ms instead of 0.4; a thread has none of them.
    threading.Thread(target=_obey, args=(pipe, *about)).start()


def _obey(pipe: Connection, subject: Subject, endpoint: str, job: str, size: int, number: int) -> None:
    if subject.site is not None:
        sys.path.insert(0, str(subject.site))
    conf: dict[str, Any] = {"cluster": CLUSTER, "node": _node(number)} if subject.backend == SPOTSUP.backend else {}
    if subject is C10D:
        conf = {"is_host": str(number == 0)}
    parameters = RendezvousParameters(subject.backend, endpoint, job, size, size, _HOST, **conf)
    handler = info = None
    while True:
        what = pipe.recv()
        if handler is None:
            handler = get_rendezvous_handler(parameters)
        if what == "make":
            pipe.send("made")
            continue
        if what == "stay":
            pipe.send("stays")
            # as the launcher looks after its workers
            while isinstance(handler.standing(), Stay):
                handler.client.wait_change(_POLL_S)
        info = handler.next_rendezvous()
        pipe.send(Seen(info.rank, info.world_size, time.monotonic()))


def with_python_etcd(subject: Subject, folder: Path) -> Subject:
    """torch's etcd-v2 with the client that it needs, and nothing else here does: installed to `folder`, once.

    Raises BenchError where it cannot be had.
    """
    if not folder.exists():
        scratch = folder.with_suffix(".new")
        shutil.rmtree(scratch, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(scratch), PYTHON_ETCD]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise BenchError(f"pip did not install {PYTHON_ETCD} within {INSTALL_TIMEOUT_S:g} s") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise BenchError(f"pip cannot install {PYTHON_ETCD}: {lines[-1] if lines else done.returncode}")
        scratch.rename(folder)
    return Subject(subject.name, subject.backend, subject.describe, folder)


def check_v2(endpoint: str) -> None:
    """Raises BenchError where this etcd does not speak the old protocol: 3.6 and later do not."""
    try:
        with urllib.request.urlopen(f"{endpoint}/v2/keys", timeout=5.0):  # noqa: S310 - our own etcd
            pass
    except urllib.error.URLError as error:
        raise BenchError(f"this etcd has no v2 API ({error})") from error
