"""Azure's descriptions as identity. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from provisioners.azure.errors import ERRORS, AzureErrorReply
from provisioners.azure.history import NOTICE_S, Past, timestamp
from provisioners.azure.launch import is_named_by, token_in
from provisioners.azure.settings import AzureSettings
from provisioners.base import (
    CLUSTER_TAG,
    NODE_TAG,
    TOKEN_TAG,
    EndCause,
    Instance,
    InstanceState,
    Leftover,
    LeftoverKind,
    Owner,
    ProvisionerError,
    owner_of,
)
from provisioners.calls import one_line

# "States and billing status of Azure Virtual Machines". A stopped machine is allocated and billed.
_POWER = {
    "starting": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "stopping": InstanceState.STOPPING,
    "deallocating": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "deallocated": InstanceState.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Addresses:
    """A machine's addresses."""

    private: str = ""
    public: str = ""


def instance(
    raw: Mapping[str, Any],
    settings: AzureSettings,
    power: str = "",
    addresses: Addresses | None = None,
    past: Past | None = None,
    now: float = math.inf,
    failed: tuple[str, str] = ("", ""),
) -> Instance:
    """Return one existing machine. Raises ProvisionerError where the description lacks a required field.

    `now`: on our clock; Azure's may be ahead of it, so later times in the log count as now. `failed`: as of `failure`.
    """
    properties = raw.get("properties") or {}
    name, made = raw.get("name"), str(properties.get("provisioningState", "")).lower()
    if not name or not made:
        raise ProvisionerError(
            f"Azure describes a machine ({name!r}) without a required field: provisioningState "
            f"{properties.get('provisioningState')!r}"
        )
    addresses, past = addresses or Addresses(), past or Past()
    state = _state(made, power)
    ended = state in {InstanceState.STOPPING, InstanceState.STOPPED}
    tags = tags_of(raw)
    code, message = failed
    size, zone = (properties.get("hardwareProfile") or {}).get("vmSize") or "", _zone(raw)
    refusal = None
    if code and ended:
        refusal = ERRORS.refusal(AzureErrorReply("Azure, creating the machine,", 200, code, message), f"{zone}, {size}")
    coming = past.evicted_at if not ended and past.gone_at is None else None
    return Instance(
        id=name,
        region=str(raw.get("location", "")),
        zone=zone,
        instance_type=size,
        state=state,
        launched_at=timestamp(properties.get("timeCreated")) or 0.0,
        ssh_host=addresses.public if settings.public_address else addresses.private,
        ssh_port=settings.ssh_port,
        private_address=addresses.private,
        end_cause=_cause(state, made, past) if ended else None,
        preempt_at=None if coming is None else min(coming, now) + NOTICE_S,
        owner=owner_of(tags),
        node=tags.get(NODE_TAG, ""),
        token=tags.get(TOKEN_TAG, ""),
        end_message=one_line(f"{code}: {message}") if code and ended else "",
        refused=refusal,
    )


def gone(name: str, past: Past, settings: AzureSettings, owner: Owner) -> Instance:
    """Return a machine that has ended, by the log, and is in no listing. `owner`: who asks, and may have given the
    name."""
    raw = past.body
    only = settings.regions[0] if len(settings.regions) == 1 else ""
    its_owner, node, token = _identity(raw, name, owner)
    created = timestamp((raw.get("properties") or {}).get("timeCreated"))
    return Instance(
        id=str(raw.get("name") or name),
        region=str(raw.get("location") or only),
        zone=_zone(raw),
        instance_type=((raw.get("properties") or {}).get("hardwareProfile") or {}).get("vmSize") or "",
        state=InstanceState.TERMINATED,
        launched_at=created or past.born_at,
        ssh_port=settings.ssh_port,
        end_cause=past.cause or EndCause.UNKNOWN,
        owner=its_owner,
        node=node,
        token=token,
    )


def powers(listed: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Machine's id in lower case -> "running", "deallocated" and so on, of a listing of statuses."""
    return {str(each.get("id", "")).lower(): status(each, "PowerState/") for each in listed}


def failures(listed: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Machine's id in lower case -> why its creation failed, of a listing of statuses. Azure looks for room after it
    has accepted a launch, and needs 10 to 60 s to find none.
    """
    found = {str(each.get("id", "")).lower(): failure(each) for each in listed}
    return {machine: why for machine, why in found.items() if why[0]}


def status(raw: Mapping[str, Any], kind: str) -> str:
    """Return the part of a machine's status after `kind`: "running" of "PowerState/running"; "" where there is none."""
    view = (raw.get("properties") or {}).get("instanceView") or {}
    codes = [str(each.get("code", "")) for each in view.get("statuses") or ()]
    return next((code[len(kind) :] for code in codes if code.lower().startswith(kind.lower())), "")


def failure(raw: Mapping[str, Any]) -> tuple[str, str]:
    """(code, message) of a machine whose provisioning failed, from its instance view; empty where it has none."""
    view = (raw.get("properties") or {}).get("instanceView") or {}
    for each in view.get("statuses") or ():
        code = str(each.get("code", ""))
        if code.lower().startswith("provisioningstate/failed/"):
            return code.rpartition("/")[2], str(each.get("message") or each.get("displayStatus") or "")
    return "", ""


def addresses_of(nics: Iterable[Mapping[str, Any]], ips: Iterable[Mapping[str, Any]]) -> dict[str, Addresses]:
    """Machine's id in lower case -> its addresses."""
    public = {str(each.get("id", "")).lower(): (each.get("properties") or {}).get("ipAddress") or "" for each in ips}
    found = {}
    for nic in nics:
        properties = nic.get("properties") or {}
        machine = str((properties.get("virtualMachine") or {}).get("id", "")).lower()
        first = next((each.get("properties") or {} for each in properties.get("ipConfigurations") or ()), {})
        ip = str((first.get("publicIPAddress") or {}).get("id", "")).lower()
        if machine:
            found[machine] = Addresses(first.get("privateIPAddress") or "", public.get(ip, ""))
    return found


def leftover(raw: Mapping[str, Any], kind: LeftoverKind, machine: str, owner: Owner) -> Leftover:
    """Return a resource that belongs to no machine any more. `machine`: the name of its former one; `owner`: as of
    `gone`."""
    its_owner, node, token = _identity(raw, machine, owner)
    return Leftover(str(raw.get("name", "")), kind, its_owner, node or token, str(raw.get("location", "")))


def tags_of(raw: Mapping[str, Any]) -> Mapping[str, str]:
    """Return its tags; Azure's null means none."""
    return raw.get("tags") or {}


def _identity(raw: Mapping[str, Any], name: str, owner: Owner) -> tuple[Owner, str, str]:
    """(owner, node, token) by the tags; without ours, by the machine's name, which shows `owner`'s machines alone."""
    if CLUSTER_TAG in (tags := tags_of(raw)):
        return owner_of(tags), tags.get(NODE_TAG, ""), tags.get(TOKEN_TAG, "")
    return owner if is_named_by(owner, name) else owner_of({}), "", token_in(name)


def _zone(raw: Mapping[str, Any]) -> str:
    region = str(raw.get("location", ""))
    return f"{region}-{raw['zones'][0]}" if raw.get("zones") else region


def _state(made: str, power: str) -> InstanceState:
    """Return the state. A machine whose provisioning failed exists and may run: its power state decides."""
    if made == "deleting":
        return InstanceState.STOPPING
    if made in {"failed", "canceled"}:
        return _POWER.get(power, InstanceState.STOPPED)
    if made == "creating":
        # Until the guest has reported to Azure, which takes minutes on large machines, after they run.
        return InstanceState.RUNNING if power == "running" else InstanceState.PENDING
    return _POWER.get(power, InstanceState.RUNNING)


def _cause(state: InstanceState, made: str, past: Past) -> EndCause | None:
    if past.cause is not None:
        return past.cause
    if state is InstanceState.STOPPING:
        return past.stopped_by
    return past.stopped_by or (EndCause.FAILED if made in {"failed", "canceled"} else EndCause.UNKNOWN)
