"""What can go wrong while a machine is prepared. Each error names the node, the step, the command and its stderr."""

from __future__ import annotations

STDERR_LINES = 200
# Kept twice, in a record and in an event, and one transaction of etcd (1.5 MiB) takes fifty nodes that fail at once.
STDERR_CHARACTERS = 10_000


class BootstrapError(Exception):
    """A machine could not be prepared. The first line says what happened where; the stderr's tail follows.

    `step` and `command` are "" before the first step; `exit_status` is None where no command ended.
    """

    def __init__(
        self,
        message: str,
        *,
        node: str,
        step: str = "",
        command: str = "",
        exit_status: int | None = None,
        stderr: str = "",
    ) -> None:
        self.node = node
        self.step = step
        self.command = command
        self.exit_status = exit_status
        self.stderr = tail(stderr)
        where = f"node {node}" + (f", step {step}" if step else "")
        super().__init__("\n".join(part for part in (f"{where}: {message}", self.stderr) if part))


class UnreachableError(BootstrapError):
    """sshd did not answer in time, or the connection broke. Says nothing about the machine's life; ask again."""


class LoginRefusedError(UnreachableError):
    """sshd answers and goes on refusing our key: the image's user is another one, or the key was never installed."""


class HostKeyMismatchError(BootstrapError):
    """Another host key than the pinned one: this is not our machine. Nothing was sent to it."""


class BootstrapTimeoutError(BootstrapError, TimeoutError):
    """A command outlived its time limit, or all of the bootstrap did."""


class CommandError(BootstrapError):
    """A command ended with another status than 0."""


class UnfitError(BootstrapError):
    """The machine cannot do this job as it is; the message says what is missing. Nothing more was changed on it."""


class PackError(Exception):
    """A folder cannot be packed; one sentence says why and what would be right."""


def tail(text: str, lines: int = STDERR_LINES) -> str:
    """The last `lines` lines, without trailing white space, and no more than STDERR_CHARACTERS of them."""
    return "\n".join(text.rstrip().splitlines()[-lines:])[-STDERR_CHARACTERS:]
