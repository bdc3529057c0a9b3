"""The checks that `spotsupd check` makes on Azure. They launch nothing."""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from provisioners.azure import history, launch
from provisioners.azure.client import Azure, Clients
from provisioners.azure.leftovers import all_of
from provisioners.azure.offers import SPOT_QUOTA, Offers, quotas
from provisioners.azure.reservations import Reservations
from provisioners.azure.settings import AzureSettings
from provisioners.base import DeniedError, Finding, LeftoverKind, OfferQuery, ProvisionerError
from provisioners.calls import Deadline
from provisioners.catalog import Catalog
from provisioners.checks import CloudChecks, read_all
from provisioners.codes import ApiError

_RESOURCES_API = "2022-09-01"
_PERMISSIONS_API = "2022-04-01"
CHANGES = (
    "Microsoft.Compute/virtualMachines/write",
    "Microsoft.Compute/virtualMachines/delete",
    "Microsoft.Compute/disks/write",
    "Microsoft.Compute/disks/delete",
    "Microsoft.Network/networkInterfaces/write",
    "Microsoft.Network/networkInterfaces/join/action",
    "Microsoft.Network/networkInterfaces/delete",
    "Microsoft.Network/publicIPAddresses/write",
    "Microsoft.Network/publicIPAddresses/join/action",
    "Microsoft.Network/publicIPAddresses/delete",
)
"""The permissions that a launch and a termination need in the resource group, including Azure's own steps for them."""

ASSIGN = "Microsoft.Authorization/roleAssignments/write"
"""The permission with which the daemon gives each machine the right to deallocate itself."""

RESERVED = (
    "Microsoft.Compute/capacityReservationGroups/read",
    "Microsoft.Compute/capacityReservationGroups/capacityReservations/read",
    "Microsoft.Compute/capacityReservationGroups/deploy/action",
)
"""The permissions for reserved capacity. Source: "Azure permissions for Compute"."""

CONSOLE = "Microsoft.Compute/virtualMachines/retrieveBootDiagnosticsData/action"
ACCOUNTS = "Microsoft.Storage/storageAccounts/read"
"""The permission to see whether nodes can mount a job's NFS share."""

QUIET = ("Microsoft.Compute/locations/operations/read", "Microsoft.Compute/locations/usages/read")
"""Permissions without which nothing is refused: launches that fail late are noticed late, and quotas are not known."""

_MAX_NAMED = 8

# VirtualMachineImageProperties.architecture; older images have none.
_ARCHITECTURES = {"x64": "x86_64", "Arm64": "arm64"}
# A managed image; or an image in a gallery, of which a launch takes the newest version where none is named.
_OWN_IMAGE = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/"
    r"(images/[^/]+|(?P<gallery>galleries)/[^/]+/images/[^/]+(/versions/(latest|(?P<version>[^/]+)))?)",
    re.IGNORECASE,
)
_GALLERIES_API = "2024-03-03"
_ID = re.compile(r"/subscriptions/[^/]+/resourceGroups/([^/]+)/providers/Microsoft\.Network/(.+)", re.IGNORECASE)


class Checks(CloudChecks):
    """As CloudChecks says."""

    def __init__(self, azure: Azure, settings: AzureSettings, catalog: Catalog) -> None:
        self._azure = azure
        self._settings = settings
        self._catalog = catalog
        self._offers = Offers(azure, settings, catalog, time.time)

    def _further(self, deadline: Deadline) -> Iterator[Finding]:
        yield self._try("reading", lambda: self._reading(deadline))
        yield self._try("launching", lambda: self._permissions(deadline))
        yield self._try("dead-man switch", self._switch)
        if self._settings.capacity_reservations:
            reservations = Reservations(self._azure, self._settings)
            yield self._try("capacity reservations", lambda: reservations.checked(deadline))
        for region in self._settings.regions:
            yield from self._region(region, deadline)

    def _region(self, region: str, deadline: Deadline) -> Iterator[Finding]:
        for named in self._images():
            yield self._try(f"{region} image", partial(self._image, region, named, deadline))
        yield self._try(f"{region} network", lambda: self._network(region, deadline))
        for zone, scale_set in self._settings.scale_sets.items():
            if zone.rpartition("-")[0] == region or zone == region:
                yield self._try(f"{zone} scale set", partial(self._scale_set, zone, scale_set, deadline))
        yield self._try(f"{region} sizes", lambda: self._sizes(region, deadline))
        yield self._try(f"{region} quota", lambda: self._quota(region, deadline))

    def _credentials(self, deadline: Deadline) -> str:
        settings = self._settings
        path = f"/subscriptions/{settings.subscription}/resourceGroups/{settings.resource_group}"
        group = self._get(f"the resource group {settings.resource_group}", path, _RESOURCES_API, deadline)
        return (
            f"Azure lets the daemon see the resource group {group.get('name')} of subscription {settings.subscription}"
        )

    def _reading(self, deadline: Deadline) -> str:
        read_all(self._reads(deadline), "the daemon may not read")
        return "machines, their power, disks, interfaces, addresses and the activity log can be read"

    def _reads(self, deadline: Deadline) -> Iterator[tuple[str, Callable[[], object]]]:
        def machines(clients: Clients, more: Mapping[str, Any]) -> Any:
            return clients.compute.virtual_machines.list(clients.group, **more)

        def power(clients: Clients, more: Mapping[str, Any]) -> Any:
            return clients.compute.virtual_machines.list_all(status_only="true", **more)

        def page(method: str, url: str, params: Mapping[str, str]) -> Any:
            what = "the activity log"
            return self._azure.ask(what, lambda clients, more: clients.raw(method, url, params, more), deadline)

        def log() -> object:
            settings, now = self._settings, time.time() + self._azure.ahead_s
            return history.read(page, settings.subscription, settings.resource_group, now, window_s=60.0)

        yield "machines", lambda: list(self._azure.pages("machines", machines, deadline))
        yield "machines' power in the subscription", lambda: list(self._azure.pages("their power", power, deadline))
        for kind in (LeftoverKind.DISK, LeftoverKind.NETWORK_INTERFACE, LeftoverKind.ADDRESS):
            yield f"{kind}s", partial(all_of, self._azure, kind, deadline)
        yield "the activity log", log

    def _permissions(self, deadline: Deadline) -> str:
        """Azure has no dry run of a launch; it does list the caller's permissions."""
        settings = self._settings
        path = (
            f"/subscriptions/{settings.subscription}/resourceGroups/{settings.resource_group}"
            "/providers/Microsoft.Authorization/permissions"
        )
        granted = self._get("the daemon's permissions", path, _PERMISSIONS_API, deadline).get("value") or []
        for file, where, wanted in (
            ("azure-role.json", settings.resource_group, [*CHANGES, CONSOLE, ACCOUNTS, *self._used()]),
            ("azure-subscription-role.json", "the subscription", QUIET),
        ):
            missing = [action for action in wanted if not any(allows(each, action) for each in granted)]
            if missing:
                more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
                raise DeniedError(
                    f"the daemon may not do {', '.join(missing[:_MAX_NAMED])}{more} in {where}: give it what "
                    f"docs/permissions/{file} lists"
                )
        return f"the daemon may make and end machines in {settings.resource_group}"

    def _used(self) -> Iterator[str]:
        """Yield the permissions that these settings need. Of what is in another resource group they are granted
        there."""
        settings = self._settings
        here = f"/subscriptions/{settings.subscription}/resourceGroups/{settings.resource_group}/".lower()
        if settings.dead_man_after_s:
            yield ASSIGN
        for action, ids in (
            ("Microsoft.Network/virtualNetworks/subnets/join/action", settings.subnets.values()),
            ("Microsoft.Network/networkSecurityGroups/join/action", settings.security_groups.values()),
            ("Microsoft.ManagedIdentity/userAssignedIdentities/assign/action", [settings.identity]),
        ):
            if any(each.lower().startswith(here) for each in ids):
                yield action
        mine = f"{settings.resource_group}/".lower()
        if any(each.lower().startswith((mine, here)) for each in settings.capacity_reservations):
            yield from RESERVED

    def _switch(self) -> str:
        if not self._settings.dead_man_s:
            return "machines have no dead-man switch: azure.dead_man_s is 0"
        if not self._settings.dead_man_role:
            raise ProvisionerError(
                "machines have no dead-man switch: Azure bills a machine that has shut itself down, and only a role "
                "lets it deallocate itself; set azure.dead_man_role, or azure.dead_man_s = 0 to do without"
            )
        return f"a machine without contact for {self._settings.dead_man_s:g} s deallocates itself"

    def _images(self) -> list[str]:
        settings = self._settings
        return [
            each
            for each in dict.fromkeys([settings.image, settings.image_proprietary, *settings.images.values()])
            if each
        ]

    def _image(self, region: str, named: str, deadline: Deadline) -> str:
        reference = launch.image_reference(named)
        if "id" in reference:
            return self._own_image(named, deadline)
        publisher, offer, sku, version = (reference[key] for key in ("publisher", "offer", "sku", "version"))

        def ask(clients: Clients, more: Mapping[str, Any]) -> Any:
            return clients.compute.virtual_machine_images.list(region, publisher, offer, sku, **more)

        try:
            versions = [each.get("name") for each in self._azure.ask(f"the image {named}", ask, deadline)]
        except ApiError as error:
            raise ProvisionerError(f"{error}; set azure.image to one that {region} has") from error
        if not versions or version not in {"latest", *versions}:
            raise ProvisionerError(f"{region} has no image {named}: set azure.image to one that it has")
        newest = versions[-1] if version == "latest" else version

        def look(clients: Clients, more: Mapping[str, Any]) -> Any:
            return clients.compute.virtual_machine_images.get(region, publisher, offer, sku, newest, **more)

        properties = self._azure.ask(f"the image {named}", look, deadline).get("properties") or {}
        kind, needed = _ARCHITECTURES.get(str(properties.get("architecture")), ""), self._architectures(named)
        if kind and kind not in needed:
            gpus = [gpu for gpu, each in self._settings.images.items() if each == named]
            key = f"images.{gpus[0]}" if gpus else "image"
            raise ProvisionerError(f"image {named} is for {kind}, and the machines for {needed[0]}: set azure.{key}")
        return f"{named} is {newest} in {region}"

    def _own_image(self, named: str, deadline: Deadline) -> str:
        """Look at an image, at its version in a gallery, or at all versions: a launch takes the newest then. A launch
        needs the same permissions."""
        if not (match := _OWN_IMAGE.fullmatch(named)):
            return f"{named} is not checked: it is neither an image nor in a gallery of a subscription"
        version = _GALLERIES_API if match["gallery"] else launch.COMPUTE_API
        of_all = match["gallery"] and not match["version"]
        path = f"{named.partition('/versions/')[0]}/versions" if of_all else named
        try:
            found = self._get(f"the image {named}", path, version, deadline)
        except ApiError as error:
            raise ProvisionerError(f"{error}; set azure.image to one that is there") from error
        except DeniedError as error:
            raise DeniedError(f"{error}, where the image is, too", error.scope) from error
        if found.get("value") == []:
            raise ProvisionerError(f"the image {named} has no version: publish one, or set azure.image to another one")
        return f"{named} is there, and the daemon may read it"

    def _architectures(self, named: str) -> list[str]:
        """Return what the machines that take an image of `azure.images` may have; x86_64 for the images for all
        others."""
        gpus = {gpu for gpu, each in self._settings.images.items() if each == named}
        machines = self._catalog.select("azure", OfferQuery())
        found = {each.arch for each in machines if gpus & {each.gpu, each.gpu.split("-", 1)[0]}}
        return sorted(found) or ["x86_64"]

    def _network(self, region: str, deadline: Deadline) -> str:
        subnet = self._settings.subnets.get(region)
        if not subnet:
            raise ProvisionerError(
                f"no subnet is configured for {region}: set azure.subnets.{region} to the resource id of one there"
            )
        described = self._by_id(
            subnet, "subnets", lambda clients, names, more: clients.network.subnets.get(*names, **more), deadline
        )
        group = self._settings.security_groups.get(region, "")
        group = group or ((described.get("properties") or {}).get("networkSecurityGroup") or {}).get("id", "")
        if not group:
            if self._settings.public_address:
                raise ProvisionerError(
                    f"machines in {region} get a public address without an inbound rule: set azure.security_groups."
                    f"{region} to a group that lets the daemon in at port {self._settings.ssh_port}"
                )
            return f"machines in {region} are in {subnet}, where all of the network reach each other"
        rules = self._by_id(
            group,
            "networkSecurityGroups",
            lambda clients, names, more: clients.network.network_security_groups.get(*names, **more),
            deadline,
        )
        if not lets_in((rules.get("properties") or {}).get("securityRules") or (), self._settings.ssh_port):
            raise ProvisionerError(
                f"{group.rpartition('/')[2]} allows no access to port {self._settings.ssh_port}: add a rule for the "
                "daemon's address"
            )
        return f"{group.rpartition('/')[2]} lets the daemon in, and nodes in one network reach each other"

    def _by_id(
        self,
        resource: str,
        kind: str,
        ask: Callable[[Clients, Sequence[str], Mapping[str, Any]], Any],
        deadline: Deadline,
    ) -> Any:
        match = _ID.fullmatch(resource)
        parts = match[2].split("/") if match else []
        if match is None or len(parts) < 2 or parts[-2].lower() != kind.lower():
            raise ProvisionerError(f"{resource!r} is not the resource id of one of Azure's {kind}")
        names = [match[1], *parts[1::2]]
        try:
            return self._azure.ask(
                resource.rpartition("/")[2], lambda clients, more: ask(clients, names, more), deadline
            )
        except ApiError as error:
            raise ProvisionerError(
                f"{error}; look at azure.{'subnets' if kind == 'subnets' else 'security_groups'}"
            ) from error

    def _scale_set(self, zone: str, scale_set: str, deadline: Deadline) -> str:
        """InfiniBand is set up within one placement group of one scale set."""
        found = self._get(f"the scale set {scale_set.rpartition('/')[2]}", scale_set, launch.COMPUTE_API, deadline)
        properties, name = found.get("properties") or {}, found.get("name")
        where = f"{found.get('location')}-{found['zones'][0]}" if found.get("zones") else found.get("location")
        if properties.get("orchestrationMode") != "Flexible":
            raise ProvisionerError(f"the scale set {name} is not Flexible: machines cannot join it; name another one")
        if properties.get("singlePlacementGroup") is not True:
            raise ProvisionerError(f"the scale set {name} has several placement groups: create one with a single group")
        if where != zone:
            raise ProvisionerError(f"azure.scale_sets: {name} is in {where}, not in {zone}")
        return f"machines in {zone} join the scale set {name}, in which InfiniBand connects them"

    def _sizes(self, region: str, deadline: Deadline) -> str:
        gpus = {each.name.lower(): each.gpu for each in self._catalog.select("azure", OfferQuery())}
        found = {gpus[each.size.lower()] for each in self._offers.places(region, deadline) if each.size.lower() in gpus}
        if not found:
            raise ProvisionerError(
                f"{region} offers this subscription no size of the catalog: remove it from azure.regions, or ask Azure "
                "to lift the restriction"
            )
        return f"{region} has machines with {', '.join(sorted(each for each in found if each))}"

    def _quota(self, region: str, deadline: Deadline) -> str:
        found = quotas(self._azure, region, deadline)
        limit = None if found is None else found.get(SPOT_QUOTA.lower())
        if limit == 0:
            raise ProvisionerError(
                f"the quota of {region} allows no spot instance ({SPOT_QUOTA}: 0 vCPUs): "
                "request more under Quotas in the portal"
            )
        return f"vCPUs of spot machines in {region}: {'?' if limit is None else limit}"

    def _get(self, what: str, path: str, version: str, deadline: Deadline) -> Mapping[str, Any]:
        def ask(clients: Clients, more: Mapping[str, Any]) -> Any:
            return clients.raw("GET", path, {"api-version": version}, more)

        found: Mapping[str, Any] = self._azure.ask(what, ask, deadline)
        return found


def allows(permission: Mapping[str, Any], action: str) -> bool:
    """True if a permission of the caller covers an action. Names may have a * anywhere; case does not matter."""

    def covers(names: Sequence[str] | None) -> bool:
        return any(fnmatch.fnmatchcase(action.lower(), name.lower()) for name in names or ())

    return covers(permission.get("actions")) and not covers(permission.get("notActions"))


def lets_in(rules: Sequence[Mapping[str, Any]], port: int) -> bool:
    """True if the first rule, by priority, for TCP at `port` from outside allows it."""
    properties = [each.get("properties") or {} for each in rules]
    inbound = [each for each in properties if str(each.get("direction", "")).lower() == "inbound"]
    for rule in sorted(inbound, key=lambda each: int(each.get("priority", 65000))):
        ranges = [rule.get("destinationPortRange") or "", *(rule.get("destinationPortRanges") or ())]
        if rule.get("protocol", "*").lower() in {"*", "tcp"} and any(_holds(each, port) for each in ranges):
            if str(rule.get("access", "")).lower() == "allow":
                return True
            if rule.get("sourceAddressPrefix") in {"*", "Internet"}:
                return False
    return False


def _holds(ports: str, port: int) -> bool:
    first, _, last = ports.partition("-")
    return ports == "*" or (first.isdecimal() and int(first) <= port <= int(last or first))
