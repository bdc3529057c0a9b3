"""Which steps lead from what is in the resource group to what should be, or to nothing. Pure.

What has our tags is taken as it is, and put right where it differs; what has our name without our tags belongs to
someone else, and nothing is done. Further sources that someone has added to a rule of ours stay, and so do other rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from provisioners.account import Free, Plan, left_alone, not_ours
from provisioners.azure.account.wanted import (
    ENDPOINT,
    ENDPOINTS,
    FILES,
    SHARE_GIB,
    Grant,
    Group,
    Identity,
    Network,
    Role,
    Rule,
    Storage,
    Wanted,
)
from provisioners.base import Owner

FIRST_PRIORITY, MAX_PRIORITY = 200, 4096  # of inbound rules; Azure's own follow
GOING, READY = "Deleting", "Succeeded"
_FILES_COST = f"Azure Files bills all {SHARE_GIB} GiB of a share, by the hour, used or not"
_BLOBS_COST = "Azure bills blobs by what is stored and read"
_BROKEN = frozenset({"Failed", "Canceled"})


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A security group. `rules`: inbound ones of ours by name, each with whether it is as we write it; `taken`: the
    priorities of all inbound ones by name."""

    region: str
    name: str
    owner: Owner
    state: str = "Succeeded"
    rules: Mapping[str, tuple[Rule, bool]] = field(default_factory=dict)
    taken: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the network security group {self.name} ({self.region})"


@dataclass(frozen=True, slots=True)
class FoundNetwork:
    """A virtual network."""

    region: str
    name: str
    owner: Owner
    state: str = "Succeeded"

    def __str__(self) -> str:
        return f"the virtual network {self.name} ({self.region})"


@dataclass(frozen=True, slots=True)
class FoundIdentity:
    """A managed identity."""

    name: str
    owner: Owner
    principal: str = ""
    client: str = ""

    def __str__(self) -> str:
        return f"the managed identity {self.name}"


@dataclass(frozen=True, slots=True)
class FoundRole:
    """A role definition. `path`: where it is read and deleted."""

    id: str
    path: str
    name: str
    owner: Owner
    actions: frozenset[str] = frozenset()
    data_actions: frozenset[str] = frozenset()
    scopes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"the role {self.name!r}"


@dataclass(frozen=True, slots=True)
class FoundGrant:
    """A role assignment. `id`: its resource id."""

    id: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class FoundStorage:
    """A storage account. `open`: whether it takes requests without TLS, which NFS needs; `closed`: whether it admits
    only `subnets`; `inside`: the share or container of ours, and whether that is as wanted."""

    region: str
    name: str
    id: str
    owner: Owner
    state: str = READY
    open: bool = True
    closed: bool = True
    subnets: frozenset[str] = frozenset()  # in lower case
    inside: Mapping[str, bool] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"the storage account {self.name} ({self.region})"


@dataclass(frozen=True, slots=True)
class FoundSubnet:
    """A subnet of nodes that are to mount a share."""

    id: str
    endpoints: frozenset[str] = frozenset()


Found: TypeAlias = FoundGroup | FoundNetwork | FoundIdentity | FoundRole | FoundStorage


@dataclass(frozen=True, slots=True)
class Facts:
    """What is there: under our names, and also with our tags. `grants`: those of identities of ours."""

    groups: tuple[FoundGroup, ...] = ()
    networks: tuple[FoundNetwork, ...] = ()
    identities: tuple[FoundIdentity, ...] = ()
    roles: tuple[FoundRole, ...] = ()
    grants: tuple[FoundGrant, ...] = ()
    storage: tuple[FoundStorage, ...] = ()
    subnets: tuple[FoundSubnet, ...] = ()


# -- steps -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MakeGroup(Free):
    """A security group without rules but Azure's own."""

    group: Group

    def __str__(self) -> str:
        return f"make the network security group {self.group.name} ({self.group.region})"


@dataclass(frozen=True, slots=True)
class SetRule(Free):
    """One rule, at a priority that is free."""

    group: str
    region: str
    rule: Rule
    priority: int

    def __str__(self) -> str:
        return f"let the network security group {self.group} ({self.region}) admit {self.rule}"


@dataclass(frozen=True, slots=True)
class MakeNetwork(Free):
    """A virtual network and its subnet."""

    network: Network

    def __str__(self) -> str:
        return f"make the virtual network {self.network.name} ({self.network.region}) with one subnet"


@dataclass(frozen=True, slots=True)
class MakeIdentity(Free):
    """A managed identity."""

    identity: Identity

    def __str__(self) -> str:
        return f"make the managed identity {self.identity.name}"


@dataclass(frozen=True, slots=True)
class SetRole(Free):
    """Write a role, or write it anew."""

    role: Role
    again: bool

    def __str__(self) -> str:
        return f"{'write' if self.again else 'make'} the role {self.role.name!r}{' anew' if self.again else ''}"


@dataclass(frozen=True, slots=True)
class Assign(Free):
    """Give an identity a role."""

    grant: Grant
    role: str  # its name, for people

    def __str__(self) -> str:
        return f"give {self.grant.identity} the role {self.role!r} on {self.grant.scope}"


@dataclass(frozen=True, slots=True)
class MakeStorage(Free):
    """A storage account. `state`: of the one that is there and not ready; "" for none."""

    storage: Storage
    state: str = ""

    def __str__(self) -> str:
        return f"make the storage account {self.storage.name} ({self.storage.region})"


@dataclass(frozen=True, slots=True)
class OpenStorage(Free):
    """Let nodes mount it: NFS knows no secure transfer and no identity, so that it takes a subnet's word."""

    storage: Storage

    def __str__(self) -> str:
        return f"let nodes in {self.storage.subnet} mount from the storage account {self.storage.name}, by NFS"


@dataclass(frozen=True, slots=True)
class MakeInside:
    """The share, or the container, in a storage account of ours."""

    storage: Storage

    @property
    def cost(self) -> str:
        """Not a number: prices differ by region, and change."""
        return _FILES_COST if self.storage.kind == FILES else _BLOBS_COST

    def __str__(self) -> str:
        kind = f"the NFS share {self.storage.inside} of {SHARE_GIB} GiB" if self.storage.kind == FILES else ""
        return f"make {kind or f'the container {self.storage.inside}'} in the storage account {self.storage.name}"


@dataclass(frozen=True, slots=True)
class Delete(Free):
    """Delete one thing. `id`: the resource's, or its name in the resource group."""

    kind: str
    id: str
    name: str
    state: str = ""

    def __str__(self) -> str:
        return f"delete the {self.kind} {self.name}"


GROUP, NETWORK = "network security group", "virtual network"
IDENTITY, ROLE, ASSIGNMENT = "managed identity", "role", "role assignment"
STORAGE = "storage account"

Make: TypeAlias = (
    MakeGroup | SetRule | MakeNetwork | MakeStorage | OpenStorage | MakeInside | MakeIdentity | SetRole | Assign
)

# -- making ------------------------------------------------------------------------------------------------


def missing(wanted: Wanted, facts: Facts, owner: Owner) -> Plan:
    """What is to be made, in order: what others need comes first, what costs most last."""
    problems = list(_problems(wanted, facts, owner))
    if problems:
        return Plan(problems=tuple(problems))
    steps: list[Make] = []
    for group in wanted.groups:
        steps += _group(group, facts)
    networks = {each.name: each for each in facts.networks}
    for network in wanted.networks:
        there = networks.get(network.name)
        steps += [] if there and there.state != GOING else [MakeNetwork(network)]
    # A role is given on a container that is there.
    files = [each for each in wanted.storage if each.kind == FILES]
    for storage in (each for each in wanted.storage if each.kind != FILES):
        steps += _storage(storage, facts)
    identities = {each.name: each for each in facts.identities}
    steps += [MakeIdentity(each) for each in wanted.identities if each.name not in identities]
    roles = {each.id.lower(): each for each in facts.roles}
    for role in wanted.roles:
        found = roles.get(role.id.lower())
        if found is None or not _is_same(found, role):
            steps.append(SetRole(role, again=found is not None))
    granted = {_key(each.grant) for each in facts.grants}
    titles = {each.id: each.name for each in wanted.roles}
    steps += [Assign(each, titles[each.role]) for each in wanted.grants if _key(each) not in granted]
    for storage in files:
        steps += _storage(storage, facts)
    return Plan(tuple(steps))


def _storage(storage: Storage, facts: Facts) -> Iterator[Make]:
    found = next((each for each in facts.storage if each.name == storage.name), None)
    if found is None or found.state != READY:
        yield MakeStorage(storage, found.state if found else "")
    elif storage.kind == FILES and not (found.open and found.closed and storage.subnet.lower() in found.subnets):
        yield OpenStorage(storage)
    if found is None or storage.inside not in found.inside:
        yield MakeInside(storage)


def _key(grant: Grant) -> tuple[str, str, str, str]:
    """Azure gives ids back in other letters than it got them."""
    return grant.role.lower().rpartition("/")[2], grant.identity, grant.scope.lower(), "".join(grant.condition.split())


def _is_same(found: FoundRole, role: Role) -> bool:
    scopes = tuple(each.lower() for each in found.scopes)
    same = (found.actions, found.data_actions) == (role.actions, role.data_actions)
    return same and scopes == (role.scope.lower(),)


def _group(group: Group, facts: Facts) -> Iterator[Make]:
    found = next((each for each in facts.groups if each.name == group.name), None)
    if found is None or found.state == GOING:
        yield MakeGroup(group)
    rules = found.rules if found else {}
    taken = dict(found.taken) if found else {}
    for rule in group.rules:
        have, plain = rules.get(rule.name, (Rule(rule.name, 0, ()), False))
        sources = (*have.sources, *(each for each in rule.sources if each not in have.sources))
        whole = Rule(rule.name, rule.port, sources)
        priority = taken.get(rule.name) or next(
            each for each in range(FIRST_PRIORITY, MAX_PRIORITY) if each not in taken.values()
        )
        taken[rule.name] = priority
        if not plain or have != whole:
            yield SetRule(group.name, group.region, whole, priority)


def _problems(wanted: Wanted, facts: Facts, owner: Owner) -> Iterator[str]:
    """What has a name of ours, and not our tags."""
    names = {each.name for part in (wanted.groups, wanted.networks, wanted.identities) for each in part}
    names |= {each.name for each in wanted.storage}
    ids = {each.id.lower() for each in wanted.roles}
    things: list[FoundGroup | FoundNetwork | FoundIdentity | FoundStorage] = [
        *facts.groups,
        *facts.networks,
        *facts.identities,
        *facts.storage,
    ]
    for found in things:
        if found.owner != owner and found.name in names:
            yield _not_ours(found)
    for role in facts.roles:
        if role.owner != owner and role.id.lower() in ids:
            yield _not_ours(role)
    regions = {each.name: each.region for each in wanted.groups} | {each.name: each.region for each in wanted.networks}
    placed: list[FoundGroup | FoundNetwork | FoundStorage] = [*facts.groups, *facts.networks, *facts.storage]
    for there in placed:
        if there.owner == owner and there.state in _BROKEN:
            # To write it again would take away the rules that others have added.
            yield f"{there} is in the state {there.state}: look at it in the portal, or delete it, and repeat"
        if there.owner == owner and regions.get(there.name, there.region) != there.region:
            yield f"{there} is not in {regions[there.name]}: delete it, and repeat"
    yield from _problems_of_storage(wanted, facts, owner)


def _problems_of_storage(wanted: Wanted, facts: Facts, owner: Owner) -> Iterator[str]:
    for storage in wanted.storage:
        for found in facts.storage:
            if found.name == storage.name and found.owner == owner and not found.inside.get(storage.inside, True):
                yield f"the share {storage.inside} in {found} is not one for NFS: delete it, and repeat"
    needed = {each.subnet.lower() for each in wanted.storage if each.subnet}
    for subnet in facts.subnets:
        if subnet.id.lower() in needed and not subnet.endpoints & ENDPOINTS:
            # It interrupts what goes on between the subnet and storage ("Virtual network service endpoints").
            kept = " ".join(sorted(subnet.endpoints | {ENDPOINT}))
            command = f"az network vnet subnet update --ids {subnet.id} --service-endpoints {kept}"
            yield f"the subnet {subnet.id} has no service endpoint {ENDPOINT}, by which nodes mount: `{command}`"


def _not_ours(found: Found) -> str:
    return not_ours(found, "nothing names its owner")


# -- deleting ----------------------------------------------------------------------------------------------


def remaining(facts: Facts, owner: Owner, *, with_data: bool) -> Plan:
    """What is to be deleted, in order: an identity's roles go before it, or the assignments stay without a name."""
    mine = {each.name for each in facts.identities if each.owner == owner}
    grants = [each for each in facts.grants if each.grant.identity in mine]
    titles = {each.id.lower().rpartition("/")[2]: each.name for each in facts.roles}
    steps = [
        Delete(ASSIGNMENT, each.id, f"of {titles.get(_key(each.grant)[0], 'another role')!r} on {each.grant.scope}")
        for each in sorted(grants, key=lambda each: each.id)
    ]
    steps += [Delete(IDENTITY, each.name, each.name) for each in facts.identities if each.owner == owner]
    steps += [Delete(ROLE, each.path, repr(each.name)) for each in facts.roles if each.owner == owner]
    placed: list[FoundGroup | FoundNetwork] = [*facts.groups, *facts.networks]
    for there in placed:
        kind = GROUP if isinstance(there, FoundGroup) else NETWORK
        if there.owner == owner:
            steps.append(Delete(kind, there.name, f"{there.name} ({there.region})", there.state))
    data = [each for each in facts.storage if each.owner == owner]
    steps += [
        Delete(STORAGE, each.id, f"{each.name} ({each.region})", each.state)
        for each in data
        if with_data or each.state == GOING
    ]
    left = [
        f"{each} stays with its data, which is billed: --with-data deletes it for ever"
        for each in data
        if not with_data and each.state != GOING
    ]
    found: list[Found] = [*facts.groups, *facts.networks, *facts.identities, *facts.roles, *facts.storage]
    return Plan(tuple(steps), left=(*left, *left_alone(found, owner)))
