"""Compute Engine's descriptions as ours. Pure.

A deleted instance is in no listing: only its operations describe it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from provisioners.base import (
    NODE_TAG,
    TOKEN_TAG,
    EndCause,
    Instance,
    InstanceState,
    Leftover,
    LeftoverKind,
    NoCapacity,
    Owner,
    ProvisionerError,
    Refusal,
    Scope,
    owner_of,
)
from provisioners.calls import one_line
from provisioners.gcp import flex, names
from provisioners.gcp.errors import CAPACITY_MEMORY_S, ERRORS, GcpErrorReply
from provisioners.gcp.settings import GcpSettings

# "Preemption process", Spot VMs: the guest gets a soft-off signal, and the instance is stopped 30 s later.
SHUTDOWN_S = 30.0
# About as long as other clouds list ended instances.
REMEMBERED_S = 3600.0

_PREEMPTED = "compute.instances.preempted"
_REFUSED = "insert"
_STATES = {
    "PENDING": InstanceState.PENDING,
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    "PENDING_STOP": InstanceState.STOPPING,
    "STOPPING": InstanceState.STOPPING,
    "SUSPENDING": InstanceState.STOPPING,
    "DEPROVISIONING": InstanceState.STOPPING,
    # Its host failed, and it is not restarted.
    "REPAIRING": InstanceState.STOPPING,
    # Google's TERMINATED instance still has its disk, which costs money.
    "TERMINATED": InstanceState.STOPPED,
    "STOPPED": InstanceState.STOPPED,
    "SUSPENDED": InstanceState.STOPPED,
}
_ENDS: Mapping[str, EndCause] = {
    _PREEMPTED: EndCause.PREEMPTED,
    "delete": EndCause.USER,
    "stop": EndCause.USER,
    "suspend": EndCause.USER,
    "compute.instances.hostError": EndCause.FAILED,
    "compute.instances.guestTerminate": EndCause.FAILED,
    "compute.instances.terminateOnHostMaintenance": EndCause.FAILED,
}
_CAUSES = {**_ENDS, _REFUSED: EndCause.FAILED}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on an instance."""

    zone: str
    target: str
    kind: str
    done: bool
    began_at: float  # UNIX seconds
    name: str = ""
    code: str = ""  # why it failed, "" where it did not; as `message`
    message: str = ""
    took_s: float = 0.0  # 0 where it is not over


def operation(raw: Any) -> Operation:
    """Return one operation. Raises ProvisionerError where the description lacks a required field."""
    failed = raw.error.errors[0] if raw.error.errors else None
    target = raw.target_link.split("/")
    try:
        zone = target[target.index("zones") + 1]
        return Operation(
            zone=zone,
            target=names.last_of(raw.target_link),
            kind=raw.operation_type,
            done=raw.status.name == "DONE",
            began_at=_seconds(raw.insert_time),
            name=raw.name,
            code=failed.code or f"HTTP{raw.http_error_status_code}" if failed else "",
            message=failed.message if failed else "",
            took_s=_seconds(raw.end_time) - _seconds(raw.insert_time) if raw.end_time else 0.0,
        )
    except (ValueError, IndexError) as error:
        raise ProvisionerError(f"Compute Engine describes an operation without a required field: {error!r}") from error


def instance(vm: Any, zone: str, settings: GcpSettings, operations: Iterable[Operation], now: float) -> Instance:
    """Return one listed instance; `operations` are those on it. Raises ProvisionerError where the description lacks a
    required field.

    One that is being preempted is RUNNING until `preempt_at` at least: Google may report STOPPING, but the guest runs
    for another half minute, in which it is drained. `now` and the operations are on one clock; an operation has begun
    by `now`.
    """
    try:
        state, launched_at = _STATES[vm.status], _seconds(vm.creation_timestamp) if vm.creation_timestamp else 0.0
    except (KeyError, ValueError) as error:
        raise ProvisionerError(f"Compute Engine describes an instance without a required field: {error!r}") from error
    tags = {**_plain(vm.labels), **{each.key: each.value for each in vm.metadata.items}}
    interface = vm.network_interfaces[0] if vm.network_interfaces else None
    private = interface.network_i_p if interface else ""
    public = interface.access_configs[0].nat_i_p if interface and interface.access_configs else ""
    end = _end(operations)
    preempt_at = min(end.began_at, now) + SHUTDOWN_S if end and end.kind == _PREEMPTED else None
    if state is InstanceState.STOPPING and preempt_at is not None and now < preempt_at:
        state = InstanceState.RUNNING
    ended = state in {InstanceState.STOPPING, InstanceState.STOPPED}
    return Instance(
        id=names.id_of(zone, vm.name),
        owner=owner_of(tags),
        node=tags.get(NODE_TAG, ""),
        token=tags.get(TOKEN_TAG, ""),
        region=names.region_of(zone),
        zone=zone,
        instance_type=names.last_of(vm.machine_type),
        state=state,
        launched_at=launched_at,
        ssh_host=public if settings.public_address else private,
        ssh_port=settings.ssh_port,
        private_address=private,
        end_cause=(_ENDS[end.kind] if end else EndCause.UNKNOWN) if ended else None,
        preempt_at=None if ended else preempt_at,
    )


def ended(operations: Sequence[Operation], listed: Iterable[str], *, since: float) -> list[Instance]:
    """Instances with operations that are no longer `listed` (ids) and ended after `since`.

    Their owner, token, type and addresses are not known; the caller sets those that it asked for.
    """
    alive = set(listed)
    found = []
    for machine, its in by_machine(operations).items():
        end = _end(its)
        if machine not in alive and end is not None and end.began_at >= since:
            born = [each.began_at for each in its if is_birth(each)]
            found.append(_gone(machine, end, min(born, default=end.began_at)))
    return found


def refused(operations: Sequence[Operation], listed: Iterable[str], *, since: float) -> list[Instance]:
    """Instances that were never made: their last insertion began after `since`, and failed for a reason that is worth
    remembering. Google reports a full zone in the operation, up to minutes after it has accepted the launch. Fields as
    of `ended`.
    """
    alive = set(listed)
    found = []
    for machine, its in by_machine(operations).items():
        births = [each for each in its if each.kind == "insert"]
        last = max(births, key=lambda each: each.began_at, default=None)
        if machine in alive or last is None or not last.done or any(is_birth(each) for each in births):
            continue
        why = _refusal(last)
        if last.began_at >= since and why is not None:
            gone = _gone(machine, replace(last, kind=_REFUSED), last.began_at)
            found.append(replace(gone, end_message=one_line(f"{last.code}: {last.message}"), refused=why))
    return found


def _refusal(insertion: Operation) -> Refusal | None:
    """Return what is worth remembering of a failed insertion. With which code the wait for a flex-start VM ends is not
    documented: one that our table lacks, after so long, is taken for that."""
    reply = GcpErrorReply(insertion.zone, insertion.code, insertion.message)
    if ERRORS.row(reply) is None and insertion.took_s >= flex.WAIT_S:
        return NoCapacity(Scope.TYPE_IN_ZONE, CAPACITY_MEMORY_S, reply.sentence())
    return ERRORS.refusal(reply, insertion.zone)


def by_machine(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Our id of an instance -> the operations on it."""
    found: dict[str, list[Operation]] = {}
    for each in operations:
        found.setdefault(names.id_of(each.zone, each.target), []).append(each)
    return found


def is_birth(each: Operation) -> bool:
    """True if it created an instance."""
    return each.kind == "insert" and each.done and not each.code


def leftover(disk: Any, zone: str) -> Leftover:
    """Return a disk that belongs to no instance."""
    tags = _plain(disk.labels)
    owner, node = owner_of(tags), tags.get(NODE_TAG, "")
    return Leftover(names.id_of(zone, disk.name), LeftoverKind.DISK, owner, node, names.region_of(zone))


def _plain(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: names.plain_value(value) for key, value in labels.items()}


def _gone(machine: str, end: Operation, launched_at: float) -> Instance:
    return Instance(
        id=machine,
        owner=Owner("", ""),
        node=names.node_in(end.target),
        token="",
        region=names.region_of(end.zone),
        zone=end.zone,
        instance_type="",
        state=InstanceState.TERMINATED if end.done else InstanceState.STOPPING,
        launched_at=launched_at,
        end_cause=_CAUSES[end.kind],
    )


def _end(operations: Iterable[Operation]) -> Operation | None:
    """Return what ended an instance: the first such operation. Deleting a preempted instance is only tidying up."""
    ends = [each for each in operations if each.kind in _ENDS and not each.code]
    return min(ends, key=lambda each: each.began_at, default=None)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
