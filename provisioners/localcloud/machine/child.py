"""A program that is a child of init, ends with it, and listens on the machine's address."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PR_SET_PDEATHSIG = 1
_STARTS = 5  # another process may take a free port first
_ANSWER_TIMEOUT_S = 20.0


class ChildError(Exception):
    """It did not come up."""


def spawn(program: str, arguments: list[str], environ: Mapping[str, str]) -> int:
    """Start it. Returns its pid. It dies with init: a program that overwrites its environment with its title loses the
    machine's marker and could not be found without its parent."""
    libc = ctypes.CDLL(None)
    pid = os.fork()
    if pid:
        return pid
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would keep that
            signal.signal(number, signal.SIG_DFL)
        os.execve(program, arguments, environ)  # noqa: S606 - no shell wanted
    finally:
        os._exit(127)


def reachable(
    what: str, address: str, wanted_port: int, start: Callable[[int], int], log: Path, *, greeting: bytes = b""
) -> tuple[int, int]:
    """Start it with a port, again with another one where it ends at once; returns (pid, port) once it takes connections
    there, and begins with `greeting`. `wanted_port` 0: any. `log`: where its output is. Raises ChildError."""
    for _ in range(_STARTS):
        port = wanted_port or free_port(address)
        pid = start(port)
        if _answers(what, pid, address, port, greeting):
            return pid, port
    raise ChildError(f"{what} ended {_STARTS} times before it answered on {address}: see {log}")


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port without a listener now, for a program that takes one as an argument. Another process may take it
    first."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def is_free(address: str, port: int) -> bool:
    """True if it has no listener."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that has just ended holds nobody up
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _answers(what: str, pid: int, address: str, port: int, greeting: bytes) -> bool:
    """False when it ended before. Raises ChildError when it neither answers nor ends."""
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
        try:
            with socket.create_connection((address, port), timeout=1.0) as connection:
                if not greeting or connection.recv(len(greeting)) == greeting:
                    return True
        except OSError:
            time.sleep(0.002)
    raise ChildError(f"{what} does not answer on {address}:{port} after {_ANSWER_TIMEOUT_S:.0f} s")
