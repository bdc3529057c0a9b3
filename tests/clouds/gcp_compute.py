"""Compute Engine's calls, as the test cloud answers them."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from provisioners.catalog import MachineType, load_catalog
from tests.clouds.base import Answer
from tests.clouds.gcp_account import Project
from tests.clouds.gcp_instances import GONE, Instances, Operation, Record, when
from tests.clouds.gcp_markets import Reserved, check_flex, waits
from tests.clouds.gcp_wire import Call, FakeGcpError, filter_of, page
from tests.clouds.machines import Machines

PROJECT = "a-project"
ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west1-a", "us-west1-b")
IMAGES = {
    "ubuntu-os-accelerator-images": {
        "ubuntu-accelerator-2404-amd64-with-nvidia-580",
        "ubuntu-accelerator-2404-arm64-with-nvidia-580",
    }
}
OP_FAULTS: Mapping[str, tuple[str, str]] = {
    "transient": ("INTERNAL_ERROR", "Internal error. Please try again or contact Google Support. (Code: '-473021768')"),
    "full": (
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "The zone 'projects/p/zones/ZONE' does not have enough resources available to fulfill the request.",
    ),
    "quota": ("QUOTA_EXCEEDED", "Quota 'PREEMPTIBLE_NVIDIA_T4_GPUS' exceeded.  Limit: 0.0 in region us-central1."),
    "quota-everywhere": ("QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."),
    "unheard-of": ("SOMETHING_NEW", "Never seen before"),
}
_NO_PERSISTENT_DISK = ("a3-ultragpu-", "a4-", "a4x-", "c4-", "c4a-", "g4-", "n4-")
_NO_HYPERDISK = ("a2-", "e2-", "g2-", "n1-", "n2-", "t2d-")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


class Compute:
    """One project. What can be set: `quotas` by region ("" for the project's), `images` by project, `firewalls`,
    `subnetworks`, zones that are left out of listings (`unreachable`), whether a zone's operations are filtered
    (`filters`), how late a launch fails that is "full-late" (`late_s`). Callers hold `fleet.lock`.
    """

    def __init__(self, machines: Machines) -> None:
        self.fleet = Instances(machines)
        self.images = {project: set(names) for project, names in IMAGES.items()}
        self.subnetworks = {("us-central1", "default"), ("us-west1", "default")}
        self.image_gb = 30
        self.placement_policies: set[str] = set()
        # By zone and machine type: how likely it is to be had.
        self.obtainability: dict[tuple[str, str], float] = {}
        self.firewalls: list[dict[str, Any]] = [rule("ssh", ports=("22",)), rule("internal")]
        self.unreachable: set[str] = set()
        self.filters = True
        # (region, machine type, with its GPUs where they are attached) -> US dollars per hour
        self.spot_prices: dict[tuple[str, str], float] = {}
        self.new_types: dict[str, MachineType] = {}  # that no catalogue has
        self.late_s = 1.5  # when a launch fails that is "full-late"
        self.quotas: dict[str, dict[str, float]] = {region: dict(_QUOTAS) for region in ("us-central1", "us-west1")}
        self.quotas[""] = {"GPUS_ALL_REGIONS": 64.0}
        self.account = Project(PROJECT, lambda: self.firewalls)
        self.reserved = Reserved(PROJECT, self.fleet.alive)
        self._requests: dict[str, Operation] = {}
        self._catalog = load_catalog().cloud("gcp")
        self._handlers: dict[str, Callable[[Call], Mapping[str, Any]]] = {
            "instances.get": self._get,
            "instances.delete": self._delete,
            "instances.aggregatedList": self._list,
            "instances.simulateMaintenanceEvent": self._simulate_maintenance,
            "instances.getSerialPortOutput": self._console,
            "zoneOperations.get": self._operation,
            "zoneOperations.list": self._zone_operations,
            "globalOperations.aggregatedList": self._all_operations,
            "disks.aggregatedList": self._list_disks,
            "disks.delete": self._delete_disk,
            "machineTypes.aggregatedList": self._machine_types,
            "acceleratorTypes.aggregatedList": self._accelerator_types,
            "regions.get": self._region,
            "projects.get": self._project,
            "images.get": self._image,
            "images.getFromFamily": self._image,
            "subnetworks.get": self._subnetwork,
            "firewalls.list": self._firewalls,
            "advice.capacityHistory": self._capacity_history,
            "advice.capacity": self._capacity,
            "reservations.get": self.reserved.get,
            **self.account.handlers,
        }

    def serve(self, call: Call, fault: str) -> Answer:
        """One call. Raises FakeGcpError."""
        if "zone" in call.path and call.path["zone"] not in ZONES:
            raise FakeGcpError(404, "notFound", f"The resource 'projects/p/zones/{call.path['zone']}' was not found")
        if call.action == "instances.insert":
            return Answer(200, self._insert(call, fault))
        if call.action not in self._handlers:
            raise FakeGcpError(501, "notImplemented", f"this test cloud does not know {call.action}")
        return Answer(200, self._handlers[call.action](call))

    # -- machines ------------------------------------------------------------------------------------------

    def _insert(self, call: Call, fault: str) -> Mapping[str, Any]:
        zone, body, request_id = call.path["zone"], call.body, call.query.get("requestId", "")
        if request_id and uuid.UUID(request_id).int == 0:
            raise FakeGcpError(400, "invalid", "Invalid value for field 'requestId'")
        if request_id in self._requests:
            return self._described_operation(self._requests[request_id])
        self._check(zone, body)
        if self.fleet.find(zone, body["name"]) is not None:
            message = f"The resource 'projects/p/zones/{zone}/instances/{body['name']}' already exists"
            raise FakeGcpError(409, "alreadyExists", message)
        operation = self.fleet.operation(zone, "insert", body["name"], request_id=request_id)
        if request_id:
            self._requests[request_id] = operation
        if fault == "full-late":
            self.fleet.add(zone, body, operation, (time.time() + self.late_s, _in_zone(OP_FAULTS["full"], zone)))
        elif waits(body) and self.fleet.is_full(zone, body["machineType"].rpartition("/")[2], ()):
            fails = time.time() + self.late_s, _in_zone(OP_FAULTS["full"], zone)
            self.fleet.add(zone, body, operation, fails).show("PENDING")
        elif error := self._fault_of(zone, body, fault):
            operation.error = _in_zone(error, zone)
            operation.done_at = time.time() + self.fleet.op_s
        else:
            record = self.fleet.add(zone, body, operation)
            operation.error = OP_FAULTS["transient"] if fault == "done-but-failed" else None
            if fault == "taken-at-once":
                self.fleet.preempt(record.name, 0.0)
        return self._described_operation(operation)

    def _fault_of(self, zone: str, body: Mapping[str, Any], fault: str) -> tuple[str, str] | None:
        if fault in OP_FAULTS:
            return OP_FAULTS[fault]
        for each in body.get("serviceAccounts", ()):
            if error := self.account.refuse(each["email"]):
                return error
        alive = [each for each in self.fleet.records if each.status != GONE]
        if self.fleet.is_full(zone, body["machineType"].rpartition("/")[2], (each.zone for each in alive)):
            return OP_FAULTS["full"]
        if error := self.reserved.fault_of(zone, body):
            return error
        return OP_FAULTS["quota"] if self.fleet.most_machines and len(alive) >= self.fleet.most_machines else None

    def _check(self, zone: str, body: Mapping[str, Any]) -> None:
        _check_names(body)
        self._check_type(zone, body)
        scheduling = body.get("scheduling", {})
        if scheduling.get("onHostMaintenance") != "TERMINATE":
            raise FakeGcpError(400, "badRequest", "Instances with guest accelerators do not support live migration.")
        spot = scheduling.get("provisioningModel") == "SPOT"
        if spot and scheduling.get("automaticRestart", True):
            raise FakeGcpError(400, "badRequest", "Scheduling must have automaticRestart be false for SPOT instances")
        notice = scheduling.get("preemptionNoticeDuration")
        check_flex(body)
        self.reserved.check(zone, body)
        if notice and (not spot or int(notice["seconds"]) > 120):
            raise FakeGcpError(400, "badRequest", "preemptionNoticeDuration is for SPOT instances, up to 120 s")
        for disk in body["disks"]:
            self._check_image(disk["initializeParams"]["sourceImage"], body["machineType"].rpartition("/")[2])
            self._check_disk(disk["initializeParams"], body["machineType"].rpartition("/")[2])
        kind = body["machineType"].rpartition("/")[2]
        _check_interfaces(kind, body["networkInterfaces"])
        for interface in body["networkInterfaces"]:
            self._check_network(zone, interface)
        for policy in body.get("resourcePolicies", ()):
            region = zone.rpartition("-")[0]
            if policy not in {f"regions/{region}/resourcePolicies/{each}" for each in self.placement_policies}:
                raise FakeGcpError(400, "invalid", f"The referenced resource policy cannot be found: '{policy}'.")
            if kind.startswith("n1-"):
                message = "Resource policies for group placement are not supported for this machine type."
                raise FakeGcpError(400, "invalid", message)

    def _check_type(self, zone: str, body: Mapping[str, Any]) -> None:
        path, kind = body["machineType"].rsplit("/", 1)
        if path != f"zones/{zone}/machineTypes" or kind not in self._types_in(zone):
            message = (
                f"Invalid value for field 'resource.machineType': '{kind}'. The referenced resource does not exist."
            )
            raise FakeGcpError(400, "invalid", message)
        for each in body.get("guestAccelerators", ()):
            path, accelerator = each["acceleratorType"].rsplit("/", 1)
            if path != f"zones/{zone}/acceleratorTypes" or accelerator not in self._accelerators_in(zone):
                message = f"The resource 'projects/p/zones/{zone}/acceleratorTypes/{accelerator}' was not found"
                raise FakeGcpError(404, "notFound", message)
            if not kind.startswith("n1-"):
                raise FakeGcpError(400, "badRequest", f"[{kind}, {accelerator}] features are not compatible")

    def _check_image(self, image: str, kind: str) -> None:
        match = re.fullmatch(r"projects/([^/]+)/global/images/(?:family/)?([^/]+)", image)
        if match is None or match[2] not in self.images.get(match[1], set()):
            message = f"Invalid value for field 'resource.disks[0].initializeParams.sourceImage': '{image}'. Not found."
            raise FakeGcpError(400, "invalid", message)
        has, needs = _architecture(match[2]), "ARM64" if kind.startswith("a4x-") else "X86_64"
        if has != needs:
            message = (
                f"Requested boot disk architecture ({has}) is not compatible with machine type architecture ({needs})."
            )
            raise FakeGcpError(400, "invalid", message)

    def _check_disk(self, disk: Mapping[str, Any], kind: str) -> None:
        """Messages as users have published them."""
        disk_type, size = disk["diskType"].rpartition("/")[2], int(disk["diskSizeGb"])
        if size < self.image_gb:
            message = (
                f"Invalid value for field 'resource.disks[0].initializeParams.diskSizeGb': '{size}'. Requested disk "
                f"size cannot be smaller than the image size ({self.image_gb} GB)"
            )
            raise FakeGcpError(400, "invalid", message)
        refused = _NO_PERSISTENT_DISK if disk_type.startswith("pd-") else _NO_HYPERDISK
        if kind.startswith(refused):
            raise FakeGcpError(400, "badRequest", f"{disk_type} disk type cannot be used by {kind} machine type.")

    def _check_network(self, zone: str, interface: Mapping[str, Any]) -> None:
        region, path = zone.rpartition("-")[0], interface.get("subnetwork") or "regions/R/subnetworks/default"
        where = path.replace("/R/", f"/{region}/").split("/")
        if (where[-3], where[-1]) not in self.subnetworks:
            raise FakeGcpError(400, "invalid", f"The referenced subnetwork resource cannot be found: '{path}'.")
        if "subnetwork" not in interface and interface["network"] != "global/networks/default":
            raise FakeGcpError(400, "invalid", f"The referenced network cannot be found: {interface['network']!r}")

    def _get(self, call: Call) -> Mapping[str, Any]:
        record = self._must_find(call)
        return self._described(record, time.time())

    def _delete(self, call: Call) -> Mapping[str, Any]:
        return self._described_operation(self.fleet.delete(self._must_find(call)))

    def _simulate_maintenance(self, call: Call) -> Mapping[str, Any]:
        """Of a spot machine: its preemption. Source: "Test preemption settings", Spot VMs."""
        record = self._must_find(call)
        operation = self.fleet.operation(record.zone, "simulateMaintenanceEvent", record.name, record.id)
        operation.done_at = time.time()
        if record.body.get("scheduling", {}).get("provisioningModel") == "SPOT":
            self.fleet.preempt(record.name, self.fleet.simulated_notice_s)
        return self._described_operation(operation)

    def _console(self, call: Call) -> Mapping[str, Any]:
        record = self._must_find(call)
        return {"kind": "compute#serialPortOutput", "contents": self.fleet.machines.console(record.machine)}

    def _must_find(self, call: Call) -> Record:
        zone, name = call.path["zone"], call.path["instance"]
        record = self.fleet.find(zone, name)
        if record is None:
            raise FakeGcpError(
                404, "notFound", f"The resource 'projects/p/zones/{zone}/instances/{name}' was not found"
            )
        return record

    def _list(self, call: Call) -> Mapping[str, Any]:
        self.fleet.sync()
        as_of = time.time() - self.fleet.lag_s
        listed = [(each.zone, each) for each in self.fleet.records if each.as_of(as_of).status != GONE]
        instances = [(zone, self._described(each, as_of)) for zone, each in listed]
        return self._aggregated(call, "instance", "Instance", "instances", instances)

    def _described(self, record: Record, as_of: float) -> dict[str, Any]:
        seen = record.as_of(as_of)
        first, *further = record.body["networkInterfaces"]
        interface: dict[str, Any] = {**first, "networkIP": seen.address}
        if interface.get("accessConfigs"):
            interface["accessConfigs"] = [{**interface["accessConfigs"][0], "natIP": seen.address}]
        raw = {
            **{key: value for key, value in record.body.items() if key != "params"},
            "kind": "compute#instance",
            "id": str(record.id),
            "zone": f"https://www.googleapis.com/compute/v1/projects/p/zones/{record.zone}",
            "status": seen.status,
            "creationTimestamp": when(record.born_at + self.fleet.ahead_s),
            "networkInterfaces": [
                interface,
                *({**each, "networkIP": f"10.{number}.0.2"} for number, each in enumerate(further, start=1)),
            ],
            "disks": [],
        }
        return {key: value for key, value in raw.items() if key not in self.fleet.missing}

    # -- operations ----------------------------------------------------------------------------------------

    def _described_operation(self, operation: Operation, lag_s: float = 0.0) -> dict[str, Any]:
        return operation.described("p", time.time() - lag_s, self.fleet.ahead_s)

    def _operation(self, call: Call) -> Mapping[str, Any]:
        self.fleet.sync()
        for each in self.fleet.operations:
            if (each.zone, each.name) == (call.path["zone"], call.path["operation"]):
                return self._described_operation(each)
        raise FakeGcpError(404, "notFound", "The resource was not found")

    def _newest(self, call: Call) -> list[Operation]:
        self.fleet.sync()
        as_of = time.time() - self.fleet.lag_s
        found = [each for each in self.fleet.operations if each.began_at <= as_of]
        if call.query.get("orderBy") == "creationTimestamp desc":
            return sorted(found, key=lambda each: each.began_at, reverse=True)
        return sorted(found, key=lambda each: each.name)

    def _zone_operations(self, call: Call) -> Mapping[str, Any]:
        passes = filter_of(call.query.get("filter", ""), "Operation") if self.filters else lambda _: True
        operations = [
            self._described_operation(each, self.fleet.lag_s)
            for each in self._newest(call)
            if each.zone == call.path["zone"]
        ]
        items, more = page([each for each in operations if passes(each)], call.query)
        return {"kind": "compute#operationList", "items": items, **more}

    def _all_operations(self, call: Call) -> Mapping[str, Any]:
        operations = [(each.zone, self._described_operation(each, self.fleet.lag_s)) for each in self._newest(call)]
        return self._aggregated(call, "operation", "Operation", "operations", operations)

    def _aggregated(
        self, call: Call, kind: str, schema: str, field: str, listed: list[tuple[str, dict[str, Any]]]
    ) -> Mapping[str, Any]:
        """By zone, with a warning for those without results."""
        passes = filter_of(call.query.get("filter", ""), schema)
        items, more = page([each for each in listed if passes(each[1])], call.query)
        scopes: dict[str, Any] = {"global": {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "none"}}}
        for zone in ZONES:
            found = [item for where, item in items if where == zone]
            empty = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": f"There are no results for '{zone}'."}}
            scopes[f"zones/{zone}"] = {field: found} if found else empty
        for zone in self.unreachable:  # anywhere in the world
            scopes[f"zones/{zone}"] = {"warning": {"code": "UNREACHABLE", "message": f"'{zone}' is unreachable."}}
        return {"kind": f"compute#{kind}AggregatedList", "id": "list", "items": scopes, **more}

    # -- around it -----------------------------------------------------------------------------------------

    def _list_disks(self, call: Call) -> Mapping[str, Any]:
        self.fleet.sync()
        disks = [(zone, {k: v for k, v in d.items() if k != "autoDelete"}) for (zone, _), d in self.fleet.disks.items()]
        return self._aggregated(call, "disk", "Disk", "disks", disks)

    def _delete_disk(self, call: Call) -> Mapping[str, Any]:
        zone, name = call.path["zone"], call.path["disk"]
        disk = self.fleet.disks.get((zone, name))
        if disk is None:
            raise FakeGcpError(404, "notFound", f"The resource 'projects/p/zones/{zone}/disks/{name}' was not found")
        if disk["users"]:
            raise FakeGcpError(
                400, "resourceInUseByAnotherResource", f"The disk resource '{name}' is already being used"
            )
        del self.fleet.disks[zone, name]
        operation = self.fleet.operation(zone, "delete", name)
        operation.done_at = time.time()
        return self._described_operation(operation)

    def _types_in(self, zone: str) -> set[str]:
        """A3 and A4 are not in every zone."""
        names = {each.machine_type or each.name for each in self._catalog.types}
        names |= set(self.new_types) if zone == ZONES[0] else set()
        return {name for name in names if zone.startswith("us-central1") or not name.startswith(("a3", "a4"))}

    def _accelerators_in(self, zone: str) -> set[str]:
        """T4 and V100 are not in every zone."""
        found = {each.accelerator for each in self._catalog.types}
        return found - ({"nvidia-tesla-t4", "nvidia-tesla-v100"} if zone == "us-central1-c" else set())

    def _machine_types(self, call: Call) -> Mapping[str, Any]:
        known = {each.machine_type or each.name: each for each in self._catalog.types} | self.new_types
        types = [(zone, _described_type(name, known[name])) for zone in ZONES for name in sorted(self._types_in(zone))]
        return self._aggregated(call, "machineType", "MachineType", "machineTypes", types)

    def _accelerator_types(self, call: Call) -> Mapping[str, Any]:
        types = [(zone, {"name": name}) for zone in ZONES for name in sorted(self._accelerators_in(zone))]
        return self._aggregated(call, "acceleratorType", "AcceleratorType", "acceleratorTypes", types)

    def _region(self, call: Call) -> Mapping[str, Any]:
        region = call.path["region"]
        if region not in self.quotas:
            raise FakeGcpError(404, "notFound", f"The resource 'projects/p/regions/{region}' was not found")
        zones = [f"https://www.googleapis.com/compute/v1/projects/p/zones/{each}" for each in ZONES if region in each]
        return {"kind": "compute#region", "name": region, "quotas": _limits(self.quotas[region]), "zones": zones}

    def _project(self, call: Call) -> Mapping[str, Any]:
        return {"kind": "compute#project", "name": call.path["project"], "quotas": _limits(self.quotas[""])}

    def _image(self, call: Call) -> Mapping[str, Any]:
        name = call.path.get("family") or call.path["image"]
        if name not in self.images.get(call.path["project"], set()):
            raise FakeGcpError(404, "notFound", f"The resource '{name}' was not found")
        return {
            "kind": "compute#image",
            "name": f"{name}-v20261101",
            "architecture": _architecture(name),
            "diskSizeGb": str(self.image_gb),
        }

    def _subnetwork(self, call: Call) -> Mapping[str, Any]:
        if (call.path["region"], call.path["subnetwork"]) not in self.subnetworks:
            raise FakeGcpError(404, "notFound", f"The subnetwork '{call.path['subnetwork']}' was not found")
        return {"kind": "compute#subnetwork", "name": call.path["subnetwork"]}

    def _capacity_history(self, call: Call) -> Mapping[str, Any]:
        """A price that has ended, and the one that holds. N1 without its GPUs would have another one."""
        asked, region = call.body["instanceProperties"], call.path["region"]
        if asked["scheduling"]["provisioningModel"] != "SPOT":
            raise FakeGcpError(400, "invalid", "Invalid value for field 'instanceProperties.scheduling'")
        gpus = "".join(f"+{each['acceleratorType']}" for each in asked.get("guestAccelerators", ()))
        price = self.spot_prices.get((region, asked["machineType"] + gpus))
        records = []
        for usd, start, end in ((9.0, 3, 2), (price, 2, 0)):
            if usd is not None:
                money = {"currencyCode": "USD", "units": str(int(usd)), "nanos": round((usd - int(usd)) * 1e9)}
                now = time.time()
                interval = {"startTime": when(now - start * 86400), "endTime": when(now - end * 86400)}
                records.append({"interval": interval, "listPrice": money})
        return {
            "location": f"regions/{region}",
            "machineType": asked["machineType"],
            "priceHistory": records if price else [],
        }

    def _capacity(self, call: Call) -> Mapping[str, Any]:
        """As in "View Spot VM availability"; no recommendation where nothing is known."""
        asked = call.body
        if asked["instanceProperties"]["scheduling"]["provisioningModel"] != "SPOT" or asked["size"] < 1:
            raise FakeGcpError(400, "invalid", "Invalid value for field 'instanceProperties.scheduling'")
        (zone,) = [each["zone"].rpartition("/")[2] for each in asked["distributionPolicy"]["zones"]]
        (selection,) = asked["instanceFlexibilityPolicy"]["instanceSelections"].values()
        (kind,) = selection["machineTypes"]
        score = self.obtainability.get((zone, kind))
        if score is None:
            return {}
        shard = {"zone": f"zones/{zone}", "machineType": kind, "instanceCount": 1, "provisioningModel": "SPOT"}
        scores = {"obtainability": score, "estimatedUptime": "600s"}
        return {"recommendations": [{"scores": scores, "shards": [shard]}]}

    def _firewalls(self, call: Call) -> Mapping[str, Any]:
        items, more = page(self.account.listed_rules(), call.query)
        return {"kind": "compute#firewallList", "items": items, **more}


def _described_type(name: str, machine: MachineType) -> dict[str, Any]:
    """As Google describes it: N1's GPUs are no part of it."""
    gpus = [{"guestAcceleratorType": machine.accelerator, "guestAcceleratorCount": machine.gpus}]
    return {
        "name": name,
        "guestCpus": machine.vcpus,
        "memoryMb": int((machine.memory_gib or 0) * 1024),
        "architecture": "ARM64" if machine.arch == "arm64" else "X86_64",
        **({} if machine.machine_type or not machine.accelerator else {"accelerators": gpus}),
    }


def _in_zone(error: tuple[str, str], zone: str) -> tuple[str, str]:
    return error[0], error[1].replace("ZONE", zone)


_QUOTAS = {
    "CPUS": 4096.0,
    "NVIDIA_T4_GPUS": 8.0,
    "PREEMPTIBLE_NVIDIA_T4_GPUS": 64.0,
    "NVIDIA_L4_GPUS": 8.0,
    "PREEMPTIBLE_NVIDIA_L4_GPUS": 0.0,
    "NVIDIA_V100_GPUS": 0.0,
    "PREEMPTIBLE_NVIDIA_V100_GPUS": 0.0,
}


def rule(name: str, *, ports: tuple[str, ...] = (), tags: tuple[str, ...] = ()) -> dict[str, Any]:
    """A firewall rule that allows incoming traffic."""
    allowed = {"IPProtocol": "tcp", **({"ports": list(ports)} if ports else {})}
    return {
        "kind": "compute#firewall",
        "name": name,
        "network": "https://www.googleapis.com/compute/v1/projects/p/global/networks/default",
        "direction": "INGRESS",
        "disabled": False,
        "allowed": [allowed],
        **({"targetTags": list(tags)} if tags else {}),
    }


# "Networking and GPU machines": all interfaces, and those for RDMA among them.
_INTERFACES = {"a3-highgpu-8g": (5, 0), "a3-megagpu-8g": (9, 0), "a3-ultragpu-8g": (10, 8), "a4-highgpu-8g": (10, 8)}


def _check_interfaces(kind: str, listed: Sequence[Mapping[str, Any]]) -> None:
    most, for_rdma = _INTERFACES.get(kind, (8, 0))
    if len(listed) > most or sum(each.get("nicType") == "MRDMA" for each in listed) > for_rdma:
        raise FakeGcpError(
            400, "invalid", f"Invalid value for field 'resource.networkInterfaces': too many for {kind}."
        )
    # "Multiple network interfaces": each in a network of its own, which those for RDMA may share.
    places = [each.get("subnetwork") or each["network"] for each in listed]
    if len(set(places)) != len(places):
        raise FakeGcpError(400, "invalid", "Networks must be distinct for NICs attached to a VM.")


def _check_names(body: Mapping[str, Any]) -> None:
    if not _NAME.fullmatch(body["name"]):
        raise FakeGcpError(400, "invalid", f"Invalid value for field 'resource.name': '{body['name']}'.")
    every = [body.get("labels", {}), *(each["initializeParams"].get("labels", {}) for each in body["disks"])]
    for labels in every:
        for key, value in labels.items():
            if len(labels) > 64 or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
                raise FakeGcpError(400, "invalid", f"Invalid value for field 'resource.labels': {key}={value!r}")


def _architecture(image: str) -> str:
    return "ARM64" if "arm64" in image else "X86_64"


def _limits(values: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"metric": metric, "limit": limit, "usage": 0.0} for metric, limit in values.items()]
