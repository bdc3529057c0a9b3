"""Code over a line that breaks, through both clients and a real HTTPS server: what has arrived is not sent again."""

from __future__ import annotations

import hashlib
import inspect
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import spotsup.upload as client_upload
from spotsup.archive import Archive as ClientArchive
from spotsup.transport import Target, Transport

import supervisor.cli.upload as command_upload
from bootstrap.archive import Archive
from supervisor.cli.client import Client
from supervisor.cli.contexts import Context
from supervisor.cli.upload import CHUNK_BYTES
from tests.sim.harness import empty_world
from tests.support.https import TOKEN, Https

CHUNKS = 5
DATA = random.Random(1).randbytes((CHUNKS - 1) * CHUNK_BYTES + 100_000)
DIGEST = hashlib.sha256(DATA).hexdigest()
# TLS, and the heads of requests.
OVERHEAD_BYTES = 100_000


class Line:
    """To a port of this computer: it breaks once when so many bytes have gone up, then holds."""

    def __init__(self, port: int, breaks_after: float) -> None:
        self.port_behind = port
        self.breaks_after = breaks_after
        self.up_bytes = 0
        self.breaks = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(20.0)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=[near])
            self._threads.append(thread)
            thread.start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self.port_behind)) as far:
            down = threading.Thread(target=self._down, args=[far, near])
            down.start()
            while data := near.recv(65536):
                self.up_bytes += len(data)
                if self.up_bytes > self.breaks_after:
                    self.breaks_after = float("inf")
                    self.breaks += 1
                    break
                far.sendall(data)
            for each in (near, far):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            down.join()

    @staticmethod
    def _down(far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(65536):
                near.sendall(data)
            near.shutdown(socket.SHUT_WR)


@contextmanager
def line_to(https: Https, breaks_after: float) -> Iterator[Line]:
    line = Line(https.port, breaks_after)
    try:
        yield line
    finally:
        line.close()


def by_command(https: Https, line: Line) -> str:
    where = Context("it", f"https://localhost:{line.port}", "ann", TOKEN, https.ca)
    with closing(Client(where)) as daemon:
        return command_upload.upload(Archive.of(DATA), daemon, lambda _: None)


def by_client(https: Https, line: Line) -> str:
    transport = Transport(Target(f"https://localhost:{line.port}", TOKEN, https.ca))
    return client_upload.upload(ClientArchive.of(DATA), transport, lambda _: None)


@pytest.mark.parametrize("upload", [by_command, by_client])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_wherever_the_line_breaks_one_chunk_is_sent_twice_at_most(
    tmp_path: Path, chunk: int, upload: Callable[[Https, Line], str]
) -> None:
    world = empty_world()
    breaks_after = chunk * CHUNK_BYTES + (50_000 if chunk == CHUNKS - 1 else CHUNK_BYTES // 2)
    with Https.started(tmp_path, world) as https, line_to(https, breaks_after) as line:
        assert upload(https, line) == DIGEST
    assert line.breaks == 1
    assert world.journal.get_blob(DIGEST) == DATA
    assert line.up_bytes < len(DATA) + CHUNK_BYTES + OVERHEAD_BYTES


def test_a_daemon_that_ends_and_another_in_its_place(tmp_path: Path) -> None:
    """The second one has another journal on the same etcd, and the first one's certificate."""
    world = empty_world()
    with Https.started(tmp_path, world) as first:
        where = Context("it", f"https://localhost:{first.port}", "ann", TOKEN, first.ca)
        running: list[Any] = []

        class Desk(Client):
            chunks = 0

            def send(self, method: str, path: str, body: Any) -> Any:
                self.chunks += "/chunks/" in path
                if self.chunks == 3 and not running:
                    port = first.stop()
                    world.crash_daemon()
                    world.run(60.0)
                    running.append(Https.started(tmp_path, world, port))
                    running[0].__enter__()
                return super().send(method, path, body)

        try:
            with closing(Desk(where)) as daemon:
                assert command_upload.upload(Archive.of(DATA), daemon, lambda _: None) == DIGEST
        finally:
            for each in running:
                each.__exit__(None, None, None)
    assert running
    assert daemon.chunks <= CHUNKS + 1
    assert world.journal.get_blob(DIGEST) == DATA


def test_the_line_of_progress_is_for_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Https.started(tmp_path) as https, line_to(https, CHUNK_BYTES) as line:
        by_command(https, line)
        assert capsys.readouterr().err == ""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stderr.isatty", lambda: True)
            with line_to(https, 1000) as broken:
                by_client(https, broken)
    assert "code: 0.0 of 2.2 MB sent; no answer, or a busy daemon: again in" in capsys.readouterr().err


def test_both_clients_send_in_the_same_way() -> None:
    source = inspect.getsource(command_upload)
    for ours, theirs in (("supervisor.errors", "spotsup.errors"), ("bootstrap.archive", "spotsup.archive")):
        source = source.replace(f"from {ours}", f"from {theirs}")
    assert inspect.getsource(client_upload) == source, (
        "client/spotsup/upload.py is a copy of supervisor/cli/upload.py: copy it again"
    )
