"""The errors of bootstrap. Each names the node, the step, the command and its stderr."""

from __future__ import annotations

from bootstrap.blame import OF_JOB, alike

STDERR_LINES = 200
# Stored twice, in a record and in an event; and fifty nodes that fail at once fit into one etcd transaction (1.5 MiB).
STDERR_CHARACTERS = 10_000


class BootstrapError(Exception):
    """A machine could not be prepared. The first line says what happened and where; the end of stderr follows.

    `step` and `command` are "" before the first step; `exit_status` is None if no command ended. `tried`: what the job
    or its image brings was tried, so that it may be at fault.
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
        tried: bool = False,
    ) -> None:
        self.node = node
        self.step = step
        self.command = command
        self.exit_status = exit_status
        self.stderr = tail(stderr)
        self.tried = tried
        self._message = message
        where = f"node {node}" + (f", step {step}" if step else "")
        super().__init__("\n".join(part for part in (f"{where}: {message}", self.stderr) if part))

    @property
    def of_job(self) -> str:
        """Return how what the job or its image brings has failed, alike on each machine; "" where something else may
        have."""
        if not (self.tried or self.exit_status == OF_JOB):
            return ""
        return alike(self.step, self.exit_status, self._message, self.stderr)


class UnreachableError(BootstrapError):
    """sshd did not answer in time, or the connection broke. The machine may well be alive; try again."""


class LoginRefusedError(UnreachableError):
    """sshd answers but keeps refusing our key: the image has another user, or the key was never installed."""


class HostKeyMismatchError(BootstrapError):
    """The host key is not the pinned one: this is not our machine. Nothing was sent to it."""


class BootstrapTimeoutError(BootstrapError, TimeoutError):
    """A command exceeded its time limit, or the whole bootstrap did."""


class LoginShellError(BootstrapError):
    """The login shell of the machine's user keeps our commands, or what they read, from them."""


class CommandError(BootstrapError):
    """A command ended with another status than 0."""


class UnfitError(BootstrapError):
    """The machine cannot do this job; the message says what is missing. Nothing more was changed on it."""


def tail(text: str, lines: int = STDERR_LINES) -> str:
    """Return the last `lines` lines without trailing white space, STDERR_CHARACTERS at most."""
    return "\n".join(text.rstrip().splitlines()[-lines:])[-STDERR_CHARACTERS:]
