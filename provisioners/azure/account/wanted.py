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
import ipaddress
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provisioners.account import Wish
from provisioners.azure.settings import AzureSettings
from provisioners.base import CLUSTER_TAG, KEY_TAG, Owner, ProvisionerError, owner_of

SUBNET = "nodes"
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
_WORD = re.compile(r"(\S+?)=(\S+)")
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


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """A rule of a security group that lets SSH in."""

    name: str
    port: int
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return f"TCP port {self.port} from {', '.join(self.sources)}"


@dataclass(frozen=True, slots=True)
class Group:
    """A network security group."""

    region: str
    name: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Network:
    """A virtual network with one subnet."""

    region: str
    name: str


@dataclass(frozen=True, slots=True)
class Identity:
    """A user-assigned managed identity."""

    region: str
    name: str


@dataclass(frozen=True, slots=True)
class Role:
    """A role definition, and what it lets do."""

    id: str
    name: str
    scope: str  # where it may be assigned
    actions: frozenset[str] = field(repr=False)
    data_actions: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def path(self) -> str:
        """Where it is written: at its scope, and not at the subscription that its id names."""
        return path_of(self.id, self.scope)


@dataclass(frozen=True, slots=True)
class Grant:
    """A role for an identity of ours, by its name. `condition`: which assignments it may make; "" for no condition."""

    role: str
    identity: str
    scope: str
    condition: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage account, and its one NFS share or container. `subnet`: the one that it admits; "" for any network, as
    for checkpoints, which an identity protects."""

    region: str
    name: str
    kind: str
    inside: str
    subnet: str = ""

    @property
    def content(self) -> str:
        """The path below the account of what is inside."""
        return f"fileServices/default/shares/{self.inside}" if self.kind == FILES else _container(self.inside)


@dataclass(frozen=True, slots=True)
class Wanted:
    """All of it."""

    groups: tuple[Group, ...]
    networks: tuple[Network, ...]
    identities: tuple[Identity, ...]
    roles: tuple[Role, ...]
    grants: tuple[Grant, ...]
    storage: tuple[Storage, ...] = ()


def called(cluster: str, use: str) -> str:
    """What a thing is called: by its use, or its region. The cluster's name has at most 31 characters of [a-z0-9-]."""
    return f"spotsup-{cluster}-{use}"


def subscription_of(settings: AzureSettings) -> str:
    """The subscription as a scope."""
    return f"/subscriptions/{settings.subscription}"


def group_of(settings: AzureSettings) -> str:
    """The resource group as a scope."""
    return f"{subscription_of(settings)}/resourceGroups/{settings.resource_group}"


def role_id(settings: AzureSettings, owner: Owner, use: str) -> str:
    """A role definition's resource id: always the same."""
    name = uuid.uuid5(_IDS, f"{settings.subscription}\n{settings.resource_group.lower()}\n{owner.digest}\n{use}")
    return f"{subscription_of(settings)}/providers/Microsoft.Authorization/roleDefinitions/{name}"


def path_of(role: str, scope: str) -> str:
    """Where a role definition is read, written and deleted."""
    return f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{role.rpartition('/')[2]}"


def scope_of(settings: AzureSettings, use: str) -> str:
    """Where a role may be assigned: the storage account of checkpoints may be in another resource group."""
    return subscription_of(settings) if use in {READING, CHECKPOINTS} else group_of(settings)


def storage_path(settings: AzureSettings, name: str) -> str:
    """A storage account of ours, in the resource group."""
    return f"{group_of(settings)}/providers/Microsoft.Storage/storageAccounts/{name}"


def files_name(settings: AzureSettings, owner: Owner, region: str) -> str:
    """What the storage account of a region's share is called: always the same, and no one else's."""
    whose = f"{settings.subscription}\n{settings.resource_group.lower()}\n{owner.digest}\n{region}"
    return f"spotsup{hashlib.sha256(whose.encode()).hexdigest()[:17]}"


def subnet_of(settings: AzureSettings, owner: Owner, region: str) -> str:
    """The subnet of a region's nodes: the configured one, or that of a network of ours."""
    return settings.subnets.get(region) or subnet_id(settings, called(owner.cluster, region))


def assignment_name(role: str, principal: str, scope: str) -> str:
    """An assignment's: always the same. Of an identity that was made anew, another one: Azure changes no principal."""
    return str(uuid.uuid5(_IDS, f"{role}\n{principal}\n{scope}".lower()))


def wanted(settings: AzureSettings, wish: Wish, container: str, *, is_there: bool) -> Wanted:
    """What there should be. `container`: the scope of the checkpoints' container, "" for none; `is_there`: whether it
    is someone else's, and nothing is to be made. Raises ProvisionerError for what cannot be fulfilled."""
    cluster = wish.owner.cluster
    rules = tuple(_rules(settings, wish.ssh_from))
    groups = tuple(Group(region, called(cluster, region), rules) for region in settings.regions)
    networks = tuple(
        Network(region, called(cluster, region))
        for region in settings.regions
        if settings.subnets.get(region, "").lower() in {"", subnet_id(settings, called(cluster, region)).lower()}
    )
    if networks and not (settings.etcd_by_ssh and settings.public_address):
        region = networks[0].region
        raise ProvisionerError(
            f"azure.subnets.{region} names no subnet: give one of the network of the daemon's host "
            f"(--set subnets.{region}=/subscriptions/…), for it and nodes reach each other there. Only for nodes with "
            "public addresses and reach=ssh a network is made"
        )
    identities, roles, grants = _identities(settings, wish, container)
    storage = list(_storage(settings, wish, is_there=is_there))
    return Wanted(groups, networks, tuple(identities), tuple(roles), tuple(grants), tuple(storage))


def subnet_id(settings: AzureSettings, network: str) -> str:
    """The resource id of a network of ours' one subnet."""
    return f"{group_of(settings)}/providers/Microsoft.Network/virtualNetworks/{network}/subnets/{SUBNET}"


def _rules(settings: AzureSettings, ssh_from: Sequence[str]) -> list[Rule]:
    if not ssh_from:
        raise ProvisionerError("nothing says from where the daemon logs in to nodes")
    sources = list(dict.fromkeys(_network(each) for each in ssh_from))
    found = []
    for name, wide in (("spotsup-ssh", False), ("spotsup-ssh6", True)):
        if these := tuple(each for each in sources if (":" in each) is wide):
            found.append(Rule(name, settings.ssh_port, these))
    return found


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ProvisionerError(f"{text!r} is neither an address, nor a network as 10.0.0.0/16") from None


def _identities(settings: AzureSettings, wish: Wish, container: str) -> tuple[list[Identity], list[Role], list[Grant]]:
    daemon, node = called(wish.owner.cluster, DAEMON), called(wish.owner.cluster, NODE)
    identities, uses, grants, region = list[Identity](), list[str](), list[Grant](), settings.regions[0]
    ids = {use: role_id(settings, wish.owner, use) for use in ROLES}
    if wish.checkpoints:
        ours = f"{group_of(settings)}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{node}"
        if settings.identity.lower() not in {"", ours.lower()}:
            raise ProvisionerError(
                f"nodes have the identity {settings.identity} already: give it what "
                "docs/permissions/azure-checkpoints-role.json lists, and do not ask for one for checkpoints"
            )
        identities.append(Identity(region, node))
        uses.append(CHECKPOINTS)
        grants.append(Grant(ids[CHECKPOINTS], node, container))
    if wish.host_identity:
        if settings.dead_man_role.lower() not in {"", ids[NODE].lower()}:
            raise ProvisionerError(
                f"azure.dead_man_role is {settings.dead_man_role} already: take it out, so that init makes one"
            )
        identities.append(Identity(region, daemon))
        uses += [NODE, DAEMON, READING]
        grants.append(Grant(ids[DAEMON], daemon, group_of(settings), _only(ids[NODE])))
        grants.append(Grant(ids[READING], daemon, subscription_of(settings)))
    return identities, [_role(settings, wish, use, ids[use]) for use in uses], grants


def _only(role: str) -> str:
    """The condition that lets an identity assign this role, and no other one."""
    action, name = "Microsoft.Authorization/roleAssignments/write", role.rpartition("/")[2]
    asked = "@Request[Microsoft.Authorization/roleAssignments:RoleDefinitionId]"
    return f"((!(ActionMatches{{'{action}'}})) OR ({asked} ForAnyOfAnyValues:GuidEquals {{{name}}}))"


def _role(settings: AzureSettings, wish: Wish, use: str, whole: str) -> Role:
    text: Mapping[str, Any] = json.loads(wish.permissions[_FILES[use]])
    # Names are unique in the directory, which several subscriptions share.
    name = f"spotsup {wish.owner.cluster} {wish.owner.digest}: {_TITLES[use]}"
    return Role(
        whole, name, scope_of(settings, use), frozenset(text["Actions"]), frozenset(text.get("DataActions", ()))
    )


def _storage(settings: AzureSettings, wish: Wish, *, is_there: bool) -> Iterator[Storage]:
    if wish.checkpoints and not is_there:
        account, container = container_of(wish.checkpoints)
        yield Storage(settings.regions[0], account, BLOBS, container)
    for region in settings.regions if wish.shared_storage else ():
        subnet = subnet_of(settings, wish.owner, region)
        yield Storage(region, files_name(settings, wish.owner, region), FILES, SHARE, subnet)


def _container(name: str) -> str:
    return f"blobServices/default/containers/{name}"


def container_path(account: str, name: str) -> str:
    """A container's resource id. `account`: the storage account's."""
    return f"{account}/{_container(name)}"


def container_of(url: str) -> tuple[str, str]:
    """(storage account, container) of an address. A prefix is not enforced. Raises ProvisionerError."""
    match = _URL.fullmatch(url)
    if not match:
        raise ProvisionerError(
            f"{url!r} is no container of Azure: write abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
        )
    return match[2], match[1]


# -- whose -------------------------------------------------------------------------------------------------


def described(owner: Owner) -> str:
    """The description of a role."""
    return " ".join(f"{key}={value}" for key, value in owner.tags.items())


def owner_in(description: str) -> Owner:
    """The owner that a description names; "" for what it does not say."""
    found = dict(_WORD.findall(description))
    return owner_of({key: found.get(key, "") for key in (CLUSTER_TAG, KEY_TAG)})
