"""torch's interface to a group of worker processes, for workers from our fork server."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.multiprocessing import PContext, RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from spotsup_trainer.launcher.forkserver import WorkerServer
from spotsup_trainer.launcher.worker import WorkerRequest

_KILL_TIMEOUT_S = 5.0  # a process that survives SIGKILL for longer hangs in the kernel
_FAILED_GRACE_S = 2.0

# local rank, environment, stdout, stderr -> what to start
RequestMaker = Callable[[int, dict[str, str], str, str], WorkerRequest]


class ServedContext(PContext):  # type: ignore[misc]  # mypy does not read torch
    """Unlike torch's own contexts, it keeps the launcher's signal handlers, and signals only the worker itself before
    it kills the worker's whole process group: data loading workers must not die first.
    """

    def __init__(self, server: WorkerServer, make_request: RequestMaker, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._server = server
        self._make_request = make_request
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}

    def start(self) -> None:
        """Start all workers. Raises WorkerServerError."""
        self._start()
        for tail_log in self._tail_logs:
            tail_log.start()

    def pids(self) -> dict[int, int]:
        """The process of each local rank."""
        return dict(self._pids)

    def exit_codes(self) -> dict[int, int]:
        """The exit codes of the local ranks that have ended."""
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
        failures = {rank: self._failure(rank, code) for rank, code in codes.items() if code != 0}
        if failures:
            self.close(signal.SIGTERM, _FAILED_GRACE_S)
        elif len(codes) < len(self._pids):
            return None
        return RunProcsResult(
            return_values={} if failures else dict.fromkeys(codes),
            failures=failures,
            stdouts=self.stdouts,
            stderrs=self.stderrs,
        )

    def _failure(self, rank: int, code: int) -> ProcessFailure:
        pid = self._pids[rank]
        try:
            return ProcessFailure(rank, pid, code, self.error_files[rank])
        except ValueError:  # the worker was killed while it wrote the file
            return ProcessFailure(rank, pid, code, "")

    def _close(self, death_sig: signal.Signals, timeout: float = 30) -> None:
        left = self._left()
        if timeout > 0 and death_sig != signal.SIGKILL:
            for pid in left:
                self._server.kill(pid, death_sig)
            self._server.wait(left, timeout)
        for pid in left:
            self._server.kill(pid, signal.SIGKILL, group=True)
        self._server.wait(left, _KILL_TIMEOUT_S)
        self.exit_codes()
        self._server.forget(list(self._pids.values()))

    def _left(self) -> list[int]:
        ended = self.exit_codes()
        return [pid for rank, pid in self._pids.items() if rank not in ended]
