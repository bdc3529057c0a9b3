"""EC2's descriptions as ours. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from provisioners.aws.errors import ERRORS, AwsErrorReply
from provisioners.aws.settings import AwsSettings
from provisioners.base import (
    NODE_TAG,
    TOKEN_TAG,
    EndCause,
    Instance,
    InstanceState,
    Leftover,
    LeftoverKind,
    ProvisionerError,
    Refusal,
    owner_of,
)
from provisioners.calls import one_line

# "Spot Instance interruption notices": two minutes ahead.
NOTICE_S = 120.0

_STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.TERMINATED,
}
# StateReason: the API reference. Server.SpotInstanceShutdown is a spot machine that was stopped instead.
_CAUSES = {
    "Server.SpotInstanceTermination": EndCause.PREEMPTED,
    "Server.SpotInstanceShutdown": EndCause.PREEMPTED,
    "Client.UserInitiatedShutdown": EndCause.USER,
    "Client.UserInitiatedHibernate": EndCause.USER,
    "Client.InstanceInitiatedShutdown": EndCause.FAILED,
    "Client.InternalError": EndCause.FAILED,
    "Client.InstanceTerminated": EndCause.FAILED,
    "Client.InvalidSnapshot.NotFound": EndCause.FAILED,
    "Client.VolumeLimitExceeded": EndCause.FAILED,
    "Server.InsufficientInstanceCapacity": EndCause.FAILED,
    "Server.InternalError": EndCause.FAILED,
    "Server.ScheduledStop": EndCause.FAILED,
}
_CODE_IN_MESSAGE = re.compile(r"((?:Client|Server)\.[A-Za-z.]+): ")
_MARKED = ("marked-for-termination", "marked-for-stop")


def id_of(region: str, ec2_id: str) -> str:
    """Our id: EC2's does not name its region."""
    return f"{region}:{ec2_id}"


def split_id(instance_id: str) -> tuple[str, str]:
    """(region, EC2's id); the region is "" where the id names none."""
    region, _, ec2_id = instance_id.rpartition(":")
    return region, ec2_id


def instance(raw: Mapping[str, Any], region: str, settings: AwsSettings, preempt_at: float | None) -> Instance:
    """Return one instance. Raises ProvisionerError where the description lacks a required field."""
    try:
        ec2_id, state = raw["InstanceId"], _STATES[raw["State"]["Name"]]
    except KeyError as error:
        raise ProvisionerError(f"EC2 in {region} describes an instance without a required field: {error!r}") from error
    tags = tags_of(raw)
    ended = state in {InstanceState.STOPPING, InstanceState.STOPPED, InstanceState.TERMINATED}
    launched_at = raw.get("LaunchTime")
    private = raw.get("PrivateIpAddress") or ""
    zone = raw.get("Placement", {}).get("AvailabilityZone", "")
    message = raw.get("StateReason", {}).get("Message", "") if ended else ""
    return Instance(
        id=id_of(region, ec2_id),
        owner=owner_of(tags),
        node=tags.get(NODE_TAG, ""),
        token=tags.get(TOKEN_TAG, ""),
        region=region,
        zone=zone,
        instance_type=raw.get("InstanceType", ""),
        state=state,
        launched_at=launched_at.timestamp() if isinstance(launched_at, datetime) else 0.0,
        ssh_host=(raw.get("PublicIpAddress") or "") if settings.public_address else private,
        ssh_port=settings.ssh_port,
        private_address=private,
        end_cause=_cause(raw) if ended else None,
        preempt_at=None if ended else preempt_at,
        end_message=one_line(message) if message else "",
        refused=_refusal(raw, region, zone) if ended else None,
    )


def may_be_preempted(raw: Mapping[str, Any]) -> bool:
    """True if a spot request may announce a preemption of this instance."""
    return raw.get("InstanceLifecycle") == "spot" and raw.get("State", {}).get("Name") in {"pending", "running"}


def preemptions(requests: Iterable[Mapping[str, Any]], now: float) -> dict[str, float]:
    """EC2's instance id -> when it will be preempted, from spot requests that announce it. `now`: on our clock; EC2's
    may be ahead of it, so later times count as now.
    """
    found = {}
    for request in requests:
        status = request.get("Status", {})
        if status.get("Code") in _MARKED and isinstance(status.get("UpdateTime"), datetime):
            found[request.get("InstanceId", "")] = min(status["UpdateTime"].timestamp(), now) + NOTICE_S
    return found


def leftover(raw: Mapping[str, Any], kind: LeftoverKind, id_key: str, region: str) -> Leftover:
    """Return a resource that belongs to no instance."""
    tags = tags_of(raw)
    return Leftover(id_of(region, raw[id_key]), kind, owner_of(tags), tags.get(NODE_TAG, ""), region)


def tagged(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the filters that only resources with these tags pass."""
    return {f"tag:{key}": value for key, value in tags.items()}


def filters(values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Filters as EC2's calls take them: a resource has to pass all."""
    return [{"Name": name, "Values": [value]} for name, value in values.items()]


def tags_of(raw: Mapping[str, Any]) -> dict[str, str]:
    """EC2's key is Tags; that of a network interface is TagSet."""
    return {each["Key"]: each["Value"] for each in (*raw.get("Tags", ()), *raw.get("TagSet", ()))}


def _cause(raw: Mapping[str, Any]) -> EndCause:
    code = raw.get("StateReason", {}).get("Code", "")
    return _CAUSES.get(code, EndCause.UNKNOWN)


def _refusal(raw: Mapping[str, Any], region: str, zone: str) -> Refusal | None:
    """Return why EC2 could not provide what it had accepted. Its codes for that are rows of the table of errors; those
    of other ends are not."""
    reason = raw.get("StateReason", {})
    code, message = reason.get("Code", ""), reason.get("Message", "")
    # "Amazon EC2 instance terminates immediately" (EC2 guide) shows the code Server.InternalError for what the message
    # begins with: "Client.VolumeLimitExceeded: Volume limit exceeded".
    if found := _CODE_IN_MESSAGE.match(message):
        code, message = found[1], message[found.end() :]
    if not code.startswith(("Server.", "Client.")):
        return None
    reply = AwsErrorReply("EC2", region, code, message)
    return ERRORS.refusal(reply, f"{zone}, {raw.get('InstanceType', '')}")
