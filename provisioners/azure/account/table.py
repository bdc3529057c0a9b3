"""The table of what an installation has in an Azure resource group, in the order in which it is made. Storage's rows:
storage.py.

All calls are Resource Manager's own REST through the SDK's pipeline: the packages that have these resources (msi,
authorization, storage) are three more, for some twenty calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provisioners.account import Do, Found, Made, NotYetError, Resource, Row, Seen, State, Wish, described, owner_in
from provisioners.azure.account import wanted
from provisioners.azure.account.calls import ALLOWED, AUTHORIZATION, DENIALS, IDENTITIES, NETWORKS, Calls
from provisioners.azure.account.storage import STATES, StorageAccounts
from provisioners.azure.account.wanted import (
    ADDRESSES,
    DAEMON,
    ENDPOINT,
    NODE,
    ROLES,
    SUBNET_NAME,
    Grant,
    Role,
    Rule,
    assignment_name,
    called,
    group_of,
    path_of,
    role_id,
    scope_of,
    subnet_id,
    subscription_of,
)
from provisioners.azure.settings import AzureSettings
from provisioners.base import owner_of

_INBOUND = "Inbound"
_GROUPS, _NETWORKS = f"{NETWORKS}/networkSecurityGroups", f"{NETWORKS}/virtualNetworks"
_IDENTITIES = f"{IDENTITIES}/userAssignedIdentities"
_ONE_SUBNET = {
    "addressSpace": {"addressPrefixes": [ADDRESSES]},
    "subnets": [
        {
            "name": SUBNET_NAME,
            "properties": {"addressPrefix": ADDRESSES, "serviceEndpoints": [{"service": ENDPOINT}]},
        }
    ],
}


class AzureTable:
    """One installation's part of a subscription."""

    marked_by = "tags"
    allowed = ALLOWED
    denials = DENIALS

    def __init__(self, settings: AzureSettings, wish: Wish) -> None:
        self._calls = Calls(settings)
        self._settings = settings
        self._wish = wish
        self._group = group_of(settings)
        self._tags = {**settings.tags, **wish.owner.tags}
        self._storage = StorageAccounts(self._calls, settings, wish)
        # The checkpoints' container, and whether it is someone else's.
        self._container: tuple[str, bool] | None = None if wish.checkpoints else ("", False)
        self.rows: Sequence[Row] = (
            Row(
                *(wanted.NETWORK, self._networks, self._put(_NETWORKS, _ONE_SUBNET), self._delete(_NETWORKS)),
                problem=_elsewhere,
            ),
            Row(wanted.GROUP, self._groups, self._put(_GROUPS, {}), self._delete(_GROUPS), problem=_elsewhere),
            Row(wanted.RULE, _rules, self._set_rule, settle=wanted.with_sources),
            *self._storage.rows,
            Row(wanted.IDENTITY, self._identities, self._put(_IDENTITIES), self._delete(_IDENTITIES)),
            Row(wanted.ROLE, self._roles, self._set_role, self._delete_role),
            Row(wanted.GRANT, self._grants, self._assign, self._take_away),
        )

    def whose(self) -> str:
        """As Table says."""
        settings = self._settings
        self._calls.ask("the resource group", "GET", self._group, "resources")
        return (
            f"the resource group {settings.resource_group} of the Azure subscription {settings.subscription}, "
            f"as {self._calls.who() or 'the credentials of this environment say'}"
        )

    def wanted(self) -> list[Resource]:
        """As Table says."""
        if self._container is None:
            self._container = self._storage.checkpoints()
        container, is_there = self._container
        return wanted.wanted(self._settings, self._wish, container, is_there=is_there)

    def outcome(self, operation: str) -> str | None:
        """As Table says."""
        return self._calls.failure_of("how far an operation is", operation)

    def made(self, seen: Seen) -> Made:
        """As Table says."""
        names = {region: called(self._wish.owner.cluster, region) for region in self._settings.regions}
        found: dict[str, Any] = {
            "security_groups": {region: f"{self._of(_GROUPS)}/{name}" for region, name in names.items()}
        }
        if networks := seen.wants(wanted.NETWORK):
            found["subnets"] = {each.given: subnet_id(self._settings, each.name) for each in networks}
        if self._wish.host_identity:
            found["dead_man_role"] = role_id(self._settings, self._wish.owner, NODE)
        if self._wish.checkpoints:
            found["identity"] = f"{self._of(_IDENTITIES)}/{called(self._wish.owner.cluster, NODE)}"
        return Made(found, tuple(self._todo(seen)))

    def _todo(self, seen: Seen) -> Iterator[str]:
        yield from self._storage.mounts()
        for each in seen.ours(wanted.IDENTITY):
            if each.what.name == called(self._wish.owner.cluster, DAEMON):
                whole = f"{self._of(_IDENTITIES)}/{each.what.name}"
                group = f"--resource-group {self._settings.resource_group}"
                yield f"az vm identity assign {group} --name HOST --identities {whole}     # HOST: the daemon's"
                client = each.raw["clientId"]
                yield f"echo AZURE_CLIENT_ID={client} >>/etc/spotsup/environment     # the identity to use there"

    # -- what has tags, and a name of its own in the resource group ----------------------------------------

    def _of(self, kind: str) -> str:
        return f"{self._group}/providers/{kind}"

    def _put(self, kind: str, properties: Mapping[str, Any] | None = None) -> Do:
        more = {} if properties is None else {"properties": properties}

        def put(what: Resource, _seen: Seen) -> None:
            body, path = {"location": what.given, "tags": self._tags, **more}, f"{self._of(kind)}/{what.name}"
            self._calls.change(str(what), "PUT", path, kind.partition("/")[0], body)

        return put

    def _delete(self, kind: str) -> Do:
        def delete(what: Resource, _seen: Seen) -> None:
            self._calls.change(str(what), "DELETE", f"{self._of(kind)}/{what.name}", kind.partition("/")[0])

        return delete

    def _listed(self, kind: str, seen: Seen) -> Iterator[tuple[dict[str, Any], Mapping[str, Any], dict[str, Any]]]:
        """(description, its properties, what a Found has of it) of those with our tags, or our names: by region or use,
        also for a region that is not configured any more."""
        names = {called(seen.owner.cluster, use) for use in (*self._settings.regions, DAEMON, NODE)}
        for raw in self._calls.listed(kind, self._of(kind), kind.partition("/")[0]):
            owner, properties = owner_of(raw.get("tags") or {}), raw.get("properties") or {}
            if owner == seen.owner or str(raw.get("name", "")) in names:
                said = str(properties.get("provisioningState", ""))
                yield raw, properties, {"owner": owner, "state": STATES.get(said, State.READY), "said": said}

    def _groups(self, seen: Seen) -> Iterator[Found]:
        for raw, properties, more in self._listed(_GROUPS, seen):
            rules = [
                (str(each.get("name")), each["properties"])
                for each in properties.get("securityRules") or ()
                if (each.get("properties") or {}).get("direction") == _INBOUND
            ]
            yield Found(wanted.group(str(raw["name"]), region := _region(raw)), id=region, raw=dict(rules), **more)

    def _networks(self, seen: Seen) -> Iterator[Found]:
        for raw, _, more in self._listed(_NETWORKS, seen):
            region = _region(raw)
            yield Found(wanted.virtual_network(str(raw["name"]), region), id=region, **more)

    def _identities(self, seen: Seen) -> Iterator[Found]:
        for raw, properties, more in self._listed(_IDENTITIES, seen):
            yield Found(wanted.identity(str(raw["name"])), raw=properties, **more)

    def _set_rule(self, what: Resource, seen: Seen) -> None:
        group = seen.get(what.whole)
        given = {name: int(each.get("priority") or 0) for name, each in (group.raw if group else {}).items()}
        properties = {
            "description": "spotsup: the daemon logs in to nodes",
            "protocol": "Tcp",
            "access": "Allow",
            "direction": _INBOUND,
            "priority": wanted.priority_of(what.name, {name: number for name, number in given.items() if number}),
            "sourcePortRange": "*",
            "sourceAddressPrefixes": list(what.has.sources),
            "destinationPortRange": str(what.has.port),
            "destinationAddressPrefix": "*",
        }
        path = f"{self._of(_GROUPS)}/{what.whole.name}/securityRules/{what.name}"
        self._calls.change(str(what), "PUT", path, NETWORKS, {"properties": properties})

    # -- roles ---------------------------------------------------------------------------------------------

    def _path_of(self, use: str) -> str:
        return path_of(role_id(self._settings, self._wish.owner, use), scope_of(self._settings, use))

    def _roles(self, seen: Seen) -> Iterator[Found]:
        for use in [each.given for each in seen.wants(wanted.ROLE)] or ROLES:
            if (raw := self._calls.get("a role", self._path_of(use), AUTHORIZATION)) is None:
                continue
            properties = raw.get("properties") or {}
            granted: Mapping[str, Any] = next(iter(properties.get("permissions") or ()), {})
            has = Role(
                frozenset(granted.get("actions") or ()),
                frozenset(granted.get("dataActions") or ()),
                tuple(str(each).lower() for each in properties.get("assignableScopes") or ()),
            )
            owner = owner_in(str(properties.get("description", "")))
            yield Found(wanted.role(seen.owner, use, has), owner)

    def _set_role(self, what: Resource, seen: Seen) -> None:
        permissions = {"actions": sorted(what.has.actions), "dataActions": sorted(what.has.data_actions)}
        properties = {
            "roleName": what.name.strip("'"),
            "description": described(seen.owner),
            "type": "CustomRole",
            "permissions": [{**permissions, "notActions": [], "notDataActions": []}],
            "assignableScopes": [scope_of(self._settings, what.given)],
        }
        self._calls.change(str(what), "PUT", self._path_of(what.given), AUTHORIZATION, {"properties": properties})

    def _delete_role(self, what: Resource, _seen: Seen) -> None:
        self._calls.change(str(what), "DELETE", self._path_of(what.given), AUTHORIZATION)

    def _grants(self, seen: Seen) -> Iterator[Found]:
        """At and below the subscription, by principal."""
        path = f"{subscription_of(self._settings)}/providers/{AUTHORIZATION}/roleAssignments"
        for identity in seen.ours(wanted.IDENTITY):
            if not (principal := str(identity.raw.get("principalId") or "")):
                continue
            wish = {"$filter": f"principalId eq '{principal}'"}
            for raw in self._calls.listed("role assignments", path, AUTHORIZATION, wish):
                properties = raw.get("properties") or {}
                role, scope = (str(properties.get(key, "")) for key in ("roleDefinitionId", "scope"))
                grant = Grant(role, identity.what.name, scope, str(properties.get("condition") or ""))
                yield Found(wanted.granted(self._settings, seen.owner, grant), seen.owner, raw=str(raw["id"]))

    def _assign(self, what: Resource, seen: Seen) -> None:
        grant, principal = what.given, str(seen.there(what.whole).raw.get("principalId") or "")
        if not principal:
            raise NotYetError(f"{what.whole} has no principal yet")
        name = assignment_name(grant.role, principal, grant.scope)
        properties = {
            "roleDefinitionId": grant.role,
            "principalId": principal,
            # Without it, Azure looks the new identity up, and does not find it for minutes.
            "principalType": "ServicePrincipal",
            **({"condition": grant.condition, "conditionVersion": "2.0"} if grant.condition else {}),
        }
        path = f"{grant.scope}/providers/{AUTHORIZATION}/roleAssignments/{name}"
        self._calls.change(f"a role for {grant.identity}", "PUT", path, AUTHORIZATION, {"properties": properties})

    def _take_away(self, what: Resource, seen: Seen) -> None:
        self._calls.change("a role assignment", "DELETE", seen.there(what).raw, AUTHORIZATION)


def _region(raw: Mapping[str, Any]) -> str:
    """Azure may write it as people do: East US."""
    return str(raw.get("location", "")).replace(" ", "").lower()


def _elsewhere(what: Resource, found: Found) -> str:
    return f"{found} is not in {what.given}: delete it, and repeat" if found.id not in {"", what.given} else ""


def _rules(seen: Seen) -> Iterator[Found]:
    for group in seen.all(wanted.GROUP):
        for name, each in group.raw.items():
            yield Found(wanted.admitting(group.what, name, _rule(each)), group.owner)


def _rule(raw: Mapping[str, Any]) -> Rule:
    """Return a rule as ours."""
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
    return Rule(int(port) if port.isdecimal() else 0, sources, plain)
