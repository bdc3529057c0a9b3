"""A process that starts workers: forked from the launcher once torch is imported, so that workers start at once.

It is single-threaded, never touches a GPU, and holds the only pipe to the launcher: when that closes, for any reason,
it kills all that it has started and ends. A worker in turn ends with this process. So a launcher that was killed leaves
no process behind.

A worker is gone once its whole process group has ended: data loading workers hold its GPU's memory, and write to its
files. The server is the subreaper of what leaves the group, and the launcher is if the server was killed: whatever that
is ends before the next round.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from spotsup_trainer.launcher import processes
from spotsup_trainer.launcher.parent_death import adopt_orphans, die_with_parent, outlive_parent, set_process_name
from spotsup_trainer.launcher.preload import changed_environ, end_children, problem_of, with_changes
from spotsup_trainer.launcher.processes import Process
from spotsup_trainer.launcher.program_imports import Import
from spotsup_trainer.launcher.worker import WorkerRequest, run

_REPLY_TIMEOUT_S = 30.0  # a fork takes milliseconds; on a machine that swaps, seconds
_END_TIMEOUT_S = 5.0  # after its pipe has closed, and again after SIGKILL
_STRAYS_TIMEOUT_S = 1.0  # for what a worker has started in a session of its own
_KILLS = 50  # at a time: something that forks and ends at once is hit by one of them
_POLL_S = 0.005
_LOOK_S = 0.25  # at who has to go, and is no child of this process: of its children the kernel tells the end
_CHUNK = 65536


class WorkerServerError(Exception):
    """A worker could not be started, or the fork server has ended."""


class WorkerServer:
    """The launcher's end, of its only server. For one thread."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        connection.settimeout(_REPLY_TIMEOUT_S)
        self._connection = connection
        self._received = b""
        # Workers of whose group some process still runs.
        self._running: set[int] = set()
        self._exit_codes: dict[int, int] = {}
        self._replies: list[dict[str, Any]] = []
        self._alive = True
        self._swept = True

    def check(self) -> None:
        """Raise WorkerServerError if the server has ended: it can start no more workers."""
        self._pump(0.0)
        if not self._alive:
            raise WorkerServerError(f"process {self.pid}, which starts the workers, has ended")

    def prepared(self, timeout_s: float, importing: Callable[[str], None]) -> tuple[str, str] | None:
        """Wait until all imports are there; None then, else the one that must not be imported here, and why: this
        server is of no use then. `importing` is called with the name of each. Raises TimeoutError."""
        deadline, current = time.monotonic() + timeout_s, ""
        while True:
            while self._replies:
                reply = self._replies.pop(0)
                if "prepared" in reply:
                    return None
                if "problem" in reply:
                    return str(reply["importing"]), str(reply["problem"])
                current = str(reply["importing"])
                importing(current)
            if not self._alive:
                return current, "it ended the process"
            if time.monotonic() >= deadline:
                raise TimeoutError(current)
            self._pump(deadline - time.monotonic())

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
        """Return how a worker ended (a signal is negative), None while it runs. One that ended well runs as long as
        anything that it left in the background. -9 if the server itself has ended."""
        self._pump(0.0)
        code = self._exit_codes.get(pid, None if self._alive else -signal.SIGKILL)
        return None if code == 0 and pid in self._running else code

    def has_ended_well(self, pid: int) -> bool:
        """Return whether the worker itself has, whatever it left in the background."""
        return self._exit_codes.get(pid) == 0

    def is_gone(self, pid: int) -> bool:
        """Return whether no process of a worker's group is left."""
        self._pump(0.0)
        return pid not in self._running

    def kill(self, pid: int, number: int, *, group: bool = False) -> None:
        """Send a signal to a worker, or to all of its process group. Nothing happens when it is gone."""
        if self._alive and pid in self._running:
            with contextlib.suppress(WorkerServerError):
                self._send({"kill": pid, "signal": int(number), "group": group})

    def wait(self, pids: list[int], timeout_s: float) -> bool:
        """Wait until all of them are gone; False when `timeout_s` ran out first."""
        return self._wait_until(lambda: all(self.is_gone(pid) for pid in pids), timeout_s)

    def sweep(self, timeout_s: float) -> bool:
        """Kill whatever workers that are gone have left: what began a session of its own. False when it outlives
        SIGKILL for `timeout_s`."""
        if self._alive and self._swept:
            self._swept = False
            with contextlib.suppress(WorkerServerError):
                self._send({"sweep": True})
        return self._wait_until(lambda: self._swept or not self._alive, timeout_s)

    def _wait_until(self, done: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._pump(left)
        return True

    def forget(self, pids: list[int]) -> None:
        """Forget the exit codes of workers that are gone: the kernel will reuse their pids."""
        for pid in pids:
            if pid not in self._running:
                self._exit_codes.pop(pid, None)

    def close(self, *, at_once: bool = False) -> None:
        """End the server and all workers. The server kills them when its pipe closes, unless it hangs. `at_once`: kill
        it and all that it has started, where it has no workers yet."""
        self._connection.close()
        self._alive = False
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if at_once:
                with contextlib.suppress(ProcessLookupError):  # it has no group yet
                    os.killpg(self.pid, signal.SIGKILL)
            if not self._has_ended(_END_TIMEOUT_S):
                os.kill(self.pid, signal.SIGKILL)  # the kernel ends its workers with it
                self._has_ended(_END_TIMEOUT_S)

    def _has_ended(self, timeout_s: float) -> bool:
        """True if the server ended in time. Raises ChildProcessError if another wait has reaped it."""
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
        """Clean up: the workers have ended with their server. Kill what they had started: in their groups, and what has
        become this process's child with the server's end."""
        self._alive = False
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self._running.clear()
        deadline = time.monotonic() + _STRAYS_TIMEOUT_S
        while not _kill_children() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _take(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            self._exit_codes[message["exit"]] = message["code"]
        elif "gone" in message:
            self._running.discard(message["gone"])
        elif "swept" in message:
            self._swept = True
        else:
            self._replies.append(message)


def start(imports: Sequence[Import] = (), argv: Sequence[str] = ()) -> WorkerServer:
    """Fork the server off this process, which must not have touched a GPU, nor have started threads that matter.

    With `imports`, call `prepared` first: the server imports them, under the workers' own `argv`. Workers leave through
    this call, by SystemExit: no caller may have anything to clean up.
    """
    adopt_orphans()  # should the server be killed
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    pid = os.fork()
    if pid == 0:
        ours.close()
        server = _Server(theirs)
        if imports:
            server.prepare(imports, argv)
        gc.freeze()  # else the garbage collector would write to, and so copy, all shared pages
        gc.enable()  # as in any worker; imports go faster without
        run(server.serve(), parent_pid=server.pid)
    gc.enable()
    theirs.close()
    return WorkerServer(ours, pid)


def _kill_children() -> bool:
    """Kill and reap what is left below this process; return whether nothing is.

    Its children are enough: it is a subreaper, so what a killed one leaves is its child next. Exact, where a look at
    /proc may miss what forks meanwhile: the kernel says that there is no child.
    """
    for _ in range(_KILLS):
        for pid in processes.children(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
    return False


class _Server:
    """The server's end. `serve` returns only in a worker."""

    def __init__(self, connection: socket.socket) -> None:
        self.pid = os.getpid()
        self._connection = connection
        self._received = b""
        # Workers that are not gone, and how those of them ended that left something.
        self._workers: set[int] = set()
        self._codes: dict[int, int] = {}
        # Whose whole groups were asked to end, and have the time for it.
        self._asked: set[int] = set()
        self._sweeping = False
        # What imports have set in the environment, and what was in it before.
        self._environ_before: dict[str, str] = {}
        self._environ_changes: dict[str, str] = {}

    def prepare(self, imports: Sequence[Import], argv: Sequence[str]) -> None:
        """Import what can be imported before a fork. Ends with the launcher: it does not look at its pipe meanwhile."""
        die_with_parent(os.getppid())
        os.setsid()  # so that all which an import starts can be killed with this process
        sys.argv = list(argv)
        # torch then asks NVML, and not CUDA, whether there are GPUs: CUDA cannot be used after a fork.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        self._environ_before = dict(os.environ)
        for each in imports:
            self._reply({"importing": each.module})
            if problem := problem_of(each):
                self._reply({"importing": each.module, "problem": problem})
                end_children()
                self._end()
        self._environ_changes = changed_environ(self._environ_before)
        sys.stdout.flush()  # what imports have printed, once: not again by each worker
        sys.stderr.flush()
        gc.collect()
        outlive_parent()  # from here on the pipe is watched
        self._reply({"prepared": True})

    def serve(self) -> WorkerRequest:
        if os.getsid(0) != self.pid:
            os.setsid()
        set_process_name("spotsup-workers")
        adopt_orphans()
        wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the signal reaches the wakeup descriptor
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        watched: list[socket.socket | int] = [self._connection, wake_r]
        while True:
            readable = select.select(watched, [], [], _LOOK_S if self._codes or self._sweeping else None)[0]
            if wake_r in readable:
                os.read(wake_r, _CHUNK)
            if wake_r in readable or self._codes or self._sweeping:
                self._reap()
            if self._connection not in readable:
                continue
            for message in self._receive():
                if "kill" in message:
                    self._kill(message["kill"], message["signal"], group=message["group"])
                elif "sweep" in message:
                    self._sweeping = True
                    self._reap()
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
        """Return the request in the new worker, None in the server."""
        try:
            pid = os.fork()
        except OSError as error:
            self._reply({"error": str(error)})
            return None
        if pid == 0:
            request = WorkerRequest(**fields)
            return replace(request, env=with_changes(request.env, self._environ_changes, self._environ_before))
        # In both processes, as shells do: the group then exists before the launcher gets the pid.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._workers.add(pid)
        self._reply({"pid": pid})
        return None

    def _kill(self, pid: int, number: int, *, group: bool) -> None:
        if pid in self._workers:
            if group and number == signal.SIGTERM:
                self._asked.add(pid)
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(pid, number)

    def _reap(self) -> None:
        for pid in self._workers - self._codes.keys():
            # WNOWAIT: while the worker is a zombie, the kernel does not reuse its pid, nor its group.
            if (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is not None:
                code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                self._codes[pid] = code
                if code != 0 and pid not in self._asked:
                    self._kill(pid, signal.SIGKILL, group=True)  # its own children, such as data loading workers
                self._reply({"exit": pid, "code": code})
        found = processes.snapshot()
        self._reap_orphans(found)
        alive = {each.group for each in found.values() if each.alive}
        for pid in self._codes.keys() - alive:
            os.waitpid(pid, 0)
            self._workers.discard(pid)
            self._asked.discard(pid)
            del self._codes[pid]
            self._reply({"gone": pid})
        if self._sweeping and not self._workers and _kill_children():
            self._sweeping = False
            self._reply({"swept": True})

    def _reap_orphans(self, found: Mapping[int, Process]) -> None:
        for pid, each in found.items():
            if each.parent == self.pid and each.state == "Z" and pid not in self._workers:
                os.waitpid(pid, os.WNOHANG)

    def _reply(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._end()

    def _end(self) -> None:
        for pid in self._workers:
            self._kill(pid, signal.SIGKILL, group=True)
        deadline = time.monotonic() + _STRAYS_TIMEOUT_S
        while not _kill_children() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        os._exit(0)
