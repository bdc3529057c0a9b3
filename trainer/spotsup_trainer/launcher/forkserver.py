"""A process that starts workers: forked from the launcher once torch is imported, so that workers start at once.

It is single-threaded, never touches a GPU, and holds the only pipe to the launcher: when that closes, for any reason,
it kills the process groups of all workers and ends. A worker in turn ends with this process. So a launcher that was
killed leaves no process behind.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

from spotsup_trainer.launcher.parent_death import set_process_name
from spotsup_trainer.launcher.worker import WorkerRequest, run

_REPLY_TIMEOUT_S = 30.0  # a fork takes milliseconds; on a machine that swaps, seconds
_END_TIMEOUT_S = 5.0  # after its pipe has closed, and again after SIGKILL
_POLL_S = 0.005
_CHUNK = 65536


class WorkerServerError(Exception):
    """A worker could not be started, or the fork server has ended."""


class WorkerServer:
    """The launcher's end. For one thread."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        connection.settimeout(_REPLY_TIMEOUT_S)
        self._connection = connection
        self._received = b""
        self._running: set[int] = set()
        self._exit_codes: dict[int, int] = {}
        self._replies: list[dict[str, Any]] = []
        self._alive = True

    def check(self) -> None:
        """Raises WorkerServerError if the server has ended: it can start no more workers."""
        self._pump(0.0)
        if not self._alive:
            raise WorkerServerError(f"process {self.pid}, which starts the workers, has ended")

    def spawn(self, request: WorkerRequest) -> int:
        """Start a worker; its pid, which is also its process group. Raises WorkerServerError."""
        self._send({"spawn": asdict(request)})
        deadline = time.monotonic() + _REPLY_TIMEOUT_S
        while not self._replies and self._alive and time.monotonic() < deadline:
            self._pump(deadline - time.monotonic())
        if not self._replies:
            raise WorkerServerError(f"process {self.pid}, which starts the workers, does not answer")
        reply = self._replies.pop(0)
        if "error" in reply:
            raise WorkerServerError(f"cannot start a worker: {reply['error']}")
        pid = int(reply["pid"])
        self._running.add(pid)
        return pid

    def exit_code(self, pid: int) -> int | None:
        """How a worker ended (a signal is negative), None while it runs. -9 if the server itself has ended."""
        self._pump(0.0)
        return self._exit_codes.get(pid, None if self._alive else -signal.SIGKILL)

    def kill(self, pid: int, number: int, *, group: bool = False) -> None:
        """Send a signal to a worker, or to all of its process group. Nothing happens when it has ended."""
        if self._alive and pid not in self._exit_codes:
            with contextlib.suppress(WorkerServerError):
                self._send({"kill": pid, "signal": int(number), "group": group})

    def wait(self, pids: list[int], timeout_s: float) -> bool:
        """Wait until all of them have ended; False when `timeout_s` ran out first."""
        deadline = time.monotonic() + timeout_s
        while any(self.exit_code(pid) is None for pid in pids):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._pump(left)
        return True

    def forget(self, pids: list[int]) -> None:
        """Forget the exit codes of workers that have ended: the kernel will reuse their pids."""
        for pid in pids:
            self._exit_codes.pop(pid, None)

    def close(self) -> None:
        """End the server and all workers. The server kills them when its pipe closes, unless it hangs."""
        self._connection.close()
        self._alive = False
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if not self._has_ended(_END_TIMEOUT_S):
                os.kill(self.pid, signal.SIGKILL)  # the kernel ends its workers with it
                self._has_ended(_END_TIMEOUT_S)

    def _has_ended(self, timeout_s: float) -> bool:
        """Whether the server ended in time. Raises ChildProcessError if another wait has reaped it."""
        deadline = time.monotonic() + timeout_s
        while not (ended := os.waitpid(self.pid, os.WNOHANG)[0]) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return bool(ended)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._server_ended()
            raise WorkerServerError(f"process {self.pid}, which starts the workers, has ended: {error}") from error

    def _pump(self, timeout_s: float) -> None:
        while self._alive and select.select([self._connection], [], [], max(0.0, timeout_s))[0]:
            try:
                data = self._connection.recv(_CHUNK)
            except OSError:
                data = b""
            if not data:
                self._server_ended()
                return
            self._received += data
            *lines, self._received = self._received.split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            timeout_s = 0.0

    def _server_ended(self) -> None:
        """The workers have ended with their server. Kill the processes that they had started in their groups."""
        self._alive = False
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self._running.clear()

    def _take(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            self._running.discard(message["exit"])
            self._exit_codes[message["exit"]] = message["code"]
        else:
            self._replies.append(message)


def start() -> WorkerServer:
    """Fork the server off this process, which must not have touched a GPU, nor have started threads that matter.

    Workers leave through this call, by SystemExit: no caller may have anything to clean up.
    """
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    pid = os.fork()
    if pid == 0:
        ours.close()
        gc.freeze()  # else the garbage collector would write to, and so copy, all shared pages
        server = _Server(theirs)
        run(server.serve(), parent_pid=server.pid)
    theirs.close()
    return WorkerServer(ours, pid)


class _Server:
    """The server's end. `serve` returns only in a worker."""

    def __init__(self, connection: socket.socket) -> None:
        self.pid = os.getpid()
        self._connection = connection
        self._received = b""
        self._workers: set[int] = set()

    def serve(self) -> WorkerRequest:
        os.setsid()
        set_process_name("spotsup-workers")
        wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the signal reaches the wakeup descriptor
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        watched: list[socket.socket | int] = [self._connection, wake_r]
        while True:
            readable = select.select(watched, [], [])[0]
            if wake_r in readable:
                os.read(wake_r, _CHUNK)
                self._reap()
            if self._connection not in readable:
                continue
            for message in self._receive():
                if "kill" in message:
                    self._kill(message["kill"], message["signal"], group=message["group"])
                elif (request := self._spawn(message["spawn"])) is not None:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for descriptor in (wake_r, wake_w):
                        os.close(descriptor)
                    self._connection.close()
                    return request

    def _receive(self) -> list[dict[str, Any]]:
        try:
            data = self._connection.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._end()
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def _spawn(self, fields: dict[str, Any]) -> WorkerRequest | None:
        """The request in the new worker, None in the server."""
        try:
            pid = os.fork()
        except OSError as error:
            self._reply({"error": str(error)})
            return None
        if pid == 0:
            return WorkerRequest(**fields)
        # In both processes, as shells do: the group then exists before the launcher gets the pid.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._workers.add(pid)
        self._reply({"pid": pid})
        return None

    def _kill(self, pid: int, number: int, *, group: bool) -> None:
        if pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(pid, number)

    def _reap(self) -> None:
        for pid in list(self._workers):
            # WNOWAIT: while the worker is a zombie, the kernel does not reuse its pid, nor its group.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                continue
            self._kill(pid, signal.SIGKILL, group=True)  # its own children, such as data loading workers
            _, status = os.waitpid(pid, 0)
            self._workers.discard(pid)
            self._reply({"exit": pid, "code": os.waitstatus_to_exitcode(status)})

    def _reply(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._end()

    def _end(self) -> None:
        for pid in self._workers:
            self._kill(pid, signal.SIGKILL, group=True)
        os._exit(0)
