"""etcd as a child process of the daemon (`--embedded-etcd`): one member on loopback, its data in the state folder.

With TLS it may also listen where nodes reach it. It runs in its own session: it outlives a daemon that is killed, so
nodes can go on, and the next daemon finds it again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import socket
import subprocess
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog
from spotsup_trainer.etcd import Etcd, EtcdError, EtcdRefusedError, Tls

from provisioners.localcloud import processes
from provisioners.localcloud.programs import ProgramMissingError, find_program, tools_root
from supervisor.errors import StartError
from supervisor.files import replace_file
from supervisor.journal.certificates import TlsFiles

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
# etcd's own default. At that size it refuses writes until it was defragmented and its alarm is disarmed.
QUOTA_BYTES = 2 * 2**30
_LASTING_PORTS = range(10_000, 20_000)
KILL_TIMEOUT_S = 5.0  # a process that outlives SIGKILL this long hangs in the kernel, most likely on its disk

log = structlog.get_logger("spotsupd")


@dataclass(frozen=True, slots=True)
class _Running:
    """What the next daemon must know to find this process."""

    client_port: int
    peer_port: int
    pid: int = 0
    started_ticks: int = 0
    tls: bool = False


class EmbeddedEtcd:
    """Starts etcd, or finds it running. `endpoint` stays the same for the life of the state folder."""

    def __init__(
        self,
        folder: Path,
        *,
        start_s: float = START_TIMEOUT_S,
        stop_s: float = STOP_TIMEOUT_S,
        kill_s: float = KILL_TIMEOUT_S,
        quota_bytes: int = QUOTA_BYTES,
        tls: TlsFiles | None = None,
        listen: str = "",
    ) -> None:
        """Time limits: `start_s` until it answers, `stop_s` from SIGTERM to SIGKILL, `kill_s` from then on.

        `listen`: `host:port` beside loopback, only with `tls`.
        """
        if listen and tls is None:
            raise ValueError("an etcd without TLS listens on loopback only")
        self._tls = tls
        self._listen = listen
        self.quota_bytes = quota_bytes
        self._folder = folder
        self._start_s = start_s
        self._stop_s = stop_s
        self._kill_s = kill_s
        self._file = folder / "embedded.json"
        self._running = self._load()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Return the URL that the daemon and nodes connect to."""
        return f"{self._scheme}://127.0.0.1:{self._running.client_port}"

    @property
    def node_endpoint(self) -> str:
        """Return the same as nodes reach it."""
        return f"{self._scheme}://{self._listen}" if self._listen else self.endpoint

    @property
    def _scheme(self) -> str:
        return "https" if self._tls else "http"

    def start(self) -> None:
        """Start, and wait until it answers. Raises StartError with the last line of etcd's log if it does not."""
        if not self.alive:
            self.launch()
        elif self._running.tls != (self._tls is not None):
            raise StartError(
                f"the embedded etcd (pid {self._running.pid}) runs {'with' if self._running.tls else 'without'} TLS, "
                "and etcd.secure says otherwise: cancel all jobs, stop spotsupd by SIGTERM, then start it"
            )
        self._wait_until_healthy()

    def launch(self) -> None:
        """Start, without waiting. Raises StartError if there is no program, a port is taken, or the disk refuses."""
        program = find_etcd()
        for port in (self._running.client_port, self._running.peer_port):
            _check_free(port, self._file)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (self._folder / "etcd.log").open("ab") as log:
                self._child = subprocess.Popen(
                    self._command(program), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            pid = self._child.pid
            started = processes.identity_of(pid).started
            self._save(replace(self._running, pid=pid, started_ticks=started, tls=self._tls is not None))
        except OSError as error:
            self.stop()  # one that is not recorded would not be found again
            raise StartError(f"the embedded etcd cannot start in {self._folder}: {error.strerror}") from error

    def stop(self) -> None:
        """Stop by SIGTERM, then SIGKILL. A process that survives both is left for the next daemon to find."""
        for number, limit_s in ((signal.SIGTERM, self._stop_s), (signal.SIGKILL, self._kill_s)):
            if not self.alive:
                return
            processes.send(self._identity(), number)
            deadline = time.monotonic() + limit_s
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.05)
        if self.alive:
            log.error("the embedded etcd does not exit even after SIGKILL; left it running", pid=self._running.pid)

    @property
    def alive(self) -> bool:
        """True if it runs, started by this daemon or an earlier one."""
        if self._child is not None:
            return self._child.poll() is None  # this also reaps it
        return bool(self._running.pid) and processes.is_alive(self._identity())

    def _identity(self) -> processes.Identity:
        return processes.Identity(self._running.pid, self._running.started_ticks)

    def _command(self, program: str) -> list[str]:
        client, peer = self.endpoint, f"{self._scheme}://127.0.0.1:{self._running.peer_port}"
        listen = f"{client},{self.node_endpoint}" if self._listen else client
        return [
            program,
            *("--name", "embedded", "--data-dir", str(self._folder / "data")),
            *("--listen-client-urls", listen, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"embedded={peer}"),
            # History is kept for watches that resume; ten minutes outlast any outage that we ride out.
            *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m"),
            *("--quota-backend-bytes", str(self.quota_bytes)),
            *("--logger", "zap", "--log-level", "warn"),
            *(secure_options(self._tls) if self._tls else ()),
        ]

    def _load(self) -> _Running:
        try:
            return _Running(**json.loads(self._file.read_text()))
        except FileNotFoundError:
            client, peer = _lasting_ports(2)
            return _Running(client, peer)
        except (ValueError, TypeError) as error:
            raise StartError(f"{self._file} is corrupt ({error}): stop etcd, and delete the file") from error

    def _save(self, running: _Running) -> None:
        self._running = running
        replace_file(self._file, json.dumps(asdict(running)).encode())

    def _wait_until_healthy(self) -> None:
        tls = Tls(str(self._tls.ca)) if self._tls else None
        etcd = Etcd([self.endpoint], timeout_s=2.0, tls=tls)
        deadline = time.monotonic() + self._start_s
        while True:
            try:
                if tls:
                    with contextlib.suppress(EtcdRefusedError):  # it has users, and asks for a login
                        etcd.get("/")
                else:
                    etcd.get("/")
                etcd.close()
            except EtcdError as error:
                if not self.alive or time.monotonic() > deadline:
                    raise StartError(
                        f"the embedded etcd does not answer at {self.endpoint}: {error}; "
                        f"last line of {self._folder / 'etcd.log'}: {self.last_log_line()}"
                    ) from error
                time.sleep(0.05)
            else:
                return

    def last_log_line(self) -> str:
        """Return what etcd said last."""
        file = self._folder / "etcd.log"
        lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
        return lines[-1][:500] if lines else "none"


def secure_options(tls: TlsFiles) -> tuple[str, ...]:
    """etcd's options for TLS and users. Its members' own connections use the same certificate, and ask for one.

    Passwords are 256 bits of a key: a slow hash protects nothing, and would cost 60 ms of etcd's time for each login,
    of which there are hundreds when etcd has restarted (its tokens are in memory).
    """
    cert, key, ca = str(tls.cert), str(tls.key), str(tls.ca)
    return (
        *("--cert-file", cert, "--key-file", key),
        *("--peer-cert-file", cert, "--peer-key-file", key, "--peer-trusted-ca-file", ca, "--peer-client-cert-auth"),
        *("--bcrypt-cost", "4"),
    )


def find_etcd() -> str:
    """Return the path of the program: from the PATH, the system's folders, or a clone's setup."""
    try:
        return str(find_program("etcd", tools_root()))
    except ProgramMissingError as error:
        raise StartError(
            "etcd is not on the PATH: `apt-get install etcd-server`, or leave --embedded-etcd out"
        ) from error


def _lasting_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, and that Linux gives to no program by itself: they are used again after each
    restart. (Its own choice begins at 32768, see ip-sysctl's ip_local_port_range; tunnels use endpoints.FIRST_PORT on.)
    """
    shuffled = random.SystemRandom().sample(_LASTING_PORTS, len(_LASTING_PORTS))
    return list(itertools.islice((port for port in shuffled if _problem_at(port) is None), count))


def _check_free(port: int, file: Path) -> None:
    if problem := _problem_at(port):
        raise StartError(
            f"port {port} on 127.0.0.1, which the embedded etcd used before ({file}), is in use: "
            "stop what uses it, or delete that file to get new ports (running nodes will not find etcd then)"
        ) from problem


def _problem_at(port: int) -> OSError | None:
    """Return why nothing can listen at a port of loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error
    return None
