"""What clouds answer, as typed, bounded values (P11): one machine that cannot be read hides no other, and is neither
ended nor forgotten (P1, P4); an answer that cannot be read fails its own call, with a ProvisionerError."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from provisioners.base import (
    Coverage,
    Denied,
    EndCause,
    Fatal,
    Finding,
    Instance,
    InstanceState,
    Launched,
    LaunchOutcome,
    LaunchRequest,
    Leftover,
    LeftoverKind,
    Market,
    NoCapacity,
    Offer,
    OfferQuery,
    Owner,
    Provisioner,
    ProvisionerError,
    Quota,
    Unknown,
)

NO_OWNER = Owner("", "")
MAX_FIELD_CHARACTERS = 300  # of a machine's id, tags, addresses: clouds' own bounds are 256 and less
MAX_REFUSAL_CHARACTERS = 2000
MAX_NUMBER = 1e11  # a time in the year 5138
MAX_CONSOLE_CHARACTERS = 2 * 1024 * 1024

Raw = TypeVar("Raw")
Result = TypeVar("Result")
Checked = TypeVar("Checked", Offer, Leftover)


def read_each(listed: Iterable[Raw], read: Callable[[Raw], Instance], id_of: Callable[[Raw], Any]) -> list[Instance]:
    """Return all listed machines. One that cannot be read is UNREADABLE; without an id, the listing counts as
    incomplete."""
    found = []
    for raw in listed:
        try:
            found.append(checked(read(raw)))
        except Exception:  # noqa: BLE001 - whatever is wrong with its description
            found.append(_unreadable(lambda raw=raw: id_of(raw)))  # type: ignore[misc]  # called at once
    return found


def checked(found: Instance) -> Instance:
    """Return the same machine. Raises ProvisionerError where a field has another type, or is out of its bounds."""
    if wrong := wrong_field(found):
        raise ProvisionerError(f"the machine's {wrong} cannot be read: {getattr(found, wrong)!r:.200}")
    if not found.id:
        raise ProvisionerError("the machine has no id")
    return found


def wrong_field(found: Instance | Offer | Leftover) -> str:
    """Return the first field that has another type than is declared, or is out of its bounds; "" where all are
    right."""
    for name, is_right, is_optional in _CHECKS[type(found)]:
        value = getattr(found, name)
        if not (is_right(value) or (is_optional and value is None)):
            return name
    return ""


def is_short(value: object) -> bool:
    """True for a text of one line that can be printed."""
    return isinstance(value, str) and len(value) <= MAX_FIELD_CHARACTERS and value.isprintable()


def _is_number(value: object) -> bool:
    return type(value) in {int, float} and 0 <= value <= MAX_NUMBER  # type: ignore[operator]


_RIGHT: Mapping[str, Callable[[object], bool]] = {
    "str": is_short,
    "int": lambda value: type(value) is int and 0 <= value < 65536,
    "float": _is_number,
    "Refusal": lambda value: (
        isinstance(value, NoCapacity | Quota | Fatal | Denied) and len(value.message) <= MAX_REFUSAL_CHARACTERS
    ),
    "Owner": lambda value: isinstance(value, Owner) and is_short(value.cluster) and is_short(value.key_mark),
    **{
        kind.__name__: lambda value, kind=kind: isinstance(value, kind)  # type: ignore[misc]
        for kind in (InstanceState, EndCause, LeftoverKind, Market)
    },
}
# Of each kind, once: name of a field, its check, and whether it may be None. A listing has thousands of machines.
_CHECKS: Mapping[type, tuple[tuple[str, Callable[[object], bool], bool], ...]] = {
    kind: tuple(
        (each.name, _RIGHT[str(each.type).removesuffix(" | None")], str(each.type).endswith(" | None"))
        for each in fields(kind)
    )
    for kind in (Instance, Offer, Leftover)
}


def _unreadable(id_of: Callable[[], Any]) -> Instance:
    try:
        known = id_of()
    except Exception:  # noqa: BLE001 - as above
        known = ""
    return Instance(known if is_short(known) else "", NO_OWNER, "", "", "", "", "", InstanceState.UNREADABLE, 0.0)


class Guarded:
    """A cloud whose every answer of a wrong shape ends in the protocol's errors, for that call only."""

    def __init__(self, cloud: Provisioner) -> None:
        self._cloud = cloud
        self.name = cloud.name

    def offers(self, query: OfferQuery, timeout_s: float) -> Sequence[Offer]:
        """As the protocol says."""
        return self._within("offers", lambda: _right(self._cloud.offers(query, timeout_s)))

    def launch(self, request: LaunchRequest, timeout_s: float) -> LaunchOutcome:
        """As the protocol says: with an answer that cannot be read, the machine may exist."""
        try:
            return self._within("a launch", lambda: _launched(self._cloud.launch(request, timeout_s)))
        except ProvisionerError as error:
            return Unknown(str(error))

    def find(self, owner: Owner, token: str, timeout_s: float) -> Instance | None:
        """As the protocol says. A machine that cannot be read may be the one: then it is not known."""
        found = self._within("a machine", lambda: self._cloud.find(owner, token, timeout_s))
        if found is not None and found.state is InstanceState.UNREADABLE:
            raise ProvisionerError(f"{self.name} describes {found.id or 'a machine'} so that it cannot be read")
        return found

    def instances(self, owner: Owner | None, timeout_s: float) -> Sequence[Instance]:
        """As the protocol says."""
        return self._within("machines", lambda: self._cloud.instances(owner, timeout_s))

    def coverage(self, timeout_s: float) -> Coverage:
        """As the protocol says."""
        return self._within("the account", lambda: self._cloud.coverage(timeout_s))

    def terminate(self, instance_id: str, timeout_s: float) -> None:
        """As the protocol says."""
        self._within(f"the end of {instance_id}", lambda: self._cloud.terminate(instance_id, timeout_s))

    def leftovers(self, owner: Owner, timeout_s: float) -> Sequence[Leftover]:
        """As the protocol says; one that cannot be read is removed once it can."""
        return self._within("leftovers", lambda: _right(self._cloud.leftovers(owner, timeout_s)))

    def remove(self, leftover: Leftover, timeout_s: float) -> None:
        """As the protocol says."""
        self._within(f"the removal of {leftover.id}", lambda: self._cloud.remove(leftover, timeout_s))

    def console(self, instance_id: str, timeout_s: float) -> str:
        """As the protocol says."""
        return self._within("a console", lambda: self._cloud.console(instance_id, timeout_s)[-MAX_CONSOLE_CHARACTERS:])

    def check(self, timeout_s: float) -> Sequence[Finding]:
        """As the protocol says."""
        return self._cloud.check(timeout_s)

    def _within(self, what: str, ask: Callable[[], Result]) -> Result:
        try:
            return ask()
        except ProvisionerError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise ProvisionerError(
                f"{self.name} answered a call for {what} with what cannot be read: {type(error).__name__}: {text}"
            ) from error


def _right(found: Sequence[Checked]) -> list[Checked]:
    return [each for each in found if not wrong_field(each)]


def _launched(outcome: LaunchOutcome) -> LaunchOutcome:
    return Launched(checked(outcome.instance)) if isinstance(outcome, Launched) else outcome
