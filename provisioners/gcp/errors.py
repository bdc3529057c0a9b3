"""Compute Engine's error codes: what each means for a launch, and for any other call. Pure.

The API refuses in two ways: at once, with a `reason` (quotaExceeded), or in the operation that it started, with a
`code` (QUOTA_EXCEEDED). Both are rows of one table; HTTP503 is an answer without a reason, as a proxy gives it.

Sources: "global" is Google APIs' Global domain errors; "bulk" Compute Engine's page on troubleshooting bulk creation of
VMs, "availability" that on resource availability errors; "skypilot" sky/backends/cloud_vm_ray_backend.py, _gcp_handler;
"karpenter" karpenter-provider-gcp; "rungar" the test of rungar's Compute Engine provider; "ubicloud" that of
ubicloud's; "autoscaler" the Kubernetes cluster autoscaler's gce client, and GKE's; "colab" Colab Enterprise's page on
troubleshooting; "seen" users' published logs of operations; "HTTP" RFC 9110.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provisioners.base import Scope
from provisioners.codes import Code, ErrorReply, ErrorTable, Kind, denied, disk_remedy

CAPACITY_MEMORY_S = 300.0  # GCE takes up to 30 s to report that a zone is full: frequent retries cost more than on EC2
ADDRESS_MEMORY_S = 30.0  # karpenter's: an address is free as soon as an instance is deleted
ABSENT_MEMORY_S = 3600.0  # a zone does not gain a machine type within minutes
QUOTA_MEMORY_S = 600.0
THROTTLED_S = 20.0  # "rate quotas", Compute Engine: counted by the minute

_ASK_FOR_MORE = "request more at IAM & Admin, Quotas, or terminate other instances"
_RENEW = "renew the daemon's Google credentials"
_ALLOW = "give the daemon's account the role that docs/permissions/gcp-role.yaml defines"
_ENABLE = "enable the Compute Engine API and billing for the project that gcp.project names"
_NO_NOTICE = "set gcp.notice_s = 0"
_DISK_TYPE = "set gcp.disk_type to one that this machine type takes"
_RESERVED = "it is full, or its machines have other properties"
_RESERVATION = "look at gcp.reservations, and at the reservation"
_SETTINGS = "look at gcp.image, gcp.network, gcp.subnetworks and gcp.service_account"


def _capacity(
    name: str, source: str, scope: Scope, memory_s: float = CAPACITY_MEMORY_S, message_part: str = ""
) -> Code:
    return Code(name, Kind.NO_CAPACITY, source, scope, memory_s, message_part=message_part)


def _quota(name: str, source: str, scope: Scope = Scope.REGION, message_part: str = "") -> Code:
    return Code(name, Kind.QUOTA, source, scope, QUOTA_MEMORY_S, _ASK_FOR_MORE, message_part)


def _fatal(name: str, source: str, remedy: str = "", message_part: str = "") -> Code:
    return Code(name, Kind.FATAL, source, remedy=remedy, message_part=message_part)


def _of_reservations(name: str, source: str) -> tuple[Code, ...]:
    """Return the rows of a code whose message says what is wrong with a reservation."""
    memory_s, full = CAPACITY_MEMORY_S, (Kind.NO_CAPACITY, source, Scope.TYPE_IN_ZONE)
    return (
        Code(name, *full, memory_s, message_part="does not have available resources for the request"),
        Code(name, *full, memory_s, _RESERVED, "No available resources in specified reservations"),
        Code(name, *full, memory_s, message_part="requires reservation to be in READY state"),
        _fatal(name, source, _RESERVATION, "reservation"),
    )


def _code(name: str, kind: Kind, source: str) -> Code:
    return Code(name, kind, source, memory_s=THROTTLED_S if kind is Kind.THROTTLED else 0.0)


TABLE: Sequence[Code] = (
    _capacity("ZONE_RESOURCE_POOL_EXHAUSTED", "availability", Scope.TYPE_IN_ZONE),
    _capacity("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "availability", Scope.TYPE_IN_ZONE),
    _capacity("REGION_RESOURCE_POOL_EXHAUSTED", "rungar", Scope.REGION),
    _capacity("RESOURCE_POOL_EXHAUSTED", "rungar", Scope.TYPE_IN_ZONE),
    _capacity("GPU_STOCKOUT", "rungar", Scope.TYPE_IN_ZONE),
    _capacity("STOCKOUT", "karpenter", Scope.TYPE_IN_ZONE),
    _capacity("insufficientCapacity", "bulk", Scope.TYPE_IN_ZONE),
    _fatal("UNSUPPORTED_OPERATION", "seen", _DISK_TYPE, message_part="disk type cannot be used by"),
    # A spot instance that is preempted while it is created fails with this code.
    _capacity("UNSUPPORTED_OPERATION", "skypilot", Scope.TYPE_IN_ZONE),
    _capacity("RESOURCE_NOT_FOUND", "skypilot", Scope.TYPE_IN_ZONE, ABSENT_MEMORY_S),
    _capacity("notFound", "global", Scope.TYPE_IN_ZONE, ABSENT_MEMORY_S, "acceleratorTypes"),
    _capacity("IP_SPACE_EXHAUSTED", "karpenter", Scope.REGION, ADDRESS_MEMORY_S),
    _capacity("IP_SPACE_EXHAUSTED_WITH_DETAILS", "karpenter", Scope.REGION, ADDRESS_MEMORY_S),
    # The wait for a flex-start VM, of groups of instances: of single ones it is not documented.
    _capacity("LIMIT_EXCEEDED", "autoscaler", Scope.TYPE_IN_ZONE, message_part="in the allocated time"),
    _capacity("QUEUING_INFEASIBLE_NO_CAPACITY", "autoscaler", Scope.TYPE_IN_ZONE),
    *_of_reservations("CONDITION_NOT_MET", "autoscaler"),
    *_of_reservations("conditionNotMet", "autoscaler"),
    *_of_reservations("invalid", "colab"),
    _quota("QUOTA_EXCEEDED", "skypilot", Scope.GLOBAL, "GPUS_ALL_REGIONS"),
    _quota("QUOTA_EXCEEDED", "skypilot", Scope.GLOBAL, "CPUS_ALL_REGIONS"),
    # Of a GPU, or of the CPUs of the machines that it comes with; else of addresses, disks, instances.
    _quota("QUOTA_EXCEEDED", "skypilot", Scope.QUOTA, "GPUS"),
    _quota("QUOTA_EXCEEDED", "skypilot", Scope.QUOTA, "CPUS"),
    _quota("QUOTA_EXCEEDED", "skypilot"),
    _quota("quotaExceeded", "skypilot", Scope.GLOBAL, "GPUS_ALL_REGIONS"),
    _quota("quotaExceeded", "skypilot", Scope.GLOBAL, "CPUS_ALL_REGIONS"),
    _quota("quotaExceeded", "skypilot", Scope.QUOTA, "GPUS"),
    _quota("quotaExceeded", "skypilot", Scope.QUOTA, "CPUS"),
    _quota("quotaExceeded", "bulk"),
    _quota("limitExceeded", "global"),
    _code("rateLimitExceeded", Kind.THROTTLED, "bulk"),
    _code("userRateLimitExceeded", Kind.THROTTLED, "global"),
    _code("RATE_LIMIT_EXCEEDED", Kind.THROTTLED, "seen"),
    _code("RESOURCE_OPERATION_RATE_EXCEEDED", Kind.THROTTLED, "skypilot"),
    _code("HTTP429", Kind.THROTTLED, "HTTP"),
    # A failed operation has undone its changes.
    _code("INTERNAL_ERROR", Kind.TRANSIENT, "rungar"),
    _code("RESOURCE_NOT_READY", Kind.TRANSIENT, "skypilot"),
    _code("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", Kind.TRANSIENT, "seen"),
    _code("OPERATION_CANCELED_BY_USER", Kind.TRANSIENT, "seen"),
    _code("resourceNotReady", Kind.TRANSIENT, "seen"),
    # The fault may have come after the operation was created: retry with the same name and request id.
    _code("backendError", Kind.UNKNOWN, "global"),
    _code("internalError", Kind.UNKNOWN, "global"),
    _code("HTTP500", Kind.UNKNOWN, "HTTP"),
    _code("HTTP502", Kind.UNKNOWN, "HTTP"),
    _code("HTTP503", Kind.UNKNOWN, "HTTP"),
    _code("HTTP504", Kind.UNKNOWN, "HTTP"),
    _code("alreadyExists", Kind.USED, "seen"),
    _code("RESOURCE_ALREADY_EXISTS", Kind.USED, "seen"),
    _fatal("invalid", "bulk", _NO_NOTICE, message_part="preemptionNotice"),
    _fatal("invalid", "skypilot", disk_remedy("gcp"), message_part="disk size cannot be smaller than"),
    _fatal("INVALID_FIELD_VALUE", "skypilot", disk_remedy("gcp"), message_part="disk size cannot be smaller than"),
    _fatal("invalid", "bulk", _DISK_TYPE, message_part="disk type cannot be used by"),
    _fatal("invalid", "bulk", _SETTINGS),
    _fatal("badRequest", "global", _NO_NOTICE, message_part="preemptionNotice"),
    _fatal("badRequest", "seen", _DISK_TYPE, message_part="disk type cannot be used by"),
    _fatal("badRequest", "global"),
    denied("required", "global", _RENEW, message_part="credential"),
    _fatal("required", "global"),
    _fatal("parseError", "global"),
    _fatal("invalidParameter", "global"),
    _fatal("INVALID_FIELD_VALUE", "rungar", _NO_NOTICE, message_part="preemptionNotice"),
    _fatal("INVALID_FIELD_VALUE", "rungar", _SETTINGS),
    _fatal(
        "EXTERNAL_RESOURCE_NOT_FOUND",
        "ubicloud",
        "set gcp.service_account to an account that exists",
        message_part="serviceAccount",
    ),
    _fatal("INVALID_USAGE", "rungar", _SETTINGS),
    _fatal("notFound", "global", _SETTINGS),
    _fatal("conditionNotMet", "global"),
    denied("IAM_PERMISSION_DENIED", "skypilot", _ALLOW, Scope.TYPE_IN_ZONE),
    denied(
        "SERVICE_ACCOUNT_ACCESS_DENIED",
        "seen",
        "give the daemon's account roles/iam.serviceAccountUser on gcp.service_account",
        Scope.TYPE_IN_ZONE,
    ),
    denied("forbidden", "global", _ALLOW, Scope.TYPE_IN_ZONE),
    denied("insufficientPermissions", "global", _ALLOW, Scope.TYPE_IN_ZONE),
    denied("authError", "global", _RENEW),
    denied("HTTP401", "HTTP", _RENEW),
    denied("HTTP403", "HTTP", _ALLOW, Scope.TYPE_IN_ZONE),
    denied("accessNotConfigured", "global", _ENABLE),
)

ERRORS = ErrorTable(TABLE)


@dataclass(frozen=True, slots=True)
class GcpErrorReply:
    """An error that Google answered."""

    place: str  # a project or a zone
    code: str
    message: str
    retry_after_s: float = 0.0
    api: str = "Compute Engine"

    def sentence(self, where: str = "") -> str:
        """Return for people: the place, and Google's message."""
        text = " ".join(self.message.split()).rstrip(".")[:500]
        return f"{self.api} ({where or self.place}) answered {self.code}: {text}"


def is_gone(reply: ErrorReply) -> bool:
    """True if the resource does not exist."""
    return reply.code in {"notFound", "RESOURCE_NOT_FOUND", "HTTP404"}
