"""A cloud's error codes as data: what each means for a launch, for how long, and the source.

Each cloud has one table. A code that is not in it is Transient with `unknown_code`, which raises an alert: the table
can then be extended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from provisioners.base import (
    Denied,
    Fatal,
    LaunchOutcome,
    NoCapacity,
    ProvisionerError,
    Quota,
    Refusal,
    Scope,
    Throttled,
    Transient,
    Unknown,
)


class Kind(StrEnum):
    """What a code means for a launch. USED: the token already has its machine; look it up."""

    NO_CAPACITY = "no capacity"
    ABOVE_CAP = "price above the cap"
    QUOTA = "quota"
    THROTTLED = "throttled"
    TRANSIENT = "transient"
    FATAL = "fatal"
    DENIED = "denied"
    UNKNOWN = "unknown"
    USED = "token used"


# For how long a denied request is not repeated: until someone may have renewed the credentials (all requests wait), or
# given a permission.
CREDENTIALS_MEMORY_S = 60.0
PERMISSION_MEMORY_S = 600.0


@dataclass(frozen=True, slots=True)
class Code:
    """One code."""

    name: str  # one that ends in ".*" matches all names with that prefix
    kind: Kind
    source: str
    scope: Scope | None = None
    memory_s: float = 0.0  # for how long a retry within `scope` is pointless; of THROTTLED, when to retry
    remedy: str = ""  # what the user can do; the end of a sentence
    message_part: str = ""  # the row applies only to messages that contain this text

    def fits(self, name: str, message: str) -> bool:
        """True if this is the row of a code with this message."""
        named = name.startswith(self.name[:-1]) if self.name.endswith(".*") else name == self.name
        return named and self.message_part.lower() in message.lower()


def denied(name: str, source: str, remedy: str, scope: Scope = Scope.GLOBAL, message_part: str = "") -> Code:
    """Return the row of a code for missing credentials (GLOBAL), or for a missing permission, which may concern one
    place."""
    memory_s = CREDENTIALS_MEMORY_S if scope is Scope.GLOBAL else PERMISSION_MEMORY_S
    return Code(name, Kind.DENIED, source, scope, memory_s, remedy, message_part)


def disk_remedy(cloud: str) -> str:
    """Return what to do where a boot disk would be smaller than its image."""
    return f"set {cloud}.disk_gb to what the image needs, and disk_gb in the job's resources, if it is there"


def find(table: Sequence[Code], name: str, message: str = "") -> Code | None:
    """Return the first row that fits, None for an unknown code."""
    return next((row for row in table if row.fits(name, message)), None)


def outcome(row: Code | None, name: str, message: str) -> LaunchOutcome:
    """Return the outcome of a launch that failed with this code. `message`: a sentence with the cloud's message."""
    if row is None:
        return Transient(f"{message}; spotsup does not know the code {name!r}", unknown_code=name)
    text = f"{message}; {row.remedy}" if row.remedy else message
    match row.kind:
        case Kind.NO_CAPACITY:
            return NoCapacity(row.scope or Scope.TYPE_IN_ZONE, row.memory_s, text)
        case Kind.ABOVE_CAP:
            return NoCapacity(row.scope or Scope.TYPE_IN_ZONE, row.memory_s, text, above_cap=True)
        case Kind.QUOTA:
            return Quota(row.scope or Scope.REGION, row.memory_s, text)
        case Kind.THROTTLED:
            return Throttled(row.memory_s, text)
        case Kind.TRANSIENT:
            return Transient(text)
        case Kind.FATAL:
            return Fatal(text)
        case Kind.DENIED:
            return Denied(row.scope or Scope.GLOBAL, row.memory_s, text)
        case Kind.UNKNOWN | Kind.USED:
            return Unknown(text)


class ErrorReply(Protocol):
    """A cloud's error in reply to a call."""

    @property
    def code(self) -> str:
        """Return a row's name, or an unknown one."""
        ...

    @property
    def message(self) -> str:
        """Return the cloud's text."""
        ...

    @property
    def retry_after_s(self) -> float:
        """Return when the cloud says to retry; 0 where it does not."""
        ...

    def sentence(self, where: str = "") -> str:
        """Return a sentence for people: who answered what; `where`: a launch's place."""
        ...


class ApiError(ProvisionerError):
    """A cloud answered with an error."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.sentence())
        self.reply = reply


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """One cloud's table, and what it says of an error."""

    rows: Sequence[Code]

    def row(self, reply: ErrorReply) -> Code | None:
        """Return its row; None for an unknown code."""
        return find(self.rows, reply.code, reply.message)

    def launch_outcome(self, reply: ErrorReply, where: str) -> LaunchOutcome:
        """Return the outcome of a refused launch. The caller looks up Kind.USED."""
        found = outcome(self.row(reply), reply.code, reply.sentence(where))
        if isinstance(found, Throttled) and reply.retry_after_s:
            return replace(found, retry_after_s=reply.retry_after_s)
        return found

    def refusal(self, reply: ErrorReply, where: str) -> Refusal | None:
        """Return what is worth remembering of a refused launch, also of one that was accepted first; None where the
        error says nothing about the next one."""
        found = self.launch_outcome(reply, where)
        return found if isinstance(found, NoCapacity | Quota | Fatal | Denied) else None

    def is_used(self, reply: ErrorReply) -> bool:
        """True if the token, or the name made of it, already has its machine."""
        row = self.row(reply)
        return row is not None and row.kind is Kind.USED

    def is_retryable(self, reply: ErrorReply) -> bool:
        """True if to repeat an idempotent call."""
        row = self.row(reply)
        return row is not None and row.kind in {Kind.THROTTLED, Kind.TRANSIENT, Kind.UNKNOWN}

    def denial(self, reply: ErrorReply) -> Code | None:
        """Return its row, if credentials or permissions are missing."""
        row = self.row(reply)
        return row if row is not None and row.kind is Kind.DENIED else None


def markdown(table: Sequence[Code]) -> str:
    """Return the table as docs/reference/cloud-errors.md shows it: a row for all codes that come to the same."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for row in table:
        memory = f"{row.memory_s:g} s" if row.memory_s else ""
        name = f"`{row.name}`" + (f' with "{row.message_part}"' if row.message_part else "")
        alike.setdefault((str(row.kind), str(row.scope or ""), memory), []).append(name)
    lines = ["| a launch that meets it | scope | memory | codes |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(key)} | {', '.join(names)} |" for key, names in sorted(alike.items())]
    return "\n".join(lines) + "\n"
