"""etcd as a child of the daemon (`--embedded-etcd`): one member, on loopback, its data in the state folder.

It runs in a session of its own: a daemon that is killed leaves it to the nodes, and the next daemon finds it again.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog
from spotsup_trainer.etcd import Etcd, EtcdError

from provisioners.localcloud import processes
from provisioners.localcloud.programs import ProgramMissingError, find_program, tools_root
from supervisor.errors import StartError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 5.0  # what SIGKILL does not end by then hangs in the kernel, on its disk most likely

log = structlog.get_logger("spotsupd")


@dataclass(frozen=True, slots=True)
class _Running:
    """What the next daemon must know to find it."""

    client_port: int
    peer_port: int
    pid: int = 0
    started_ticks: int = 0


class EmbeddedEtcd:
    """Start it, or find it running; `endpoint` stays the same for the life of the state folder."""

    def __init__(
        self,
        folder: Path,
        *,
        start_s: float = START_TIMEOUT_S,
        stop_s: float = STOP_TIMEOUT_S,
        kill_s: float = KILL_TIMEOUT_S,
    ) -> None:
        """`start_s`: until it must answer; `stop_s`: from SIGTERM to SIGKILL; `kill_s`: for its end after that."""
        self._folder = folder
        self._start_s = start_s
        self._stop_s = stop_s
        self._kill_s = kill_s
        self._file = folder / "embedded.json"
        self._running = self._load()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """What nodes and daemon connect to."""
        return f"http://127.0.0.1:{self._running.client_port}"

    def start(self) -> None:
        """Returns when it answers. Raises StartError with etcd's own last words where it does not."""
        if self.alive:
            self._wait_until_healthy()
            return
        program = find_etcd()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for port in (self._running.client_port, self._running.peer_port):
            _check_free(port, self._file)
        log_path = self._folder / "etcd.log"
        with log_path.open("ab") as log:
            self._child = subprocess.Popen(
                self._command(program), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        pid = self._child.pid
        self._save(
            _Running(self._running.client_port, self._running.peer_port, pid, processes.identity_of(pid).started)
        )
        self._wait_until_healthy()

    def stop(self) -> None:
        """In order, else by SIGKILL. One that not even that ends is left: the next daemon finds it, or its end."""
        for number, limit_s in ((signal.SIGTERM, self._stop_s), (signal.SIGKILL, self._kill_s)):
            if not self.alive:
                return
            processes.send(self._identity(), number)
            deadline = time.monotonic() + limit_s
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.05)
        if self.alive:
            log.error("the embedded etcd does not end, and is left", pid=self._running.pid)

    @property
    def alive(self) -> bool:
        """Whether it runs, started by us or by one before us."""
        if self._child is not None:
            return self._child.poll() is None  # and so it is reaped, too
        return bool(self._running.pid) and processes.is_alive(self._identity())

    def _identity(self) -> processes.Identity:
        return processes.Identity(self._running.pid, self._running.started_ticks)

    def _command(self, program: str) -> list[str]:
        client, peer = self.endpoint, f"http://127.0.0.1:{self._running.peer_port}"
        return [
            program,
            *("--name", "embedded", "--data-dir", str(self._folder / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"embedded={peer}"),
            # History is kept for watches that resume; ten minutes outlast any outage that we ride out.
            *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m"),
            *("--logger", "zap", "--log-level", "warn"),
        ]

    def _load(self) -> _Running:
        try:
            return _Running(**json.loads(self._file.read_text()))
        except FileNotFoundError:
            return _Running(_free_port(), _free_port())
        except (ValueError, TypeError) as error:
            raise StartError(f"{self._file} is broken ({error}); stop etcd and delete the file") from error

    def _save(self, running: _Running) -> None:
        self._running = running
        fresh = self._file.with_suffix(".tmp")
        fresh.write_text(json.dumps(asdict(running)))
        fresh.replace(self._file)

    def _wait_until_healthy(self) -> None:
        etcd = Etcd([self.endpoint], timeout_s=2.0)
        deadline = time.monotonic() + self._start_s
        while True:
            try:
                etcd.get("/")
                etcd.close()
            except EtcdError as error:
                if not self.alive or time.monotonic() > deadline:
                    raise StartError(
                        f"the embedded etcd does not answer at {self.endpoint}: {error}; "
                        f"its last words ({self._folder / 'etcd.log'}): {self._last_words()}"
                    ) from error
                time.sleep(0.05)
            else:
                return

    def _last_words(self) -> str:
        lines = (self._folder / "etcd.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else "none"


def find_etcd() -> str:
    """The program: on the PATH, in the system's folders, or unpacked by a clone's setup."""
    try:
        return str(find_program("etcd", tools_root()))
    except ProgramMissingError as error:
        raise StartError(
            "there is no etcd on the PATH: `apt-get install etcd-server`, or leave --embedded-etcd out"
        ) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _check_free(port: int, file: Path) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise StartError(
                f"port {port} on 127.0.0.1, which the embedded etcd had before ({file}), is in use: "
                "stop what uses it, or delete that file to have new ports (running nodes will not find etcd then)"
            ) from error
