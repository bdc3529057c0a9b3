"""A real etcd that can be killed, frozen, emptied and started again on its ports; alone, or of several members."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from spotsup_trainer.etcd import Etcd

from tests.support.programs import find_program, free_ports, program_env

_START_TIMEOUT_S = 30.0
_STARTS = 3


class EtcdServer:
    """Use `etcd_server` or `etcd_cluster`. `endpoint` stays the same over restarts."""

    def __init__(
        self, folder: Path, ports: Sequence[int], options: Sequence[str] = (), scheme: str = "http", peers: str = ""
    ) -> None:
        self.endpoint = f"{scheme}://127.0.0.1:{ports[0]}"
        # Health by plain HTTP whatever the client's scheme is.
        self._health = f"http://127.0.0.1:{ports[2]}"
        peer = f"http://127.0.0.1:{ports[1]}"
        name = f"m{ports[1]}"
        folder.mkdir(parents=True)
        self._data = folder / "data"
        self._backup = folder / "backup"
        self._log = folder / "etcd.log"
        self._command = [
            str(find_program("etcd")),
            *("--name", name, "--data-dir", str(self._data), "--log-level", "warn"),
            *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", peers or f"{name}={peer}"),
            # A single member needs no votes: a start on old data then takes 0.3 s instead of the default's 1.3 s.
            *(() if peers else ("--heartbeat-interval", "10", "--election-timeout", "100")),
            *("--listen-metrics-urls", self._health),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Start and wait until it serves; False when it ended, as it does when somebody else took a port."""
        self.launch()
        return self.serves()

    def launch(self) -> None:
        """Start without waiting: a member cannot serve before most of its peers are there."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=program_env(), stdout=log, stderr=log)

    def serves(self) -> bool:
        """Wait until it does; False when it ended, or cannot."""
        process = self._process
        deadline = time.monotonic() + _START_TIMEOUT_S
        while process is not None and time.monotonic() < deadline and process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._health}/health", timeout=1.0) as answer:  # noqa: S310 - our own URL
                    if b'"true"' in answer.read():
                        return True
            except OSError:
                time.sleep(0.02)
        return False

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def program(self, path: Path) -> None:
        """Be another etcd from the next start on."""
        self._command[0] = str(path)

    def empty(self) -> None:
        """Lose all data. Only while it is dead."""
        assert self._process is None
        shutil.rmtree(self._data)

    def save(self) -> None:
        """Make a backup of all data. Only while it is dead."""
        assert self._process is None
        shutil.copytree(self._data, self._backup)

    def restore(self) -> None:
        """Have the data that `save` found. Only while it is dead."""
        self.empty()
        shutil.copytree(self._backup, self._data)

    def freeze(self) -> None:
        """Freeze it: it accepts connections and never answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """End `freeze`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-1000:]


@contextmanager
def etcd_server(folder: Path, options: Sequence[str] = (), scheme: str = "http") -> Iterator[EtcdServer]:
    """A running etcd below `folder`, gone at the end."""
    for attempt in range(_STARTS):
        server = EtcdServer(folder / str(attempt), free_ports(3), options, scheme)
        try:
            if server.start():
                yield server
                return
        finally:
            server.kill()
    raise RuntimeError(f"etcd did not start: {server.log_tail()}")


@contextmanager
def etcd_cluster(
    folder: Path, members: int = 3, options: Sequence[str] = (), scheme: str = "http"
) -> Iterator[list[EtcdServer]]:
    """An etcd of several members, gone at the end."""
    for attempt in range(_STARTS):
        ports = free_ports(3 * members)
        peers = ",".join(f"m{peer}=http://127.0.0.1:{peer}" for peer in ports[1::3])
        own = [ports[3 * number : 3 * number + 3] for number in range(members)]
        servers = [
            EtcdServer(folder / f"{attempt}-{number}", each, options, scheme, peers) for number, each in enumerate(own)
        ]
        try:
            for server in servers:
                server.launch()
            if all(server.serves() for server in servers):
                yield servers
                return
        finally:
            for server in servers:
                server.kill()
    raise RuntimeError(f"etcd did not start: {servers[0].log_tail()}")


def require_login(etcd: Etcd, password: str) -> None:
    """From now on etcd answers to users only: to `root`, with this password."""
    for path, body in (
        ("user/add", {"name": "root", "password": password}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("enable", {}),
    ):
        etcd.call(f"/v3/auth/{path}", body)


_CONNECT_S = 1.0


class Cable:
    """Forwards TCP connections to an endpoint; can be cut, and can fall silent. Use `cable`.

    `calls`: how many connections were tried.
    """

    def __init__(self, endpoint: str) -> None:
        url = urlsplit(endpoint)
        self._to = (url.hostname, url.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.calls = 0
        self._whole = True
        self._nonsense = b""
        self._flows = threading.Event()
        self._flows.set()
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and every new one at once."""
        with self._lock:
            self._whole = False
            for end in self._ends:
                _hang_up(end)
            self._ends.clear()

    def hang(self) -> None:
        """Accept connections and hold back all data, without an error to either side."""
        self._flows.clear()

    def babble(self, body: bytes, status: str = "200 OK") -> None:
        """Answer every request with this, as a proxy or a login page in between does."""
        self.cut()
        self._nonsense = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def repair(self) -> None:
        """Forward again, also what was held back."""
        with self._lock:
            self._whole, self._nonsense = True, b""
        self._nonsense = b""
        self._flows.set()

    def close(self) -> None:
        """For ever."""
        self.cut()
        self._flows.set()
        _hang_up(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.calls += 1
                with self._lock:
                    if self._nonsense:
                        threading.Thread(target=self._babble, args=(near, self._nonsense), daemon=True).start()
                        continue
                    if not self._whole:
                        near.close()
                        continue
                    try:
                        far = socket.create_connection(self._to, timeout=_CONNECT_S)
                    except OSError:  # refused, or a member whose network is cut
                        near.close()
                        continue
                    far.settimeout(None)
                    self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    @staticmethod
    def _babble(end: socket.socket, answer: bytes) -> None:
        with contextlib.suppress(OSError), end:
            end.recv(65536)
            end.sendall(answer)
            end.shutdown(socket.SHUT_WR)
            while end.recv(65536):
                pass

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                target.sendall(data)
        _hang_up(target)
        source.close()


@contextmanager
def cable(endpoint: str) -> Iterator[Cable]:
    """A cable to `endpoint`."""
    made = Cable(endpoint)
    try:
        yield made
    finally:
        made.close()


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
