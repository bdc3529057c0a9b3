"""Which steps lead from what is in the account to what should be, or to nothing. Pure.

What has our tags is taken as it is; what has our name without our tags belongs to someone else, and nothing is done.
Rules that someone has added to a group of ours stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from provisioners.account import Free, Plan, left_alone, not_ours
from provisioners.aws.account.wanted import POLICY, SPOT_ROLE, Bucket, FileSystem, Group, Role, Rule, Wanted
from provisioners.base import Owner

_S3_COST = "S3 bills what is stored, by the month, and each request"
_EFS_COST = "EFS bills what is stored, by the month, and what is read and written, by the GB"


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A security group. The peers of its rules are names where these are groups of ours."""

    region: str
    vpc: str
    name: str
    id: str
    owner: Owner
    rules: frozenset[Rule] = frozenset()

    def __str__(self) -> str:
        return f"the security group {self.name} ({self.id}, {self.region})"


@dataclass(frozen=True, slots=True)
class FoundRole:
    """A role, its inline policies by name."""

    name: str
    owner: Owner
    policies: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the IAM role {self.name}"


@dataclass(frozen=True, slots=True)
class FoundProfile:
    """An instance profile, and the roles in it: one at most."""

    name: str
    owner: Owner
    roles: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"the instance profile {self.name}"


@dataclass(frozen=True, slots=True)
class FoundFileSystem:
    """An EFS file system that is not being deleted; its mount targets' ids by subnet, those that are going included."""

    region: str
    name: str
    id: str
    owner: Owner
    targets: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the EFS file system {self.name} ({self.id}, {self.region})"


@dataclass(frozen=True, slots=True)
class FoundBucket:
    """A bucket. Of ours: whether public access is blocked, and whether uploads that never end are deleted."""

    region: str
    name: str
    owner: Owner
    closed: bool = False
    aborts: bool = False

    def __str__(self) -> str:
        return f"the S3 bucket {self.name} ({self.region})"


Found: TypeAlias = FoundGroup | FoundRole | FoundProfile | FoundFileSystem


@dataclass(frozen=True, slots=True)
class Facts:
    """What is there: under our names, and groups also with our tags."""

    groups: tuple[FoundGroup, ...] = ()
    roles: tuple[FoundRole, ...] = ()
    profiles: tuple[FoundProfile, ...] = ()
    file_systems: tuple[FoundFileSystem, ...] = ()
    has_spot_role: bool = True
    buckets: tuple[FoundBucket, ...] = ()


# -- steps -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakeSpotRole(Free):
    """Once per account, for everyone in it; it belongs to AWS and is never deleted."""

    def __str__(self) -> str:
        return f"make {SPOT_ROLE}, the account's own role for spot machines"


@dataclass(frozen=True, slots=True)
class MakeGroup(Free):
    """A security group without rules but EC2's own: everything out."""

    group: Group

    def __str__(self) -> str:
        return f"make the security group {self.group.name} in {self.group.vpc} ({self.group.region})"


@dataclass(frozen=True, slots=True)
class Allow(Free):
    """One rule."""

    group: Group
    rule: Rule

    def __str__(self) -> str:
        return f"let the security group {self.group.name} ({self.group.region}) have {self.rule}"


@dataclass(frozen=True, slots=True)
class MakeRole(Free):
    """A role that instances may take."""

    role: Role

    def __str__(self) -> str:
        return f"make the IAM role {self.role.name}"


@dataclass(frozen=True, slots=True)
class SetPolicy(Free):
    """Write the role's policy, or write it anew."""

    role: Role
    again: bool

    def __str__(self) -> str:
        done = "write anew" if self.again else "write"
        return f"{done} the policy {POLICY} of the role {self.role.name}: docs/permissions"


@dataclass(frozen=True, slots=True)
class MakeProfile(Free):
    """The instance profile of a role."""

    name: str

    def __str__(self) -> str:
        return f"make the instance profile {self.name}"


@dataclass(frozen=True, slots=True)
class JoinProfile(Free):
    """Put the role into its profile."""

    name: str

    def __str__(self) -> str:
        return f"put the role {self.name} into its instance profile"


@dataclass(frozen=True, slots=True)
class MakeBucket:
    """Private: the account's identities alone, by policies."""

    bucket: Bucket

    @property
    def cost(self) -> str:
        """Not a number: prices differ by region, and change."""
        return _S3_COST

    def __str__(self) -> str:
        return f"make the S3 bucket {self.bucket.name} ({self.bucket.region})"


@dataclass(frozen=True, slots=True)
class CloseBucket(Free):
    """Whatever a policy says."""

    bucket: Bucket

    def __str__(self) -> str:
        return f"block public access to the S3 bucket {self.bucket.name}"


@dataclass(frozen=True, slots=True)
class AbortUploads(Free):
    """A save that a preemption interrupts leaves parts, which are billed and which nobody sees."""

    bucket: Bucket

    def __str__(self) -> str:
        return f"let the S3 bucket {self.bucket.name} delete uploads that never ended"


@dataclass(frozen=True, slots=True)
class MakeFileSystem:
    """Encrypted, and billed by use."""

    file_system: FileSystem

    @property
    def cost(self) -> str:
        """Not a number: prices differ by region, and change."""
        return _EFS_COST

    def __str__(self) -> str:
        return f"make the EFS file system {self.file_system.name} ({self.file_system.region})"


@dataclass(frozen=True, slots=True)
class MakeTarget(Free):
    """A mount target."""

    file_system: FileSystem
    subnet: str

    def __str__(self) -> str:
        return f"make a mount target of {self.file_system.name} in {self.subnet} ({self.file_system.region})"


@dataclass(frozen=True, slots=True)
class Delete(Free):
    """Delete one thing. `kind`: as of `ORDER`; `id`: as its API names it; `inside`: what it belongs to."""

    kind: str
    region: str
    id: str
    name: str
    inside: str = ""

    def __str__(self) -> str:
        place = f" of {self.inside}" if self.inside else ""
        shown = self.name if self.name == self.id else f"{self.name} ({self.id})"
        verb = "take" if self.kind == MEMBER else "delete"
        return f"{verb} the {self.kind} {shown}{place}{' out of its profile' if self.kind == MEMBER else ''}"


TARGET, FILE_SYSTEM, GROUP = "mount target", "EFS file system", "security group"
BUCKET = "S3 bucket"
MEMBER, PROFILE, POLICY_KIND, ROLE = "role", "instance profile", "policy", "IAM role"

MakeInS3: TypeAlias = MakeBucket | CloseBucket | AbortUploads
Make: TypeAlias = (
    MakeSpotRole
    | MakeGroup
    | Allow
    | MakeInS3
    | MakeRole
    | SetPolicy
    | MakeProfile
    | JoinProfile
    | MakeFileSystem
    | MakeTarget
)

# -- making ------------------------------------------------------------------------------------------------


def missing(wanted: Wanted, facts: Facts, owner: Owner) -> Plan:
    """What is to be made, in order: what others need comes first, what costs money last."""
    problems = list(_foreign(wanted, facts, owner))
    if problems:
        return Plan(problems=tuple(problems))
    steps: list[Make] = [] if facts.has_spot_role else [MakeSpotRole()]
    groups = {(each.region, each.vpc, each.name): each for each in facts.groups if each.owner == owner}
    for group in wanted.groups:
        found = groups.get((group.region, group.vpc, group.name))
        steps += [] if found else [MakeGroup(group)]
        have = found.rules if found else frozenset()
        steps += [Allow(group, rule) for rule in group.rules if rule not in have]
    for role in wanted.roles:
        steps += _role(role, facts)
    for bucket in wanted.buckets:
        steps += _bucket(bucket, facts, owner)
    systems = {(each.region, each.name): each for each in facts.file_systems}
    for system in wanted.file_systems:
        there = systems.get((system.region, system.name))
        steps += [] if there else [MakeFileSystem(system)]
        targets = there.targets if there else {}
        steps += [MakeTarget(system, subnet) for subnet in system.subnets if subnet not in targets]
    return Plan(tuple(steps))


def _bucket(bucket: Bucket, facts: Facts, owner: Owner) -> Iterator[Make]:
    """One that is there and not ours is a person's own, and is used as it is."""
    found = next((each for each in facts.buckets if each.name == bucket.name), None)
    if found is not None and found.owner != owner:
        return
    if found is None:
        yield MakeBucket(bucket)
    if found is None or not found.closed:
        yield CloseBucket(bucket)
    if found is None or not found.aborts:
        yield AbortUploads(bucket)


def _role(role: Role, facts: Facts) -> Iterator[Make]:
    found = next((each for each in facts.roles if each.name == role.name), None)
    profile = next((each for each in facts.profiles if each.name == role.name), None)
    if found is None:
        yield MakeRole(role)
    policy = found.policies.get(POLICY) if found else None
    if policy != role.policy:
        yield SetPolicy(role, again=policy is not None)
    if profile is None:
        yield MakeProfile(role.name)
    if profile is None or role.name not in profile.roles:
        yield JoinProfile(role.name)


def _foreign(wanted: Wanted, facts: Facts, owner: Owner) -> Iterator[str]:
    """What has a name of ours, and not our tags."""
    places = {(each.region, each.vpc, each.name) for each in wanted.groups}
    called = {each.name for each in wanted.roles}
    systems = {(each.region, each.name) for each in wanted.file_systems}
    for group in facts.groups:
        if group.owner != owner and (group.region, group.vpc, group.name) in places:
            yield _not_ours(group)
    for role in facts.roles:
        if role.owner != owner and role.name in called:
            yield _not_ours(role)
    for profile in facts.profiles:
        if profile.owner != owner and profile.name in called:
            yield _not_ours(profile)
        elif profile.name in called and set(profile.roles) - {profile.name}:
            yield f"{profile} holds the role {profile.roles[0]}: take it out, and repeat"
    for system in facts.file_systems:
        if system.owner != owner and (system.region, system.name) in systems:
            yield _not_ours(system)


def _not_ours(found: Found) -> str:
    return not_ours(found, "it has no tags")


# -- deleting ----------------------------------------------------------------------------------------------


def remaining(facts: Facts, owner: Owner, *, with_data: bool) -> Plan:
    """What is to be deleted, in order: what uses something goes before it."""
    systems = [each for each in facts.file_systems if each.owner == owner]
    targets = [
        Delete(TARGET, each.region, id_, subnet, each.name)
        for each in systems
        for subnet, id_ in sorted(each.targets.items())
    ]
    buckets = [each for each in facts.buckets if each.owner == owner]
    left = [
        f"{each} stays with its data, which is billed: --with-data deletes it for ever"
        for each in (*systems, *buckets)
        if not with_data
    ]
    data = [Delete(FILE_SYSTEM, each.region, each.id, each.name) for each in systems if with_data]
    data += [
        Delete(BUCKET, each.region, each.name, f"{each.name} with all objects in it") for each in buckets if with_data
    ]
    # A group that a rule of another one names cannot be deleted before that: the file system's names the nodes'.
    ours = sorted((each for each in facts.groups if each.owner == owner), key=_names_others, reverse=True)
    groups = [Delete(GROUP, each.region, each.id, each.name) for each in ours]
    left += _left(facts, owner)
    return Plan((*targets, *data, *groups, *_identities(facts, owner)), left=tuple(left))


def _names_others(group: FoundGroup) -> bool:
    return any(rule.peer != group.name and "/" not in rule.peer for rule in group.rules)


def _identities(facts: Facts, owner: Owner) -> Iterator[Delete]:
    for profile in facts.profiles:
        if profile.owner == owner:
            yield from (Delete(MEMBER, "", role, role, profile.name) for role in profile.roles)
            yield Delete(PROFILE, "", profile.name, profile.name)
    for role in facts.roles:
        if role.owner == owner:
            yield from (Delete(POLICY_KIND, "", policy, policy, role.name) for policy in sorted(role.policies))
            yield Delete(ROLE, "", role.name, role.name)


def _left(facts: Facts, owner: Owner) -> list[str]:
    found: list[Found] = [*facts.groups, *facts.roles, *facts.profiles, *facts.file_systems]
    return left_alone(found, owner)
