"""What an installation has in a cloud account beside its machines: network rules, identities, a file system.

Each cloud that can make them has a `CloudAccount` at its descriptor. It looks, and says which steps are missing; this
module takes them, looks again, and ends when none is missing. So an interrupted run, a lost answer and a cloud that
shows its own work late need nothing of their own: the next look decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from provisioners.base import Owner, ProvisionerError, UnreachableError

# EFS takes minutes to take a mount target away; a role of IAM is known everywhere within seconds.
LIMIT_S = 600.0
MAX_LOOKS = 120
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 8.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What an installation needs in its account, in no cloud's words."""

    owner: Owner
    # From where the daemon logs in to nodes: addresses, networks, or a security group of the cloud's.
    ssh_from: tuple[str, ...] = ()
    # Whether the daemon's host is a machine of this account, which takes its rights from an identity of its own.
    host_identity: bool = True
    # Whether a file system is made, which all nodes can mount.
    shared_storage: bool = False
    # An object store's URL that nodes get the right to write to; "" for none.
    checkpoints: str = ""
    # The files of docs/permissions by name.
    permissions: Mapping[str, str] = field(default_factory=dict, repr=False)


class Step(Protocol):
    """One change of the account: `str` says it in the imperative."""

    @property
    def cost(self) -> str:
        """What it costs from then on; "" for nothing."""
        ...


class Free:
    """A step that costs nothing from then on."""

    __slots__ = ()

    @property
    def cost(self) -> str:
        """Nothing."""
        return ""


class Found(Protocol):
    """Something in the account, and whose it is: `str` names it."""

    @property
    def owner(self) -> Owner:
        """By its tags or marks; empty without any."""
        ...


def whose(found: Found, unmarked: str) -> str:
    """Whose a thing is that is not this installation's. `unmarked`: what shows that it is no installation's."""
    mark = found.owner.key_mark
    return f"{found} is " + (f"another installation's (key mark {mark})" if mark else f"not spotsup's: {unmarked}")


def not_ours(found: Found, unmarked: str) -> str:
    """Why nothing is made where a thing has a name of ours and not our tags, and what to do."""
    return f"{whose(found, unmarked)}; nothing was made: give --cluster another name, or delete it"


def left_alone(found: Iterable[Found], owner: Owner, marked_by: str = "tags") -> list[str]:
    """What of these stays, because it is not `owner`'s."""
    return [f"{each} stays: it does not have this installation's {marked_by}" for each in found if each.owner != owner]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is missing, in order. With `problems` nothing is to be done. `left`: what stays as it is, and why."""

    steps: tuple[Step, ...] = ()
    problems: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """What the configuration gets, as keys of the cloud's section; and what a person still has to do, in order."""

    settings: Mapping[str, Any]
    todo: tuple[str, ...] = ()


class NotYetError(Exception):
    """The step cannot be taken now, or may have been taken already: look again. The message says why."""


class CloudAccount(Protocol):
    """One cloud's account. Every call ends within its own time limits. All raise ProvisionerError."""

    def whose(self) -> str:
        """The account and the identity that the credentials are for, for a person to agree to."""
        ...

    def missing(self) -> Plan:
        """Look, and say what is to be made."""
        ...

    def remaining(self, *, with_data: bool) -> Plan:
        """Look, and say what is to be deleted: what has the owner's tags. File systems only `with_data`."""
        ...

    def take(self, step: Any) -> None:
        """Take one step of these plans. Raises NotYetError."""
        ...

    def made(self) -> Made:
        """What came of it. Called once nothing is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, passed in: seconds that only grow, and a way to wait for some."""

    now: Callable[[], float]
    wait: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Said:
    """Gets sentences for a person: each step once it has been taken, and what is waited for whenever that changes."""

    done: Callable[[str], None]
    waiting: Callable[[str], None] = field(default=lambda _: None)


def carry_out(
    look: Callable[[], Plan], take: Callable[[Any], None], say: Said, clock: Clock, limit_s: float = LIMIT_S
) -> Plan:
    """Take steps until none is missing; the last plan.

    Raises ProvisionerError: for problems, for a step that is refused, and after `limit_s`. What was made until then
    stays; the next run goes on from there.
    """
    deadline, wait_s, done, before = clock.now() + limit_s, FIRST_WAIT_S, set[str](), ""
    for _ in range(MAX_LOOKS):
        plan = look()
        if plan.problems:
            raise ProvisionerError("; ".join(plan.problems))
        if not plan.steps:
            return plan
        late = _take_all(plan, take, say, done)
        if late and clock.now() + wait_s > deadline:
            break
        if late:
            if late != before:
                say.waiting(late)
            before = late
            clock.wait(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)
    raise UnreachableError(f"not done after {limit_s:.0f} s: {late or 'the cloud does not show it'}; repeat to go on")


def _take_all(plan: Plan, take: Callable[[Any], None], say: Said, done: set[str]) -> str:
    """Take all steps that can be taken; why the first of the others cannot, "" if all were taken for the first time."""
    late = ""
    for step in plan.steps:
        text = str(step)
        try:
            take(step)
        except NotYetError as error:
            late = late or f"could not {text}: {error}"
            continue
        if text in done:
            late = late or f"could not see after it was done: {text}"
        else:
            done.add(text)
            say.done(text)
    return late
