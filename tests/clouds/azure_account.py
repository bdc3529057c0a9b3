"""An Azure subscription beside its machines, for tests: security groups, networks, identities, roles and assignments.
(Storage accounts are in azure_storage.py.)

It has what hurts of the real one. Sources: "Troubleshoot Azure RBAC" and avdaccelerator#99 (a new identity is not known
for a while), azure-powershell#8787 (a deleted role is still shown), #4365 and azure-docs#60446 (names of roles are
unique in the directory), terra-workspace-manager#502 and cluster-api-provider-azure#172 (what is in use stays), ARM's
page on common errors (providers that are not registered).
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.clouds.azure_machines import ROOT, SUBSCRIPTION
from tests.clouds.azure_storage import CONTAINER, Storage
from tests.clouds.azure_wire import Call, FakeAzureError
from tests.clouds.base import Answer

_ARM = "/subscriptions/{subscription}"
_GROUP = _ARM + "/resourcegroups/{group}"
_NSG = _GROUP + "/providers/microsoft.network/networksecuritygroups"
_NET = _GROUP + "/providers/microsoft.network/virtualnetworks"
_IDENTITY = _GROUP + "/providers/microsoft.managedidentity/userassignedidentities"
_ROLE = "/providers/microsoft.authorization/roledefinitions/{name}"
_ASSIGNMENT = "/providers/microsoft.authorization/roleassignments/{name}"
_ACTION = re.compile(r"[A-Za-z]+\.[A-Za-z]+(/[A-Za-z]+)+")

Route = tuple[str, str, str, Callable[[Call, dict[str, str]], Answer]]


class Subscription:
    """What can be set: for how many calls what is new is unknown and what is going still there (`late`), the namespaces
    that are not `registered`, the names of things that are `used`. Callers hold the fleet's lock. `subnet`: of those
    that are there from the start, by id.
    """

    def __init__(self, subnet: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._late = 0
        self._first = subnet
        self.storage = Storage(self.subnet)
        self.unregistered: set[str] = set()
        self.used: set[str] = set()
        self.things: dict[str, dict[str, Any]] = {}  # security groups, networks and identities, by id
        self.roles: dict[str, dict[str, Any]] = {}
        self.assignments: dict[str, dict[str, Any]] = {}
        self._young: Counter[str] = Counter()
        self._going: Counter[str] = Counter()
        self.routes: list[Route] = [
            ("GET", _NSG, "Network/networkSecurityGroups/read", self._list),
            ("PUT", _NSG + "/{name}", "Network/networkSecurityGroups/write", self._put_group),
            ("DELETE", _NSG + "/{name}", "Network/networkSecurityGroups/delete", self._delete),
            ("PUT", _NSG + "/{name}/securityrules/{rule}", "Network/networkSecurityGroups/securityRules/write",
             self._put_rule),
            ("GET", _NET, "Network/virtualNetworks/read", self._list),
            ("PUT", _NET + "/{name}", "Network/virtualNetworks/write", self._put_network),
            ("DELETE", _NET + "/{name}", "Network/virtualNetworks/delete", self._delete),
            ("GET", _IDENTITY, "ManagedIdentity/userAssignedIdentities/read", self._list),
            ("PUT", _IDENTITY + "/{name}", "ManagedIdentity/userAssignedIdentities/write", self._put_identity),
            ("DELETE", _IDENTITY + "/{name}", "ManagedIdentity/userAssignedIdentities/delete", self._delete),
            ("GET", _ARM + "/providers/microsoft.authorization/roleassignments", "Authorization/roleAssignments/read",
             self._list_assignments),
            *self.storage.routes,
        ]  # fmt: skip
        for scope in (_ARM, _GROUP):
            action = "Authorization/roleDefinitions"
            self.routes.append(("GET", scope + _ROLE, f"{action}/read", self._get_role))
            self.routes.append(("PUT", scope + _ROLE, f"{action}/write", self._put_role))
            self.routes.append(("DELETE", scope + _ROLE, f"{action}/delete", self._delete_role))
        for scope in (_ARM, _GROUP, CONTAINER):
            action = "Authorization/roleAssignments"
            self.routes.append(("PUT", scope + _ASSIGNMENT, f"{action}/write", self._assign))
            self.routes.append(("DELETE", scope + _ASSIGNMENT, f"{action}/delete", self._unassign))

    def admit(self, call: Call) -> None:
        """Raises FakeAzureError for a provider that the subscription is not registered for."""
        namespace = call.action.partition("/")[0]
        if namespace in self.unregistered:
            message = (
                f"The subscription is not registered to use namespace '{namespace}'. See https://aka.ms/rps-not-found"
            )
            raise FakeAzureError("MissingSubscriptionRegistration", message)

    @property
    def late(self) -> int:
        """For how many calls."""
        return self._late

    @late.setter
    def late(self, calls: int) -> None:
        self._late = self.storage.late = calls

    def subnet(self, path: str) -> Mapping[str, Any] | None:
        """A subnet, by its id."""
        network, _, name = path.partition("/subnets/")
        if (made := self.find(network)) is None:
            return self._first(path)
        found = next((each for each in made["properties"].get("subnets") or () if each["name"] == name), None)
        if found is None:
            return None
        state = {"provisioningState": made["properties"]["provisioningState"]}
        return {"id": path, "name": name, "properties": {**found["properties"], **state}}

    def find(self, path: str) -> dict[str, Any] | None:
        """A security group or a network that was made here."""
        return next((each for key, each in self.things.items() if key.lower() == path.lower()), None)

    def was_made(self, path: str) -> bool:
        """Whether a security group, or a subnet, was made here."""
        network, _, below = path.partition("/subnets/")
        return self.find(network) is not None and (not below or self.subnet(path) is not None)

    def left(self) -> list[str]:
        """The names of all that is there."""
        things = [key.rpartition("/")[2] for key in self.things]
        roles = (each["properties"]["roleName"] for each in self.roles.values())
        return [*things, *roles, *self.assignments, *self.storage.left()]

    def _is_late(self, counts: Counter[str], name: str) -> bool:
        counts[name] -= 1
        return counts[name] >= 0

    # -- security groups, networks, identities -------------------------------------------------------------

    def _list(self, call: Call, _names: dict[str, str]) -> Answer:
        kind = call.path.rpartition("/")[2].lower()
        found = []
        for key in [each for each in self.things if each.rpartition("/")[0].lower().endswith(kind)]:
            thing = self.things[key]
            if key in self._going:
                if not self._is_late(self._going, key):
                    del self._going[key]
                    del self.things[key]
                    continue
                if "provisioningState" in thing["properties"]:  # identities have none
                    thing["properties"]["provisioningState"] = "Deleting"
            elif self._is_late(self._young, f"list {key}"):
                continue
            elif thing["properties"].get("provisioningState") == "Updating" and not self._is_late(self._young, key):
                thing["properties"]["provisioningState"] = "Succeeded"
            found.append(thing)
        return Answer(200, {"value": found})

    def _put(self, call: Call, names: dict[str, str], kind: str, properties: dict[str, Any]) -> Answer:
        body = call.json()
        key = f"{ROOT}/{kind}/{names['name']}"
        if key in self._going:
            raise FakeAzureError(
                "AnotherOperationInProgress", f"Another operation on {key} is in progress. Retry later."
            )
        there = self.things.get(key)
        if there is not None and there["location"] != body["location"]:
            raise FakeAzureError("InvalidResourceLocation", f"The resource {key} already exists in another location.")
        thing = there or {"id": key, "name": names["name"], "location": body["location"], "properties": properties}
        thing["tags"] = body.get("tags") or {}
        if there is None:
            self.things[key] = thing
            self._young.update({f"list {key}": self.late, key: self.late, f"principal {key}": self.late})
        elif kind.endswith("networkSecurityGroups"):
            there["properties"]["securityRules"] = []  # a PUT of the whole group without rules takes them away
        return Answer(201 if there is None else 200, thing)

    def _put_group(self, call: Call, names: dict[str, str]) -> Answer:
        made = {"provisioningState": "Updating", "securityRules": []}
        return self._put(call, names, "Microsoft.Network/networkSecurityGroups", made)

    def _put_rule(self, call: Call, names: dict[str, str]) -> Answer:
        body = call.json()
        key = f"{ROOT}/Microsoft.Network/networkSecurityGroups/{names['name']}"
        group, asked = self.things.get(key), body["properties"]
        if group is None or key in self._going:
            raise FakeAzureError("ResourceNotFound", f"The Resource {key} was not found.")
        if self._is_late(self._young, f"busy {key}"):
            raise FakeAzureError("AnotherOperationInProgress", "Another operation on this resource is in progress.")
        if len({":" in each for each in asked["sourceAddressPrefixes"]}) > 1:
            raise FakeAzureError("InvalidParameter", "A security rule's prefixes have to be of one IP version.")
        rules = [each for each in group["properties"]["securityRules"] if each["name"] != names["rule"]]
        for each in rules:
            known = each["properties"]
            if (known["priority"], known["direction"]) == (asked["priority"], asked["direction"]):
                message = (
                    f"Security rule {names['rule']} conflicts with rule {each['name']}: same Priority and Direction."
                )
                raise FakeAzureError("SecurityRuleConflict", message)
        rule = {"name": names["rule"], "properties": {**asked, "provisioningState": "Succeeded"}}
        group["properties"]["securityRules"] = [*rules, rule]
        self._young[f"busy {key}"] = min(self.late, 2)
        return Answer(201, rule)

    def _put_network(self, call: Call, names: dict[str, str]) -> Answer:
        body = call.json()
        made = {**body["properties"], "provisioningState": "Updating"}
        return self._put(call, names, "Microsoft.Network/virtualNetworks", made)

    def _put_identity(self, call: Call, names: dict[str, str]) -> Answer:
        made = {"principalId": str(uuid.uuid4()), "clientId": str(uuid.uuid4()), "tenantId": str(uuid.uuid4())}
        return self._put(call, names, "Microsoft.ManagedIdentity/userAssignedIdentities", made)

    def _delete(self, call: Call, _names: dict[str, str]) -> Answer:
        key = next((each for each in self.things if each.lower() == call.path.lower()), None)
        if key is None:
            return Answer(204)
        name = key.rpartition("/")[2]
        if name in self.used:
            code = (
                "InUseSubnetCannotBeDeleted" if "virtualNetworks" in key else "InUseNetworkSecurityGroupCannotBeDeleted"
            )
            raise FakeAzureError(code, f"{key} cannot be deleted because it is in use by a network interface.")
        self.storage.close(f"{key}/")
        self._going.setdefault(key, self.late)
        if not self.late:
            del self.things[key], self._going[key]
        return Answer(202 if "Network" in key else 200)

    # -- roles ---------------------------------------------------------------------------------------------

    def _get_role(self, call: Call, names: dict[str, str]) -> Answer:
        name = names["name"]
        if name in self._going and not self._is_late(self._going, name):
            del self._going[name]
            del self.roles[name]
        if name not in self.roles or self._is_late(self._young, f"role {name}"):
            raise FakeAzureError(
                "RoleDefinitionDoesNotExist", f"The specified role definition with ID '{name}' does not exist."
            )
        return Answer(200, {"id": call.path, "name": name, **self.roles[name]})

    def _put_role(self, call: Call, names: dict[str, str]) -> Answer:
        name, asked = names["name"], call.json()["properties"]
        if any(each["properties"]["roleName"] == asked["roleName"] for key, each in self.roles.items() if key != name):
            message = f"A role definition with the name {asked['roleName']} exists already in the directory."
            raise FakeAzureError("RoleDefinitionWithSameNameExists", message)
        for permission in asked["permissions"]:
            for action in (*permission["actions"], *permission["dataActions"]):
                if not _ACTION.fullmatch(action):
                    raise FakeAzureError(
                        "InvalidActionOrNotAction", f"'{action}' does not match any of the actions supported."
                    )
        if call.path.partition("/providers/")[0].lower() not in {each.lower() for each in asked["assignableScopes"]}:
            raise FakeAzureError("InvalidScope", f"The role is written at {call.path}, and not at its own scope.")
        for scope in asked["assignableScopes"]:
            if not scope.lower().startswith(f"/subscriptions/{SUBSCRIPTION}"):
                raise FakeAzureError("InvalidScope", f"The scope '{scope}' is not of this subscription.")
        if name not in self.roles:
            self._young.update({f"role {name}": self.late, f"granted {name}": self.late})
        self._going.pop(name, None)
        self.roles[name] = {"properties": asked}
        return Answer(201, {"id": call.path, "name": name, **self.roles[name]})

    def _delete_role(self, _call: Call, names: dict[str, str]) -> Answer:
        name = names["name"]
        if any(each["roleDefinitionId"].endswith(name) for each in self.assignments.values()):
            raise FakeAzureError("RoleDefinitionHasAssignments", "There are existing role assignments referencing role")
        if name not in self.roles:
            return Answer(204)
        self._going.setdefault(name, self.late)
        if not self.late:
            del self.roles[name], self._going[name]
        return Answer(200, {"id": name, "name": name})

    # -- assignments ---------------------------------------------------------------------------------------

    def _assign(self, call: Call, names: dict[str, str]) -> Answer:
        asked, scope = call.json()["properties"], call.path.partition("/providers/Microsoft.Authorization")[0]
        role = asked["roleDefinitionId"].rpartition("/")[2]
        if "/containers/" in scope:
            self.storage.must_have(scope)
        if role not in self.roles or self._is_late(self._young, f"granted {role}"):
            raise FakeAzureError(
                "RoleDefinitionDoesNotExist", f"The specified role definition '{role}' does not exist."
            )
        owner = next((key for key, each in self.things.items()
                      if each["properties"].get("principalId") == asked["principalId"]), "")  # fmt: skip
        if (
            not owner
            or asked.get("principalType") != "ServicePrincipal"
            or self._is_late(self._young, f"principal {owner}")
        ):
            message = f"Principal {asked['principalId']} does not exist in the directory."
            raise FakeAzureError("PrincipalNotFound", message)
        if not any(
            scope.lower().startswith(each.lower()) for each in self.roles[role]["properties"]["assignableScopes"]
        ):
            raise FakeAzureError("InvalidScope", f"The role may not be assigned at {scope}.")
        whole = {**asked, "scope": scope}
        for key, each in self.assignments.items():
            same = all(each[part] == whole[part] for part in ("roleDefinitionId", "principalId", "scope"))
            if key.endswith(names["name"]) and each["principalId"] != asked["principalId"]:
                raise FakeAzureError(
                    "RoleAssignmentUpdateNotPermitted", "Tenant ID, application ID, principal ID… cannot change"
                )
            if same and not key.endswith(names["name"]):
                raise FakeAzureError("RoleAssignmentExists", "The role assignment already exists.")
        if call.path not in self.assignments:
            self._young[f"assignment {call.path}"] = self.late
        self.assignments[call.path] = whole
        return Answer(201, {"id": call.path, "name": names["name"], "properties": whole})

    def _unassign(self, call: Call, names: dict[str, str]) -> Answer:
        key = next((each for each in self.assignments if each.lower() == call.path.lower()), None)
        if key is None:
            return Answer(204)
        return Answer(200, {"id": key, "name": names["name"], "properties": self.assignments.pop(key)})

    def _list_assignments(self, call: Call, _names: dict[str, str]) -> Answer:
        match = re.fullmatch(r"principalId eq '([0-9a-f-]+)'", call.query["$filter"])
        assert match is not None
        found = [
            {"id": key, "name": key.rpartition("/")[2], "properties": each}
            for key, each in self.assignments.items()
            if each["principalId"] == match[1] and not self._is_late(self._young, f"assignment {key}")
        ]
        return Answer(200, {"value": found})
