"""Machines without a cloud: trees of processes, each on its own loopback address, found by their mark.

They are killed as machines of the local cloud are: all their processes are stopped first, so that none sees another
die.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from benchmarks.recovery.watch import BenchError
from provisioners.localcloud import processes
from provisioners.localcloud.machine.spec import MARKER_VARIABLE

KILL_TIMEOUT_S = 10.0
# No name is looked up. c10d asks for the name of each peer's address, only for its log, and where there is no name
# server, or one that loses an answer, the step waits for seconds, which would distort the measurement.
RES_OPTIONS = "attempts:0"


class Machines:
    """Process trees below `folder`; always the same marks for the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._prefix = f"local-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}-"
        self._popens: dict[int, subprocess.Popen[bytes]] = {}

    def prepare(self) -> None:
        """End what an earlier run left, and begin with an empty folder."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def start(self, number: int, command: Sequence[str], environ: dict[str, str]) -> None:
        """Start the first process of a machine."""
        own = {
            MARKER_VARIABLE: self._marker(number),
            "BENCH_NODE": name_of(number),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "RES_OPTIONS": RES_OPTIONS,
        }
        with self.log(number).open("wb") as log:
            self._popens[number] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | own | environ,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, number: int) -> None:
        """Kill all of a machine's processes at once, without notice. Raises BenchError where one survives."""
        _none_may_be_left(processes.kill([self._target(number)], KILL_TIMEOUT_S))
        self._popens[number].wait()

    def freeze(self, number: int) -> None:
        """Stop all of a machine's processes with SIGSTOP: it falls silent, and no connection is closed."""
        processes.freeze(self._target(number))

    def terminate(self, number: int) -> None:
        """SIGTERM to a machine's first process."""
        self._popens[number].send_signal(signal.SIGTERM)

    def any_alive(self, numbers: Iterable[int]) -> bool:
        """Whether the first process of any of these machines is there."""
        return any(self._popens[number].poll() is None for number in numbers)

    def end(self) -> None:
        """Kill all of them. Raises BenchError where a process survives."""
        _none_may_be_left(processes.kill_marked(self._prefix, KILL_TIMEOUT_S))
        for popen in self._popens.values():
            popen.wait()
        self._popens.clear()

    def log(self, number: int) -> Path:
        """Where a machine's processes print."""
        return self.folder / f"{name_of(number)}.log"

    def log_tails(self) -> str:
        """The last line of each machine's log."""
        logs = {path.stem: path.read_text(errors="replace").splitlines() for path in sorted(self.folder.glob("*.log"))}
        return " | ".join(f"{name}: {lines[-1]}" for name, lines in logs.items() if lines)

    def _target(self, number: int) -> processes.Target:
        return processes.Target(self._marker(number), None)

    def _marker(self, number: int) -> str:
        return f"{self._prefix}{number:04d}"


def _none_may_be_left(left: Collection[processes.Identity]) -> None:
    if left:
        raise BenchError(f"these processes withstand SIGKILL: {sorted(each.pid for each in left)}")


def name_of(number: int) -> str:
    """What a machine is called."""
    return f"node{number}"


def number_of(name: str) -> int:
    """A machine's number."""
    return int(name.removeprefix("node"))


def address_of(number: int) -> str:
    """A machine's own address."""
    return f"127.0.0.{11 + number}"
