"""torch's interface to a group of worker processes, for workers from our fork server."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.multiprocessing import PContext, RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from spotsup_trainer.launcher import processes
from spotsup_trainer.launcher.forkserver import WorkerServer
from spotsup_trainer.launcher.torch_versions import tails_of
from spotsup_trainer.launcher.worker import WorkerRequest

_KILL_TIMEOUT_S = 5.0  # a process that survives SIGKILL for longer hangs in the kernel
_FAILED_GRACE_S = 2.0

# local rank, environment, stdout, stderr -> what to start
RequestMaker = Callable[[int, dict[str, str], str, str], WorkerRequest]


class ServedContext(PContext):  # type: ignore[misc]  # mypy does not read torch
    """Unlike torch's own contexts, it keeps the launcher's signal handlers, and signals only a Python worker itself
    before it kills the worker's whole process group: data loading workers must not die first.

    `whole_groups`: the program is not Python, but a shell script for instance.
    """

    def __init__(
        self, server: WorkerServer, make_request: RequestMaker, *, whole_groups: bool, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._server = server
        self._whole_groups = whole_groups
        self._make_request = make_request
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._started_at = time.monotonic()
        # How long after their start a worker failed; 0 while none has.
        self.failed_after_s = 0.0
        # Those that are left were sent SIGKILL.
        self._killed = False

    def start(self) -> None:
        """Start all workers. Raises WorkerServerError."""
        self._start()
        for tail_log in tails_of(self):
            tail_log.start()

    def pids(self) -> dict[int, int]:
        """Return the process of each local rank."""
        return dict(self._pids)

    def left(self) -> dict[int, int]:
        """Return the processes that are not gone with their whole groups, by local rank."""
        self.exit_codes()
        return {rank: pid for rank, pid in self._pids.items() if not self._server.is_gone(pid)}

    def left_behind(self) -> bool:
        """True if all that are left have ended well themselves, and left something in the background."""
        return all(self._server.has_ended_well(pid) for pid in self.left().values())

    def ended(self) -> bool:
        """True if a worker has ended well."""
        return any(map(self._server.has_ended_well, self._pids.values())) or 0 in self._codes.values()

    def catches_sigterm(self) -> bool:
        """True if a worker does, or where that is no Python, whether a process that it has started does."""
        pids = set(self._pids.values())
        if self._whole_groups:
            pids = {pid for pid, process in processes.snapshot().items() if process.group in pids}
        return any(processes.catches(pid, signal.SIGTERM) for pid in pids)

    def ask_to_end(self) -> None:
        """Send the workers SIGTERM; a shell that runs a program does not pass it on, so its whole group gets it."""
        self._signal(list(self.left().values()), signal.SIGTERM)

    def end_left(self) -> None:
        """Kill the workers that have not ended. They count as ended well."""
        left = self.left()
        self._kill(list(left.values()))
        self._codes.update(dict.fromkeys(left, 0))

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes of the local ranks that have ended."""
        for rank, pid in self._pids.items():
            if rank not in self._codes and (code := self._server.exit_code(pid)) is not None:
                self._codes[rank] = code
        return dict(self._codes)

    def _start(self) -> None:
        for rank in range(self.nprocs):
            request = self._make_request(rank, self.envs[rank], self.stdouts[rank], self.stderrs[rank])
            self._pids[rank] = self._server.spawn(request)

    def _poll(self) -> RunProcsResult | None:
        codes = self.exit_codes()
        failures = {
            rank: failure_of(rank, self._pids[rank], code, self.error_files[rank])
            for rank, code in codes.items()
            if code != 0
        }
        if failures:
            self.failed_after_s = self.failed_after_s or time.monotonic() - self._started_at
            self.close(signal.SIGTERM, _FAILED_GRACE_S)
        elif len(codes) < len(self._pids):
            return None
        return RunProcsResult(
            return_values={} if failures else dict.fromkeys(codes),
            failures=failures,
            stdouts=self.stdouts,
            stderrs=self.stderrs,
        )

    def _close(self, death_sig: signal.Signals, timeout: float = 30) -> None:
        if timeout > 0 and death_sig != signal.SIGKILL and not self._killed:
            pids = list(self.left().values())
            self._signal(pids, death_sig)
            self._server.wait(pids, timeout)
        self._kill(list(self.left().values()))
        self._server.forget([pid for rank, pid in self._pids.items() if rank in self._codes])

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            self._server.kill(pid, number, group=self._whole_groups)

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            self._server.kill(pid, signal.SIGKILL, group=True)
        # Once: those that outlive it are the caller's to wait for.
        self._server.wait(pids, 0.0 if self._killed else _KILL_TIMEOUT_S)
        self._killed = bool(pids)
        self.exit_codes()


def failure_of(rank: int, pid: int, code: int, error_file: str) -> ProcessFailure:
    """Return a worker's failure, with what it left in its error file, if that can be read: the program may write
    anything there, and may be killed while it does."""
    try:
        return ProcessFailure(rank, pid, code, error_file)
    except (ValueError, LookupError, TypeError, OSError):
        return ProcessFailure(rank, pid, code, "")
