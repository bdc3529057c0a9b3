"""What the test clouds have in common: answers, the tests' controls, faults of calls, and the server.

Real SDKs talk to a test cloud over HTTP. Its machines are real sshd hosts of a local cloud, or paper ones.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Protocol
from unittest.mock import patch

from werkzeug.serving import WSGIRequestHandler, make_server

from provisioners.base import Owner, Provisioner
from provisioners.settings import CloudSettings
from tests.clouds.machines import Machines, PaperMachines

HANG_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `body`: bytes as they are sent, or what is sent as JSON."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def payload(self) -> bytes:
        """As it is sent."""
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body).encode()


class FakeError(Exception):
    """An error that a test cloud answers."""

    def answer(self, call: Any) -> Answer:
        """The error in the format of the call's API; the call is None where it could not be read."""
        raise NotImplementedError


class Record(Protocol):
    """What the records of all clouds' machines have."""

    @property
    def name(self) -> str:
        """The cloud's own id."""
        ...

    @property
    def machine(self) -> str:
        """Its id among the machines behind."""
        ...

    @property
    def tags(self) -> Mapping[str, str]:
        """Its tags, or its metadata."""
        ...


class Fleet(ABC):
    """The machines of an account, over the machines behind. Callers hold `lock`.

    What can be set: `lag_s` of listings, `ahead_s` of the cloud's clock, `missing` fields of machines' descriptions,
    the `room` of zones, those that are `full` (for one type, or "" for all), `most_machines` (0: any number).
    """

    def __init__(self, machines: Machines) -> None:
        self.lock = threading.RLock()
        self.lag_s = 0.0
        self.ahead_s = 0.0
        self.missing: set[str] = set()
        self.room: dict[str, int] = {}
        self.full: set[tuple[str, str]] = set()
        self.most_machines = 0
        self.machines = machines

    def is_full(self, zone: str, machine_type: str, zones: Iterable[str]) -> bool:
        """Whether a zone has no room, with machines in `zones`."""
        taken = sum(each == zone for each in zones)
        return bool(self.full & {(zone, ""), (zone, machine_type)}) or taken >= self.room.get(zone, taken + 1)

    @abstractmethod
    def preempt(self, machine: str, notice_s: float, *, stop: bool = False) -> float:
        """Announce a preemption, by which the machine ends or stops; returns the deadline by the API."""

    @abstractmethod
    def alarm(self, machine: str) -> None:
        """Announce a preemption whose deadline is over, and which does not come."""

    @abstractmethod
    def withdraw(self, machine: str) -> None:
        """Take the announcement back; the machine stays."""

    @abstractmethod
    def stop(self, machine: str) -> None:
        """Switch the machine off: it has its disk, and goes on to cost."""

    @abstractmethod
    def lose(self, machine: str, reason: str = "") -> None:
        """End the machine without a notice."""

    @abstractmethod
    def multiply(self, machine: str, times: int) -> None:
        """Add copies of a machine, quickly; they run for ever."""

    @abstractmethod
    def leave_behind(self, owner: Owner, node: str) -> None:
        """Create one resource of each kind that can outlive a machine."""

    @abstractmethod
    def alive(self) -> Sequence[Record]:
        """The machines that cost money."""

    @abstractmethod
    def born(self) -> dict[str, list[str]]:
        """Token -> the ids of all machines that it ever had."""

    @abstractmethod
    def left(self) -> list[str]:
        """What still costs money: machines, disks, interfaces, addresses, requests."""


class WireCloud(ABC):
    """A cloud: a WSGI application, and the tests' controls. Thread-safe. `calls` has the calls made.

    `credentials`: "good", or what is wrong with them. `denied`: permissions that the daemon lacks.
    """

    faults: ClassVar[Mapping[str, FakeError]]
    # Faults that a cloud's own handlers know.
    handled: ClassVar[frozenset[str]] = frozenset()
    launch: ClassVar[str]
    # What a listing may lack of a young machine.
    young: ClassVar[frozenset[str]]

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.calls: list[Any] = []
        self.credentials = "good"
        self.denied: set[str] = set()
        self.closing = threading.Event()
        self.call_s = 0.0  # how long each call takes
        # What of the answers that it gave its provider's own description does not know.
        self.complaints: list[str] = []
        self._faults: dict[str, deque[str]] = defaultdict(deque)

    # -- the tests' controls; machines by the provisioner's ids, or the cloud's own -------------------------

    def exhaust(self, zone: str, machine_type: str = "") -> None:
        """Give a zone no capacity, for one type or all."""
        self.fleet.full.add((zone, machine_type))

    def make_room(self, zone: str, machine_type: str = "") -> None:
        """Give a zone capacity again."""
        self.fleet.full.discard((zone, machine_type))

    def fail_next(self, action: str, how: str, times: int = 1) -> None:
        """Inject a fault into the next calls of an action: one of the cloud's, or drop-reply, done-but-error, twice,
        garbage, empty, hang, pass.
        """
        common = {"drop-reply", "done-but-error", "twice", "garbage", "empty", "hang", "pass"}
        assert how in {*self.faults, *self.handled, *common}, how
        self._faults[action].extend([how] * times)

    def preempt(self, machine: str, notice_s: float, *, stop: bool = False) -> float:
        """Announce a preemption; returns the deadline by the API."""
        with self.fleet.lock:
            return self.fleet.preempt(bare(machine), notice_s, stop=stop)

    def let_daemon_in(self) -> None:
        """Open the network to the daemon, where the account's own rules do not."""
        assert self.fleet

    def lose(self, machine: str, reason: str = "") -> None:
        """End a machine without a notice."""
        with self.fleet.lock:
            self.fleet.lose(bare(machine), reason)

    def stop(self, machine: str) -> None:
        """Switch a machine off."""
        with self.fleet.lock:
            self.fleet.stop(bare(machine))

    def used(self) -> set[str]:
        """The permissions that were needed: those of the calls, and of the cloud's own steps for them."""
        return {name for call in self.calls for name in self.needed(call)}

    def counted(self) -> Counter[str]:
        """How often each action was called."""
        return Counter(call.action for call in self.calls)

    # -- what each cloud has of its own --------------------------------------------------------------------

    @abstractmethod
    def read(self, environ: dict[str, Any], body: bytes) -> Any:
        """The call that a request makes, with its `action`. Raises FakeError."""

    @abstractmethod
    def needed(self, call: Any) -> list[str]:
        """The permissions that a call needs: its own, and those of the cloud's own steps for it."""

    @abstractmethod
    def admit(self, call: Any) -> None:
        """Raises FakeError for wrong credentials and denied permissions."""

    @abstractmethod
    def answer(self, call: Any, fault: str) -> Answer:
        """Carry the call out. Raises FakeError."""

    def against(self, call: Any, answer: Answer) -> Iterable[str]:
        """What of an answer its provider's own description does not admit, each with the document's name."""
        return ()

    def against_error(self, call: Any, answer: Answer) -> Iterable[str]:
        """The same of an error's answer."""
        return ()

    def aside(self, environ: dict[str, Any], body: bytes) -> Answer | None:
        """The answer to a request that is no call of the API."""
        return None

    # -- WSGI ----------------------------------------------------------------------------------------------

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """One request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        aside = self.aside(environ, body)
        answer, cut = self._serve(environ, body) if aside is None else (aside, False)
        payload = answer.payload
        kind = "text/html" if isinstance(answer.body, bytes) else "application/json"
        headers = {"Content-Type": kind, "Content-Length": str(len(payload)), **answer.headers}
        start_response(f"{answer.status} -", list(headers.items()))
        # A Content-Length above the body's breaks the connection in mid-answer.
        return [payload[: len(payload) // 2] if cut else payload]

    def next_fault(self, action: str) -> str:
        """The fault that a call of this action meets."""
        queue = self._faults[action]
        return queue.popleft() if queue else "pass"

    def _serve(self, environ: dict[str, Any], body: bytes) -> tuple[Answer, bool]:
        call = None
        try:
            call = self.read(environ, body)
            self.calls.append(call)
            fault = self.next_fault(call.action)
            self.closing.wait(self.call_s)
            self.admit(call)
            if fault in self.faults:
                raise self.faults[fault]
            if fault == "hang":
                self.closing.wait(HANG_S)
                raise self.faults["internal"]
            with self.fleet.lock:
                answer = self.answer(call, fault)
                if fault == "twice":
                    answer = self.answer(call, "pass")
                check = self.against if answer.status < 300 else self.against_error
                self.complaints += check(call, answer)
        except FakeError as error:
            answer = error.answer(call)
            if call is not None:
                self.complaints += self.against_error(call, answer)
            return answer, False
        if fault == "done-but-error":
            return self.faults["internal"].answer(call), False
        if fault == "garbage":
            return Answer(200, b"<html>Welcome to the hotel network</html>"), False
        if fault == "empty":
            return Answer(200, {"welcome": "to the hotel network"}), False
        return answer, fault == "drop-reply"


def bare(machine: str) -> str:
    """The cloud's own id of a machine; the provisioner's may begin with its place."""
    return machine.rpartition(":")[2]


class _Quiet(WSGIRequestHandler):  # type: ignore[misc]
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        """Log nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The date in each answer, on the cloud's clock."""
        return formatdate(time.time() + self.server.app.fleet.ahead_s, usegmt=True)


class CloudServer(ABC):
    """A cloud on a port of its own, served by daemon threads."""

    def __init__(self, cloud: Any, folder: Path, tls: ssl.SSLContext | None = None, *, host: str = "127.0.0.1") -> None:
        self.cloud = cloud
        self.folder = folder
        self._server = make_server(host, 0, cloud, threaded=True, request_handler=_Quiet, ssl_context=tls)
        self._server.daemon_threads = True
        self.url = f"{'https' if tls else 'http'}://{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    @abstractmethod
    def environ(self) -> dict[str, str]:
        """What the daemon's environment needs: the credentials."""

    @abstractmethod
    def settings(self, **given: Any) -> CloudSettings:
        """The settings for this cloud."""

    @abstractmethod
    def provisioner(self, **given: Any) -> Provisioner:
        """The provisioner for this cloud, with these settings."""

    def stop(self) -> None:
        """Stop listening; the machines run on. Idempotent."""
        self.cloud.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def wire_cloud(name: str, machines: Machines | None = None) -> Iterator[Any]:
    """The server of a cloud over these machines, or paper ones; this process has its credentials until the end."""
    module = import_module(f"tests.clouds.{name}")
    with TemporaryDirectory() as folder:
        server: CloudServer = module.Server(module.Cloud(machines or PaperMachines()), Path(folder))
        try:
            with patch.dict(os.environ, server.environ):
                yield server
        finally:
            server.stop()
        assert not server.cloud.complaints, "\n".join(dict.fromkeys(server.cloud.complaints))
