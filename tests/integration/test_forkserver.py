"""The process that starts workers, with real processes: whichever is killed, at any time, nothing is left."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsup_trainer.launcher import main
from spotsup_trainer.launcher.forkserver import _END_TIMEOUT_S
from spotsup_trainer.launcher.main import _make_dir

from tests.e2e.launching import eventually, processes_with

pytestmark = pytest.mark.long

MARK = "SPOTSUP_TEST_FORKSERVER"
GONE_TIMEOUT_S = 5.0

# A launcher as far as the fork server can tell: starts `count` workers, prints their pids, and obeys commands.
HOST = """
import os, sys
from spotsup_trainer.launcher import forkserver
from spotsup_trainer.launcher.worker import WorkerRequest

program, count = sys.argv[1], int(sys.argv[2])
server = forkserver.start()
print(server.pid, flush=True)
script = program.endswith(".py")
argv = (program,) if script else ("sh", "-c", program)
request = WorkerRequest("script" if script else "exec", argv, dict(os.environ), 0)
pids = []
for _ in range(count):
    pids.append(server.spawn(request))
    print(pids[-1], flush=True)
for line in sys.stdin:
    what, *numbers = line.split()
    if what == "kill":
        server.kill(pids[0], int(numbers[0]), group=len(numbers) > 1)
    elif what == "wait":
        print(server.wait(pids, float(numbers[0])), server.exit_code(pids[0]), flush=True)
    elif what == "ended":
        print(server.exit_code(pids[0]), server.has_ended_well(pids[0]), server.is_gone(pids[0]), flush=True)
    elif what == "sweep":
        print(server.sweep(float(numbers[0])), flush=True)
    elif what == "close":
        server.close()
        break
"""
# A worker with a helper of its own, as data loaders have them.
WITH_HELPER = "sleep 60 & echo > '{ready}'; wait"
STUBBORN = "trap '' TERM; echo > '{ready}'; while :; do sleep 0.05; done"

# Each round destroys the process group first, and the model, which holds its last reference, at the end of a function.
DROPS_ITS_MODEL_LAST = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.dup2(2, 1)  # gloo of torch 2.8 prints to stdout, which is the host's

def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(2000, 10))
    for _ in range(3):
        model(torch.ones(2, 2000)).sum().backward()
    dist.destroy_process_group()

for _ in range(100):
    main()
"""


class Host:
    """A host process and its pipes."""

    def __init__(self, folder: Path, program: str, count: int) -> None:
        self.mark = str(folder)
        self._ready = folder / "ready"
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOST, program.format(ready=self._ready), str(count)],
            env=dict(os.environ) | {MARK: self.mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def ready(self) -> None:
        eventually("the worker is ready", self._ready.exists)

    def left(self) -> list[int]:
        return [pid for pid in processes_with(MARK, self.mark) if pid != self.process.pid]

    def close(self) -> None:
        for pid in processes_with(MARK, self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def host(folder: Path, program: str, count: int = 1) -> Iterator[Host]:
    made = Host(folder, program, count)
    try:
        yield made
    finally:
        made.close()


def nothing_is_left(made: Host) -> None:
    eventually("nothing is left", lambda: not made.left(), GONE_TIMEOUT_S)


def test_a_killed_launcher_takes_workers_and_their_helpers_with_it(tmp_path: Path) -> None:
    with host(tmp_path, WITH_HELPER) as made:
        made.ready()
        eventually("there are server, worker, helper", lambda: len(made.left()) == 3)
        made.process.kill()
        nothing_is_left(made)


def test_a_killed_server_takes_its_workers_along_and_the_launcher_gets_an_error(tmp_path: Path) -> None:
    with host(tmp_path, WITH_HELPER) as made:
        server = int(made.read())
        made.read()
        made.ready()
        os.kill(server, signal.SIGKILL)
        made.send("wait 5")
        assert made.read() == "True -9"
        nothing_is_left(made)


def test_a_killed_server_takes_along_what_has_left_its_workers_groups(tmp_path: Path) -> None:
    """Nobody is left to find it below that server: a next launcher's rounds would meet it."""
    with host(tmp_path, "setsid sh -c 'setsid sleep 600 & wait' & echo > '{ready}'; wait") as made:
        server = int(made.read())
        made.read()
        made.ready()
        eventually("there are server, worker and both", lambda: len(made.left()) == 4)
        os.kill(server, signal.SIGKILL)
        made.send("wait 5")
        assert made.read() == "True -9"
        nothing_is_left(made)


def test_a_worker_ends_whose_model_goes_after_its_process_group(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(DROPS_ITS_MODEL_LAST)
    with host(tmp_path, str(program)) as made:
        made.read()
        made.read()
        made.send("wait 120")
        assert made.read() == "True 0"


def test_a_worker_that_does_not_hear_sigterm_is_killed_with_its_group(tmp_path: Path) -> None:
    with host(tmp_path, STUBBORN) as made:
        made.ready()
        made.read()
        made.read()
        made.send(f"kill {int(signal.SIGTERM)}")
        made.send("wait 0.3")
        assert made.read() == "False None"
        made.send(f"kill {int(signal.SIGKILL)} group")
        made.send("wait 5")
        assert made.read() == "True -9"
        made.send("close")
        nothing_is_left(made)


def test_a_server_that_hangs_is_killed_with_its_workers(tmp_path: Path) -> None:
    with host(tmp_path, STUBBORN) as made:
        server = int(made.read())
        made.read()
        made.ready()
        os.kill(server, signal.SIGSTOP)
        made.send("close")
        assert made.process.wait(2 * _END_TIMEOUT_S) == 0
        nothing_is_left(made)


def test_what_a_worker_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    with host(tmp_path, "sleep 60 & exit 3") as made:
        made.read()
        made.read()
        made.send("wait 5")
        assert made.read() == "True 3"
        eventually("only the server is left", lambda: len(made.left()) == 1, GONE_TIMEOUT_S)


def test_a_worker_that_ended_well_is_not_gone_before_what_it_left_in_the_background(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "go")
    with host(tmp_path, "(read line; exit 5) < '{ready}go' & exit 0".replace("{ready}", f"{tmp_path}/pipe/")) as made:
        made.read()
        made.read()
        made.send("wait 1")
        assert made.read() == "False None"
        made.send("ended")
        assert made.read() == "None True False"
        (tmp_path / "pipe" / "go").write_text("on\n")
        made.send("wait 30")
        assert made.read() == "True 0"


def test_what_has_left_its_group_is_swept_once_the_worker_is_gone(tmp_path: Path) -> None:
    """In a session of its own, below a parent that has ended, without the worker's environment: as servers begin."""
    with host(tmp_path, "env -i setsid sh -c 'sleep 600 & echo $! > \"{ready}\"' & wait; exit 1") as made:
        made.read()
        made.read()
        made.ready()
        eventually("its pid", lambda: (tmp_path / "ready").read_text().strip())
        stray = int((tmp_path / "ready").read_text())
        made.send("wait 30")
        assert made.read() == "True 1"
        assert Path(f"/proc/{stray}").exists()
        made.send("sweep 30")
        assert made.read() == "True"
        assert not Path(f"/proc/{stray}").exists()
        made.send("close")
        assert made.process.wait(_END_TIMEOUT_S) == 0


# Each process of a chain forks the next one and ends: a look at /proc may miss all of them.
CHAIN = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for _ in range(20_000):
    if os.fork():
        os._exit(0)
    os.setsid()
    os.write(file, b"x")
"""


def test_what_never_stands_still_has_ended_once_the_sweep_says_so(tmp_path: Path) -> None:
    (tmp_path / "chain.py").write_text(CHAIN)
    count = tmp_path / "count"
    chains = " & ".join([f"setsid {sys.executable} {tmp_path}/chain.py {count}"] * 5)
    with host(tmp_path, f"{chains} & while [ ! -s {count} ]; do sleep 0.05; done; echo > '{{ready}}'; exit 1") as made:
        made.read()
        made.read()
        made.ready()
        made.send("wait 30")
        assert made.read() == "True 1"
        made.send("sweep 60")
        assert made.read() == "True"
        size = count.stat().st_size
        with pytest.raises(AssertionError):
            eventually("another process of a chain", lambda: count.stat().st_size > size, 1.0)


def test_what_has_left_its_group_ends_with_the_launcher(tmp_path: Path) -> None:
    with host(tmp_path, "setsid sleep 600 & setsid sleep 600 & echo > '{ready}'; wait") as made:
        made.ready()
        eventually("there are server, worker and both", lambda: len(made.left()) == 4)
        made.process.kill()
        nothing_is_left(made)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("whom", ["launcher", "server"])
def test_a_kill_at_any_moment_of_a_start_leaves_nothing(tmp_path: Path, whom: str, seed: int) -> None:
    """Also between a worker's fork and its own process group, or its tie to its parent."""
    with host(tmp_path, "exec sleep 60", count=200) as made:
        server = int(made.read())
        time.sleep(random.Random(seed).uniform(0.0, 0.05))
        os.kill(server if whom == "server" else made.process.pid, signal.SIGKILL)
        nothing_is_left(made)


def test_the_checkpoint_directory_exists_before_a_worker_starts(tmp_path: Path) -> None:
    _make_dir(tmp_path / "new" / "checkpoints")
    _make_dir(tmp_path / "new" / "checkpoints")
    assert (tmp_path / "new" / "checkpoints").is_dir()


def test_a_checkpoint_directory_that_cannot_be_made_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    _make_dir(tmp_path / "file" / "checkpoints")
    assert "cannot be created: [Errno 20] Not a directory" in caplog.text
    hanging = threading.Event()
    monkeypatch.setattr(main, "_MKDIR_TIMEOUT_S", 0.1)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: hanging.wait())
    _make_dir(tmp_path / "hangs")
    hanging.set()
    assert f"{tmp_path}/hangs does not answer" in caplog.text
