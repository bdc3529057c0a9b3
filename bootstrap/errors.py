"""The errors of bootstrap. Each names the node, the step, the command and its stderr."""

from __future__ import annotations

STDERR_LINES = 200
# Stored twice, in a record and in an event; and fifty nodes that fail at once fit into one etcd transaction (1.5 MiB).
STDERR_CHARACTERS = 10_000
# With this status a script says that what the job brings is at fault, such as its torch: no other machine like this one
# would do. EX_DATAERR of sysexits.h; torch.sh and gpu/check.sh have it, too.
OF_JOB = 65


class BootstrapError(Exception):
    """A machine could not be prepared. The first line says what happened and where; the end of stderr follows.

    `step` and `command` are "" before the first step; `exit_status` is None if no command ended.
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

    @property
    def of_job(self) -> bool:
        """Whether what the job brings is at fault."""
        return self.exit_status == OF_JOB


class UnreachableError(BootstrapError):
    """sshd did not answer in time, or the connection broke. The machine may well be alive; try again."""


class LoginRefusedError(UnreachableError):
    """sshd answers but keeps refusing our key: the image has another user, or the key was never installed."""


class HostKeyMismatchError(BootstrapError):
    """The host key is not the pinned one: this is not our machine. Nothing was sent to it."""


class BootstrapTimeoutError(BootstrapError, TimeoutError):
    """A command exceeded its time limit, or the whole bootstrap did."""


class CommandError(BootstrapError):
    """A command ended with another status than 0."""


class UnfitError(BootstrapError):
    """The machine cannot do this job; the message says what is missing. Nothing more was changed on it."""


class PackError(Exception):
    """A folder cannot be packed; one sentence says why and what to do."""


def tail(text: str, lines: int = STDERR_LINES) -> str:
    """The last `lines` lines without trailing white space, STDERR_CHARACTERS at most."""
    return "\n".join(text.rstrip().splitlines()[-lines:])[-STDERR_CHARACTERS:]
