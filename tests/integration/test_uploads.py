"""Code over a line that breaks, through a real HTTPS server: it is sent again."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from spotsup.archive import Archive
from spotsup.contexts import Context
from spotsup.transport import Transport
from spotsup.upload import TRIES, upload

from supervisor.errors import DaemonUnreachableError
from tests.sim.harness import empty_world
from tests.support.https import TOKEN, Https

DATA = random.Random(1).randbytes(2_000_000)
DIGEST = hashlib.sha256(DATA).hexdigest()


class Line:
    """To a port of this computer: it breaks `breaks` times, each time when so many bytes have gone up, then holds."""

    def __init__(self, port: int, breaks_after: int, breaks: int) -> None:
        self.port_behind = port
        self.breaks_after = breaks_after
        self.breaks = breaks
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
        up_bytes = 0
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self.port_behind)) as far:
            down = threading.Thread(target=self._down, args=[far, near])
            down.start()
            while data := near.recv(65536):
                up_bytes += len(data)
                if up_bytes > self.breaks_after and self.breaks:
                    self.breaks -= 1
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
def line_to(https: Https, breaks_after: int, breaks: int) -> Iterator[Line]:
    line = Line(https.port, breaks_after, breaks)
    try:
        yield line
    finally:
        line.close()


def sent_over(https: Https, line: Line) -> str:
    with closing(Transport(Context("it", f"https://localhost:{line.port}", "ann", TOKEN, https.ca))) as daemon:
        return upload(Archive.of(DATA), daemon, lambda _: None)


@pytest.mark.parametrize("breaks_after", [0, 10_000, 1_900_000])
def test_where_the_line_breaks_twice_the_code_is_there(tmp_path: Path, breaks_after: int) -> None:
    world = empty_world()
    with Https.started(tmp_path, world) as https, line_to(https, breaks_after, TRIES - 1) as line:
        assert sent_over(https, line) == DIGEST
    assert line.breaks == 0
    assert world.journal.get_blob(DIGEST) == DATA


def test_a_line_that_breaks_each_time_is_one_sentence(tmp_path: Path) -> None:
    with Https.started(tmp_path) as https, line_to(https, 1_000_000, TRIES) as line:
        with pytest.raises(DaemonUnreachableError, match=r"2\.0 MB of code were sent 3 times: nothing was submitted"):
            sent_over(https, line)
        assert line.breaks == 0
