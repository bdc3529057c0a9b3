"""Looks at an Azure resource group, and changes it by one step: as CloudAccount says.

All calls are Resource Manager's own REST through the SDK's pipeline: the packages that have these resources (msi,
authorization, storage) are three more, for some twenty calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provisioners.account import Made, NotYetError, Plan, Wish
from provisioners.azure.account import plan
from provisioners.azure.account.calls import AUTHORIZATION, IDENTITIES, NETWORKS, STORAGE, Calls, NotRegisteredError
from provisioners.azure.account.plan import (
    Assign,
    Delete,
    Facts,
    FoundGrant,
    FoundGroup,
    FoundIdentity,
    FoundNetwork,
    FoundRole,
    MakeGroup,
    MakeIdentity,
    MakeInside,
    MakeNetwork,
    MakeStorage,
    OpenStorage,
    SetRole,
    SetRule,
)
from provisioners.azure.account.storage import StorageAccounts
from provisioners.azure.account.wanted import (
    ADDRESSES,
    DAEMON,
    ENDPOINT,
    NODE,
    ROLES,
    SUBNET,
    Grant,
    Rule,
    Wanted,
    assignment_name,
    called,
    described,
    group_of,
    owner_in,
    path_of,
    role_id,
    scope_of,
    subnet_id,
    subscription_of,
    wanted,
)
from provisioners.azure.settings import AzureSettings
from provisioners.base import owner_of

_INBOUND = "Inbound"


class AzureAccount:
    """One installation's part of a subscription."""

    def __init__(self, settings: AzureSettings, wish: Wish) -> None:
        self._calls = Calls(settings)
        self._settings = settings
        self._wish = wish
        self._group = group_of(settings)
        self._storage = StorageAccounts(self._calls, settings, wish)
        # The checkpoints' container, and whether it is someone else's.
        self._container: tuple[str, bool] | None = None if wish.checkpoints else ("", False)
        # As the last look and the steps after it showed them.
        self._identities: dict[str, FoundIdentity] = {}
        self._granted: set[tuple[str, str]] = set()  # (the assignment's id, the identity's name)

    def whose(self) -> str:
        """As CloudAccount says."""
        settings = self._settings
        self._calls.ask("the resource group", "GET", self._group, "resources")
        return (
            f"the resource group {settings.resource_group} of the Azure subscription {settings.subscription}, "
            f"as {self._calls.who() or 'the credentials of this environment say'}"
        )

    def missing(self) -> Plan:
        """As CloudAccount says."""
        needed = self._wanted()
        identities = tuple(self._found_identities()) if needed.identities else ()
        grants = tuple(self._found_grants(identities))
        roles = tuple(self._found_roles({each.id: each.path for each in needed.roles}))
        networks = tuple(self._found_networks()) if needed.networks else ()
        groups, stored = tuple(self._found_groups()), needed.storage
        storage = tuple(self._storage.found(stored)) if stored else ()
        subnets = tuple(self._storage.subnets(stored))
        facts = Facts(groups, networks, identities, roles, grants, storage, subnets)
        return plan.missing(needed, self._keep(facts), self._wish.owner)

    def remaining(self, *, with_data: bool) -> Plan:
        """As CloudAccount says: by tags, and by names for what has none of them."""
        identities = tuple(self._found_identities())
        ids = {use: role_id(self._settings, self._wish.owner, use) for use in ROLES}
        roles = tuple(self._found_roles({ids[use]: path_of(ids[use], scope_of(self._settings, use)) for use in ROLES}))
        grants = tuple(self._found_grants(identities))
        try:
            storage = tuple(self._storage.found(()))
        except NotRegisteredError:
            storage = ()  # so there is none
        groups, networks = tuple(self._found_groups()), tuple(self._found_networks())
        facts = Facts(groups, networks, identities, roles, grants, storage)
        return plan.remaining(self._keep(facts), self._wish.owner, with_data=with_data)

    def made(self) -> Made:
        """As CloudAccount says."""
        needed, cluster = self._wanted(), self._wish.owner.cluster
        found: dict[str, Any] = {
            "security_groups": {each.region: f"{self._of(NETWORKS, 'networkSecurityGroups')}/{each.name}"
                                for each in needed.groups}
        }  # fmt: skip
        if needed.networks:
            found["subnets"] = {each.region: subnet_id(self._settings, each.name) for each in needed.networks}
        if self._wish.host_identity:
            found["dead_man_role"] = role_id(self._settings, self._wish.owner, NODE)
        if self._wish.checkpoints:
            found["identity"] = f"{self._of(IDENTITIES, 'userAssignedIdentities')}/{called(cluster, NODE)}"
        return Made(found, tuple(self._todo()))

    def take(self, step: Any) -> None:
        """As CloudAccount says."""
        match step:
            case MakeGroup(group):
                path = f"{self._of(NETWORKS, 'networkSecurityGroups')}/{group.name}"
                self._put(f"the security group {group.name}", path, NETWORKS, group.region, {})
            case SetRule():
                self._set_rule(step)
            case MakeNetwork(network):
                properties = {"addressPrefix": ADDRESSES, "serviceEndpoints": [{"service": ENDPOINT}]}
                subnet = {"name": SUBNET, "properties": properties}
                body = {"addressSpace": {"addressPrefixes": [ADDRESSES]}, "subnets": [subnet]}
                path = f"{self._of(NETWORKS, 'virtualNetworks')}/{network.name}"
                self._put(f"the network {network.name}", path, NETWORKS, network.region, body)
            case MakeIdentity(identity):
                path = f"{self._of(IDENTITIES, 'userAssignedIdentities')}/{identity.name}"
                self._put(f"the identity {identity.name}", path, IDENTITIES, identity.region, None)
            case SetRole(role):
                permissions = {"actions": sorted(role.actions), "dataActions": sorted(role.data_actions)}
                properties = {
                    "roleName": role.name,
                    "description": described(self._wish.owner),
                    "type": "CustomRole",
                    "permissions": [{**permissions, "notActions": [], "notDataActions": []}],
                    "assignableScopes": [role.scope],
                }
                self._calls.change(f"the role {role.name}", "PUT", role.path, AUTHORIZATION, {"properties": properties})
            case Assign(grant):
                self._assign(grant)
            case MakeStorage() | OpenStorage() | MakeInside():
                self._storage.take(step)
            case Delete():
                self._delete(step)
            case _:
                raise AssertionError(step)

    # -- steps ---------------------------------------------------------------------------------------------

    def _of(self, api: str, kind: str) -> str:
        return f"{self._group}/providers/{api}/{kind}"

    def _put(self, what: str, path: str, api: str, region: str, properties: Mapping[str, Any] | None) -> None:
        tags = {**self._settings.tags, **self._wish.owner.tags}
        more = {} if properties is None else {"properties": properties}
        self._calls.change(what, "PUT", path, api, {"location": region, "tags": tags, **more})

    def _set_rule(self, step: SetRule) -> None:
        rule = step.rule
        properties = {
            "description": "spotsup: the daemon logs in to nodes",
            "protocol": "Tcp",
            "access": "Allow",
            "direction": _INBOUND,
            "priority": step.priority,
            "sourcePortRange": "*",
            "sourceAddressPrefixes": list(rule.sources),
            "destinationPortRange": str(rule.port),
            "destinationAddressPrefix": "*",
        }
        path = f"{self._of(NETWORKS, 'networkSecurityGroups')}/{step.group}/securityRules/{rule.name}"
        self._calls.change(f"the rule {rule.name}", "PUT", path, NETWORKS, {"properties": properties})

    def _assign(self, grant: Grant) -> None:
        identity = self._identities.get(grant.identity)
        if identity is None or not identity.principal:
            raise NotYetError(f"the identity {grant.identity} is not there yet")
        name = assignment_name(grant.role, identity.principal, grant.scope)
        properties = {
            "roleDefinitionId": grant.role,
            "principalId": identity.principal,
            # Without it, Azure looks the new identity up, and does not find it for minutes.
            "principalType": "ServicePrincipal",
            **({"condition": grant.condition, "conditionVersion": "2.0"} if grant.condition else {}),
        }
        path = f"{grant.scope}/providers/{AUTHORIZATION}/roleAssignments/{name}"
        self._calls.change(f"a role for {grant.identity}", "PUT", path, AUTHORIZATION, {"properties": properties})

    def _delete(self, step: Delete) -> None:
        if step.state == plan.GOING:
            raise NotYetError("Azure is deleting it")
        if step.kind == plan.IDENTITY and any(name == step.id for _, name in self._granted):
            raise NotYetError("it still has roles")
        path, api = {
            plan.ASSIGNMENT: (step.id, AUTHORIZATION),
            plan.ROLE: (step.id, AUTHORIZATION),
            plan.IDENTITY: (f"{self._of(IDENTITIES, 'userAssignedIdentities')}/{step.id}", IDENTITIES),
            plan.GROUP: (f"{self._of(NETWORKS, 'networkSecurityGroups')}/{step.id}", NETWORKS),
            plan.NETWORK: (f"{self._of(NETWORKS, 'virtualNetworks')}/{step.id}", NETWORKS),
            plan.STORAGE: (step.id, STORAGE),
        }[step.kind]
        self._calls.change(f"the {step.kind} {step.name}", "DELETE", path, api)
        if step.kind == plan.ASSIGNMENT:
            self._granted = {each for each in self._granted if each[0] != step.id}

    # -- looking -------------------------------------------------------------------------------------------

    def _wanted(self) -> Wanted:
        if self._container is None:
            self._container = self._storage.checkpoints()
        container, is_there = self._container
        return wanted(self._settings, self._wish, container, is_there=is_there)

    def _keep(self, facts: Facts) -> Facts:
        """For the steps."""
        mine = [each for each in facts.identities if each.owner == self._wish.owner]
        self._identities = {each.name: each for each in mine}
        self._granted = {(each.id, each.grant.identity) for each in facts.grants}
        return facts

    def _is_named(self, name: str) -> bool:
        """By region or use: what is ours may have been made for a region that is not configured any more."""
        uses = (*self._settings.regions, DAEMON, NODE)
        return name in {called(self._wish.owner.cluster, use) for use in uses}

    def _listed_here(self, what: str, api: str, kind: str) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """(the resource, its owner) of those in the resource group with our names or our tags."""
        for raw in self._calls.listed(what, self._of(api, kind), api):
            owner = owner_of(raw.get("tags") or {})
            if owner == self._wish.owner or self._is_named(str(raw.get("name", ""))):
                yield raw, owner

    def _found_groups(self) -> Iterator[FoundGroup]:
        for raw, owner in self._listed_here("security groups", NETWORKS, "networkSecurityGroups"):
            properties = raw.get("properties") or {}
            inbound = {
                str(each.get("name")): each.get("properties") or {}
                for each in properties.get("securityRules") or ()
                if (each.get("properties") or {}).get("direction") == _INBOUND
            }
            rules = {name: _rule(name, each) for name, each in inbound.items()}
            taken = {name: int(each.get("priority", 0)) for name, each in inbound.items()}
            state = str(properties.get("provisioningState", ""))
            yield FoundGroup(_region(raw), str(raw["name"]), owner, state, rules, taken)

    def _found_networks(self) -> Iterator[FoundNetwork]:
        for raw, owner in self._listed_here("networks", NETWORKS, "virtualNetworks"):
            state = str((raw.get("properties") or {}).get("provisioningState", ""))
            yield FoundNetwork(_region(raw), str(raw["name"]), owner, state)

    def _found_identities(self) -> Iterator[FoundIdentity]:
        for raw, owner in self._listed_here("identities", IDENTITIES, "userAssignedIdentities"):
            properties = raw.get("properties") or {}
            ids = (str(properties.get(key) or "") for key in ("principalId", "clientId"))
            yield FoundIdentity(str(raw["name"]), owner, *ids)

    def _found_roles(self, paths: Mapping[str, str]) -> Iterator[FoundRole]:
        """Of these ids."""
        for whole, path in paths.items():
            if (raw := self._calls.get("a role", path, AUTHORIZATION)) is None:
                continue
            properties = raw.get("properties") or {}
            granted: Mapping[str, Any] = next(iter(properties.get("permissions") or ()), {})
            yield FoundRole(
                whole,
                path,
                str(properties.get("roleName", "")),
                owner_in(str(properties.get("description", ""))),
                frozenset(granted.get("actions") or ()),
                frozenset(granted.get("dataActions") or ()),
                tuple(properties.get("assignableScopes") or ()),
            )

    def _found_grants(self, identities: tuple[FoundIdentity, ...]) -> Iterator[FoundGrant]:
        """At and below the subscription, by principal."""
        path = f"{subscription_of(self._settings)}/providers/{AUTHORIZATION}/roleAssignments"
        for identity in identities:
            if identity.owner != self._wish.owner or not identity.principal:
                continue
            wanted = {"$filter": f"principalId eq '{identity.principal}'"}
            for raw in self._calls.listed("role assignments", path, AUTHORIZATION, wanted):
                properties = raw.get("properties") or {}
                role, scope = (str(properties.get(key, "")) for key in ("roleDefinitionId", "scope"))
                grant = Grant(role, identity.name, scope, str(properties.get("condition") or ""))
                yield FoundGrant(str(raw["id"]), grant)

    def _todo(self) -> Iterator[str]:
        yield from self._storage.mounts()
        if not self._wish.host_identity:
            return
        identity = self._identities[called(self._wish.owner.cluster, DAEMON)]
        whole = f"{self._of(IDENTITIES, 'userAssignedIdentities')}/{identity.name}"
        group = f"--resource-group {self._settings.resource_group}"
        yield f"az vm identity assign {group} --name HOST --identities {whole}     # HOST: the daemon's"
        yield f"echo AZURE_CLIENT_ID={identity.client} >>/etc/spotsup/environment     # the identity to use there"


def _region(raw: Mapping[str, Any]) -> str:
    """Azure may write it as people do: East US."""
    return str(raw.get("location", "")).replace(" ", "").lower()


def _rule(name: str, raw: Mapping[str, Any]) -> tuple[Rule, bool]:
    """A rule as ours, and whether that says all of it."""
    sources = tuple(raw.get("sourceAddressPrefixes") or filter(None, [raw.get("sourceAddressPrefix")]))
    port = str(raw.get("destinationPortRange") or "")
    plain = (
        raw.get("access") == "Allow"
        and str(raw.get("protocol")).lower() == "tcp"
        and raw.get("destinationAddressPrefix") == "*"
        and raw.get("sourcePortRange") == "*"
        and port.isdecimal()
        and not raw.get("destinationPortRanges")
    )
    return Rule(name, int(port) if port.isdecimal() else 0, sources), plain
