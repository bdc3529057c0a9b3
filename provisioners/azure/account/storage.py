"""Looks at storage accounts, and changes them by one step: what `AzureAccount` has of files and blobs.

An account's name is unique in all of Azure, and an account is made by an operation that may fail after it was accepted.
Who writes one that is there takes it over, tags and all: so it is looked at by its name before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provisioners.account import NotYetError, Wish
from provisioners.azure.account.calls import NETWORKS, STORAGE, Calls
from provisioners.azure.account.plan import READY, FoundStorage, FoundSubnet, MakeInside, MakeStorage, OpenStorage
from provisioners.azure.account.wanted import (
    BLOBS,
    ENDPOINTS,
    FILES,
    SHARE,
    SHARE_GIB,
    Storage,
    container_of,
    container_path,
    files_name,
    group_of,
    storage_path,
    subscription_of,
)
from provisioners.azure.files import admits, admitted, is_open
from provisioners.azure.settings import AzureSettings
from provisioners.base import ProvisionerError, owner_of
from provisioners.codes import ApiError

_TAKEN = "StorageAccountAlreadyTaken"
_SKUS = {FILES: "Premium_LRS", BLOBS: "Standard_LRS"}


class StorageAccounts:
    """Those of one installation, and the one that a person has named for checkpoints."""

    def __init__(self, calls: Calls, settings: AzureSettings, wish: Wish) -> None:
        self._calls = calls
        self._settings = settings
        self._wish = wish
        self._free: set[str] = set()  # names that no one had when they were first asked for
        self._begun: set[str] = set()  # names of accounts that this process has asked for
        self._ready: set[str] = set()  # subnets that can be admitted, as the last look showed them; in lower case
        # Operations that were started, by step: they say why an account did not come to be.
        self._operations: dict[str, str] = {}

    # -- looking -------------------------------------------------------------------------------------------

    def checkpoints(self) -> tuple[str, bool]:
        """(the scope of the container for checkpoints, whether it is someone else's and there). Raises
        ProvisionerError for one that is not there, in an account that is not ours."""
        account, container = container_of(self._wish.checkpoints)
        path = f"{subscription_of(self._settings)}/providers/{STORAGE}/storageAccounts"
        listed = {str(each.get("name", "")): each for each in self._calls.listed("storage accounts", path, STORAGE)}
        raw = listed.get(account) or self._named(account)
        if raw is None or self._is_ours(raw):
            return container_path(storage_path(self._settings, account), container), False
        whole = container_path(str(raw["id"]), container)
        if self._calls.get(f"the container {container}", whole, STORAGE) is None:
            command = f"az storage container create --auth-mode login --account-name {account} --name {container}"
            raise ProvisionerError(f"the storage account {account} has no container {container}: `{command}`")
        return whole, True

    def found(self, wanted: tuple[Storage, ...]) -> Iterator[FoundStorage]:
        """Those in the resource group that have our tags, our names, or are wanted."""
        needed = {each.name: each for each in wanted}
        owner = self._wish.owner
        names = {*needed, *(files_name(self._settings, owner, each) for each in self._settings.regions)}
        path = f"{group_of(self._settings)}/providers/{STORAGE}/storageAccounts"
        listed = {str(each.get("name", "")): each for each in self._calls.listed("storage accounts", path, STORAGE)}
        # A listing may lack a new one.
        more = {name: raw for name in set(needed) - set(listed) if (raw := self._named(name)) is not None}
        for name, raw in {**listed, **more}.items():
            if name in names or self._is_ours(raw):
                yield self._described(raw, needed.get(name))
        for name in set(needed) - set(listed) - set(more) - self._begun - self._free:
            self._check_name(name)

    def subnets(self, wanted: tuple[Storage, ...]) -> Iterator[FoundSubnet]:
        """Those of nodes that are to mount a share. Raises ProvisionerError for a configured one that is not there."""
        self._ready = set()
        for storage in wanted:
            if not storage.subnet:
                continue
            raw = self._calls.get(f"the subnet of {storage.region}", storage.subnet, NETWORKS)
            if raw is None and storage.region in self._settings.subnets:
                raise ProvisionerError(
                    f"the subnet {storage.subnet} is not there: look at azure.subnets.{storage.region}"
                )
            properties = (raw or {}).get("properties") or {}
            endpoints = frozenset(str(each.get("service")) for each in properties.get("serviceEndpoints") or ())
            if endpoints & ENDPOINTS and properties.get("provisioningState") == READY:
                self._ready.add(storage.subnet.lower())
            if raw is not None:
                yield FoundSubnet(storage.subnet, endpoints)

    def _named(self, name: str) -> dict[str, Any] | None:
        return self._calls.get(f"the storage account {name}", storage_path(self._settings, name), STORAGE)

    def _is_ours(self, raw: Mapping[str, Any]) -> bool:
        inside = str(raw.get("id", "")).lower().startswith(f"{group_of(self._settings).lower()}/")
        return inside and owner_of(raw.get("tags") or {}) == self._wish.owner

    def _described(self, raw: Mapping[str, Any], wanted: Storage | None) -> FoundStorage:
        properties = raw.get("properties") or {}
        rules = properties.get("networkAcls") or {}
        owner, state = owner_of(raw.get("tags") or {}), str(properties.get("provisioningState", ""))
        inside = {}
        if wanted is not None and owner == self._wish.owner and state == READY:
            content = self._calls.get(f"the content of {wanted.name}", f"{raw['id']}/{wanted.content}", STORAGE)
            if content is not None:
                protocol = str((content.get("properties") or {}).get("enabledProtocols", "SMB"))
                inside[wanted.inside] = wanted.kind != FILES or protocol == "NFS"
        return FoundStorage(
            str(raw.get("location", "")).replace(" ", "").lower(),
            str(raw["name"]),
            str(raw["id"]),
            owner,
            state,
            is_open(properties),
            rules.get("defaultAction") == "Deny",
            admitted(properties),
            inside,
        )

    def _check_name(self, name: str) -> None:
        path = f"{subscription_of(self._settings)}/providers/{STORAGE}/checkNameAvailability"
        asked = {"name": name, "type": "Microsoft.Storage/storageAccounts"}
        if self._calls.ask(f"the name {name}", "POST", path, STORAGE, asked).get("nameAvailable") is False:
            raise ProvisionerError(self._taken(name))
        self._free.add(name)

    def _taken(self, name: str) -> str:
        other = "--checkpoints another one" if name in self._wish.checkpoints else "--cluster another name"
        return (
            f"someone else has a storage account {name}, and names are unique in all of Azure: give {other} (if it was "
            "deleted a moment ago, repeat)"
        )

    # -- steps ---------------------------------------------------------------------------------------------

    def take(self, step: MakeStorage | OpenStorage | MakeInside) -> None:
        """As CloudAccount says."""
        match step:
            case MakeStorage():
                self._make(step)
            case OpenStorage(storage):
                self._check_subnet(storage)
                self._open(storage, str(step))
            case MakeInside(storage):
                path = f"{storage_path(self._settings, storage.name)}/{storage.content}"
                nfs = {"enabledProtocols": "NFS", "rootSquash": "NoRootSquash", "shareQuota": SHARE_GIB}
                body = {"properties": nfs if storage.kind == FILES else {"publicAccess": "None"}}
                self._calls.change(f"{storage.inside} in {storage.name}", "PUT", path, STORAGE, body)

    def _make(self, step: MakeStorage) -> None:
        storage = step.storage
        self._check_operation(str(step))
        if step.state:
            raise NotYetError(f"it is in the state {step.state}, which takes a minute")
        self._check_subnet(storage)
        properties: dict[str, Any] = {
            "minimumTlsVersion": "TLS1_2",
            "allowBlobPublicAccess": False,
            "allowSharedKeyAccess": False,
            "publicNetworkAccess": "Enabled",
            "supportsHttpsTrafficOnly": storage.kind != FILES,
        }
        if storage.kind == FILES:
            admitted = [{"id": storage.subnet, "action": "Allow"}]
            properties["networkAcls"] = {
                "defaultAction": "Deny",
                "bypass": "None",
                "ipRules": [],
                "virtualNetworkRules": admitted,
            }
        body = {
            "location": storage.region,
            "tags": {**self._settings.tags, **self._wish.owner.tags},
            "kind": storage.kind,
            "sku": {"name": _SKUS[storage.kind]},
            "properties": properties,
        }
        path, begun = storage_path(self._settings, storage.name), storage.name in self._begun
        self._begun.add(storage.name)
        try:
            operation = self._calls.change(f"the storage account {storage.name}", "PUT", path, STORAGE, body)
        except ApiError as error:
            if error.reply.code != _TAKEN:
                raise
            if begun:  # by us, most likely: an earlier answer may have been lost
                raise NotYetError(str(error)) from error
            raise ProvisionerError(f"{error}: {self._taken(storage.name)}") from error
        if operation:
            self._operations[str(step)] = operation

    def _open(self, storage: Storage, what: str) -> None:
        """Azure replaces all rules at once, so that those of others are read and written again."""
        if (raw := self._named(storage.name)) is None:
            raise NotYetError("it is not there")
        rules = (raw.get("properties") or {}).get("networkAcls") or {}
        others = [
            {"id": each["id"], "action": "Allow"}
            for each in rules.get("virtualNetworkRules") or ()
            if admits(each) and each["id"].lower() != storage.subnet.lower()
        ]
        properties = {
            "supportsHttpsTrafficOnly": False,
            "publicNetworkAccess": "Enabled",
            "networkAcls": {
                "defaultAction": "Deny",
                "bypass": rules.get("bypass") or "None",
                "ipRules": rules.get("ipRules") or [],
                "virtualNetworkRules": [{"id": storage.subnet, "action": "Allow"}, *others],
            },
        }
        self._calls.change(what, "PATCH", str(raw["id"]), STORAGE, {"properties": properties})

    def _check_subnet(self, storage: Storage) -> None:
        """Azure would accept the account, and fail it later."""
        if storage.subnet and storage.subnet.lower() not in self._ready:
            raise NotYetError(f"the subnet {storage.subnet} is not ready")

    def _check_operation(self, step: str) -> None:
        """Raises NotYetError for an operation that this step has begun, ProvisionerError for one that failed."""
        if not (operation := self._operations.get(step)):
            return
        failure = self._calls.failure_of(f"how far it is ({step})", operation)
        if failure is None:
            raise NotYetError("Azure is at it")
        del self._operations[step]
        if failure:
            raise ProvisionerError(f"could not {step}: {failure}")
        raise NotYetError("Azure has done it, and does not show it yet")

    def mounts(self) -> Iterator[str]:
        """What job files say, for people."""
        for region in self._settings.regions if self._wish.shared_storage else ():
            name = files_name(self._settings, self._wish.owner, region)
            source = f"{name}.file.core.windows.net:/{name}/{SHARE}"
            yield f'in job files:  storage: [{{mount: /mnt/shared, nfs: "{source}"}}]     # in {region}'
