"""A real etcd that can be killed and started again on its data and its ports."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.programs import find_program, free_ports, program_env

_START_TIMEOUT_S = 30.0
_STARTS = 3


class EtcdServer:
    """Use `etcd_server`. `endpoint` stays the same over restarts."""

    def __init__(self, folder: Path, ports: Sequence[int], options: Sequence[str] = (), scheme: str = "http") -> None:
        self.endpoint = f"{scheme}://127.0.0.1:{ports[0]}"
        # Health by plain HTTP whatever the client's scheme is.
        self._health = f"http://127.0.0.1:{ports[2]}"
        peer = f"http://127.0.0.1:{ports[1]}"
        folder.mkdir(parents=True)
        self._log = folder / "etcd.log"
        self._command = [
            str(find_program("etcd")),
            *("--name", "test", "--data-dir", str(folder / "data"), "--log-level", "warn"),
            *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"test={peer}"),
            *("--listen-metrics-urls", self._health),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Start and wait until it serves; False when it ended, as it does when somebody else took a port."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(self._command, env=program_env(), stdout=log, stderr=log)
        self._process = process
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
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

    def words(self) -> str:
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
    raise RuntimeError(f"etcd did not start: {server.words()}")


class Cable:
    """Forwards TCP connections to an endpoint, and can be cut. Use `cable`."""

    def __init__(self, endpoint: str) -> None:
        url = urlsplit(endpoint)
        self._to = (url.hostname, url.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._whole = True
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

    def mend(self) -> None:
        """Forward again."""
        with self._lock:
            self._whole = True

    def close(self) -> None:
        """For ever."""
        self.cut()
        _hang_up(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                with self._lock:
                    if not self._whole:
                        near.close()
                        continue
                    far = socket.create_connection(self._to)
                    self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=(one, other), daemon=True).start()


@contextmanager
def cable(endpoint: str) -> Iterator[Cable]:
    """A cable to `endpoint`."""
    made = Cable(endpoint)
    try:
        yield made
    finally:
        made.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _hang_up(target)
    source.close()


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
