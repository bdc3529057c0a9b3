"""The rows of storage accounts, and of the share or container in each.

An account's name is unique in all of Azure, and an account is made by an operation that may fail after it was accepted.
Who writes one that is there takes it over, tags and all: so it is looked at by its name before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provisioners.account import Begun, Found, NotYetError, Resource, Row, Seen, State, Wish
from provisioners.azure.account import wanted
from provisioners.azure.account.calls import NETWORKS, STORAGE, Calls
from provisioners.azure.account.wanted import (
    BLOBS,
    ENDPOINT,
    ENDPOINTS,
    FILES,
    SHARE,
    SHARE_GIB,
    Storage,
    container_of,
    container_path,
    content_path,
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
_READY = "Succeeded"
STATES = {_READY: State.READY, "Deleting": State.GOING, "Failed": State.BROKEN, "Canceled": State.BROKEN}


class StorageAccounts:
    """Those of one installation, and the one that a person has named for checkpoints."""

    def __init__(self, calls: Calls, settings: AzureSettings, wish: Wish) -> None:
        self._calls = calls
        self._settings = settings
        self._wish = wish
        self._free: set[str] = set()  # names that no one had when they were first looked up
        self._asked: set[str] = set()  # names of accounts that this process has asked for
        self.rows: Sequence[Row] = (
            Row(
                *(wanted.STORAGE, self._accounts, self._make, self._delete),
                change=self._open,
                settle=wanted.opened,
                data=True,
                optional=True,
            ),
            Row(wanted.INSIDE, self._contents, self._make_content, problem=_not_for_nfs),
        )

    # -- looking -------------------------------------------------------------------------------------------

    def checkpoints(self) -> tuple[str, bool]:
        """(the scope of the container for checkpoints, whether it is someone else's and there). Raises
        ProvisionerError for one that is not there, in an account that is not ours."""
        name, container = container_of(self._wish.checkpoints)
        raw = self._listed(subscription_of(self._settings)).get(name) or self._named(name)
        if raw is None or self._is_ours(raw):
            return container_path(storage_path(self._settings, name), container), False
        whole = container_path(str(raw["id"]), container)
        if self._calls.get(f"the container {container}", whole, STORAGE) is None:
            command = f"az storage container create --auth-mode login --account-name {name} --name {container}"
            raise ProvisionerError(f"the storage account {name} has no container {container}: `{command}`")
        return whole, True

    def _listed(self, scope: str) -> dict[str, dict[str, Any]]:
        path = f"{scope}/providers/{STORAGE}/storageAccounts"
        return {str(each.get("name", "")): each for each in self._calls.listed("storage accounts", path, STORAGE)}

    def _named(self, name: str) -> dict[str, Any] | None:
        return self._calls.get(f"the storage account {name}", storage_path(self._settings, name), STORAGE)

    def _is_ours(self, raw: Mapping[str, Any]) -> bool:
        inside = str(raw.get("id", "")).lower().startswith(f"{group_of(self._settings).lower()}/")
        return inside and owner_of(raw.get("tags") or {}) == self._wish.owner

    def _accounts(self, seen: Seen) -> Iterator[Found]:
        """Yield those in the resource group that have our tags, our names, or are wanted; and the subnets that are to
        be admitted."""
        needed = {each.name: each for each in seen.wants(wanted.STORAGE)}
        names = {*needed, *(files_name(self._settings, seen.owner, each) for each in self._settings.regions)}
        found = self._listed(group_of(self._settings))
        # A listing may lack a new one.
        more = {name: raw for name in set(needed) - set(found) if (raw := self._named(name)) is not None}
        for name, raw in {**found, **more}.items():
            if name in names or self._is_ours(raw):
                yield _described(raw, needed.get(name))
        for each in needed.values():
            if each.name not in {*found, *more, *self._free, *self._asked}:
                self._check_name(each.name)
            if each.given.subnet:
                yield from self._subnet(each.given, seen)

    def _subnet(self, given: Storage, seen: Seen) -> Iterator[Found]:
        """Raise ProvisionerError for a configured one that is not there, and for one from which nodes cannot mount."""
        raw = self._calls.get(f"the subnet of {given.region}", given.subnet, NETWORKS)
        if raw is None:
            if given.region in self._settings.subnets:
                raise ProvisionerError(f"the subnet {given.subnet} is not there: look at azure.subnets.{given.region}")
            return
        properties = raw.get("properties") or {}
        endpoints = {str(each.get("service")) for each in properties.get("serviceEndpoints") or ()}
        if not endpoints & ENDPOINTS:
            # It interrupts what goes on between the subnet and storage ("Virtual network service endpoints").
            kept = " ".join(sorted(endpoints | {ENDPOINT}))
            command = f"az network vnet subnet update --ids {given.subnet} --service-endpoints {kept}"
            raise ProvisionerError(
                f"the subnet {given.subnet} has no service endpoint {ENDPOINT}, by which nodes mount: `{command}`"
            )
        state = State.READY if properties.get("provisioningState") == _READY else State.PENDING
        yield Found(_subnet_of(given), seen.owner, state=state)

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

    def _contents(self, seen: Seen) -> Iterator[Found]:
        for what in seen.wants(wanted.STORAGE):
            found = seen.get(what)
            if found is None or found.owner != seen.owner or found.state is not State.READY:
                continue
            path = content_path(found.raw["id"], what.given)
            if (raw := self._calls.get(f"the content of {what.name}", path, STORAGE)) is not None:
                protocol = str((raw.get("properties") or {}).get("enabledProtocols", "SMB"))
                yield Found(wanted.content(what, fits=what.given.kind != FILES or protocol == "NFS"), found.owner)

    # -- steps ---------------------------------------------------------------------------------------------

    def _make(self, what: Resource, seen: Seen) -> Begun:
        given = what.given
        _check_subnet(given, seen)
        properties: dict[str, Any] = {
            "minimumTlsVersion": "TLS1_2",
            "allowBlobPublicAccess": False,
            "allowSharedKeyAccess": False,
            "publicNetworkAccess": "Enabled",
            "supportsHttpsTrafficOnly": given.kind != FILES,
        }
        if given.kind == FILES:
            properties["networkAcls"] = _admitting(given, {}, [])
        body = {
            "location": given.region,
            "tags": {**self._settings.tags, **self._wish.owner.tags},
            "kind": given.kind,
            "sku": {"name": _SKUS[given.kind]},
            "properties": properties,
        }
        path, asked = storage_path(self._settings, what.name), what.name in self._asked
        self._asked.add(what.name)
        try:
            return Begun(operation=self._calls.change(str(what), "PUT", path, STORAGE, body))
        except ApiError as error:
            if error.reply.code != _TAKEN:
                raise
            if asked:  # by us, most likely: an earlier answer may have been lost
                raise NotYetError(str(error)) from error
            raise ProvisionerError(f"{error}: {self._taken(what.name)}") from error

    def _open(self, what: Resource, seen: Seen) -> None:
        """Azure replaces all rules at once, so that those of others are read and written again."""
        _check_subnet(what.given, seen)
        if (raw := self._named(what.name)) is None:
            raise NotYetError("it is not there")
        rules = (raw.get("properties") or {}).get("networkAcls") or {}
        others = [
            {"id": each["id"], "action": "Allow"}
            for each in rules.get("virtualNetworkRules") or ()
            if admits(each) and each["id"].lower() != what.given.subnet.lower()
        ]
        properties = {
            "supportsHttpsTrafficOnly": False,
            "publicNetworkAccess": "Enabled",
            "networkAcls": _admitting(what.given, rules, others),
        }
        self._calls.change(str(what), "PATCH", str(raw["id"]), STORAGE, {"properties": properties})

    def _delete(self, what: Resource, seen: Seen) -> None:
        self._calls.change(str(what), "DELETE", seen.there(what).raw["id"], STORAGE)

    def _make_content(self, what: Resource, _seen: Seen) -> None:
        path = content_path(storage_path(self._settings, what.whole.name), what.whole.given)
        nfs = {"enabledProtocols": "NFS", "rootSquash": "NoRootSquash", "shareQuota": SHARE_GIB}
        body = {"properties": nfs if what.whole.given.kind == FILES else {"publicAccess": "None"}}
        self._calls.change(f"{what.name} in {what.whole.name}", "PUT", path, STORAGE, body)

    def mounts(self) -> Iterator[str]:
        """Yield what job files say, for people."""
        for region in self._settings.regions if self._wish.shared_storage else ():
            name = files_name(self._settings, self._wish.owner, region)
            source = f"{name}.file.core.windows.net:/{name}/{SHARE}"
            yield f'in job files:  storage: [{{mount: /mnt/shared, nfs: "{source}"}}]     # in {region}'


def _described(raw: Mapping[str, Any], needed: Resource | None) -> Found:
    """`needed`: the one that is wanted of this name."""
    properties, given = raw.get("properties") or {}, needed.given if needed else Storage("", "", "")
    closed = (properties.get("networkAcls") or {}).get("defaultAction") == "Deny"
    mounted = is_open(properties) and closed and given.subnet.lower() in admitted(properties)
    said, region = str(properties.get("provisioningState", "")), str(raw.get("location", "")).replace(" ", "").lower()
    what = wanted.storage(str(raw["name"]), given, is_open=given.kind != FILES or mounted)
    return Found(what, owner_of(raw.get("tags") or {}), region, STATES.get(said, State.PENDING), said, raw)


def _subnet_of(given: Storage) -> Resource:
    return Resource(wanted.SUBNET, given.subnet.lower())


def _check_subnet(given: Storage, seen: Seen) -> None:
    """Azure would accept the account, and fail it later."""
    found = seen.get(_subnet_of(given))
    if given.subnet and (found is None or found.state is not State.READY):
        raise NotYetError(f"the subnet {given.subnet} is not ready")


def _admitting(given: Storage, rules: Mapping[str, Any], others: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return the network rules that admit a subnet, beside those that are there."""
    return {
        "defaultAction": "Deny",
        "bypass": rules.get("bypass") or "None",
        "ipRules": rules.get("ipRules") or [],
        "virtualNetworkRules": [{"id": given.subnet, "action": "Allow"}, *others],
    }


def _not_for_nfs(what: Resource, found: Found) -> str:
    whole = f"the share {what.name} in {what.whole}"
    return "" if found.what.has else f"{whole} is not one for NFS: delete it, and repeat"
