"""What an installation needs in an Azure subscription, from its settings and the person's wish. Pure.

Role definitions and assignments have no tags. A definition's id follows from its owner, and its description names the
owner; an assignment belongs to whom its principal, an identity with our tags, belongs to.

Sources: "Azure custom roles" (names are unique in the directory), "Delegate Azure access management to others"
(conditions of roleAssignments/write), "Network security groups" (rules are of one address family; Azure's own rules let
machines of one network reach each other), "NFS Azure file shares" (premium accounts only, from chosen networks only,
without secure transfer), "Storage account overview" (names: 3 to 24 lower-case letters and digits, unique in all of
Azure).
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from provisioners.account import Found, Resource, Wish, by_family, joined, login_sources
from provisioners.azure.settings import AzureSettings
from provisioners.base import Owner, ProvisionerError

GROUP, RULE, NETWORK = "network security group", "rule", "virtual network"
STORAGE, INSIDE, SUBNET = "storage account", "share or container", "subnet"
IDENTITY, ROLE, GRANT = "managed identity", "role", "role assignment"

SUBNET_NAME = "nodes"
SHARE = "share"
SHARE_GIB = 100  # the smallest of a premium account
# The service endpoint of a subnet, or the one for all regions: a storage account admits a subnet only with one.
ENDPOINT = "Microsoft.Storage"
ENDPOINTS = frozenset({ENDPOINT, "Microsoft.Storage.Global"})
FILES, BLOBS = "FileStorage", "StorageV2"  # kinds of storage accounts
# Of a network of our own, to which no other one is connected.
ADDRESSES = "10.222.0.0/16"
_IDS = uuid.UUID("0d3cb6f5-6a41-5a4e-8a5c-7f5b3cf0c9a1")
_URL = re.compile(r"abfs://([a-z0-9][a-z0-9-]{1,61}[a-z0-9])@([a-z0-9]{3,24})\.dfs\.core\.windows\.net(?:/.*)?")
_FILES_COST = f"Azure Files bills all {SHARE_GIB} GiB of a share, by the hour, used or not"
_BLOBS_COST = "Azure bills blobs by what is stored and read"
FIRST_PRIORITY, MAX_PRIORITY = 200, 4096  # of inbound rules; Azure's own follow
RULES = ("spotsup-ssh", "spotsup-ssh6")
DAEMON, READING, NODE, CHECKPOINTS = "daemon", "reading", "node", "checkpoints"
ROLES = (DAEMON, READING, NODE, CHECKPOINTS)
_FILES = {
    DAEMON: "azure-role.json",
    READING: "azure-subscription-role.json",
    NODE: "azure-node-role.json",
    CHECKPOINTS: "azure-checkpoints-role.json",
}
_TITLES = {
    DAEMON: "the daemon",
    READING: "the daemon, reading",
    NODE: "a node, for itself alone",
    CHECKPOINTS: "nodes, for checkpoints",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule of a security group lets in. `plain`: whether nothing else is in it."""

    port: int
    sources: tuple[str, ...]
    plain: bool = True

    def __str__(self) -> str:
        return f"TCP port {self.port} from {', '.join(self.sources)}"


@dataclass(frozen=True, slots=True)
class Role:
    """What a role lets do, and where it may be assigned: in lower case."""

    actions: frozenset[str] = field(repr=False)
    data_actions: frozenset[str] = field(repr=False)
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """A role for an identity of ours, by its name. `condition`: which assignments it may make; "" for no condition."""

    role: str
    identity: str
    scope: str
    condition: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Storage:
    """What a storage account is made for: one NFS share or container. `subnet`: the one that it admits; "" for any
    network, as for checkpoints, which an identity protects."""

    region: str
    kind: str
    inside: str
    subnet: str = ""


# -- each kind, as wanted and as found ---------------------------------------------------------------------


def group(name: str, region: str) -> Resource:
    """Return a network security group. Names are unique in the resource group, wherever a thing is."""
    return Resource(GROUP, name, given=region, detail=f" ({region})")


def admitting(of: Resource, name: str, rule: Rule) -> Resource:
    """Return a rule that lets SSH in."""
    text = f"let the {of.kind} {of.name} ({of.given}) admit {rule}"
    return Resource(RULE, name, of=of, has=rule, make_text=text)


def with_sources(what: Resource, found: Found) -> Resource:
    """Return the rule as it should be: further sources that someone has added stay."""
    sources = joined(found.what.has.sources, what.has.sources)
    return admitting(what.whole, what.name, replace(what.has, sources=sources))


def priority_of(name: str, taken: Mapping[str, int]) -> int:
    """Return the priority of a rule of ours: its own, or one that no inbound rule has, not even the other one of
    ours."""
    taken = dict(taken)
    for each in RULES:
        free = (number for number in range(FIRST_PRIORITY, MAX_PRIORITY) if number not in taken.values())
        taken.setdefault(each, next(free))
    return taken[name]


def virtual_network(name: str, region: str) -> Resource:
    """Return a virtual network with one subnet."""
    return Resource(NETWORK, name, given=region, detail=f" ({region}) with one subnet")


def identity(name: str, region: str = "") -> Resource:
    """Return a user-assigned managed identity."""
    return Resource(IDENTITY, name, given=region)


def role(owner: Owner, use: str, has: Role | None = None) -> Resource:
    """Return a role definition. Names are unique in the directory, which several subscriptions share."""
    return Resource(ROLE, repr(f"spotsup {owner.cluster} {owner.digest}: {_TITLES[use]}"), has=has, given=use)


def granted(settings: AzureSettings, owner: Owner, grant: Grant) -> Resource:
    """Return a role assignment: it belongs to its identity. Azure gives ids back in other letters than it got them."""
    known = {_guid(role_id(settings, owner, use)): role(owner, use) for use in ROLES}
    of, guid = known.get(_guid(grant.role)), _guid(grant.role)
    title = of.name if of else "another role"
    return Resource(
        *(GRANT, f"{guid} {''.join(grant.condition.split())}", grant.scope.lower()),
        of=identity(grant.identity),
        given=grant,
        needs=(of.key,) if of else (),
        make_text=f"give {grant.identity} the role {title} on {grant.scope}",
        delete_text=f"delete the role assignment of {title} on {grant.scope}",
    )


def _guid(role: str) -> str:
    return role.lower().rpartition("/")[2]


def storage(name: str, given: Storage, *, is_open: bool = True) -> Resource:
    """Return a storage account. `is_open`: whether nodes can mount from it, if they are to."""
    return Resource(STORAGE, name, has=is_open, given=given, detail=f" ({given.region})")


def opened(what: Resource, _found: Found) -> Resource:
    """Return the account as it should be: NFS knows no secure transfer and no identity, so that it takes a subnet's
    word."""
    text = f"let nodes in {what.given.subnet} mount from the storage account {what.name}, by NFS"
    return replace(what, make_text=text)


def content(of: Resource, *, fits: bool = True) -> Resource:
    """Return the share, or the container, in a storage account of ours. `fits`: whether it is for NFS, if it has to
    be."""
    files, name = of.given.kind == FILES, of.given.inside
    kind = f"the NFS share {name} of {SHARE_GIB} GiB" if files else f"the container {name}"
    text, cost = f"make {kind} in the storage account {of.name}", _FILES_COST if files else _BLOBS_COST
    return Resource(INSIDE, name, of=of, has=fits, make_text=text, cost=cost)


# -- names and ids -----------------------------------------------------------------------------------------


def called(cluster: str, use: str) -> str:
    """Return what a thing is called: by its use, or its region. The cluster's name has at most 31 characters of
    [a-z0-9-]."""
    return f"spotsup-{cluster}-{use}"


def subscription_of(settings: AzureSettings) -> str:
    """Return the subscription as a scope."""
    return f"/subscriptions/{settings.subscription}"


def group_of(settings: AzureSettings) -> str:
    """Return the resource group as a scope."""
    return f"{subscription_of(settings)}/resourceGroups/{settings.resource_group}"


def role_id(settings: AzureSettings, owner: Owner, use: str) -> str:
    """Return a role definition's resource id: always the same."""
    name = uuid.uuid5(_IDS, f"{settings.subscription}\n{settings.resource_group.lower()}\n{owner.digest}\n{use}")
    return f"{subscription_of(settings)}/providers/Microsoft.Authorization/roleDefinitions/{name}"


def path_of(role: str, scope: str) -> str:
    """Return where a role definition is read, written and deleted."""
    return f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{role.rpartition('/')[2]}"


def scope_of(settings: AzureSettings, use: str) -> str:
    """Return where a role may be assigned: the storage account of checkpoints may be in another resource group."""
    return subscription_of(settings) if use in {READING, CHECKPOINTS} else group_of(settings)


def storage_path(settings: AzureSettings, name: str) -> str:
    """Return a storage account of ours, in the resource group."""
    return f"{group_of(settings)}/providers/Microsoft.Storage/storageAccounts/{name}"


def files_name(settings: AzureSettings, owner: Owner, region: str) -> str:
    """Return what the storage account of a region's share is called: always the same, and no one else's."""
    whose = f"{settings.subscription}\n{settings.resource_group.lower()}\n{owner.digest}\n{region}"
    return f"spotsup{hashlib.sha256(whose.encode()).hexdigest()[:17]}"


def subnet_of(settings: AzureSettings, owner: Owner, region: str) -> str:
    """Return the subnet of a region's nodes: the configured one, or that of a network of ours."""
    return settings.subnets.get(region) or subnet_id(settings, called(owner.cluster, region))


def assignment_name(role: str, principal: str, scope: str) -> str:
    """Return an assignment's name: always the same. Of an identity that was made anew, another one: Azure changes no
    principal."""
    return str(uuid.uuid5(_IDS, f"{role}\n{principal}\n{scope}".lower()))


def wanted(settings: AzureSettings, wish: Wish, container: str, *, is_there: bool) -> list[Resource]:
    """Return what there should be, in order. `container`: the scope of the checkpoints' container, "" for none;
    `is_there`: whether it is someone else's, and nothing is to be made. Raises ProvisionerError for what cannot be
    fulfilled."""
    rules = [
        (f"spotsup-ssh{family}", Rule(settings.ssh_port, sources)) for family, sources in by_family(login_sources(wish))
    ]
    found, networks = list[Resource](), list[Resource]()
    for region in settings.regions:
        name = called(wish.owner.cluster, region)
        made = group(name, region)
        found += [made, *(admitting(made, *each) for each in rules)]
        if settings.subnets.get(region, "").lower() in {"", subnet_id(settings, name).lower()}:
            networks.append(virtual_network(name, region))
    if networks and not (settings.etcd_by_ssh and settings.public_address):
        region = networks[0].given
        raise ProvisionerError(
            f"azure.subnets.{region} names no subnet: give one of the network of the daemon's host "
            f"(--set subnets.{region}=/subscriptions/…), for it and nodes reach each other there. Only for nodes with "
            "public addresses and reach=ssh a network is made"
        )
    found += networks
    if wish.checkpoints and not is_there:
        # A role is given on a container that is there.
        account, container_name = container_of(wish.checkpoints)
        found += _stored(account, Storage(settings.regions[0], BLOBS, container_name))
    found += _identities(settings, wish, container)
    for region in settings.regions if wish.shared_storage else ():
        given = Storage(region, FILES, SHARE, subnet_of(settings, wish.owner, region))
        found += _stored(files_name(settings, wish.owner, region), given)
    return found


def _stored(name: str, given: Storage) -> list[Resource]:
    made = storage(name, given)
    return [made, content(made)]


def subnet_id(settings: AzureSettings, network: str) -> str:
    """Return the resource id of a network of ours' one subnet."""
    return f"{group_of(settings)}/providers/Microsoft.Network/virtualNetworks/{network}/subnets/{SUBNET_NAME}"


def _identities(settings: AzureSettings, wish: Wish, container: str) -> Iterator[Resource]:
    daemon, node = called(wish.owner.cluster, DAEMON), called(wish.owner.cluster, NODE)
    identities, uses, grants, region = list[Resource](), list[str](), list[Grant](), settings.regions[0]
    ids = {use: role_id(settings, wish.owner, use) for use in ROLES}
    if wish.checkpoints:
        ours = f"{group_of(settings)}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{node}"
        if settings.identity.lower() not in {"", ours.lower()}:
            raise ProvisionerError(
                f"nodes have the identity {settings.identity} already: give it what "
                "docs/permissions/azure-checkpoints-role.json lists, and do not ask for one for checkpoints"
            )
        identities.append(identity(node, region))
        uses.append(CHECKPOINTS)
        grants.append(Grant(ids[CHECKPOINTS], node, container))
    if wish.host_identity:
        if settings.dead_man_role.lower() not in {"", ids[NODE].lower()}:
            raise ProvisionerError(
                f"azure.dead_man_role is {settings.dead_man_role} already: take it out, so that init makes one"
            )
        identities.append(identity(daemon, region))
        uses += [NODE, DAEMON, READING]
        grants.append(Grant(ids[DAEMON], daemon, group_of(settings), _only(ids[NODE])))
        grants.append(Grant(ids[READING], daemon, subscription_of(settings)))
    yield from identities
    for use in uses:
        text: Mapping[str, Any] = json.loads(wish.permissions[_FILES[use]])
        actions, data = frozenset(text["Actions"]), frozenset(text.get("DataActions", ()))
        yield role(wish.owner, use, Role(actions, data, (scope_of(settings, use).lower(),)))
    yield from (granted(settings, wish.owner, each) for each in grants)


def _only(role: str) -> str:
    """Return the condition that lets an identity assign this role, and no other one."""
    action, name = "Microsoft.Authorization/roleAssignments/write", role.rpartition("/")[2]
    asked = "@Request[Microsoft.Authorization/roleAssignments:RoleDefinitionId]"
    return f"((!(ActionMatches{{'{action}'}})) OR ({asked} ForAnyOfAnyValues:GuidEquals {{{name}}}))"


def container_path(account: str, name: str) -> str:
    """Return a container's resource id. `account`: the storage account's."""
    return f"{account}/blobServices/default/containers/{name}"


def content_path(account: str, given: Storage) -> str:
    """Return the resource id of the share or the container of an account."""
    share = f"{account}/fileServices/default/shares/{given.inside}"
    return share if given.kind == FILES else container_path(account, given.inside)


def container_of(url: str) -> tuple[str, str]:
    """(storage account, container) of an address. A prefix is not enforced. Raises ProvisionerError."""
    match = _URL.fullmatch(url)
    if not match:
        raise ProvisionerError(
            f"{url!r} is no container of Azure: write abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
        )
    return match[2], match[1]
