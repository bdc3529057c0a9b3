"""Which steps lead from what is in the project to what should be, or to nothing. Pure.

What has our mark is taken as it is, and put right where it differs; what has our name without it belongs to someone
else, and nothing is done. Further sources that someone has added to a rule of ours stay.

A deleted role keeps its name: for 7 days it can be restored, and for 30 more there can be no other one ("Create and
manage custom roles"). So a role of ours that is deleted is restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from provisioners.account import Free, Plan, left_alone, not_ours, whose
from provisioners.base import Owner
from provisioners.gcp.account.wanted import CAPACITY_GB, Account, Binding, Bucket, FileSystem, Role, Rule, Wanted

_STORAGE_COST = (
    "Cloud Storage bills what is stored, and each request; what was deleted is kept and billed for 7 days more"
)
_FILESTORE_COST = f"Filestore bills all of its {CAPACITY_GB} GB, by the hour, used or not"
READY, GOING = "READY", "DELETING"


@dataclass(frozen=True, slots=True)
class FoundRule:
    """A firewall rule: as `Rule`, with what that leaves out in `plain`: whether nothing else is in it."""

    rule: Rule
    owner: Owner
    plain: bool = True

    def __str__(self) -> str:
        return f"the firewall rule {self.rule.name}"


@dataclass(frozen=True, slots=True)
class FoundRole:
    """A role. `deleted`: it can be restored."""

    id: str
    owner: Owner
    permissions: frozenset[str] = frozenset()
    buckets: tuple[str, ...] = ()
    deleted: bool = False

    def __str__(self) -> str:
        return f"the role {self.id}"


@dataclass(frozen=True, slots=True)
class FoundAccount:
    """A service account."""

    email: str
    owner: Owner

    def __str__(self) -> str:
        return f"the service account {self.email}"


@dataclass(frozen=True, slots=True)
class FoundFileSystem:
    """A Filestore instance."""

    region: str
    zone: str
    name: str
    owner: Owner
    state: str = READY
    address: str = ""

    def __str__(self) -> str:
        return f"the Filestore instance {self.name} ({self.zone})"


@dataclass(frozen=True, slots=True)
class FoundBucket:
    """A bucket. `closed`: whether rights are given on the whole of it alone, and to nobody in public."""

    region: str
    name: str
    owner: Owner
    closed: bool = False

    def __str__(self) -> str:
        return f"the bucket {self.name} ({self.region})"


Found: TypeAlias = FoundRule | FoundRole | FoundAccount | FoundFileSystem


@dataclass(frozen=True, slots=True)
class Facts:
    """What is there: under our names, and rules and instances also with our mark. `bindings`: those of our names."""

    rules: tuple[FoundRule, ...] = ()
    roles: tuple[FoundRole, ...] = ()
    accounts: tuple[FoundAccount, ...] = ()
    bindings: frozenset[Binding] = frozenset()
    file_systems: tuple[FoundFileSystem, ...] = ()
    buckets: tuple[FoundBucket, ...] = ()


# -- steps -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakeRule(Free):
    """A firewall rule."""

    rule: Rule

    def __str__(self) -> str:
        return f"make the firewall rule {self.rule.name}: {self.rule}"


@dataclass(frozen=True, slots=True)
class SetRule(Free):
    """Write a rule of ours anew, with the sources that it has, too."""

    rule: Rule

    def __str__(self) -> str:
        return f"write the firewall rule {self.rule.name} anew: {self.rule}"


@dataclass(frozen=True, slots=True)
class MakeRole(Free):
    """A role of the project's own."""

    role: Role

    def __str__(self) -> str:
        return f"make the role {self.role.id}: docs/permissions"


@dataclass(frozen=True, slots=True)
class RestoreRole(Free):
    """Bring a deleted role back."""

    role: Role

    def __str__(self) -> str:
        return f"restore the role {self.role.id}, which was deleted"


@dataclass(frozen=True, slots=True)
class SetRole(Free):
    """Write its permissions and buckets anew."""

    role: Role

    def __str__(self) -> str:
        buckets = f", for {', '.join(self.role.buckets)}" if self.role.buckets else ""
        return f"write the role {self.role.id} anew: docs/permissions{buckets}"


@dataclass(frozen=True, slots=True)
class MakeAccount(Free):
    """A service account without keys."""

    account: Account

    def __str__(self) -> str:
        return f"make the service account {self.account.email}"


@dataclass(frozen=True, slots=True)
class Bind(Free):
    """Give an account a role."""

    binding: Binding

    def __str__(self) -> str:
        return f"give {self.binding}"


@dataclass(frozen=True, slots=True)
class MakeFileSystem:
    """`state`: of the one that is there and not ready; "" for none."""

    file_system: FileSystem
    state: str = ""

    @property
    def cost(self) -> str:
        """Not a number: prices differ by region, and change."""
        return _FILESTORE_COST

    def __str__(self) -> str:
        return f"make the Filestore instance {self.file_system.name} ({self.file_system.zone})"


@dataclass(frozen=True, slots=True)
class MakeBucket:
    """Closed, with its labels from the first moment."""

    bucket: Bucket

    @property
    def cost(self) -> str:
        """Not a number: prices differ by region, and change."""
        return _STORAGE_COST

    def __str__(self) -> str:
        return f"make the bucket {self.bucket.name} ({self.bucket.region})"


@dataclass(frozen=True, slots=True)
class CloseBucket(Free):
    """Whatever a policy says."""

    bucket: Bucket

    def __str__(self) -> str:
        return f"close the bucket {self.bucket.name} to the public"


@dataclass(frozen=True, slots=True)
class Unbind(Free):
    """Take a role from an account."""

    binding: Binding

    def __str__(self) -> str:
        return f"take from {self.binding}"


@dataclass(frozen=True, slots=True)
class Delete(Free):
    """Delete one thing. `state`: of a file system."""

    kind: str
    name: str
    zone: str = ""
    state: str = ""

    def __str__(self) -> str:
        inside = " with all objects in it" if self.kind == BUCKET else ""
        return f"delete the {self.kind} {self.name}{f' ({self.zone})' if self.zone else ''}{inside}"


RULE, ROLE, ACCOUNT, FILE_SYSTEM = "firewall rule", "role", "service account", "Filestore instance"
BUCKET = "bucket"

MakeRoles: TypeAlias = MakeRole | RestoreRole | SetRole
MakeInStorage: TypeAlias = MakeBucket | CloseBucket
Make: TypeAlias = MakeRule | SetRule | MakeRoles | MakeAccount | MakeInStorage | Bind | MakeFileSystem

# -- making ------------------------------------------------------------------------------------------------


def missing(wanted: Wanted, facts: Facts, owner: Owner) -> Plan:
    """What is to be made, in order: what others need comes first, what costs money last."""
    problems = list(_problems(wanted, facts, owner))
    if problems:
        return Plan(problems=tuple(problems))
    steps: list[Make] = []
    for rule in wanted.rules:
        steps += _rule(rule, facts)
    for role in wanted.roles:
        steps += _role(role, facts)
    there = {each.email for each in facts.accounts}
    steps += [MakeAccount(each) for each in wanted.accounts if each.email not in there]
    # A role is given on a bucket that is there.
    for bucket in wanted.buckets:
        steps += _bucket(bucket, facts, owner)
    steps += [Bind(each) for each in wanted.bindings if each not in facts.bindings]
    for system in wanted.file_systems:
        found = next((each for each in facts.file_systems if _same(each, system)), None)
        if found is None or found.state != READY:
            steps.append(MakeFileSystem(system, found.state if found else ""))
    return Plan(tuple(steps))


def _bucket(bucket: Bucket, facts: Facts, owner: Owner) -> Iterator[Make]:
    """One that is there and not ours is a person's own, and is used as it is."""
    found = next((each for each in facts.buckets if each.name == bucket.name), None)
    if found is None:
        yield MakeBucket(bucket)
    elif found.owner == owner and not found.closed:
        yield CloseBucket(bucket)


def _rule(rule: Rule, facts: Facts) -> Iterator[Make]:
    found = next((each for each in facts.rules if each.rule.name == rule.name), None)
    if found is None:
        yield MakeRule(rule)
        return
    sources = (*found.rule.sources, *(each for each in rule.sources if each not in found.rule.sources))
    whole = replace(rule, sources=sources if rule.sources else ())
    if not found.plain or found.rule != whole:
        yield SetRule(whole)


def _role(role: Role, facts: Facts) -> Iterator[Make]:
    found = next((each for each in facts.roles if each.id == role.id), None)
    if found is None:
        yield MakeRole(role)
        return
    if found.deleted:
        yield RestoreRole(role)
    buckets = (*found.buckets, *(each for each in role.buckets if each not in found.buckets))
    if (found.permissions, found.buckets) != (role.permissions, buckets):
        yield SetRole(replace(role, buckets=buckets))


def _problems(wanted: Wanted, facts: Facts, owner: Owner) -> Iterator[str]:
    """What has a name of ours, and not our mark; and what cannot be put right."""
    for found, names in (
        (facts.rules, {each.name for each in wanted.rules}),
        (facts.roles, {each.id for each in wanted.roles}),
        (facts.accounts, {each.email for each in wanted.accounts}),
    ):
        yield from (_not_ours(each) for each in found if each.owner != owner and _name(each) in names)
    networks = {each.name: each.network for each in wanted.rules}
    for rule in facts.rules:
        network = networks.get(rule.rule.name, rule.rule.network)
        if rule.owner == owner and rule.rule.network != network:
            yield f"{rule} is of the network {rule.rule.network}, and not of {network}: delete it, and repeat"
    for system in wanted.file_systems:
        for each in facts.file_systems:
            if not _same(each, system):
                continue
            if each.owner != owner:
                yield _not_ours(each)
            elif each.state in {"ERROR", "SUSPENDED"}:
                yield f"{each} is in the state {each.state}: look at it in the console, or delete it, and repeat"


def _same(found: FoundFileSystem, system: FileSystem) -> bool:
    return (found.region, found.name) == (system.region, system.name)


def _name(found: Found) -> str:
    match found:
        case FoundRule():
            return found.rule.name
        case FoundRole():
            return found.id
        case FoundAccount():
            return found.email
        case FoundFileSystem():
            return found.name


def _not_ours(found: Found) -> str:
    unmarked = "its description names no owner"
    if isinstance(found, FoundRole) and found.deleted:
        kept = "and its name stays taken for weeks; nothing was made: give --cluster another name"
        return f"{whose(found, unmarked)}, {kept}"
    return not_ours(found, unmarked)


# -- deleting ----------------------------------------------------------------------------------------------


def remaining(facts: Facts, owner: Owner, *, with_data: bool) -> Plan:
    """What is to be deleted, in order: a role is taken from accounts before either goes, or the policy keeps a member
    that no one can name."""
    systems = [each for each in facts.file_systems if each.owner == owner]
    steps: list[Delete | Unbind] = [Delete(RULE, each.rule.name) for each in facts.rules if each.owner == owner]
    mine = {each.id for each in facts.roles if each.owner == owner}
    bound = [each for each in facts.bindings if each.role.rpartition("/")[2] in mine]
    steps += [Unbind(each) for each in sorted(bound, key=str)]
    steps += [Delete(ACCOUNT, each.email) for each in facts.accounts if each.owner == owner]
    steps += [Delete(ROLE, each.id) for each in facts.roles if each.owner == owner and not each.deleted]
    data = [Delete(FILE_SYSTEM, each.name, each.zone, each.state) for each in systems]
    going = [each for each in data if each.state == GOING]
    buckets = [each for each in facts.buckets if each.owner == owner]
    data += [Delete(BUCKET, each.name) for each in buckets]
    staying = [*(each for each in systems if each.state != GOING), *buckets]
    left = [
        f"{each} stays with its data, which is billed: --with-data deletes it for ever"
        for each in staying
        if not with_data
    ]
    left += _left(facts, owner)
    return Plan((*steps, *(data if with_data else going)), left=tuple(left))


def _left(facts: Facts, owner: Owner) -> list[str]:
    roles = [each for each in facts.roles if not each.deleted]
    found: list[Found] = [*facts.rules, *roles, *facts.accounts, *facts.file_systems]
    return left_alone(found, owner, "mark")
