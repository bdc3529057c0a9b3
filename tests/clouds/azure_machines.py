"""A resource group's machines and their resources, as the test cloud keeps them: starts and ends that take time,
requests that fail after their acceptance, a history for late listings, and the activity log.
"""

from __future__ import annotations

import base64
import copy
import json
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from provisioners.base import InstanceState, Owner
from tests.clouds.base import Fleet
from tests.clouds.machines import Machines

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP = "spotsup-test"
ROOT = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers"
DEAD_MAN_ROLE = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/node"
SCALE_SET = f"{ROOT}/Microsoft.Compute/virtualMachineScaleSets/nd"
IDENTITY = f"{ROOT}/Microsoft.ManagedIdentity/userAssignedIdentities/node"
# Images of one's own: a managed one, and one in a gallery, with a version.
IMAGE = f"{ROOT}/Microsoft.Compute/images/ours"
GALLERY_IMAGE = f"{ROOT}/Microsoft.Compute/galleries/g/images/ours"
GALLERY_VERSION = f"{GALLERY_IMAGE}/versions/1.0.0"
# A capacity reservation group that is there from the start: two machines of the smallest size in eastus-1.
RESERVED = f"{ROOT}/Microsoft.Compute/capacityReservationGroups/reserved"
DISK_OF_IMAGE = {"createOption": "FromImage"}
GONE = "gone"


@dataclass(frozen=True, slots=True)
class Seen:
    """What listings show of a machine from `at` on."""

    at: float
    made: str
    power: str = ""
    address: str = ""
    error: tuple[str, str] = ("", "")


@dataclass(slots=True)
class Record:
    """One machine. `fails`: (when, code, message) of an allocation that will fail; `evicted_at`: when a notice is over;
    `deallocate`: evicted to that; `wanted_gone`: a call has asked for its end.
    """

    name: str
    body: dict[str, Any]
    created_at: float
    past: list[Seen]
    fails: tuple[float, str, str] | None = None
    evicted_at: float | None = None
    deallocate: bool = False
    wanted_gone: bool = False
    claims: dict[str, str] = field(default_factory=dict)
    vm_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    machine: str = ""

    @property
    def id(self) -> str:
        """The resource's."""
        return f"{ROOT}/Microsoft.Compute/virtualMachines/{self.name}"

    @property
    def tags(self) -> dict[str, str]:
        """As they were asked for."""
        found: dict[str, str] = self.body["tags"]
        return found

    @property
    def now(self) -> Seen:
        """The newest."""
        return self.past[-1]

    def show(self, seen: Seen) -> None:
        """What listings show from now on."""
        last = self.now
        if (last.made, last.power, last.address) != (seen.made, seen.power, seen.address):
            self.past.append(seen)

    def as_of(self, at: float) -> Seen | None:
        """What a listing showed at that time; None before the machine existed, and after its end."""
        seen = next((each for each in reversed(self.past) if each.at <= at), None)
        return None if seen is None or seen.made == GONE else seen


class Group(Fleet):
    """The records over the machines behind, what is left of others, and the log."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        self.records: dict[str, Record] = {}
        self.ended: list[Record] = []
        self.loose: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[float, dict[str, Any]]] = []
        self.operations: dict[str, Record] = {}
        # How long a machine that runs is still "Creating": until its guest has reported. Minutes on large ones.
        self.creating_s = 3600.0
        self.simulated_notice_s = 30.0
        # Azure's log is some minutes late; here it never shows a deletion.
        self.hides_deletions = False

    # -- calls ---------------------------------------------------------------------------------------------

    def put(self, name: str, body: dict[str, Any], fails: tuple[float, str, str] | None) -> tuple[Record, str]:
        """A launch that Azure takes; (the machine, its operation's name)."""
        now = time.time()
        record = Record(name, copy.deepcopy(body), now + self.ahead_s, [Seen(now, "Creating")], fails)
        record.machine = f"{name}-{record.vm_id[:8]}"
        self.records[name.lower()] = record
        operation = str(uuid.uuid4())
        self.operations[operation] = record
        self.record_event(record, "write", "Accepted", body=described(record, record.now))
        if fails is None:
            self.machines.boot(record.machine, base64.b64decode(body["properties"]["osProfile"]["customData"]).decode())
        return record, operation

    def delete(self, name: str, claims: dict[str, str] | None = None) -> bool:
        """Whether the machine existed."""
        record = self.records.get(name.lower())
        if record is None:
            return False
        if not record.wanted_gone:
            record.wanted_gone, record.claims = True, claims or {}
            self.record_event(record, "delete", "Accepted")
            self._end(record)
        record.show(Seen(time.time(), "Deleting", record.now.power, record.now.address))
        self.sync(record)
        return True

    # -- ends ----------------------------------------------------------------------------------------------

    def preempt(self, machine: str, notice_s: float, *, stop: bool = False) -> float:
        """Azure's API has no deadline: the log's entry is read as a notice of 30 s."""
        record = self.records[machine.lower()]
        assert record.body["properties"].get("priority") == "Spot", f"{machine} is not a spot machine"
        record.evicted_at, record.deallocate = time.time() + notice_s, stop
        at = self.record_event(record, "evictSpotVM/action", "Started")
        self.machines.preempt(record.machine, notice_s)
        return at + 30.0

    def alarm(self, machine: str) -> None:
        """An eviction that was logged as begun."""
        self.record_event(self.records[machine.lower()], "evictSpotVM/action", "Started", ago_s=31.0)

    def withdraw(self, machine: str) -> None:
        """An eviction that is logged as failed."""
        record = self.records[machine.lower()]
        record.evicted_at = None
        self.record_event(record, "evictSpotVM/action", "Failed")

    def stop(self, machine: str) -> None:
        """Its guest switches it off: it stays allocated, and is billed in full."""
        self.machines.end(self.records[machine.lower()].machine)

    def lose(self, machine: str, reason: str = "") -> None:
        """What its dead-man switch does: it is deallocated in the name of its own identity, and its disk stays. A
        machine that is lost otherwise is stopped, as Azure says, and billed.
        """
        record = self.records[machine.lower()]
        record.claims = {"xms_mirid": record.id}
        record.evicted_at, record.deallocate = time.time(), True
        self.record_event(record, "deallocate/action", "Accepted")
        self.machines.end(record.machine)
        self.sync(record)

    def leave_behind(self, owner: Owner, node: str) -> None:
        """A disk (which has no tags), a network interface and an address."""
        name, tags = f"spotsup-{owner.digest}-{node}", {**owner.tags, "spotsup-node": node}
        disk = {"creationData": DISK_OF_IMAGE, "diskState": "Unattached"}
        for kind, suffix, more in (
            ("Microsoft.Compute/disks", "disk", {"properties": disk}),
            ("Microsoft.Network/networkInterfaces", "nic", {"tags": tags, "properties": {}}),
            ("Microsoft.Network/publicIPAddresses", "ip", {"tags": tags, "properties": {"ipAddress": "203.0.113.1"}}),
        ):
            self.loose[f"{ROOT}/{kind}/{name}-{suffix}"] = {"location": "eastus", **more}

    def multiply(self, machine: str, times: int) -> None:
        """They have no machines behind them."""
        first = self.records[machine.lower()]
        data = base64.b64decode(first.body["properties"]["osProfile"]["customData"]).decode()
        for number in range(times):
            made = Record(f"{first.name}-{number}", first.body, first.created_at, list(first.past))
            made.machine = made.name
            self.machines.boot(made.machine, data)
            self.records[made.name.lower()] = made

    def born(self) -> dict[str, list[str]]:
        """Also deleted ones; one that was never allocated does not count."""
        found: dict[str, list[str]] = {}
        every = [*self.records.values(), *self.ended]
        for record in every:
            if record.fails is None:
                found.setdefault(record.tags["spotsup-token"], []).append(record.name)
        # An accepted launch may fail later: its caller has its name, and finds the failure in a listing.
        for record in every:
            found.setdefault(record.tags["spotsup-token"], [record.name])
        return found

    def left(self) -> list[str]:
        """Machines, running, stopped or failed, with their resources; and resources without a machine."""
        return [each.name for each in self.alive()] + list(self.loose)

    def alive(self) -> list[Record]:
        """The machines that cost money."""
        for record in list(self.records.values()):
            self.sync(record)
        return list(self.records.values())

    # -- listings ------------------------------------------------------------------------------------------

    def sync(self, record: Record) -> None:
        """Update a record to now."""
        now = time.time()
        if record.now.made == GONE:
            return
        if record.fails is not None:
            self._sync_failing(record, now)
            return
        if record.evicted_at is not None and now >= record.evicted_at and not record.wanted_gone:
            self._end(record)
        look = self.machines.look(record.machine)
        if look.state is InstanceState.TERMINATED:
            self._over(record, now)
        elif look.state is InstanceState.RUNNING and not record.wanted_gone:
            done = now >= record.created_at - self.ahead_s + self.creating_s
            if done and record.now.made == "Creating":
                self.record_event(record, "write", "Succeeded")
            record.show(Seen(now, "Succeeded" if done else "Creating", "running", look.address))

    def _sync_failing(self, record: Record, now: float) -> None:
        assert record.fails is not None
        at, code, message = record.fails
        if record.wanted_gone:
            self._forget(record, now)
        elif now >= at and record.now.made == "Creating":
            record.show(Seen(now, "Failed", "", "", (code, message)))
            self.record_event(record, "write", "Failed")

    def _over(self, record: Record, now: float) -> None:
        if record.wanted_gone:
            self._forget(record, now)
        elif record.evicted_at is not None and now >= record.evicted_at:
            if record.deallocate:
                if record.now.power != "deallocated":
                    operation = "deallocate/action" if record.claims else "evictSpotVM/action"
                    self.record_event(record, operation, "Succeeded")
                record.show(Seen(now, "Succeeded", "deallocated"))
            else:
                self.record_event(record, "evictSpotVM/action", "Succeeded")
                self._vanish(record, now)
        else:
            record.show(Seen(now, "Succeeded", "stopped", record.now.address))

    def _forget(self, record: Record, now: float) -> None:
        self.record_event(record, "delete", "Succeeded")
        self._vanish(record, now)

    def _vanish(self, record: Record, now: float) -> None:
        record.show(Seen(now, GONE))
        self.ended.append(self.records.pop(record.name.lower()))

    def _end(self, record: Record) -> None:
        if record.fails is None:
            self.machines.end(record.machine)

    def listed(self) -> list[tuple[Record, Seen]]:
        """What listings showed `lag_s` ago."""
        every = [*self.alive(), *self.ended]
        as_of = time.time() - self.lag_s
        return [(record, seen) for record in every if (seen := record.as_of(as_of)) is not None]

    def record_event(
        self, record: Record, operation: str, status: str, body: dict[str, Any] | None = None, ago_s: float = 0.0
    ) -> float:
        """Add an entry to the activity log; returns its time."""
        at = time.time() - ago_s
        claims = record.claims if operation in {"delete", "deallocate/action"} else {}
        entry = {
            "eventTimestamp": stamp(at + self.ahead_s),
            "operationName": {"value": f"Microsoft.Compute/virtualMachines/{operation}", "localizedValue": operation},
            "status": {"value": status, "localizedValue": status},
            # The log keeps the case of names: groups are often in capitals.
            "resourceId": record.id.replace(GROUP, GROUP.upper()),
            "claims": {"aud": "https://management.azure.com/", **claims},
            "properties": {"responseBody": json.dumps(body)} if body else {"statusCode": "OK"},
        }
        self.log.append((at, entry))
        return at


def zone_of(body: dict[str, Any]) -> str:
    """A zone's name in spotsup: eastus-1, or eastus where a region has none."""
    return f"{body['location']}-{body['zones'][0]}" if body.get("zones") else str(body["location"])


def stamp(at: float) -> str:
    """A time in Azure's format: seven digits after the point."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "0Z"


def described(record: Record, seen: Seen) -> dict[str, Any]:
    """A machine as a listing shows it: without statuses, and without the request for its resources."""
    vm = copy.deepcopy({key: value for key, value in record.body.items() if key != "properties"})
    wanted = record.body["properties"]
    system = {key: value for key, value in wanted["osProfile"].items() if key != "customData"}
    vm |= {"id": record.id, "name": record.name, "type": "Microsoft.Compute/virtualMachines"}
    vm["properties"] = {
        "vmId": record.vm_id,
        "provisioningState": seen.made,
        "timeCreated": stamp(record.created_at),
        "hardwareProfile": dict(wanted["hardwareProfile"]),
        "osProfile": system,
        "networkProfile": {"networkInterfaces": [{"id": each["id"]} for each in interfaces(record, seen)]},
        **{
            key: wanted[key]
            for key in (
                *("priority", "evictionPolicy", "billingProfile", "virtualMachineScaleSet", "securityProfile"),
                "capacityReservation",
            )
            if key in wanted
        },
    }
    if "SystemAssigned" in (vm.get("identity") or {}).get("type", ""):
        vm["identity"] = {**vm["identity"], "principalId": record.vm_id, "tenantId": SUBSCRIPTION}
    return vm


def statuses(record: Record, seen: Seen) -> dict[str, Any]:
    """A machine as a listing of statuses, or an instance view, shows it."""
    code, message = seen.error
    made = {"code": f"ProvisioningState/{seen.made.lower()}" + (f"/{code}" if code else ""), "level": "Info"}
    if code:
        made |= {"message": message, "level": "Error"}
    found = [made]
    if seen.power:
        found.append({"code": f"PowerState/{seen.power}", "level": "Info", "displayStatus": f"VM {seen.power}"})
    return {
        "id": record.id,
        "name": record.name,
        "type": "Microsoft.Compute/virtualMachines",
        "location": record.body["location"],
        "properties": {"instanceView": {"statuses": found}},
    }


def interfaces(record: Record, seen: Seen) -> list[dict[str, Any]]:
    """The machine's network interfaces."""
    found = []
    for wanted in record.body["properties"]["networkProfile"]["networkInterfaceConfigurations"]:
        address = wanted["properties"]["ipConfigurations"][0]["properties"]
        public = address.get("publicIPAddressConfiguration")
        properties: dict[str, Any] = {"privateIPAddress": seen.address or None, "subnet": address["subnet"]}
        if public:
            properties["publicIPAddress"] = {"id": f"{ROOT}/Microsoft.Network/publicIPAddresses/{public['name']}"}
        found.append(
            {
                "id": f"{ROOT}/Microsoft.Network/networkInterfaces/{wanted['name']}",
                "name": wanted["name"],
                "location": record.body["location"],
                "tags": wanted.get("tags"),
                "properties": {
                    "virtualMachine": {"id": record.id},
                    "ipConfigurations": [{"name": "ip", "properties": properties}],
                },
            }
        )
    return found


def public_addresses(record: Record, seen: Seen) -> list[dict[str, Any]]:
    """The machine's addresses."""
    found = []
    for wanted in record.body["properties"]["networkProfile"]["networkInterfaceConfigurations"]:
        public = wanted["properties"]["ipConfigurations"][0]["properties"].get("publicIPAddressConfiguration")
        if public:
            nic = f"{ROOT}/Microsoft.Network/networkInterfaces/{wanted['name']}"
            found.append(
                {
                    "id": f"{ROOT}/Microsoft.Network/publicIPAddresses/{public['name']}",
                    "name": public["name"],
                    "location": record.body["location"],
                    "tags": public.get("tags"),
                    "properties": {
                        "ipAddress": seen.address or None,
                        "ipConfiguration": {"id": f"{nic}/ipConfigurations/ip"},
                    },
                }
            )
    return found


def disks(record: Record, seen: Seen) -> list[dict[str, Any]]:
    """The machine's disk, without tags; a machine that was never allocated has none."""
    if record.fails is not None:
        return []
    name = record.body["properties"]["storageProfile"]["osDisk"]["name"]
    return [
        {
            "id": f"{ROOT}/Microsoft.Compute/disks/{name}",
            "name": name,
            "location": record.body["location"],
            "managedBy": record.id,
            "properties": {
                "creationData": DISK_OF_IMAGE,
                "diskState": "Attached" if seen.power != "deallocated" else "Reserved",
            },
        }
    ]
