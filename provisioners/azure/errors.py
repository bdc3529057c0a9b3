"""Azure's error codes: what each means for a launch, and for any other call. Pure.

Sources: "ARM" is Azure's page on common deployment errors; "compute" its pages on allocation failures; "spot" its page
on error messages for Azure Spot machines; "karpenter" is karpenter-provider-azure, pkg/providers/instance/offerings;
"aro" is ARO-RP, pkg/frontend/adminactions (of reserved capacity Azure documents no code); "throttling" the page on
Resource Manager's limits; "seen" users' published logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provisioners.base import Scope
from provisioners.codes import Code, ErrorTable, Kind, denied, disk_remedy

CAPACITY_MEMORY_S = 600.0
ABSENT_MEMORY_S = 3600.0
QUOTA_MEMORY_S = 600.0  # karpenter's for a quota that is used up
NO_QUOTA_MEMORY_S = 3600.0  # karpenter's for a quota of 0
THROTTLED_S = 10.0
NIC_RESERVED_S = 180.0  # Azure reserves an interface for its failed machine for so long

_ASK_FOR_MORE = "request more under Quotas in the portal, or terminate other instances"
_REGISTER = "run once for the namespace that it names: az provider register --namespace NAMESPACE"
_RENEW = "renew the daemon's Azure credentials"
_ALLOW = "give the daemon what docs/permissions/azure-*.json list"
_ARCHITECTURE = "name an image of the size's architecture in azure.image or, by GPU, in azure.images"
_IMAGE = "set azure.image to one that this region has"
_NETWORK = "set azure.subnets and azure.security_groups to what this region has"
_SMALLER = "is smaller than the size of the corresponding disk"
_NO_SPOT = "ask for on-demand machines, or use a subscription that may have spot machines"


def _capacity(name: str, source: str, scope: Scope = Scope.TYPE_IN_ZONE, memory_s: float = CAPACITY_MEMORY_S) -> Code:
    return Code(name, Kind.NO_CAPACITY, source, scope, memory_s)


def _quota(
    name: str,
    message_part: str = "",
    memory_s: float = QUOTA_MEMORY_S,
    source: str = "karpenter",
    scope: Scope = Scope.QUOTA,
) -> Code:
    return Code(name, Kind.QUOTA, source, scope, memory_s, _ASK_FOR_MORE, message_part)


def _fatal(name: str, remedy: str = "", source: str = "ARM", message_part: str = "") -> Code:
    return Code(name, Kind.FATAL, source, remedy=remedy, message_part=message_part)


TABLE: Sequence[Code] = (
    # karpenter's hour is for sizes that a region lacks. Those are not offered (offers.py): here it is a full zone.
    _capacity("SkuNotAvailable", "spot"),
    _capacity("AllocationFailed", "compute"),
    _capacity("AllocationFailure", "karpenter"),
    _capacity("ZonalAllocationFailed", "compute"),
    _capacity("OverconstrainedAllocationRequest", "compute"),
    _capacity("OverconstrainedZonalAllocationRequest", "compute"),
    _capacity("CapacityReservationCapacityExceeded", "aro"),
    _capacity("NotAvailableForSubscription", "ARM", memory_s=ABSENT_MEMORY_S),
    Code("SpotPriceGreaterThanProvidedMaxPrice", Kind.ABOVE_CAP, "spot", Scope.TYPE_IN_ZONE, CAPACITY_MEMORY_S),
    _capacity("SubnetIsFull", "ARM", Scope.REGION),
    # Cores are counted by family, those of spot machines together, and all of a region.
    _quota("OperationNotAllowed", "Total Regional", scope=Scope.REGION),
    _quota("OperationNotAllowed", "Current Limit: 0", NO_QUOTA_MEMORY_S),
    _quota("OperationNotAllowed", "LowPriorityCores"),
    _quota("OperationNotAllowed", "quota"),
    Code(
        "OperationNotAllowed",
        Kind.THROTTLED,
        "throttling",
        memory_s=THROTTLED_S,
        message_part="too many requests",
    ),
    _fatal("OperationNotAllowed", disk_remedy("azure"), "seen", _SMALLER),
    _fatal("OperationNotAllowed"),
    _quota("QuotaExceeded", "Total Regional", scope=Scope.REGION),
    _quota("QuotaExceeded", "Current Limit: 0", NO_QUOTA_MEMORY_S),
    _quota("QuotaExceeded"),
    _quota("ResourceQuotaExceeded", source="ARM", scope=Scope.REGION),
    _quota("PublicIPCountLimitReached", source="ARM", scope=Scope.REGION),
    _quota("NetworkInterfaceCountLimitReached", source="ARM", scope=Scope.REGION),
    Code("TooManyRequests", Kind.THROTTLED, "throttling", memory_s=THROTTLED_S),
    Code("SubscriptionRequestsThrottled", Kind.THROTTLED, "throttling", memory_s=THROTTLED_S),
    Code("ResourceCollectionRequestsThrottled", Kind.THROTTLED, "throttling", memory_s=THROTTLED_S),
    Code("HTTP 429", Kind.THROTTLED, "throttling", memory_s=THROTTLED_S),
    Code("NicReservedForAnotherVm", Kind.THROTTLED, "karpenter", memory_s=NIC_RESERVED_S),
    Code("AnotherOperationInProgress", Kind.TRANSIENT, "ARM"),
    Code("RetryableError", Kind.TRANSIENT, "ARM"),
    Code("ServiceUnavailable", Kind.TRANSIENT, "ARM"),
    Code("ServerTimeout", Kind.UNKNOWN, "ARM"),
    Code("GatewayTimeout", Kind.UNKNOWN, "ARM"),
    # The fault may have come after the launch: look the machine up.
    Code("InternalServerError", Kind.UNKNOWN, "ARM"),
    Code("InternalExecutionError", Kind.UNKNOWN, "ARM"),
    Code("InternalOperationError", Kind.UNKNOWN, "ARM"),
    Code("NetworkingInternalOperationError", Kind.UNKNOWN, "ARM"),
    Code("HTTP 5xx", Kind.UNKNOWN, "a proxy, or Azure without a code"),
    # There is a machine of this name; its tags show whether it is ours.
    Code("PreconditionFailed", Kind.USED, "Compute API, If-None-Match"),
    Code("HTTP 412", Kind.USED, "Compute API, If-None-Match"),
    Code("ConflictingServerState", Kind.TRANSIENT, "ARM"),
    Code("Conflict", Kind.TRANSIENT, "ARM"),
    _fatal("PropertyChangeNotAllowed", "a machine of this name already exists: use a new token"),
    denied("AuthorizationFailed", "ARM", _ALLOW, Scope.TYPE_IN_ZONE),
    denied("LinkedAuthorizationFailed", "ARM", _ALLOW, Scope.TYPE_IN_ZONE),
    denied("LinkedAccessCheckFailed", "ARM", _ALLOW, Scope.TYPE_IN_ZONE),
    denied("AuthorizationPermissionMismatch", "ARM", _ALLOW, Scope.TYPE_IN_ZONE),
    denied("InvalidAuthenticationToken", "ARM", _RENEW),
    denied("InvalidAuthenticationTokenTenant", "ARM", _RENEW + ", from the subscription's own tenant"),
    denied("ExpiredAuthenticationToken", "ARM", _RENEW + ", and check this computer's clock"),
    denied("AuthenticationFailed", "ARM", _RENEW),
    denied("AuthenticationFailedMissingToken", "ARM", _RENEW),
    denied("InvalidSubscriptionId", "ARM", "set azure.subscription"),
    denied("SubscriptionNotFound", "ARM", "set azure.subscription, or give the daemon a role in it"),
    denied("SubscriptionNotRegistered", "ARM", _REGISTER),
    denied("MissingSubscriptionRegistration", "ARM", _REGISTER),
    denied("ReadOnlyDisabledSubscription", "ARM", "enable the subscription again"),
    _fatal("DisallowedOperation"),
    denied("RequestDisallowedByPolicy", "ARM", "contact the owner of the named policy", Scope.TYPE_IN_ZONE),
    denied("ScopeLocked", "ARM", "remove the lock from azure.resource_group"),
    denied("ResourceGroupNotFound", "ARM", "create it, or set azure.resource_group"),
    denied("ResourceGroupBeingDeleted", "ARM", "set azure.resource_group to one that stays"),
    _fatal("ImageNotFound", _IMAGE, "compute"),
    _fatal("PlatformImageNotFound", _IMAGE, "compute"),
    _fatal("GalleryImageNotFound", _IMAGE, "compute"),
    _fatal("ImageVersionDeprecated", _IMAGE, "compute"),
    _fatal("MarketplacePurchaseEligibilityFailed", "accept the image's terms: az vm image terms accept", "compute"),
    _fatal("VMMarketplaceInvalidInput", "use an image without a plan", "compute"),
    _fatal("InvalidResourceReference", _NETWORK),
    _fatal("SubnetNotFound", _NETWORK),
    _fatal("NotFound"),
    _fatal("ResourceNotFound"),
    _fatal("LocationNotAvailableForResourceType", "remove the region from azure.regions"),
    _fatal("InvalidLocation", "remove the region from azure.regions"),
    _fatal("NoRegisteredProviderFound", "remove the region from azure.regions"),
    _fatal("ZonesNotSupported", "ask for another zone, or none", "compute"),
    _fatal("AvailabilityZoneNotSupported", "ask for another zone, or none", "compute"),
    _fatal("InvalidParameter", disk_remedy("azure"), "seen", _SMALLER),
    _fatal("InvalidParameter"),
    _fatal("InvalidRequestContent"),
    _fatal("InvalidRequestFormat"),
    _fatal("InvalidResourceName"),
    _fatal("InvalidTagNameCharacters", "change azure.tags"),
    _fatal("InvalidTagValueLength", "change azure.tags"),
    _fatal("BadRequest", _ARCHITECTURE, "seen", "CPU Architecture"),
    _fatal("BadRequest"),
    _fatal("LinkedInvalidPropertyId", _NETWORK),
    _fatal("AzureSpotFeatureNotEnabledForSubscription", _NO_SPOT, "spot"),
    _fatal("AzureSpotIsNotSupportedForThisVMSize", "ask for another size, or on-demand machines", "spot"),
    _fatal("AzureSpotIsNotSupportedForThisAPIVersion", source="spot"),
    _fatal("MaxPriceValueInvalid", source="spot"),
    _fatal("EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", source="spot"),
    _fatal("OSProvisioningClientError", _IMAGE, "compute"),
)

ERRORS = ErrorTable(TABLE)
_MISSING = frozenset(
    {
        *("ResourceNotFound", "NotFound", "RoleDefinitionDoesNotExist", "ContainerNotFound", "ShareNotFound"),
        "HTTP 404",
    }
)


def is_missing(code: str) -> bool:
    """True if the resource does not exist."""
    return code in _MISSING


@dataclass(frozen=True, slots=True)
class AzureErrorReply:
    """An error that Azure answered."""

    what: str
    status: int  # HTTP's
    code: str
    message: str
    retry_after_s: float = 0.0  # 0 where Azure named none

    def sentence(self, where: str = "") -> str:
        """Return for people: the call, the place, and Azure's message without the links and numbers after it."""
        text = " ".join(self.message.split(" Learn more about", 1)[0].split()).rstrip(".")[:600]
        place = f"{self.what} ({where})" if where else self.what
        return f"{place} answered {self.code}: {text}"
