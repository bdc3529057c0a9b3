"""`python container_init.py [--unattended | --group] COMMAND…`: the first process of a container, which runs COMMAND.

The agent outside the container is not the parent of the processes inside, so signals, deaths and exit codes have to be
passed through this process:

- A line on stdin means "leave": SIGTERM to the command. End of file on stdin means that the agent is gone: SIGKILL.
- It reaps orphaned processes. When it ends, the kernel ends everything else in the container.
- Its exit status is the command's own, or 128 plus the number of the signal that ended it.

`--unattended`: ignore stdin; a signal to leave kills the command. `--group`: pass a signal to leave to the command's
whole process group.

No torch, standard library only: it is run by its path, in any image's interpreter.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

_POLL_MS = 200  # how often to look for ended processes
_LEAVE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: Sequence[str]) -> int:
    """Run the command to its end."""
    option = argv[0] if argv and argv[0] in ("--unattended", "--group") else ""
    attended = option != "--unattended"
    command = list(argv[1:] if option else argv)
    # The launcher ends when the process that this names is killed.
    environ = {**os.environ, "SPOTSUP_AGENT_PID": str(os.getpid())} if attended else dict(os.environ)
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals that came before the command was started

    def forward(number: int, _: FrameType | None = None) -> None:
        if child is None:
            early.append(number)
        else:
            _send(child, number if attended else signal.SIGKILL, group=option == "--group")

    for number in _LEAVE:
        signal.signal(number, forward)
    child = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
    for signalled in early:
        forward(signalled)
    status = _watch(child, attended=attended)
    _send(child, signal.SIGKILL)  # processes that it left running
    return status if status >= 0 else 128 - status


def _watch(child: subprocess.Popen[bytes], *, attended: bool) -> int:
    """Wait until the command has ended; its status, negative for a signal."""
    poll = select.poll()
    if attended:
        poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    while True:
        status = _reap(child.pid)
        if status is not None:
            return status
        if not poll.poll(_POLL_MS):
            continue
        if not (received := os.read(sys.stdin.fileno(), 4096)):
            _send(child, signal.SIGKILL)
            poll.unregister(sys.stdin.fileno())
        for _ in range(received.count(b"\n")):
            _send(child, signal.SIGTERM)


def _reap(pid: int) -> int | None:
    """Reap: return the status of `pid` once it has ended. Orphans that have ended are reaped, too."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1  # no child is left: something else has reaped it
        if ended == pid:
            return os.waitstatus_to_exitcode(status)
        if not ended:
            return None


def _send(child: subprocess.Popen[bytes], number: int, *, group: bool = False) -> None:
    """Send SIGKILL to the command's process group; any other signal to the command alone, or to its `group`."""
    with contextlib.suppress(ProcessLookupError):
        if group or number == signal.SIGKILL:
            os.killpg(child.pid, number)
        else:
            os.kill(child.pid, number)


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(exit_code)
