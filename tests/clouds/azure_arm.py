"""Azure Resource Manager's calls, as the test cloud answers them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from provisioners.catalog import load_catalog
from tests.clouds import azure_machines as kept
from tests.clouds.azure_account import Subscription
from tests.clouds.azure_contract import check_members
from tests.clouds.azure_machines import GROUP, SUBSCRIPTION, Group, Record
from tests.clouds.azure_requests import IMAGES, REGIONS, SECURITY_GROUP, SUBNETS, architecture_of, check
from tests.clouds.azure_reservations import ReservedCapacity
from tests.clouds.azure_wire import Call, FakeAzureError, resource
from tests.clouds.base import Answer
from tests.clouds.machines import Machines

_ARM = "/subscriptions/{subscription}"
_IN_GROUP = _ARM + "/resourcegroups/{group}"
_COMPUTE = _IN_GROUP + "/providers/microsoft.compute"
_NETWORK = _IN_GROUP + "/providers/microsoft.network"
_PLACE = _ARM + "/providers/microsoft.compute/locations/{region}"
_OFFER = "/publishers/{publisher}/artifacttypes/vmimage/offers/{offer}"


class Arm:
    """One subscription with one resource group. What can be set: vCPU `quotas`, closed `restrictions` (size, zone or
    ""), `rules` of the security group, `granted` permissions, `page` size, and the `prices` (size -> spot's,
    on-demand's). Where "networkInterfaces" are `missing`, those listings are empty. Callers hold `fleet.lock`.
    """

    def __init__(self, machines: Machines) -> None:
        self.fleet = Group(machines)
        self.url = ""
        self.quotas = {"lowPriorityCores": 4096, "cores": 4096}
        self.restrictions: set[tuple[str, str]] = set()
        self.rules: list[dict[str, Any]] = [open_rule()]
        self.granted: list[dict[str, Any]] = [{"actions": ["*"], "notActions": []}]
        self.page = 100
        self.sizes = {each.name: each for each in load_catalog().cloud("azure").types}
        self.prices = {name: (0.1 + number / 100, 0.5 + number / 10) for number, name in enumerate(self.sizes)}
        self.failing: list[tuple[str, float]] = []
        self.scale_set: dict[str, Any] = {"orchestrationMode": "Flexible", "singlePlacementGroup": True}
        self.images = {kept.IMAGE, kept.GALLERY_VERSION}
        self.assignments: dict[str, dict[str, Any]] = {}
        # The service endpoints of the subnets that are there from the start.
        self.endpoints: set[str] = set()
        self.account = Subscription(self._first_subnet)
        self.reserved = ReservedCapacity(self.fleet, self._paged)
        # Method, path, the permission without "Microsoft.", and what answers.
        self._routes: list[tuple[str, str, str, Callable[[Call, dict[str, str]], Answer]]] = [
            ("GET", _IN_GROUP, "Resources/subscriptions/resourceGroups/read", self._group),
            (
                "GET",
                _IN_GROUP + "/providers/microsoft.authorization/permissions",
                "Authorization/permissions/read",
                self._permissions,
            ),
            ("GET", _COMPUTE + "/virtualmachines", "Compute/virtualMachines/read", self._machines_of),
            (
                "GET",
                _ARM + "/providers/microsoft.compute/virtualmachines",
                "Compute/virtualMachines/read",
                self._statuses,
            ),
            ("GET", _COMPUTE + "/virtualmachines/{name}", "Compute/virtualMachines/read", self._get),
            ("PUT", _COMPUTE + "/virtualmachines/{name}", "Compute/virtualMachines/write", self._put),
            ("DELETE", _COMPUTE + "/virtualmachines/{name}", "Compute/virtualMachines/delete", self._delete),
            (
                "PUT",
                _COMPUTE + "/virtualmachines/{name}/providers/microsoft.authorization/roleassignments/{id}",
                "Authorization/roleAssignments/write",
                self._assign,
            ),
            (
                "GET",
                _COMPUTE + "/virtualmachinescalesets/{name}",
                "Compute/virtualMachineScaleSets/read",
                self._scale_set,
            ),
            (
                "POST",
                _COMPUTE + "/virtualmachines/{name}/retrievebootdiagnosticsdata",
                "Compute/virtualMachines/retrieveBootDiagnosticsData/action",
                self._console,
            ),
            (
                "POST",
                _COMPUTE + "/virtualmachines/{name}/simulateeviction",
                "Compute/virtualMachines/simulateEviction/action",
                self._simulate_eviction,
            ),
            ("GET", _PLACE + "/operations/{name}", "Compute/locations/operations/read", self._operation),
            ("GET", _COMPUTE + "/disks", "Compute/disks/read", self._disks),
            ("DELETE", _COMPUTE + "/disks/{name}", "Compute/disks/delete", self._delete_loose),
            ("GET", _NETWORK + "/networkinterfaces", "Network/networkInterfaces/read", self._interfaces),
            ("DELETE", _NETWORK + "/networkinterfaces/{name}", "Network/networkInterfaces/delete", self._delete_loose),
            ("GET", _NETWORK + "/publicipaddresses", "Network/publicIPAddresses/read", self._addresses),
            ("DELETE", _NETWORK + "/publicipaddresses/{name}", "Network/publicIPAddresses/delete", self._delete_loose),
            (
                "GET",
                _NETWORK + "/virtualnetworks/{net}/subnets/{name}",
                "Network/virtualNetworks/subnets/read",
                self._subnet,
            ),
            (
                "GET",
                _NETWORK + "/networksecuritygroups/{name}",
                "Network/networkSecurityGroups/read",
                self._security_group,
            ),
            ("GET", _COMPUTE + "/images/{name}", "Compute/images/read", self._image),
            (
                "GET",
                _COMPUTE + "/galleries/{gallery}/images/{name}/versions/{version}",
                "Compute/galleries/images/versions/read",
                self._image,
            ),
            (
                "GET",
                _COMPUTE + "/galleries/{gallery}/images/{name}/versions",
                "Compute/galleries/images/versions/read",
                self._image_versions,
            ),
            ("GET", _ARM + "/providers/microsoft.compute/skus", "Compute/skus/read", self._skus),
            ("GET", _PLACE + "/usages", "Compute/locations/usages/read", self._usages),
            (
                "GET",
                _PLACE + _OFFER + "/skus/{sku}/versions",
                "Compute/locations/publishers/artifacttypes/offers/skus/versions/read",
                self._versions,
            ),
            (
                "GET",
                _PLACE + _OFFER + "/skus/{sku}/versions/{version}",
                "Compute/locations/publishers/artifacttypes/offers/skus/versions/read",
                self._version,
            ),
            (
                "GET",
                _ARM + "/providers/microsoft.insights/eventtypes/management/values",
                "Insights/eventtypes/values/read",
                self._log,
            ),
            *self.account.routes,
            *self.reserved.routes,
        ]

    def action_of(self, call: Call) -> str:
        """The permission that a call needs. Raises FakeAzureError for an unknown call."""
        return self._route(call)[0]

    def serve(self, call: Call) -> Answer:
        """One call. Raises FakeAzureError."""
        _, handler, names = self._route(call)
        if "api-version" not in call.query:
            raise FakeAzureError(
                "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required"
            )
        # Others may share groups of reservations, from any of their resource groups.
        elsewhere = self.reserved.knows(call.path)
        if names.get("subscription") != SUBSCRIPTION and not elsewhere:
            raise FakeAzureError(
                "SubscriptionNotFound", f"The subscription '{names.get('subscription')}' could not be found."
            )
        if names.get("group", GROUP).lower() != GROUP and not elsewhere:
            raise FakeAzureError("ResourceGroupNotFound", f"Resource group '{names['group']}' could not be found.")
        self.account.admit(call)
        check_members(call)
        return handler(call, names)

    def _route(self, call: Call) -> tuple[str, Callable[[Call, dict[str, str]], Answer], dict[str, str]]:
        for method, path, action, handler in self._routes:
            pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path.replace(".", r"\."))
            match = re.fullmatch(pattern, call.path.rstrip("/"), re.IGNORECASE)
            if match is not None and method == call.method:
                return f"Microsoft.{action}", handler, match.groupdict()
        raise FakeAzureError("NotFound", f"there is no {call.method} {call.path}")

    # -- machines ------------------------------------------------------------------------------------------

    def _put(self, call: Call, names: dict[str, str]) -> Answer:
        name, body = names["name"], call.json()
        known = self.fleet.records.get(name.lower())
        if known is not None:
            self.fleet.sync(known)
        if name.lower() in self.fleet.records:
            if call.headers.get("if-none-match") == "*":
                raise FakeAzureError("PreconditionFailed", f"The resource '{name}' already exists.")
            raise FakeAzureError("PropertyChangeNotAllowed", "Changing property 'osProfile' is not allowed.")
        check(name, body, self.sizes, self.account.was_made)
        self.reserved.check(body)
        self._check_price(body)
        self._check_room(body)
        if call.query["api-version"] >= "2025-11-01" and "securityProfile" not in body["properties"]:
            # The default from that version on; Secure Boot loads no driver that is built on the machine.
            body["properties"]["securityProfile"] = {"securityType": "TrustedLaunch"}
        fails = None
        if self.failing:
            code, after_s = self.failing.pop(0)
            fails = (time.time() + after_s, code, f"{code}: Allocation failed. We do not have sufficient capacity.")
        record, operation = self.fleet.put(name, body, fails)
        where = f"{self.url}/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{body['location']}"
        headers = {"Azure-AsyncOperation": f"{where}/operations/{operation}?api-version=2026-04-01", "Retry-After": "0"}
        return Answer(201, self._listed(record, record.now), headers)

    def _check_price(self, body: dict[str, Any]) -> None:
        size, most = body["properties"]["hardwareProfile"]["vmSize"], max_price_of(body)
        price = self.prices[size][0]
        if most is not None and most < price:
            # "Error messages for Azure Spot Virtual Machines"
            message = (
                f"Unable to perform operation 'Create VM' since the provided max price '{most} USD' is lower than the "
                f"current spot price '{price} USD' for Azure Spot VM size '{size}'. For more information, see "
                "https://aka.ms/AzureSpot/errormessages."
            )
            raise FakeAzureError("SpotPriceGreaterThanProvidedMaxPrice", message)

    def set_spot_price(self, size: str, price: float) -> None:
        """Change it. Machines whose requests pay less are evicted."""
        self.prices[size] = (price, self.prices[size][1])
        for record in self.fleet.alive():
            most = max_price_of(record.body)
            if record.body["properties"]["hardwareProfile"]["vmSize"] == size and most is not None and most < price:
                self.fleet.preempt(record.name, 0.0)

    def _check_room(self, body: dict[str, Any]) -> None:
        asked = body["properties"]
        size, region = asked["hardwareProfile"]["vmSize"], body["location"]
        zone = kept.zone_of(body)
        closed = {(zone, ""), (zone, size)} & self.restrictions
        if closed or self.fleet.is_full(
            zone, size, map(kept.zone_of, (each.body for each in self.fleet.records.values()))
        ):
            message = (
                f"The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: {size}' is "
                f"currently not available in location '{region}'. Please try another size or deploy to a different "
                "location or different zone. See https://aka.ms/azureskunotavailable for details."
            )
            raise FakeAzureError("SkuNotAvailable", message)
        if self.fleet.most_machines and len(self.fleet.records) >= self.fleet.most_machines:
            family = f"{size.removeprefix('Standard_')}Family Cores"
            name = "LowPriorityCores" if asked.get("priority") == "Spot" else family
            message = (
                f"Operation could not be completed as it results in exceeding approved {name} quota. Additional "
                f"details - Deployment Model: Resource Manager, Location: {region}, Current Limit: 3, Current Usage: "
                "0, Additional Required: 4, (Minimum) New Limit Required: 4."
            )
            raise FakeAzureError("OperationNotAllowed", message)

    def _get(self, call: Call, names: dict[str, str]) -> Answer:
        record = self._must_know(names["name"])
        vm = self._listed(record, record.now)
        if call.query.get("$expand") == "instanceView":
            vm["properties"] |= kept.statuses(record, record.now)["properties"]
        return Answer(200, vm)

    def _delete(self, _call: Call, names: dict[str, str]) -> Answer:
        return Answer(202 if self.fleet.delete(names["name"]) else 204)

    def _assign(self, call: Call, names: dict[str, str]) -> Answer:
        record, asked = self._must_know(names["name"]), call.json()["properties"]
        if asked["principalId"] != record.vm_id:
            raise FakeAzureError(
                "PrincipalNotFound", f"Principal {asked['principalId']} does not exist in the directory."
            )
        if asked.get("principalType") != "ServicePrincipal":  # the directory has not replicated it yet
            raise FakeAzureError(
                "PrincipalNotFound", f"Principal {asked['principalId']} does not exist in the directory."
            )
        self.assignments[call.path.lower()] = asked
        return Answer(201, {"id": call.path, "properties": asked})

    def _scale_set(self, call: Call, names: dict[str, str]) -> Answer:
        if call.path.lower() != kept.SCALE_SET.lower():
            raise FakeAzureError("ResourceNotFound", f"The Resource '{names['name']}' was not found.")
        found = {"name": names["name"], "location": "eastus", "zones": ["1"], "properties": self.scale_set}
        return Answer(200, found)

    def _image(self, call: Call, names: dict[str, str]) -> Answer:
        if call.path not in self.images:
            raise FakeAzureError("ResourceNotFound", f"The Resource '{names['name']}' was not found.")
        return Answer(200, {"id": call.path, "name": names["name"], "location": "eastus"})

    def _image_versions(self, call: Call, names: dict[str, str]) -> Answer:
        found = [each for each in sorted(self.images) if each.startswith(call.path)]
        return Answer(200, {"value": [{"id": each, "location": "eastus"} for each in found]})

    def _console(self, _call: Call, names: dict[str, str]) -> Answer:
        record = self._must_know(names["name"])
        return Answer(200, {"serialConsoleLogBlobUri": f"{self.url}/_blob/{record.machine}?sig=secret"})

    def _simulate_eviction(self, _call: Call, names: dict[str, str]) -> Answer:
        """Accepted at once; the eviction comes later, with its notice."""
        record = self._must_know(names["name"])
        if record.body["properties"].get("priority") != "Spot":
            message = "Operation 'simulateEviction' is not allowed on VM: it is not a Spot VM."
            raise FakeAzureError("OperationNotAllowed", message)
        self.fleet.record_event(record, "simulateEviction/action", "Succeeded")
        self.fleet.preempt(record.name, self.fleet.simulated_notice_s)
        return Answer(204)

    def _operation(self, _call: Call, names: dict[str, str]) -> Answer:
        record = self.fleet.operations.get(names["name"])
        if record is None:
            raise FakeAzureError("NotFound", "there is no such operation")
        self.fleet.sync(record)
        states = {"Creating": "InProgress", "Failed": "Failed"}
        reply: dict[str, Any] = {"name": names["name"], "status": states.get(record.now.made, "Succeeded")}
        if record.now.made == "Failed":
            reply["error"] = dict(zip(("code", "message"), record.now.error, strict=True))
        return Answer(200, reply)

    def _must_know(self, name: str) -> Record:
        record = self.fleet.records.get(name.lower())
        if record is not None:
            self.fleet.sync(record)
        if record is None or record.now.made == kept.GONE:
            where = f"Microsoft.Compute/virtualMachines/{name}"
            raise FakeAzureError(
                "ResourceNotFound", f"The Resource '{where}' under resource group '{GROUP}' was not found."
            )
        return record

    def _listed(self, record: Record, seen: kept.Seen) -> dict[str, Any]:
        vm = kept.described(record, seen)
        for name in self.fleet.missing:
            vm.pop(name, None)
            vm["properties"].pop(name, None)
        return vm

    # -- listings ------------------------------------------------------------------------------------------

    def _machines_of(self, call: Call, _names: dict[str, str]) -> Answer:
        return self._paged(call, [self._listed(*each) for each in self.fleet.listed()])

    def _statuses(self, call: Call, _names: dict[str, str]) -> Answer:
        assert call.query.get("statusOnly") == "true"
        return self._paged(call, [kept.statuses(*each) for each in self.fleet.listed()])

    def _interfaces(self, call: Call, _names: dict[str, str]) -> Answer:
        seen = [] if "networkInterfaces" in self.fleet.missing else self.fleet.listed()
        found = [each for one in seen for each in kept.interfaces(*one)]
        return self._paged(call, found + self._loose("networkInterfaces"))

    def _addresses(self, call: Call, _names: dict[str, str]) -> Answer:
        found = [each for seen in self.fleet.listed() for each in kept.public_addresses(*seen)]
        return self._paged(call, found + self._loose("publicIPAddresses"))

    def _disks(self, call: Call, _names: dict[str, str]) -> Answer:
        found = [each for seen in self.fleet.listed() for each in kept.disks(*seen)]
        return self._paged(call, found + self._loose("disks"))

    def _loose(self, kind: str) -> list[dict[str, Any]]:
        found = {path: resource(path, kind) for path in self.fleet.loose}
        return [{"id": path, "name": name, **self.fleet.loose[path]} for path, name in found.items() if name]

    def _delete_loose(self, call: Call, _names: dict[str, str]) -> Answer:
        found = next((path for path in self.fleet.loose if path.lower() == call.path.lower()), None)
        if found is None:
            return Answer(204)
        del self.fleet.loose[found]
        return Answer(202)

    def _log(self, call: Call, _names: dict[str, str]) -> Answer:
        wanted = call.query["$filter"]
        since = re.search(r"eventTimestamp ge '([^']+)' and eventTimestamp le '([^']+)'", wanted)
        group = re.search(r"resourceGroupName eq '([^']+)'$", wanted)
        uri = re.search(r"resourceUri eq '([^']+)'$", wanted)
        if since is None or (group is None) == (uri is None):
            raise FakeAzureError("BadRequest", f"The filter {wanted!r} is not one of those that are allowed.")
        for record in list(self.fleet.records.values()):
            self.fleet.sync(record)
        now = datetime.fromtimestamp(time.time() + self.fleet.ahead_s + 300.0, UTC)
        if since[2] > now.strftime("%Y-%m-%dT%H:%M:%SZ"):
            raise FakeAzureError("BadRequest", "The end of the time range must not be in the future.")
        as_of = time.time() - self.fleet.lag_s
        found = [
            {key: entry[key] for key in call.query["$select"].split(",")}
            for at, entry in reversed(self.fleet.log)
            if at <= as_of
            and since[1] <= entry["eventTimestamp"] <= since[2]
            and (uri is None or entry["resourceId"].lower() == uri[1].lower())
            and not (self.fleet.hides_deletions and entry["operationName"]["value"].endswith("/delete"))
        ]
        return self._paged(call, found)

    def _paged(self, call: Call, items: list[Any]) -> Answer:
        first = int(call.query.get("$skiptoken") or 0)
        reply: dict[str, Any] = {"value": items[first : first + self.page]}
        if len(items) > first + self.page:
            query = {**call.query, "$skiptoken": str(first + self.page)}
            reply["nextLink"] = f"{self.url}{call.path}?" + "&".join(
                f"{quote(key)}={quote(value)}" for key, value in query.items()
            )
        return Answer(200, reply)

    # -- around it -----------------------------------------------------------------------------------------

    def _group(self, _call: Call, names: dict[str, str]) -> Answer:
        return Answer(200, {"name": names["group"], "location": "eastus", "properties": {}})

    def _permissions(self, _call: Call, _names: dict[str, str]) -> Answer:
        return Answer(200, {"value": self.granted})

    def _subnet(self, call: Call, _names: dict[str, str]) -> Answer:
        if (found := self.account.subnet(call.path)) is None:
            raise FakeAzureError("NotFound", f"Subnet {call.path.rpartition('/')[2]} is not found.")
        return Answer(200, found)

    def _first_subnet(self, path: str) -> dict[str, Any] | None:
        if path.lower() not in {each.lower() for each in SUBNETS.values()}:
            return None
        known = [{"service": each, "provisioningState": "Succeeded"} for each in sorted(self.endpoints)]
        properties = {"provisioningState": "Succeeded", "serviceEndpoints": known}
        return {"id": path, "name": path.rpartition("/")[2], "properties": properties}

    def _security_group(self, call: Call, _names: dict[str, str]) -> Answer:
        if made := self.account.find(call.path):
            return Answer(200, made)
        if call.path.lower() != SECURITY_GROUP.lower():
            raise FakeAzureError("ResourceNotFound", f"{call.path.rpartition('/')[2]} was not found.")
        return Answer(200, {"id": call.path, "name": "nodes", "properties": {"securityRules": self.rules}})

    def _versions(self, _call: Call, names: dict[str, str]) -> Answer:
        versions = IMAGES.get((names["publisher"], names["offer"], names["sku"]))
        if versions is None:
            raise FakeAzureError("NotFound", f"Artifact: VMImage was not found ({names['sku']}).")
        return Answer(200, [{"name": each, "location": names["region"]} for each in versions])

    def _version(self, _call: Call, names: dict[str, str]) -> Answer:
        properties = {"architecture": architecture_of(names["sku"]), "hyperVGeneration": "V2"}
        return Answer(200, {"name": names["version"], "location": names["region"], "properties": properties})

    def _usages(self, call: Call, _names: dict[str, str]) -> Answer:
        found = [
            {"name": {"value": name, "localizedValue": name}, "limit": limit, "currentValue": 0, "unit": "Count"}
            for name, limit in self.quotas.items()
        ]
        return self._paged(call, found)

    def _skus(self, call: Call, _names: dict[str, str]) -> Answer:
        match = re.fullmatch(r"location eq '([a-z0-9]+)'", call.query.get("$filter", ""))
        assert match is not None, call.query
        region = match[1]
        zones = REGIONS[region]
        found = [{"resourceType": "disks", "name": "Premium_LRS", "locationInfo": [{"location": region}]}]
        return self._paged(call, [*found, *(self._sku(name, region, zones) for name in self.sizes)])

    def _sku(self, name: str, region: str, zones: Iterable[str]) -> dict[str, Any]:
        closed = [zone for zone in zones if (name, f"{region}-{zone}") in self.restrictions]
        restrictions: list[dict[str, Any]] = []
        if closed:
            restrictions.append({"type": "Zone", "values": [region], "restrictionInfo": {"zones": closed}})
        if (name, region) in self.restrictions:
            restrictions.append({"type": "Location", "values": [region], "reasonCode": "NotAvailableForSubscription"})
        size = self.sizes[name]
        spot = "False" if name == "Standard_ND40rs_v2" else "True"
        return {
            "resourceType": "virtualMachines",
            "name": name,
            "family": f"{name.removeprefix('Standard_')}Family",
            "locations": [region],
            "locationInfo": [{"location": region, "zones": list(zones)}],
            "restrictions": restrictions,
            "capabilities": [
                {"name": "LowPriorityCapable", "value": spot},
                {"name": "vCPUs", "value": str(size.vcpus or 4)},
                {"name": "GPUs", "value": str(size.gpus)},
                {"name": "MemoryGB", "value": str(size.memory_gib or 16)},
                {"name": "CpuArchitectureType", "value": "Arm64" if size.arch == "arm64" else "x64"},
            ],
        }


def open_rule(port: str = "22", access: str = "Allow", priority: int = 100) -> dict[str, Any]:
    """A rule of a security group about what comes in."""
    return {
        "name": f"{access}-{port}",
        "properties": {
            "protocol": "Tcp",
            "direction": "Inbound",
            "access": access,
            "priority": priority,
            "destinationPortRange": port,
            "sourceAddressPrefix": "198.51.100.1/32" if access == "Allow" else "*",
        },
    }


def max_price_of(body: dict[str, Any]) -> float | None:
    """What a machine's request pays at most; None for the market's price."""
    most = body["properties"].get("billingProfile", {}).get("maxPrice", -1)
    return None if most == -1 else float(most)
