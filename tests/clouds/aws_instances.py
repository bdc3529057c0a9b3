"""What moto lacks of EC2's instances: starts and ends that take time, spot requests, and a history for late listings.

moto itself would list them too, but takes five milliseconds for each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from provisioners.base import InstanceState, Owner
from tests.clouds.base import Fleet
from tests.clouds.machines import Machines

NOTICE_S = 120.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What listings show of a machine from `at` on."""

    at: float
    state: str
    reason: str = ""
    address: str = ""


@dataclass(slots=True)
class SpotRequest:
    """A spot instance request."""

    id: str
    tags: dict[str, str]
    instance: str = ""
    state: str = "active"
    code: str = "fulfilled"
    updated_at: float = field(default_factory=time.time)

    def set_status(self, state: str, code: str) -> None:
        """Set a new status; an unchanged one keeps its time."""
        if (self.state, self.code) != (state, code):
            self.state, self.code, self.updated_at = state, code, time.time()


@dataclass(slots=True)
class Record:
    """One machine; `moto` is moto's own object. `reason` of its end, once decided; `ends_at` when a notice is over;
    `stop`: stopped, not ended; `public`: it has a public address.
    """

    id: str
    region: str
    moto: Any
    tags: dict[str, str]
    spot: SpotRequest | None
    past: list[Seen]
    reason: str = ""
    ends_at: float | None = None
    stop: bool = False
    public: bool = True
    max_price: str = ""  # of its request; empty: the market's
    reservation: str = ""  # that it was launched into
    lifecycle: str = ""  # "capacity-block", or empty

    @property
    def name(self) -> str:
        """As the base says."""
        return self.id

    @property
    def machine(self) -> str:
        """The same."""
        return self.id

    def show(self, state: str, address: str = "") -> None:
        """What listings show from now on."""
        seen = Seen(time.time(), state, self.reason, address)
        last = self.past[-1]
        if (last.state, last.reason, last.address) != (seen.state, seen.reason, seen.address):
            self.past.append(seen)

    def as_of(self, at: float) -> Seen | None:
        """What a listing showed at that time; None before the machine existed."""
        return next((seen for seen in reversed(self.past) if seen.at <= at), None)


class Instances(Fleet):
    """The records over moto's instances."""

    def __init__(self, machines: Machines) -> None:
        super().__init__(machines)
        self.records: dict[str, Record] = {}
        self.requests: dict[str, tuple[str, SpotRequest]] = {}

    def backend(self, region: str) -> Any:
        """moto's EC2 of a region."""
        return ec2_backends[DEFAULT_ACCOUNT_ID][region]

    def add(self, machine: str, region: str, user_data: str, spot_tags: dict[str, str] | None) -> Record:
        """A launch that moto has carried out."""
        spot = None
        if spot_tags is not None:
            spot = SpotRequest(f"sir-{machine.removeprefix('i-')[:8]}", spot_tags, machine)
            self.requests[spot.id] = (region, spot)
        mine = self.backend(region).get_instance(machine)
        tags = {tag["key"]: tag["value"] for tag in mine.get_tags()}
        record = Record(machine, region, mine, tags, spot, [Seen(time.time(), "pending")])
        self.records[machine] = record
        self.machines.boot(machine, user_data)
        return record

    def multiply(self, machine: str, times: int) -> None:
        """Add copies of a record, quickly; they have no machines behind them and run for ever."""
        first = self.records[machine]
        for number in range(times):
            name = f"i-{number:017x}"
            spot = SpotRequest(f"sir-{number:08x}", first.tags, name) if first.spot else None
            if spot is not None:
                self.requests[spot.id] = (first.region, spot)
            self.machines.boot(name, first.moto.user_data.decode())
            self.records[name] = replace(first, id=name, spot=spot)

    def leave_behind(self, owner: Owner, node: str) -> None:
        """A disk, a network interface, an address and an open spot request."""
        backend, tags = self.backend("us-east-1"), {**owner.tags, "spotsup-node": node}
        subnet = backend.describe_subnets()[0]
        backend.create_volume(size=8, zone_name=subnet.availability_zone).add_tags(tags)
        backend.create_network_interface(subnet, None).add_tags(tags)
        backend.allocate_address("vpc").add_tags(tags)
        request = SpotRequest(f"sir-{owner.digest}", tags, state="open", code="capacity-not-available")
        self.requests[request.id] = ("us-east-1", request)

    def born(self) -> dict[str, list[str]]:
        """By the tag, as EC2 has it."""
        found: dict[str, list[str]] = {}
        for record in self.records.values():
            found.setdefault(record.tags["spotsup-token"], []).append(f"{record.region}:{record.id}")
        return found

    def alive(self) -> list[Record]:
        """The machines that are not terminated."""
        for record in self.records.values():
            self.sync(record)
        return [each for each in self.records.values() if each.past[-1].state != "terminated"]

    def left(self) -> list[str]:
        """Whatever its tags are."""
        backend = self.backend("us-east-1")
        found = [record.id for record in self.alive()]
        found += [each.id for each in backend.describe_volumes() + backend.get_all_network_interfaces()]
        found += [each.allocation_id for each in backend.describe_addresses()]
        return found + [each.id for _, each in self.requests.values() if each.state in {"open", "active"}]

    def terminated(self, machine: str) -> None:
        """A user's call, which moto has carried out."""
        record = self.records[machine]
        if not record.reason or record.stop:
            record.reason, record.stop = "Client.UserInitiatedShutdown", False
            self.machines.end(machine)
        self.sync(record)

    def preempt(self, machine: str, notice_s: float, *, stop: bool = False) -> float:
        """Mark for termination; EC2's deadline is two minutes after that."""
        record = self.records[machine]
        assert record.spot is not None, f"{machine} is not a spot machine"
        record.spot.set_status("active", "marked-for-stop" if stop else "marked-for-termination")
        record.ends_at, record.stop = time.time() + notice_s, stop
        self.machines.preempt(machine, notice_s)
        return record.spot.updated_at + NOTICE_S

    def alarm(self, machine: str) -> None:
        """Mark for termination as of before the notice, and do not terminate it."""
        spot = self.records[machine].spot
        assert spot is not None, f"{machine} is not a spot machine"
        spot.set_status("active", "marked-for-termination")
        spot.updated_at -= NOTICE_S + 1.0

    def withdraw(self, machine: str) -> None:
        """Unmark. EC2's documentation has no such case; the request gets its former status."""
        record = self.records[machine]
        assert record.spot is not None, f"{machine} is not a spot machine"
        record.spot.set_status("active", "fulfilled")
        record.ends_at = None

    def stop(self, machine: str) -> None:
        """As an interruption does whose behaviour is stop."""
        self.preempt(machine, 0.0, stop=True)

    def lose(self, machine: str, reason: str = "") -> None:
        """A fault of EC2's own, unless another reason is given."""
        self.records[machine].reason = reason or "Server.InternalError"
        self.machines.end(machine)
        self.sync(self.records[machine])

    def sync(self, record: Record) -> None:
        """Update a record to now."""
        if record.past[-1].state == "terminated" or (record.past[-1].state == "stopped" and record.stop):
            return
        if record.ends_at is not None and not record.reason and time.time() >= record.ends_at:
            code = "Server.SpotInstanceShutdown" if record.stop else "Server.SpotInstanceTermination"
            record.reason = code
            self.machines.end(record.id)
        look = self.machines.look(record.id)
        if look.state is InstanceState.TERMINATED:
            self._ended(record)
        elif record.reason == "Client.UserInitiatedShutdown":
            record.show("shutting-down", look.address)
        elif look.state is InstanceState.RUNNING:
            record.show("running", look.address)

    def _ended(self, record: Record) -> None:
        if not record.reason:
            record.reason = "Server.SpotInstanceTermination" if record.ends_at else "Client.InstanceInitiatedShutdown"
        record.show("stopped" if record.stop else "terminated")
        if not record.stop:
            kept = [nic for nic in record.moto.nics.values() if not nic.delete_on_termination]
            record.moto.terminate()
            for nic in kept:  # one that existed before the launch
                record.moto.detach_eni(nic)
        if record.spot is not None:
            by_user = record.reason == "Client.UserInitiatedShutdown"
            code = "instance-terminated-by-user" if by_user else "instance-terminated-no-capacity"
            record.spot.set_status("disabled" if record.stop else "closed", code)

    def listed(self, region: str) -> list[tuple[Record, Seen]]:
        """What a listing of a region shows."""
        here = [record for record in self.records.values() if record.region == region]
        for record in here:
            self.sync(record)
        as_of = time.time() - self.lag_s
        return [(record, seen) for record in here if (seen := record.as_of(as_of)) is not None]

    def spot_requests(self, region: str) -> list[dict[str, Any]]:
        """All of a region, as boto3 returns it."""
        for record in self.records.values():
            self.sync(record)
        return [
            {
                "SpotInstanceRequestId": each.id,
                "InstanceId": each.instance or None,
                "State": each.state,
                "Status": {
                    "Code": each.code,
                    "UpdateTime": datetime.fromtimestamp(each.updated_at + self.ahead_s, UTC),
                },
                "Tags": [{"Key": key, "Value": value} for key, value in each.tags.items()],
            }
            for where, each in self.requests.values()
            if where == region
        ]
