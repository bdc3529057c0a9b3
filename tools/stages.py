"""Run commands with a time limit, each in a process group of its own, and measure what they take."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO

_POLL_S = 0.2
_GRACE_S = 10.0
OUT_OF_TIME = 124  # as timeout(1) has it


@dataclass(frozen=True)
class Taken:
    """A stage's exit status, and its seconds by the clock and of the CPU (of processes that were waited for)."""

    stage: str
    status: int
    wall_s: float
    cpu_s: float

    def as_json(self) -> dict[str, object]:
        """Return the fields, with seconds rounded."""
        return asdict(self) | {"wall_s": round(self.wall_s, 1), "cpu_s": round(self.cpu_s, 1)}


class Stage:
    """A command that runs. Whoever starts one calls `end`, whatever happens."""

    def __init__(
        self, name: str, command: Sequence[str], limit_s: float, out: IO[bytes] | None = None, niceness: int = 0
    ) -> None:
        self._name = name
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        nice = ["nice", "-n", str(niceness)] if niceness else []
        self._process = subprocess.Popen([*nice, *command], stdout=out, stderr=out, start_new_session=True)
        self._taken: Taken | None = None

    def poll(self) -> Taken | None:
        """Return what the command took if it has ended; one that is out of time is ended, with status 124."""
        if self._taken is None:
            self._taken = self._look()
        return self._taken

    def _look(self) -> Taken | None:
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        wall_s = time.monotonic() - self._began_s
        if pid:
            self._process.returncode = os.waitstatus_to_exitcode(status)
            return Taken(self._name, self._process.returncode, wall_s, usage.ru_utime + usage.ru_stime)
        if wall_s < self._limit_s:
            return None
        print(f"{self._name}: ended, as it took longer than {self._limit_s:.0f} s", flush=True)
        self.end()
        return Taken(self._name, OUT_OF_TIME, wall_s, 0.0)

    def end(self) -> None:
        """End the command's process group, if the command still runs."""
        if self._process.returncode is not None:
            return
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def wait_for(*stages: Stage, beside: Sequence[Stage] = ()) -> list[Taken]:
    """Wait until all have ended, in time or out of it. Those `beside` are looked at meanwhile, and may go on; if
    anything is raised, none does."""
    try:
        while not all([each.poll() for each in (*stages, *beside)][: len(stages)]):
            time.sleep(_POLL_S)
    except BaseException:
        for each in (*stages, *beside):
            each.end()
        raise
    return [taken for each in stages if (taken := each.poll())]


def table(taken: Sequence[Taken]) -> str:
    """Return a line per stage: what it took, and its exit status."""
    lines = [f"{'stage':20} {'wall':>8} {'CPU':>8}  status"]
    lines += [f"{each.stage:20} {each.wall_s:6.0f} s {each.cpu_s:6.0f} s  {each.status}" for each in taken]
    return "\n".join(lines)
