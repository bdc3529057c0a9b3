"""An Azure subscription's storage accounts, for tests: with their shares and containers, and who may mount a share.

It has what hurts of the real ones. Sources: "Storage Accounts - Create" (REST API, 2023-05-01) for the answer without a
body and its Location; azure-cli#31148 (an answer of 429 or 503 that made it all the same), azure-powershell#19219 and
"Resolve errors for storage account names" (a name that is free, and taken), terraform-provider-azurerm#16547 (a subnet
without a service endpoint: a failure after the acceptance), "Create a virtual network rule" (a deleted subnet's rule is
dead, also for a new subnet of that name), azurefile-csi-driver's list of what it repeats, "NFS Azure file shares" and
"Troubleshoot NFS Azure file shares" for what can be mounted.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.clouds.azure_machines import GROUP, ROOT, SUBSCRIPTION
from tests.clouds.azure_wire import Call, FakeAzureError
from tests.clouds.base import Answer

_ARM = "/subscriptions/{subscription}"
_PROVIDER = "/providers/microsoft.storage"
_ACCOUNTS = _ARM + "/resourcegroups/{group}" + _PROVIDER + "/storageaccounts"
_ACCOUNT = _ACCOUNTS + "/{account}"
CONTAINER = _ACCOUNT + "/blobservices/default/containers/{inside}"
_SHARE = _ACCOUNT + "/fileservices/default/shares/{inside}"
POLL = "locations/asyncoperations/read"
# A person's account, with a container, which init may use and never changes.
STORAGE_ACCOUNT = f"{ROOT}/Microsoft.Storage/storageAccounts/models"
ENDPOINT = "Microsoft.Storage"

_KINDS = {"FileStorage": {"Premium_LRS", "Premium_ZRS"}, "StorageV2": {"Standard_LRS", "Standard_ZRS", "Standard_GRS"}}
_ABSENT = "The Resource 'Microsoft.Storage/storageAccounts/{}' under resource group '{}' was not found."


class Storage:
    """What can be set: names that are `taken` in another directory, those of them that look free (`hidden`), the
    `failure` of the next account after its acceptance, `late` as of Subscription. Callers hold the fleet's lock.
    `subnet`: a subnet as it is now, by its id; None where there is none.
    """

    def __init__(self, subnet: Callable[[str], Mapping[str, Any] | None]) -> None:
        self.url = ""
        self.late = 0
        self.taken: set[str] = set()
        self.hidden: set[str] = set()
        self.failure: tuple[str, str] | None = None
        models = _described(STORAGE_ACCOUNT, "eastus", {}, "StorageV2", {"supportsHttpsTrafficOnly": True})
        self.accounts: dict[str, dict[str, Any]] = {"models": models}
        self.inside: dict[str, dict[str, Any]] = {f"{STORAGE_ACCOUNT}/blobServices/default/containers/runs": {}}
        self._subnet = subnet
        self._operations: dict[str, tuple[str, tuple[str, str] | None]] = {}  # id -> (the account, its failure)
        self._young: Counter[str] = Counter()
        self._gone: Counter[str] = Counter()
        account, services = "Storage/storageAccounts", "Storage/storageAccounts/{}"
        shares, containers = services.format("fileServices/shares"), services.format("blobServices/containers")
        self.routes: list[tuple[str, str, str, Callable[[Call, dict[str, str]], Answer]]] = [
            ("GET", _ARM + _PROVIDER + "/storageaccounts", f"{account}/read", self._list),
            ("GET", _ACCOUNTS, f"{account}/read", self._list),
            ("POST", _ARM + _PROVIDER + "/checknameavailability", "Storage/checknameavailability/read", self._check),
            ("GET", _ARM + _PROVIDER + "/locations/{region}/asyncoperations/{id}", f"Storage/{POLL}", self._operation),
            ("GET", _ACCOUNT, f"{account}/read", self._get),
            ("PUT", _ACCOUNT, f"{account}/write", self._put),
            ("PATCH", _ACCOUNT, f"{account}/write", self._patch),
            ("DELETE", _ACCOUNT, f"{account}/delete", self._delete),
            ("GET", _SHARE, f"{shares}/read", self._get_inside),
            ("PUT", _SHARE, f"{shares}/write", self._put_share),
            ("GET", CONTAINER, f"{containers}/read", self._get_inside),
            ("PUT", CONTAINER, f"{containers}/write", self._put_container),
        ]

    # -- the tests' controls ---------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """The names of the accounts that `init` has made."""
        return [name for name in self.accounts if name != "models"]

    def lose_inside(self, account: str, inside: str) -> None:
        """Someone deletes a share or a container: its name is not free for a while."""
        key = next(each for each in self.inside if f"/{account}/" in each and each.endswith(f"/{inside}"))
        del self.inside[key]
        self._gone[key] = self.late

    def hide(self, account: str, listings: int) -> None:
        """Leave an account out of so many listings."""
        self._young[f"list {account}"] = listings

    def close(self, subnet: str) -> None:
        """The subnet is deleted: the rules that name it are dead, also for a new one of that name."""
        for account in self.accounts.values():
            for rule in _rules(account):
                if rule["id"].lower().startswith(subnet.lower()):
                    rule["state"] = "NetworkSourceDeleted"

    def why_not_mounted(self, source: str, subnet: str) -> str:
        """Why a node in this subnet cannot mount `server:/path` with NFS 4.1; "" where it can."""
        match = re.fullmatch(r"([a-z0-9]{3,24})\.file\.core\.windows\.net:/([a-z0-9]+)/([a-z0-9-]+)", source)
        if match is None or match[1] != match[2]:
            return "no such server, or no such path"
        account, share = self.accounts.get(match[1]), self.inside.get(_inside(match[1], "share", match[3]))
        if account is None or share is None:
            return "No such file or directory"
        properties = account["properties"]
        rules = properties.get("networkAcls") or {}
        admitted = {each["id"].lower() for each in _rules(account) if each["state"] == "Succeeded"}
        at = self._subnet(subnet)
        for reason, bad in (
            ("the share is one for SMB", share.get("enabledProtocols") != "NFS"),
            ("secure transfer is required", properties["supportsHttpsTrafficOnly"]),
            ("the public endpoint is switched off", properties.get("publicNetworkAccess") == "Disabled"),
            ("NFS needs chosen networks", rules.get("defaultAction") != "Deny"),
            ("the subnet is not admitted", subnet.lower() not in admitted),
            ("the subnet has no service endpoint", ENDPOINT not in endpoints(at)),
        ):
            if bad:
                return reason
        return ""

    def must_have(self, scope: str) -> None:
        """Raises FakeAzureError for a container that a role is given on, and that is not there."""
        if scope.lower() not in {each.lower() for each in self.inside}:
            raise FakeAzureError("ResourceNotFound", f"The Resource '{scope}' was not found.")

    # -- accounts ----------------------------------------------------------------------------------------------

    def _is_late(self, counts: Counter[str], name: str) -> bool:
        counts[name] -= 1
        return counts[name] >= 0

    def _list(self, call: Call, _names: dict[str, str]) -> Answer:
        shown = [each for name, each in self.accounts.items() if not self._is_late(self._young, f"list {name}")]
        return Answer(200, {"value": [each for each in shown if each["id"].lower().startswith(_before(call.path))]})

    def _check(self, call: Call, _names: dict[str, str]) -> Answer:
        asked = call.json()
        assert asked["type"] == "Microsoft.Storage/storageAccounts"
        name = asked["name"]
        if name in {*self.accounts, *(self.taken - self.hidden)}:
            reason = {"reason": "AlreadyExists", "message": f"The storage account named {name} is already taken."}
            return Answer(200, {"nameAvailable": False, **reason})
        return Answer(200, {"nameAvailable": True})

    def _known(self, call: Call, names: Mapping[str, str]) -> dict[str, Any]:
        found = self.accounts.get(names["account"])
        if found is None or found["id"].lower() not in call.path.lower():
            raise FakeAzureError("ResourceNotFound", _ABSENT.format(names["account"], GROUP))
        if found["properties"]["provisioningState"] != "Succeeded" and not self._is_late(self._young, names["account"]):
            found["properties"]["provisioningState"] = "Succeeded"
        return found

    def _get(self, call: Call, names: dict[str, str]) -> Answer:
        return Answer(200, self._known(call, names))

    def _put(self, call: Call, names: dict[str, str]) -> Answer:
        name, body = names["account"], call.json()
        if not re.fullmatch(r"[a-z0-9]{3,24}", name):
            raise FakeAzureError("AccountNameInvalid", f"{name} is not a valid storage account name.")
        if body["sku"]["name"] not in _KINDS.get(body["kind"], ()):
            raise FakeAzureError("InvalidRequestPropertyValue", "The request's kind or sku is invalid.")
        there = self.accounts.get(name)
        if name in self.taken or (there is not None and there["id"].lower() != call.path.lower()):
            raise FakeAzureError("StorageAccountAlreadyTaken", f"The storage account named {name} is already taken.")
        if there is not None and there["properties"]["provisioningState"] != "Succeeded":
            message = "An operation is currently performing on this storage account that requires exclusive access."
            raise FakeAzureError("StorageAccountOperationInProgress", message)
        if there is not None:
            there["tags"] = body["tags"]
            there["properties"] |= _with_states(body["properties"])
            return Answer(200, there)
        failure, self.failure = self.failure or self._closed_subnets(body), None
        if failure is None:
            properties = {**_with_states(body["properties"]), "provisioningState": "Creating"}
            self.accounts[name] = _described(call.path, body["location"], body["tags"], body["kind"], properties)
            self._young.update({f"list {name}": self.late, name: self.late})
        operation = str(uuid.uuid4())
        self._operations[operation] = (name, failure)
        self._young[operation] = self.late
        where = f"{self.url}/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Storage/locations/{body['location']}"
        address = f"{where}/asyncoperations/{operation}?monitor=true&api-version={call.query['api-version']}"
        return Answer(202, None, {"Location": address, "Retry-After": "17"})

    def _closed_subnets(self, body: Mapping[str, Any]) -> tuple[str, str] | None:
        for rule in _rules(body):
            at = self._subnet(rule["id"])
            if at is None or (at.get("properties") or {}).get("provisioningState") != "Succeeded":
                return "NetworkAclsValidationFailure", f"Validation of network acls failure: {rule['id']} is not there."
            if ENDPOINT not in endpoints(at):
                text = f"SubnetsHaveNoServiceEndpointsConfigured:Subnets {rule['id']} do not have ServiceEndpoints"
                return "NetworkAclsValidationFailure", f"Validation of network acls failure: {text}"
        return None

    def _operation(self, _call: Call, names: dict[str, str]) -> Answer:
        if names["id"] not in self._operations:
            raise FakeAzureError("NotFound", "there is no such operation")
        if self._is_late(self._young, names["id"]):
            return Answer(202, None, {"Retry-After": "17"})
        name, failure = self._operations[names["id"]]
        if failure is not None:
            return Answer(200, {"status": "Failed", "error": dict(zip(("code", "message"), failure, strict=True))})
        return Answer(200, self.accounts.get(name) or {"status": "Succeeded"})

    def _patch(self, call: Call, names: dict[str, str]) -> Answer:
        account, body = self._known(call, names), call.json()
        if found := self._closed_subnets(body):
            raise FakeAzureError(*found)
        account["properties"] |= _with_states(body["properties"])
        return Answer(200, account)

    def _delete(self, call: Call, names: dict[str, str]) -> Answer:
        account = self.accounts.get(names["account"])
        if account is None or account["id"].lower() != call.path.lower():
            return Answer(204)
        if account["properties"]["provisioningState"] != "Succeeded":
            raise FakeAzureError("StorageAccountOperationInProgress", "An operation is currently performing on it.")
        del self.accounts[names["account"]]
        self.inside = {key: each for key, each in self.inside.items() if not key.startswith(f"{account['id']}/")}
        return Answer(200)

    # -- shares and containers -----------------------------------------------------------------------------

    def _get_inside(self, call: Call, names: dict[str, str]) -> Answer:
        self._known(call, names)
        kind = "Share" if "fileservices" in call.path.lower() else "Container"
        found = next((each for key, each in self.inside.items() if key.lower() == call.path.lower()), None)
        if found is None:
            raise FakeAzureError(f"{kind}NotFound", f"The specified {kind.lower()} does not exist.")
        return Answer(200, {"id": call.path, "name": names["inside"], "properties": found})

    def _put_share(self, call: Call, names: dict[str, str]) -> Answer:
        asked = call.json()["properties"]
        if self._account_of(call, names)["kind"] != "FileStorage" and "enabledProtocols" in asked:
            raise FakeAzureError("InvalidHeaderValue", "NFS shares are only in premium accounts.")
        if not 100 <= asked["shareQuota"] <= 102400:
            raise FakeAzureError("InvalidShareQuota", "The quota of a premium share is 100 to 102400 GiB.")
        return self._put_inside(call, names, asked)

    def _put_container(self, call: Call, names: dict[str, str]) -> Answer:
        if self._account_of(call, names)["kind"] == "FileStorage":
            raise FakeAzureError("FeatureNotSupportedForAccount", "Blobs are not supported for this account.")
        return self._put_inside(call, names, call.json()["properties"])

    def _account_of(self, call: Call, names: dict[str, str]) -> dict[str, Any]:
        account = self._known(call, names)
        if account["properties"]["provisioningState"] != "Succeeded":
            message = "The storage account provisioning state must be 'Succeeded' before executing the operation."
            raise FakeAzureError("StorageAccountIsNotProvisioned", message)
        return account

    def _put_inside(self, call: Call, names: dict[str, str], properties: dict[str, Any]) -> Answer:
        kind = "Share" if "fileServices" in call.path else "Container"
        if self._is_late(self._gone, call.path):
            raise FakeAzureError(f"{kind}BeingDeleted", f"The specified {kind.lower()} is being deleted. Try later.")
        new = call.path not in self.inside
        self.inside.setdefault(call.path, properties)
        return Answer(201 if new else 200, {"id": call.path, "name": names["inside"], "properties": properties})


def endpoints(subnet: Mapping[str, Any] | None) -> set[str]:
    """The service endpoints of a subnet."""
    return {each["service"] for each in ((subnet or {}).get("properties") or {}).get("serviceEndpoints") or ()}


def _inside(account: str, kind: str, name: str) -> str:
    path = "fileServices/default/shares" if kind == "share" else "blobServices/default/containers"
    return f"{ROOT}/Microsoft.Storage/storageAccounts/{account}/{path}/{name}"


def _before(path: str) -> str:
    """The resource group or the subscription of a listing."""
    return path.lower().partition("/providers/")[0] + "/"


def _described(
    path: str, region: str, tags: Mapping[str, str], kind: str, properties: Mapping[str, Any]
) -> dict[str, Any]:
    whole = {"provisioningState": "Succeeded", **properties}
    return {
        "id": path,
        "name": path.rpartition("/")[2],
        "location": region,
        "tags": dict(tags),
        "kind": kind,
        "properties": whole,
    }


def _rules(account: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ((account.get("properties") or {}).get("networkAcls") or {}).get(
        "virtualNetworkRules"
    ) or []
    return found


def _with_states(properties: Mapping[str, Any]) -> dict[str, Any]:
    whole = dict(properties)
    if acls := whole.get("networkAcls"):
        rules = [{**each, "state": "Succeeded"} for each in acls.get("virtualNetworkRules") or ()]
        whole["networkAcls"] = {**acls, "virtualNetworkRules": rules}
    return whole
