"""Compute Engine's machines, disks and operations, with a history for late listings. A deleted machine leaves nothing
but its operations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from provisioners.base import InstanceState, Owner
from tests.clouds.base import Fleet
from tests.clouds.machines import Machines

GONE = ""
_PREEMPTED = "compute.instances.preempted"
_API = "https://www.googleapis.com/compute/v1"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a listing shows of a machine from `at` on; none with status GONE."""

    at: float
    status: str
    address: str = ""


@dataclass(slots=True)
class Operation:
    """One operation on a machine; `request_id` as it came. `error`: (code, message) of one that fails."""

    name: str
    id: int
    zone: str
    kind: str
    target: str
    target_id: int
    began_at: float
    done_at: float | None = None
    error: tuple[str, str] | None = None
    request_id: str = ""

    def described(self, project: str, as_of: float, ahead_s: float) -> dict[str, Any]:
        """As the API describes it at a moment, by a clock that is ahead of ours."""
        zone = f"{_API}/projects/{project}/zones/{self.zone}"
        done = self.done_at is not None and self.done_at <= as_of
        raw: dict[str, Any] = {
            "kind": "compute#operation",
            "id": str(self.id),
            "name": self.name,
            "zone": zone,
            "operationType": self.kind,
            "targetLink": f"{zone}/instances/{self.target}",
            "targetId": str(self.target_id),
            "status": "DONE" if done else "RUNNING",
            "insertTime": when(self.began_at + ahead_s),
            "user": "system" if "." in self.kind else "daemon@example.iam.gserviceaccount.com",
            "selfLink": f"{zone}/operations/{self.name}",
        }
        if self.request_id:
            raw["clientOperationId"] = self.request_id
        if done and self.error:
            code, message = self.error
            raw["error"] = {"errors": [{"code": code, "message": message}]}
            raw["httpErrorStatusCode"] = 503
        if done and self.done_at is not None:
            raw["endTime"] = when(self.done_at + ahead_s)
        return raw


@dataclass(slots=True)
class Record:
    """One machine: what was asked for, and what became of it. `ends_at`: when a notice is over; `stops`: it keeps its
    disk then. `ending`: the operation that is over once it has ended.
    """

    zone: str
    name: str
    id: int
    body: Mapping[str, Any]
    born_at: float
    past: list[Seen]
    ends_at: float | None = None
    stops: bool = False
    ending: list[Operation] = field(default_factory=list)
    # When its insertion fails after all, and with which (code, message).
    fails: tuple[float, tuple[str, str]] | None = None

    @property
    def machine(self) -> str:
        """Its id among the machines behind."""
        return f"{self.zone}.{self.name}"

    @property
    def status(self) -> str:
        """Its current state."""
        return self.past[-1].status

    @property
    def tags(self) -> dict[str, str]:
        """Its metadata."""
        return {each["key"]: each["value"] for each in self.body.get("metadata", {}).get("items", ())}

    def show(self, status: str, address: str = "") -> None:
        """What listings show from now on."""
        last = self.past[-1]
        if (last.status, last.address) != (status, address):
            self.past.append(Seen(time.time(), status, address))

    def as_of(self, at: float) -> Seen:
        """What a listing showed at that time."""
        return next((seen for seen in reversed(self.past) if seen.at <= at), Seen(at, GONE))


class Instances(Fleet):
    """All machines that ever were, their disks and their operations. `op_s`: how long one takes."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        self.records: list[Record] = []
        self.operations: list[Operation] = []
        self.disks: dict[tuple[str, str], dict[str, Any]] = {}
        self.op_s = 0.05
        self.simulated_notice_s = 30.0
        # A fault that Google does not have: disks outlive their machines, whatever was asked for.
        self.keeps_disks = False
        self._last_id = 4_000_000_000

    def find(self, zone: str, name: str) -> Record | None:
        """The machine that now has this name."""
        self.sync()
        return next((each for each in self.records if (each.zone, each.name) == (zone, name) and each.status), None)

    def operation(self, zone: str, kind: str, target: str, target_id: int = 0, request_id: str = "") -> Operation:
        """Add an operation, which is in progress."""
        number = self.new_id()
        prefix = "systemevent" if "." in kind else "operation"
        made = Operation(
            f"{prefix}-{number}", number, zone, kind, target, target_id, time.time(), request_id=request_id
        )
        self.operations.append(made)
        return made

    def new_id(self) -> int:
        """A unique number."""
        self._last_id += 1
        return self._last_id

    def add(
        self,
        zone: str,
        body: Mapping[str, Any],
        operation: Operation,
        fails: tuple[float, tuple[str, str]] | None = None,
    ) -> Record:
        """A machine and its disk. `fails`: as of Record; such a machine is listed until then, and never runs."""
        record = Record(zone, body["name"], self.new_id(), body, time.time(), [Seen(time.time(), "PROVISIONING")])
        operation.target_id = record.id
        self.records.append(record)
        asked = body["disks"][0]
        self.disks[zone, record.name] = {
            "kind": "compute#disk",
            "id": str(self.new_id()),
            "name": record.name,
            "labels": dict(asked["initializeParams"].get("labels", {})),
            "users": [f"{_API}/zones/{zone}/instances/{record.name}"],
            "autoDelete": asked.get("autoDelete", False),
        }
        if fails is not None:
            record.fails, record.ending = fails, [operation]
            return record
        self.machines.boot(record.machine, _with_guest_agent(record.tags["user-data"]))
        operation.done_at = time.time() + self.op_s
        return record

    def record(self, name: str) -> Record:
        """The machine that has, or last had, this name."""
        return next(each for each in reversed(self.records) if each.name == name)

    def alive(self) -> list[Record]:
        """The machines that cost money."""
        self.sync()
        return [each for each in self.records if each.status]

    def born(self) -> dict[str, list[str]]:
        """By the metadata; also deleted ones."""
        found: dict[str, list[str]] = {}
        for record in self.records:
            if record.fails is not None:
                continue
            found.setdefault(record.tags["spotsup-token"], []).append(f"{record.zone}:{record.name}")
        return found

    def left(self) -> list[str]:
        """Machines, running or stopped, and disks, whatever their labels are."""
        return [each.machine for each in self.alive()] + [f"disk {zone}.{name}" for zone, name in self.disks]

    def multiply(self, machine: str, times: int) -> None:
        """With the operations that created them."""
        record = self.record(machine)
        head, _, _ = record.name.rpartition("-")
        prefix, token, owner = head.split("-")
        for number in range(times):
            name = f"{prefix}-{_letters(number)}{token[8:]}-{owner}-x{number}"
            body = {**record.body, "name": name}
            self.machines.boot(f"{record.zone}.{name}", record.tags["user-data"])
            self.records.append(Record(record.zone, name, self.new_id(), body, record.born_at, list(record.past)))
            self.operation(record.zone, "insert", name).done_at = time.time()

    def leave_behind(self, owner: Owner, node: str) -> None:
        """A disk."""
        labels = {**owner.tags, "spotsup-node": node}
        self.disks["us-central1-b", f"left-{owner.digest}"] = {
            "name": f"left-{owner.digest}",
            "labels": labels,
            "users": [],
            "autoDelete": False,
        }

    def delete(self, record: Record, request_id: str = "") -> Operation:
        """A user's call."""
        operation = self.operation(record.zone, "delete", record.name, record.id, request_id)
        record.ending.append(operation)
        record.stops = False
        self.machines.end(record.machine)
        record.show("STOPPING", record.past[-1].address)
        self.sync()
        return operation

    def preempt(self, machine: str, notice_s: float, *, stop: bool = False) -> float:
        """Google reports the beginning; the end is half a minute later."""
        record = self.record(machine)
        scheduling = record.body.get("scheduling", {})
        assert scheduling.get("provisioningModel") == "SPOT", f"{record.name} is not a spot machine"
        operation = self.operation(record.zone, _PREEMPTED, record.name, record.id)
        record.ending.append(operation)
        record.ends_at = operation.began_at + notice_s
        record.stops = stop or scheduling["instanceTerminationAction"] == "STOP"
        record.show("STOPPING", record.past[-1].address)
        self.machines.preempt(record.machine, notice_s)
        return operation.began_at + 30.0

    def alarm(self, machine: str) -> None:
        """A preemption that has begun, and gets no further."""
        record = self.record(machine)
        self.operation(record.zone, _PREEMPTED, record.name, record.id).began_at -= 31.0

    def withdraw(self, machine: str) -> None:
        """Its operation fails."""
        record = self.record(machine)
        for operation in self.operations:
            if (operation.kind, operation.target_id) == (_PREEMPTED, record.id) and operation.done_at is None:
                operation.error, operation.done_at = ("OPERATION_CANCELED_BY_USER", "canceled"), time.time()
        record.ending.clear()
        record.ends_at = None
        record.show("RUNNING", record.past[-1].address)

    def stop(self, machine: str) -> None:
        """Its guest switches it off: Google says TERMINATED of that, and bills the disk."""
        self.lose(machine, "compute.instances.guestTerminate", stop=True)

    def lose(self, machine: str, reason: str = "", *, stop: bool = False) -> None:
        """Its host breaks, unless another reason is given. Most such machines stay, stopped."""
        record = self.record(machine)
        record.ending.append(
            self.operation(record.zone, reason or "compute.instances.hostError", record.name, record.id)
        )
        record.stops = stop
        self.machines.end(record.machine)
        record.show("STOPPING")
        self.sync()

    def sync(self) -> None:
        """Update all to now."""
        for record in self.records:
            if record.status not in {GONE, "TERMINATED"} or (record.status == "TERMINATED" and not record.stops):
                self._sync(record)

    def _sync(self, record: Record) -> None:
        now = time.time()
        if record.fails is not None:
            if now >= record.fails[0]:
                (operation,) = record.ending
                operation.error = record.fails[1]
                self._ended(record, now)
            return
        if record.ends_at is not None and now >= record.ends_at:
            self.machines.end(record.machine)
        look = self.machines.look(record.machine)
        if look.state is InstanceState.TERMINATED:
            if not record.ending:  # it has shut itself down
                record.ending.append(self.operation(record.zone, "compute.instances.guestTerminate", record.name))
                record.stops = True
            self._ended(record, now)
        elif not record.ending and look.state is InstanceState.RUNNING and now >= record.born_at + self.op_s:
            record.show("RUNNING", look.address)
        elif not record.ending and now >= record.born_at + self.op_s / 2:
            record.show("STAGING")

    def _ended(self, record: Record, now: float) -> None:
        for operation in record.ending:
            operation.done_at = operation.done_at or now
        record.show("TERMINATED" if record.stops else GONE)
        if record.stops:
            return
        disk = self.disks.get((record.zone, record.name))
        if disk is not None and disk["autoDelete"] and not self.keeps_disks:
            del self.disks[record.zone, record.name]
        elif disk is not None:
            disk["users"] = []


def _with_guest_agent(user_data: str) -> str:
    """What is left of user data once Google's guest agent has run for the first time: unless it is told not to, before
    it runs, it makes new SSH host keys. Source: GoogleCloudPlatform/guest-agent, instance_setup.go.
    """
    config = yaml.load(user_data, Loader=yaml.CSafeLoader)
    if any("set_host_keys = false" in str(each) for each in config.get("bootcmd", ())):
        return user_data
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    config["ssh_keys"] = {"ed25519_private": private, "ed25519_public": public}
    return "#cloud-config\n" + json.dumps(config)


def when(at: float) -> str:
    """A time in Google's format: in its own time zone, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "-00:00")


def _letters(number: int) -> str:
    """Eight letters for a number."""
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:08d}")
