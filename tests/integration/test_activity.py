"""Whether workers stand still: real processes that compute, write slowly, upload, wait, and sleep."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from spotsup_trainer.launcher.activity import Idleness, Sample, sample, works

from tests.e2e.launching import eventually

Start: TypeAlias = Callable[[str], int]

# Each says so once it has begun, and is idle from then on but for what its name says.
COMPUTES = "print(flush=True)\nwhile True: pass"
SLEEPS = "import time; print(flush=True); time.sleep(600)"
CHATS = "import time\nprint(flush=True)\nwhile True: open('/dev/null', 'w').write('alive'); time.sleep(0.5)"
WRITES = (
    "import sys, time\nprint(flush=True)\nwhile True: open(sys.argv[1], 'wb').write(bytes(40_000)); time.sleep(0.5)"
)
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WRITES!r}, sys.argv[1]])"
UPLOADS = """
import socket, threading, time
server = socket.create_server(("127.0.0.1", 0))
sending = socket.create_connection(server.getsockname())
receiving, _ = server.accept()
print(flush=True)
while True:
    sending.sendall(bytes(40_000))
    received = 0
    while received < 40_000:
        received += len(receiving.recv(65536))
    time.sleep(0.5)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str) -> int:
        command = [sys.executable, "-c", code, str(tmp_path / "file")]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0))
        out = started[-1].stdout
        assert out is not None
        assert out.readline() == b"\n"
        return started[-1].pid

    yield run
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("code", [COMPUTES, WRITES, IN_A_CHILD, UPLOADS])
def test_a_worker_works_that_computes_writes_or_sends(start: Start, code: str) -> None:
    pids = [start(code), start(SLEEPS)]
    before, at = sample(pids), time.monotonic()
    # A busy machine may stop it for seconds, so it is enough that it works once.
    eventually("it works", lambda: time.monotonic() > at + 1 and works(before, sample(pids), time.monotonic() - at))


@pytest.mark.parametrize("code", [SLEEPS, CHATS])
def test_a_worker_stands_still_that_sleeps_or_says_that_it_lives(start: Start, code: str) -> None:
    pid = start(code)
    before, at = sample([pid]), time.monotonic()
    time.sleep(1.0)
    assert not works(before, sample([pid]), time.monotonic() - at)


def test_idleness_begins_at_the_sample_before_and_ends_with_work(start: Start) -> None:
    idleness = Idleness([start(SLEEPS)], 0.0)
    found = []
    for now in (4.9, 10.0, 20.0):
        idleness.update(now)
        found.append(idleness.since)
    assert found == [None, 0.0, 0.0]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (Sample(10.0, 1000, in_kernel=False), False),
        (Sample(10.24, 1000, in_kernel=False), False),
        (Sample(10.25, 1000, in_kernel=False), True),
        (Sample(9.0, 1000, in_kernel=False), True),  # a child has ended
        (Sample(10.0, 21_000, in_kernel=False), False),
        (Sample(10.0, 21_480, in_kernel=False), True),
        (Sample(10.0, 1000, in_kernel=True), True),
    ],
)
def test_what_counts_as_work(after: Sample, expected: bool) -> None:
    assert works(Sample(10.0, 1000, in_kernel=False), after, 5.0) is expected
