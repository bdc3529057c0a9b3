"""Make and unmake what an installation needs in a cloud account beside machines: one engine for all clouds.

A cloud has a `Table`: the `Resource`s that are wanted, in the order in which they are made, and a `Row` for each kind:
how it is read, created, changed and deleted by that cloud's calls. The engine looks, compares, takes steps, and looks
again until no step is left. So an interrupted run, a lost or doubled answer and a cloud that shows its own work late
need no code of their own: the next look decides. What is ours is what carries our tags; nothing is stored.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol, TypeVar

from provisioners.base import (
    CLUSTER_TAG,
    KEY_TAG,
    DeniedError,
    InstanceState,
    Owner,
    Provisioner,
    ProvisionerError,
    UnreachableError,
    owner_of,
)
from provisioners.calls import NoAnswerError, NoCredentialsError, NotSentError
from provisioners.codes import ApiError

# EFS takes minutes to take a mount target away; a role of IAM is known everywhere within seconds.
LIMIT_S = 600.0
MAX_LOOKS = 120
FIRST_WAIT_S = 1.0
MAX_WAIT_S = 8.0
# One step deletes objects of a bucket for so long, and the next one goes on.
EMPTY_S = 60.0

Answer = TypeVar("Answer")
Key = tuple[Any, ...]


class NotYetError(Exception):
    """The step cannot be taken now, or may have been taken already: look again. The message says why."""


class NotUsedError(DeniedError):
    """The account does not use this API; the message has the command that enables it."""


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


# -- what a table says -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing in an account, wanted or found. Two with the same `key` are the same thing."""

    kind: str
    name: str
    place: str = ""  # its region or zone
    # What it is part of: it has no tags of its own, belongs to whom that belongs to, and is deleted before it.
    of: Resource | None = None
    # What is compared: a found thing whose `has` differs is changed.
    has: Any = None
    # What only its creation needs.
    given: Any = field(default=None, repr=False, compare=False)
    needs: tuple[Key, ...] = ()  # the keys of what it uses: it is deleted before them
    # For people: sentences that differ from "make the KIND NAME (PLACE)" and "delete …", and what follows the first.
    make_text: str = field(default="", compare=False)
    delete_text: str = field(default="", compare=False)
    detail: str = field(default="", compare=False)
    cost: str = field(default="", compare=False)  # what it costs from then on

    @property
    def key(self) -> Key:
        """Return what identifies it in the account."""
        return (self.kind, self.place, self.name, *(self.of.key if self.of else ()))

    @property
    def whole(self) -> Resource:
        """Return what it is part of, or itself."""
        return self.of or self

    def __str__(self) -> str:
        return f"the {self.kind} {self.name}{f' ({self.place})' if self.place else ''}"


class State(Enum):
    """How far a found thing is."""

    READY = auto()
    PENDING = auto()  # it is being made or changed
    GOING = auto()  # it is being deleted
    DELETED = auto()  # it can be restored, and its name stays taken
    BROKEN = auto()  # the cloud has given it up


@dataclass(frozen=True, slots=True)
class Found:
    """Something in the account. A part has the owner of what it is part of."""

    what: Resource
    owner: Owner
    id: str = ""  # the cloud's, where that is not its name
    state: State = State.READY
    said: str = ""  # the state in the cloud's own word
    raw: Any = field(default=None, repr=False, compare=False)  # the cloud's own description

    def __str__(self) -> str:
        inside = ", ".join(each for each in (self.id, self.what.place) if each and each != self.what.name)
        return f"the {self.what.kind} {self.what.name}{f' ({inside})' if inside else ''}"


class Seen:
    """What the last look showed, kept up with the steps after it. `wanted`: empty where all is to go. `made`: the keys
    of what this process has tried to make."""

    def __init__(self, owner: Owner, wanted: Sequence[Resource] = (), made: Iterable[Key] = ()) -> None:
        self.owner = owner
        self.wanted = tuple(wanted)
        self.made = set(made)
        self.found: dict[Key, Found] = {}

    def add(self, found: Iterable[Found]) -> None:
        """Add these, or replace them by their keys."""
        self.found |= {each.what.key: each for each in found}

    def get(self, what: Resource) -> Found | None:
        """Return the thing, if it is there."""
        return self.found.get(what.key)

    def all(self, *kinds: str) -> list[Found]:
        """Return everything of these kinds."""
        return [each for each in self.found.values() if each.what.kind in kinds]

    def ours(self, *kinds: str) -> list[Found]:
        """Return what of these kinds is this installation's."""
        return [each for each in self.all(*kinds) if each.owner == self.owner]

    def wants(self, kind: str) -> list[Resource]:
        """Return what is wanted of a kind."""
        return [each for each in self.wanted if each.kind == kind]

    def there(self, what: Resource) -> Found:
        """Return the thing that a step needs. Raises NotYetError while it is not there."""
        found = self.get(what)
        if found is None or found.owner != self.owner:
            raise NotYetError(f"{what} is not there yet")
        return found


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer to a change: the id of what it made, or the operation that tells how far it is."""

    id: str = ""
    operation: str = ""


Do = Callable[[Resource, Seen], Begun | None]


@dataclass(frozen=True, slots=True)
class Row:
    """How one kind is handled. Every call ends within its own time limit; all raise ProvisionerError, and those that
    change something NotYetError."""

    kind: str
    # Look: at what has our names or our tags. Rows before this one have been read.
    read: Callable[[Seen], Iterable[Found]]
    # Create it; also change it, without a `change` of its own.
    create: Do
    # Delete it; None: it goes with what it is part of, or stays.
    delete: Do | None = None
    change: Do | None = None
    # What a found thing should be: with what others have added to it.
    settle: Callable[[Resource, Found], Resource] | None = None
    # Why a found thing can be neither used nor changed; "" if it can.
    problem: Callable[[Resource, Found], str] | None = None
    # What of a person's own keeps a found thing from being deleted, with the command that takes it away.
    blocked: Callable[[Found], Sequence[str]] | None = None
    data: bool = False  # whether it holds people's data, and is deleted only if they say so
    shared: bool = False  # whether one that is not ours is used as it is
    optional: bool = False  # whether the account may not use its API at all


class Table(Protocol):
    """One cloud's resources. All calls raise ProvisionerError."""

    rows: Sequence[Row]  # what others need comes first
    marked_by: str  # how a person knows what is ours, as "tags"
    allowed: str  # the file with all permissions that whoever runs this needs
    denials: frozenset[str]  # the codes of refusals for a missing permission

    def whose(self) -> str:
        """Return the account and the identity that the credentials are for, for a person to agree to."""
        ...

    def wanted(self) -> Sequence[Resource]:
        """Return what there should be, in the order in which it is made: what costs most comes last."""
        ...

    def outcome(self, operation: str) -> str | None:
        """Return why an operation has failed, "" if it has not; None while it goes on, or is not shown."""
        ...

    def made(self, seen: Seen) -> Made:
        """Return what came of it."""
        ...


@dataclass(frozen=True, slots=True)
class Made:
    """What the configuration gets, as keys of the cloud's section; and what a person still has to do, in order."""

    settings: Mapping[str, Any]
    todo: tuple[str, ...] = ()


# -- comparing: pure ---------------------------------------------------------------------------------------


class Verb(Enum):
    """What a step does."""

    MAKE = auto()
    CHANGE = auto()
    DELETE = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the account: `str` says it in the imperative. `found`: what is there before it."""

    verb: Verb
    what: Resource
    found: Found | None = None

    @property
    def cost(self) -> str:
        """Return what it costs from then on; "" for nothing."""
        return self.what.cost if self.verb is Verb.MAKE else ""

    def __str__(self) -> str:
        what, found = self.what, self.found
        if self.verb is Verb.DELETE:
            return what.delete_text or f"delete {found}{f' of {what.of.name}' if what.of else ''}"
        if found is not None and found.state is State.DELETED:
            return f"restore {what}, which was deleted"
        again = self.verb is Verb.CHANGE
        return what.make_text or f"{'write' if again else 'make'} {what}{' anew' if again else ''}{what.detail}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps, in order. With `problems` nothing is to be done. `left`: what stays as it is, and why."""

    steps: tuple[Step, ...] = ()
    problems: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def missing(rows: Sequence[Row], seen: Seen) -> Plan:
    """Return the steps to what is wanted. Pure. What has our name and not our tags is a problem: nothing is done."""
    handled = {row.kind: row for row in rows}
    problems, steps = list[str](), list[Step]()
    for wish in seen.wanted:
        row, found = handled[wish.kind], seen.get(wish)
        whole = seen.get(wish.whole)
        if whole is not None and whole.owner != seen.owner:
            problems += [] if wish.of or row.shared else [_not_ours(whole)]
            continue
        if found is None:
            steps.append(Step(Verb.MAKE, wish))
            continue
        what = row.settle(wish, found) if row.settle else wish
        if found.state is State.BROKEN:
            # To write it again might take away what others have added.
            problems.append(
                f"{found} is in the state {found.said}: look at it in the console, or delete it, and repeat"
            )
        elif row.problem and (problem := row.problem(wish, found)):
            problems.append(problem)
        elif found.state in {State.PENDING, State.GOING}:
            steps.append(Step(Verb.MAKE, wish, found))
        elif found.state is State.DELETED or what.has != found.what.has:
            steps.append(Step(Verb.CHANGE, what, found))
    return Plan(problems=tuple(problems)) if problems else Plan(tuple(steps))


def remaining(rows: Sequence[Row], seen: Seen, marked_by: str, *, with_data: bool) -> Plan:
    """Return the steps that delete what is ours. Pure. What uses something goes before it; data stays unless asked.
    What a person has to take away first is a problem: nothing is done."""
    needed = {key for each in seen.found.values() for key in each.what.needs}
    steps, left, problems = list[Step](), list[str](), list[str]()
    for row in reversed(rows):
        for each in sorted(seen.all(row.kind), key=lambda each: each.what.key in needed):
            if each.state is State.DELETED or (each.what.of and each.owner != seen.owner):
                continue
            if each.owner != seen.owner:
                left += [] if row.shared else [f"{each} stays: it does not have this installation's {marked_by}"]
            elif row.data and not with_data and each.state is not State.GOING:
                left.append(f"{each} stays with its data, which is billed: --with-data deletes it for ever")
            elif row.delete is not None:
                steps.append(Step(Verb.DELETE, each.what, each))
                problems += row.blocked(each) if row.blocked else ()
    return Plan(tuple(steps), tuple(problems), tuple(left))


def _not_ours(found: Found) -> str:
    """Say whose it is, and what to do."""
    mark = found.owner.key_mark
    whose = f"another installation's (key mark {mark})" if mark else "not spotsup's: nothing names its owner"
    if found.state is State.DELETED:
        return f"{found} is {whose}, and its name stays taken for weeks; nothing was made: give --cluster another name"
    return f"{found} is {whose}; nothing was made: give --cluster another name, or delete it"


# -- acting ------------------------------------------------------------------------------------------------


class Account:
    """One installation's part of an account. All methods raise ProvisionerError."""

    def __init__(self, table: Table, owner: Owner) -> None:
        if not (owner.cluster and owner.key_mark):
            raise ProvisionerError("without a cluster's name and its key's mark, everyone's things would count as ours")
        self._table = table
        self._rows = {row.kind: row for row in table.rows}
        self._seen = Seen(owner)
        # Operations that were begun, by step: they say why something did not come to be.
        self._operations: dict[str, str] = {}

    def whose(self) -> str:
        """Return the account and the identity that the credentials are for, for a person to agree to."""
        return self._table.whose()

    def missing(self) -> Plan:
        """Look, and return the steps that make what is missing."""
        return missing(self._table.rows, self._look(self._table.wanted()))

    def remaining(self, *, with_data: bool) -> Plan:
        """Look, and return the steps that delete what has the owner's tags; data only `with_data`."""
        return remaining(self._table.rows, self._look(()), self._table.marked_by, with_data=with_data)

    def made(self) -> Made:
        """Return what came of it. Called once nothing is missing."""
        return self._table.made(self._seen)

    def rented(self, cloud: Provisioner, timeout_s: float) -> list[str]:
        """Return the owner's machines that have not ended, and what machines have left behind: with these, nothing is
        to be deleted. `cloud` takes who asks for the daemon: a missing permission is one of whoever runs this."""
        owner = self._seen.owner
        try:
            machines = cloud.instances(owner, timeout_s)
            leftovers = cloud.leftovers(owner, timeout_s)
        except DeniedError as error:
            cause = refusal_of(error)
            if cause is None or cause.reply.code not in self._table.denials:
                raise
            raise DeniedError(f"{cause}; {self._table.allowed} has all that who runs this needs") from error
        alive = [each.id for each in machines if each.state is not InstanceState.TERMINATED]
        return alive + [f"{each.kind} {each.id}" for each in leftovers]

    def _look(self, wanted: Sequence[Resource]) -> Seen:
        self._seen = Seen(self._seen.owner, wanted, self._seen.made)
        kinds = {each.kind for each in wanted}
        for row in self._table.rows:
            if kinds and row.kind not in kinds:
                continue
            try:
                self._seen.add(row.read(self._seen))
            except NotUsedError:
                if kinds or not row.optional:
                    raise  # otherwise there is none
        return self._seen

    def take(self, step: Step) -> None:
        """Take one step of these plans. Raises NotYetError."""
        row, what, found = self._rows[step.what.kind], step.what, step.found
        self._check_operation(str(step))
        if found is not None:
            self._seen.found.setdefault(found.what.key, found)
        if step.verb is Verb.DELETE and found is not None:
            begun = self._delete(row, found)
        elif step.verb is Verb.CHANGE:
            begun = (row.change or row.create)(what, self._seen)
        elif found is not None:
            raise NotYetError(f"it is in the state {found.said or found.state.name}, which may take minutes")
        else:
            self._seen.made.add(what.key)
            begun = row.create(what, self._seen)
            if begun is not None and begun.id:
                self._seen.add([Found(what, self._seen.owner, begun.id)])
        if begun is not None and begun.operation:
            self._operations[str(step)] = begun.operation

    def _delete(self, row: Row, found: Found) -> Begun | None:
        """Delete what is still ours, once nothing uses it."""
        assert row.delete is not None
        if found.owner != self._seen.owner:
            raise ProvisionerError(f"{found} is not this installation's: nothing was deleted")
        if found.state is State.GOING:
            raise NotYetError("it is being deleted, which may take minutes")
        if user := next((each for each in self._seen.found.values() if self._uses(each, found.what)), None):
            raise NotYetError(f"{user} still uses it")
        if row.data:
            # Nothing brings data back: whose it is, is asked once more.
            now = {each.what.key: each for each in row.read(self._seen)}.get(found.what.key)
            if now is None:
                raise NotYetError("it is not shown any more")
            if now.owner != self._seen.owner:
                tags = f"this installation's {self._table.marked_by}"
                raise ProvisionerError(f"{now} does not have {tags} any more: nothing in it was deleted")
        begun = row.delete(found.what, self._seen)
        del self._seen.found[found.what.key]
        return begun

    def _uses(self, each: Found, what: Resource) -> bool:
        part = each.what.of is not None and each.what.of.key == what.key
        return what.key in each.what.needs or (part and self._rows[each.what.kind].delete is not None)

    def _check_operation(self, step: str) -> None:
        """Raise NotYetError for an operation that this step has begun, ProvisionerError for one that failed."""
        if not (operation := self._operations.get(step)):
            return
        failure = self._table.outcome(operation)
        if failure is None:
            raise NotYetError("the cloud is at it")
        del self._operations[step]
        if failure:
            raise ProvisionerError(f"could not {step}: {failure}")
        raise NotYetError("the cloud has done it, and does not show it yet")


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
    """Take steps until none is missing; return the last plan.

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
    """Take all steps that can be taken; return why the first of the others cannot, "" if all were taken for the first
    time."""
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


# -- for tables --------------------------------------------------------------------------------------------


def changed_once(call: Callable[[], Answer], is_late: Callable[[ApiError], bool], hint: str = "") -> Answer:
    """Make a call that changes something, once. `is_late`: a refusal after which the next look decides. Raises
    NotYetError, ApiError, ProvisionerError."""
    try:
        return call()
    except ApiError as error:
        if is_late(error):
            raise NotYetError(str(error)) from error
        raise
    except (NoAnswerError, NotSentError) as error:
        raise NotYetError(str(error)) from error
    except NoCredentialsError as error:
        raise DeniedError(f"{error}{hint}") from error


def refusal_of(error: ProvisionerError) -> ApiError | None:
    """Return the cloud's own refusal behind an error."""
    cause = error if isinstance(error, ApiError) else error.__cause__
    return cause if isinstance(cause, ApiError) else None


def network(text: str, or_else: str = "") -> str:
    """Return a network without the host's bits. `or_else`: what else it could have been. Raises ProvisionerError."""
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ProvisionerError(f"{text!r} is neither an address, nor a network as 10.0.0.0/16{or_else}") from None


def login_sources(wish: Wish) -> tuple[str, ...]:
    """Return from where the daemon logs in to nodes. Raises ProvisionerError for nowhere."""
    if not wish.ssh_from:
        raise ProvisionerError("nothing says from where the daemon logs in to nodes")
    return wish.ssh_from


def by_family(sources: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield ("", IPv4 networks) and ("6", IPv6 networks), where there are any: no cloud's rule has both."""
    networks = list(dict.fromkeys(map(network, sources)))
    for family, wide in (("", False), ("6", True)):
        if these := tuple(each for each in networks if (":" in each) is wide):
            yield family, these


def joined(have: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Return what is there, with what is missing behind it."""
    return (*have, *(each for each in wanted if each not in have))


_WORD = re.compile(r"(\S+?)=(\S+)")


def described(owner: Owner) -> str:
    """Return the description of what can have no tags."""
    return " ".join(f"{key}={value}" for key, value in owner.tags.items())


def values_in(description: str, key: str) -> tuple[str, ...]:
    """Return the values that a description has for a key."""
    return tuple(value for name, value in _WORD.findall(description) if name == key)


def owner_in(description: str) -> Owner:
    """Return the owner that a description names; "" for what it does not say."""
    return owner_of({key: next(iter(values_in(description, key)[-1:]), "") for key in (CLUSTER_TAG, KEY_TAG)})
