"""`python container_init.py [--unattended | --group] COMMAND…`: what is run in a container ends with whoever asked for
it.

A container's processes are nobody's children: signals, deaths and exit codes have to be carried in and out. On stdin
hangs the agent: a line there means "leave" (SIGTERM to the command), its end means that the agent is gone, and then all
is killed. As a container's first process this one also reaps what others leave; and when it ends, the kernel ends all
the rest. `--unattended`: nobody holds stdin; a signal to leave kills the command. `--group`: a signal to leave goes to
all that the command started. Ends with the command's own status, 128 and the signal's number where one ended it.

No torch. It is run by its path, in any image's interpreter: it needs nothing but the standard library.
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

_POLL_MS = 200  # children that are not ours to wait for by name
_LEAVE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: Sequence[str]) -> int:
    """Run the command to its end."""
    option = argv[0] if argv and argv[0] in ("--unattended", "--group") else ""
    attended = option != "--unattended"
    command = list(argv[1:] if option else argv)
    # torch's launcher ends with the process that this names, should that be killed.
    environ = {**os.environ, "SPOTSUP_AGENT_PID": str(os.getpid())} if attended else dict(os.environ)
    child = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)

    def pass_on(number: int, _: FrameType | None) -> None:
        _send(child, number if attended else signal.SIGKILL, group=option == "--group")

    for number in _LEAVE:
        signal.signal(number, pass_on)
    status = _watch(child, attended=attended)
    _send(child, signal.SIGKILL)  # what it left running
    return status if status >= 0 else 128 - status


def _watch(child: subprocess.Popen[bytes], *, attended: bool) -> int:
    """Until the command has ended; its status, negative for a signal."""
    poll = select.poll()
    if attended:
        poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    while True:
        status = _reap(child.pid)
        if status is not None:
            return status
        if not poll.poll(_POLL_MS):
            continue
        if not (told := os.read(sys.stdin.fileno(), 4096)):
            _send(child, signal.SIGKILL)
            poll.unregister(sys.stdin.fileno())
        for _ in range(told.count(b"\n")):
            _send(child, signal.SIGTERM)


def _reap(pid: int) -> int | None:
    """The status of `pid` once it has ended; whatever else has ended and was left to us is laid to rest."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1  # somebody else has waited for it: there is nobody
        if ended == pid:
            return os.waitstatus_to_exitcode(status)
        if not ended:
            return None


def _send(child: subprocess.Popen[bytes], number: int, *, group: bool = False) -> None:
    """SIGKILL to all of its session's first group, anything else to the command alone, or to the `group`."""
    with contextlib.suppress(ProcessLookupError):
        if group or number == signal.SIGKILL:
            os.killpg(child.pid, number)
        else:
            os.kill(child.pid, number)


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(exit_code)
