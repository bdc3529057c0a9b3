"""Finding, stopping and killing all processes of a machine, and none of anybody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioners.localcloud import processes
from provisioners.localcloud.machine.spec import MARKER_VARIABLE
from provisioners.localcloud.processes import Identity, Target
from tests.support.machines import wait_for

# An init as a machine's: a subreaper. It starts a shell in a session of its own whose child outlives it, with no
# trace of the machine in its environment.
INIT = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
script = f"trap '' TERM HUP; (trap '' TERM HUP; echo $$ > /dev/null; exec env -i sleep {sys.argv[1]}) & sleep 0.01"
subprocess.run(["setsid", "sh", "-c", script])
print("ready", flush=True)
signal.pause()
"""

CLOUD = f"local-{os.getpid():08x}-"  # no other test's, however many run at the same time

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that is gone at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def go(*command: str, marker: str = "") -> subprocess.Popen[bytes]:
        environ = {**os.environ, **({MARKER_VARIABLE: marker} if marker else {})}
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ))
        return started[-1]

    yield go
    for process in started:
        # Its children too: they hold its output open.
        if process.returncode is None:
            processes.kill([Target(f"{CLOUD}9999", identity(process))], 10.0)
        process.communicate()


def identity(process: subprocess.Popen[bytes]) -> Identity:
    """Who a child is."""
    return processes.identity_of(process.pid)


def sleepers(seconds: str) -> list[int]:
    """The pids of all `sleep` processes of so many seconds: each test has a number of its own."""
    wanted = f"sleep\0{seconds}\0".encode()
    return [pid for pid in processes.snapshot() if _command(pid) == wanted]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def seconds_of_this_test(offset: int) -> str:
    """A duration that no other process sleeps, of this run or of another at the same time."""
    return str(1_000_000 + os.getpid() * 10 + offset)


def test_a_whole_tree_dies_daemons_without_environment_too(start: Start) -> None:
    seconds = seconds_of_this_test(1)
    init = start(sys.executable, "-c", INIT, seconds, marker=f"{CLOUD}0001")
    other = start("sleep", "600", marker=f"{CLOUD}0002")
    assert init.stdout is not None
    assert init.stdout.readline() == b"ready\n"
    wait_for(lambda: sleepers(seconds), "the daemon runs")
    assert processes.kill([Target(f"{CLOUD}0001", identity(init))], 10.0) == set()
    assert sleepers(seconds) == []
    assert init.wait() == -signal.SIGKILL
    assert processes.is_alive(identity(other))


def test_a_whole_tree_stops_and_goes_on(start: Start) -> None:
    seconds = seconds_of_this_test(2)
    init = start(sys.executable, "-c", INIT, seconds, marker=f"{CLOUD}0005")
    other = start("sleep", "600", marker=f"{CLOUD}0006")
    assert init.stdout is not None
    assert init.stdout.readline() == b"ready\n"
    (sleeper,) = wait_for(lambda: sleepers(seconds), "the daemon runs")
    target = Target(f"{CLOUD}0005", identity(init))
    processes.freeze(target)
    wait_for(lambda: (state(init.pid), state(sleeper)) == ("T", "T"), "both are stopped")
    assert state(other.pid) == "S"
    processes.freeze(target)
    processes.thaw(target)
    wait_for(lambda: (state(init.pid), state(sleeper)) == ("S", "S"), "both go on")
    processes.freeze(target)
    assert processes.kill([target], 10.0) == set()
    assert sleepers(seconds) == []


def state(pid: int) -> str:
    """The kernel's letter: S sleeps, T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_what_carries_the_marker_dies_also_without_an_init(start: Start) -> None:
    marker = f"{CLOUD}0003"
    orphan = start("sleep", "600", marker=marker)
    assert processes.kill([Target(marker, None)], 10.0) == set()
    assert orphan.wait() == -signal.SIGKILL


def test_a_prefix_of_markers_names_a_whole_cloud(start: Start) -> None:
    ours = [start("sleep", "600", marker=f"{CLOUD}{number:04d}") for number in range(3)]
    other = start("sleep", "600", marker=f"x{CLOUD}0001")
    assert processes.kill_marked(CLOUD, 10.0) == set()
    assert [process.wait() for process in ours] == [-signal.SIGKILL] * 3
    assert processes.is_alive(identity(other))


def test_spared_children_live(start: Start) -> None:
    parent = start("sh", "-c", "sleep 600 & sleep 600 & echo; read never")
    assert parent.stdout is not None
    parent.stdout.readline()

    def children() -> set[int]:
        return processes.below(processes.snapshot(), [parent.pid])

    spared, doomed = children()
    assert processes.kill_children(parent.pid, {spared}, 10.0) == set()
    assert children() == {spared}
    assert doomed not in processes.snapshot()
    assert processes.kill_children(parent.pid, set(), 10.0) == set()


def test_a_reused_pid_is_somebody_else(start: Start) -> None:
    process = start("sleep", "600")
    before = Identity(process.pid, identity(process).started - 1)
    assert not processes.is_alive(before)
    assert not processes.send(before, signal.SIGKILL)
    assert processes.kill([Target(f"{CLOUD}0004", before)], 1.0) == set()
    assert process.poll() is None


def test_a_zombie_is_no_process(start: Start) -> None:
    process = start("true")
    wait_for(lambda: processes.look(process.pid) is None, "it ended")
    assert processes.identity_of(process.pid).pid == process.pid
    assert process.pid not in processes.snapshot()


@pytest.mark.parametrize("machine", ["", "local-", "local-0123abcd-", "*", "local-0123abcd-0001x"])
def test_what_is_no_machine_is_never_killed(machine: str) -> None:
    with pytest.raises(ValueError, match="not the id of a machine"):
        Target(machine, None)


@pytest.mark.parametrize("prefix", ["", "local-", "local-0123abcd"])
def test_what_is_no_cloud_is_never_killed(prefix: str) -> None:
    with pytest.raises(ValueError, match="not how a cloud's machines begin"):
        processes.kill_marked(prefix, 1.0)


FIRST_THREAD_ENDS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("threads", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_a_process_of_which_a_thread_lives_is_one() -> None:
    with subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"threads\n"
            stat = Path(f"/proc/{child.pid}/stat")
            wait_for(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "Z", "the first thread to end")
            assert processes.is_alive(processes.identity_of(child.pid))
        finally:
            child.kill()
