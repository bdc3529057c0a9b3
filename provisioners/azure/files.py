"""From which regions' subnets an NFS share of Azure Files can be mounted.

NFS has no secure transfer and no identity there: an account takes it only without the one, and only from subnets that
it admits ("NFS Azure file shares").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from provisioners.azure.client import Azure, Clients
from provisioners.azure.settings import AzureSettings
from provisioners.base import DeniedError, ProvisionerError, UnreachableError
from provisioners.calls import Deadline
from provisioners.codes import ApiError

STORAGE_API = "2023-05-01"
_FILES = re.compile(r"([a-z0-9]{3,24})\.file\.core\.windows\.net")
_ALIVE = frozenset({"", "provisioning", "succeeded"})  # states of a rule; one whose subnet was deleted stays, dead


def is_open(properties: Mapping[str, Any]) -> bool:
    """True if a storage account takes what NFS sends, by its public endpoint."""
    return properties.get("supportsHttpsTrafficOnly") is False and properties.get("publicNetworkAccess") != "Disabled"


def admits(rule: Mapping[str, Any]) -> bool:
    """True if a rule of a storage account lets its subnet in."""
    return str(rule.get("action", "Allow")) == "Allow" and str(rule.get("state", "")).lower() in _ALIVE


def admitted(properties: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of the subnets that a storage account lets in, in lower case."""
    rules = (properties.get("networkAcls") or {}).get("virtualNetworkRules") or ()
    return frozenset(str(each.get("id", "")).lower() for each in rules if admits(each))


def regions_of(
    azure: Azure, settings: AzureSettings, servers: Sequence[str], regions: Sequence[str], deadline: Deadline
) -> list[str]:
    """Return the regions from which all of these servers can be mounted, as far as they are storage accounts in the
    resource group that may be read. Raises ProvisionerError where there are none."""
    names = [match[1] for each in servers if (match := _FILES.fullmatch(each))]
    known = _accounts(azure, settings, deadline) if names else {}
    usable = list(regions)
    for name in names:
        properties = known.get(name)
        if properties is None or properties.get("privateEndpointConnections"):
            continue
        if not is_open(properties):
            raise ProvisionerError(
                f"no node can mount from the storage account {name}: NFS needs an account without secure transfer, and "
                f"with a public endpoint for the nodes' subnet: az storage account update --name {name} "
                "--https-only false --public-network-access Enabled"
            )
        subnets = admitted(properties)
        if not (usable := [each for each in usable if settings.subnets.get(each, "").lower() in subnets]):
            raise ProvisionerError(
                f"the storage account {name} admits no subnet of nodes in {', '.join(regions)}: ask for its region, or "
                f"az storage account network-rule add --account-name {name} --subnet SUBNET"
            )
    return usable


def _accounts(azure: Azure, settings: AzureSettings, deadline: Deadline) -> dict[str, Mapping[str, Any]]:
    """Return the properties of the resource group's storage accounts by name; none where they may not be read."""
    path = f"/subscriptions/{settings.subscription}/resourceGroups/{settings.resource_group}"

    def ask(clients: Clients, more: Mapping[str, Any]) -> Any:
        url = f"{path}/providers/Microsoft.Storage/storageAccounts"
        return clients.raw("GET", url, {"api-version": STORAGE_API}, more)["value"]

    try:
        listed = azure.ask("storage accounts", ask, deadline)
        return {str(each["name"]): each.get("properties") or {} for each in listed}
    except (ApiError, DeniedError, UnreachableError, KeyError, TypeError):
        return {}
