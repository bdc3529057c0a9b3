"""EC2's error codes: what each means for a launch, and for any other call. Pure.

Sources: "API" is the EC2 API reference, Error codes for the Amazon EC2 API; "karpenter" is karpenter-provider-aws,
pkg/errors/errors.go; "parallelcluster" is aws-parallelcluster-node, EC2_ICE_ERROR_CODES; "boto3#4406" and
"aws-cli#6676" those issues.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from provisioners.base import Scope
from provisioners.codes import Code, ErrorReply, ErrorTable, Kind, denied, disk_remedy

CAPACITY_MEMORY_S = 180.0  # karpenter's
ABSENT_MEMORY_S = 3600.0  # a zone does not gain an instance type within minutes
QUOTA_MEMORY_S = 600.0  # a spot quota is released only minutes after a termination
THROTTLED_S = 5.0  # RunInstances regains two requests a second

_ASK_FOR_MORE = "request more in Service Quotas, or terminate other instances"
_RENEW = "renew the daemon's AWS credentials"
_CLOCK = "set this computer's clock: it differs from AWS's by minutes"
_ALLOW = "give the daemon's role what docs/permissions/aws-iam-policy.json lists"
_RENEW_OR_ENABLE = f"{_RENEW}, or enable the region, if it is one that an account has to enable"
_ARCHITECTURE = "name an image of the type's architecture in aws.image or, by GPU, in aws.images"
_PROFILE = "set aws.instance_profile to an instance profile of this account (a role of that name is not enough)"
_IMAGE = "set aws.image to an AMI, or an SSM parameter, that this region has"
_NETWORK = "set aws.subnets and aws.security_groups to what this region has"
_RESERVATION = "put into aws.reservations what this account has in this region, or is shared with it"
_EBS_KEY = (
    "where the region encrypts EBS volumes by default with a key of yours, the key's policy must let the roles use it "
    "that launch: AWSServiceRoleForEC2Spot for spot machines, and the daemon's own"
)

_LACKS = re.compile(r"is not authorized to perform: ([a-z0-9-]+:[A-Za-z]+)")


def _capacity(
    name: str, source: str, scope: Scope, memory_s: float = CAPACITY_MEMORY_S, message_part: str = ""
) -> Code:
    return Code(name, Kind.NO_CAPACITY, source, scope, memory_s, message_part=message_part)


def _quota(name: str, source: str = "API", scope: Scope = Scope.REGION) -> Code:
    return Code(name, Kind.QUOTA, source, scope, QUOTA_MEMORY_S, _ASK_FOR_MORE)


def _fatal(name: str, remedy: str = "", source: str = "API") -> Code:
    return Code(name, Kind.FATAL, source, remedy=remedy)


TABLE: Sequence[Code] = (
    Code(
        "InsufficientInstanceCapacity",
        Kind.FATAL,
        "karpenter",
        remedy="spotsup needs a placement group of strategy cluster",
        message_part="spread placement group",
    ),
    _capacity("InsufficientInstanceCapacity", "API", Scope.TYPE_IN_ZONE),
    _capacity("InsufficientCapacity", "API", Scope.TYPE_IN_ZONE),
    _capacity("InsufficientHostCapacity", "parallelcluster", Scope.TYPE_IN_ZONE),
    _capacity("InsufficientReservedInstanceCapacity", "parallelcluster", Scope.TYPE_IN_ZONE),
    _capacity("UnfulfillableCapacity", "karpenter", Scope.TYPE_IN_ZONE),
    # Of a reservation: it is full; it has not begun, or has ended; it is gone, or not shared any more. None of these
    # says anything about another one, and the next offers leave out what cannot be used.
    _capacity("ReservationCapacityExceeded", "API", Scope.TYPE_IN_ZONE),
    _capacity("InvalidCapacityReservationState.*", "API", Scope.TYPE_IN_ZONE),
    Code(
        "InvalidCapacityReservationId.*",
        Kind.NO_CAPACITY,
        "steampipe-plugin-aws, aws_ec2_capacity_reservation",
        Scope.TYPE_IN_ZONE,
        CAPACITY_MEMORY_S,
        _RESERVATION,
    ),
    Code("SpotMaxPriceTooLow", Kind.ABOVE_CAP, "parallelcluster", Scope.TYPE_IN_ZONE, CAPACITY_MEMORY_S),
    _capacity("Unsupported", "karpenter", Scope.TYPE_IN_ZONE, ABSENT_MEMORY_S),
    _capacity("InsufficientVolumeCapacity", "API", Scope.ZONE),
    _capacity("InsufficientFreeAddressesInSubnet", "karpenter", Scope.ZONE),
    _capacity("InsufficientAddressCapacity", "API", Scope.REGION),
    # Counted in vCPUs by family and market (quota.py).
    _quota("MaxSpotInstanceCountExceeded", scope=Scope.QUOTA),
    _quota("VcpuLimitExceeded", "karpenter", Scope.QUOTA),
    _quota("InstanceLimitExceeded", scope=Scope.QUOTA),
    _quota("VolumeLimitExceeded"),
    # Of an instance's StateReason: the launch was accepted, and the instance ended while it was pending. "Client error
    # on launch" is that of a volume whose key may not be used.
    _capacity("Server.InsufficientInstanceCapacity", "API, StateReason", Scope.TYPE_IN_ZONE),
    _quota("Client.VolumeLimitExceeded", "API, StateReason"),
    _fatal("Client.InternalError", _EBS_KEY, "EC2 guide, Troubleshoot instance launch"),
    _fatal("Client.InvalidKMSKey.*", _EBS_KEY, "CiscoDevNet/cloud-cml#8"),
    _fatal("Client.InvalidParameterCombination", "", "terraform#14479"),
    _fatal("Client.InvalidSnapshot.NotFound", _IMAGE, "API, StateReason"),
    _quota("NetworkInterfaceLimitExceeded"),
    _quota("AddressLimitExceeded"),
    _quota("ResourceCountExceeded"),
    Code("RequestLimitExceeded", Kind.THROTTLED, "API", memory_s=THROTTLED_S),
    Code("Throttling", Kind.THROTTLED, "API", memory_s=THROTTLED_S),
    Code("ThrottlingException", Kind.THROTTLED, "API", memory_s=THROTTLED_S),
    Code("EC2ThrottledException", Kind.THROTTLED, "botocore, retries/special", memory_s=THROTTLED_S),
    Code("TooManyRequestsException", Kind.THROTTLED, "Service Quotas API", memory_s=THROTTLED_S),
    Code("SlowDown", Kind.THROTTLED, "S3 API", memory_s=THROTTLED_S),
    # What botocore makes of an answer of S3 that was cut short (handlers.py, check_for_200_error).
    Code("500", Kind.UNKNOWN, "botocore"),
    Code("Unavailable", Kind.TRANSIENT, "API"),
    Code("ServiceUnavailable", Kind.TRANSIENT, "API"),
    Code("ConcurrentTagAccess", Kind.TRANSIENT, "API"),
    # The fault may have come after the launch: retry with the same token, or look it up.
    Code("InternalError", Kind.UNKNOWN, "API"),
    Code("InternalFailure", Kind.UNKNOWN, "API"),
    Code("ServerInternal", Kind.UNKNOWN, "API"),
    Code("IdempotentInstanceTerminated", Kind.USED, "boto3#4406"),
    _fatal("IdempotentParameterMismatch", "a token identifies one request: use a new token"),
    _fatal("InvalidAMIID.*", _IMAGE),
    # terraform-aws-ec2-instance#157 has an older text, "does not match the architecture in the manifest".
    Code(
        "InvalidParameterValue",
        Kind.FATAL,
        "skypilot#6315",
        remedy=_ARCHITECTURE,
        message_part="does not match the architecture",
    ),
    Code(
        "InvalidParameterValue",
        Kind.FATAL,
        "terraform-provider-aws#27516",
        remedy=_PROFILE,
        message_part="iamInstanceProfile",
    ),
    _fatal("InvalidParameterValue"),
    _fatal("InvalidParameterCombination"),
    _fatal("InvalidParameter"),
    _fatal("MissingParameter"),
    _fatal("UnknownParameter"),
    _fatal("InvalidInput", source="API, without a default subnet"),
    _fatal("MissingInput", _NETWORK, "API, without a default VPC"),
    _fatal("VPCIdNotSpecified", _NETWORK),
    _fatal("DefaultVpcDoesNotExist", _NETWORK),
    _fatal("InvalidGroup.*", _NETWORK),
    _fatal("InvalidSecurityGroupID.*", _NETWORK),
    _fatal("InvalidSubnet.*", _NETWORK),
    _fatal("InvalidSubnetID.*", _NETWORK),
    _fatal("InvalidPlacementGroup.*", "create the group, or remove it from aws.placement_groups"),
    _fatal("InvalidKeyPair.*"),
    _fatal("InvalidInstanceType"),
    Code(
        "InvalidBlockDeviceMapping",
        Kind.FATAL,
        "spot.io, stateful nodes",
        remedy=disk_remedy("aws"),
        message_part="is smaller than snapshot",
    ),
    _fatal("InvalidBlockDeviceMapping"),
    _fatal("InvalidUserData.*"),
    _fatal("InvalidTagKey.*"),
    _fatal("TagPolicyViolation"),
    _fatal("UnsupportedOperation"),
    _fatal("OperationNotPermitted"),
    _fatal("SpotInstanceTypeNotSupported"),
    denied("UnauthorizedOperation", "API", _ALLOW, Scope.TYPE_IN_ZONE),
    denied("AccessDenied", "API", _ALLOW, Scope.TYPE_IN_ZONE),
    denied("AccessDeniedException", "API", _ALLOW, Scope.TYPE_IN_ZONE),
    denied(
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        "API",
        "run once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        Scope.TYPE_IN_ZONE,
    ),
    # The same code for an AMI of someone else's, with credentials that are good.
    Code("AuthFailure", Kind.FATAL, "API", remedy=_IMAGE, message_part="Not authorized for images"),
    # Also the answers of a region that the account has not enabled (steampipe-plugin-aws#75).
    denied("AuthFailure", "API", _RENEW_OR_ENABLE),
    denied("InvalidClientTokenId", "API", _RENEW_OR_ENABLE),
    denied("UnrecognizedClientException", "API", _RENEW_OR_ENABLE),
    denied("SignatureDoesNotMatch", "aws-cli#6676", _CLOCK, message_part="Signature expired"),
    denied("SignatureDoesNotMatch", "aws-cli#6676", _CLOCK, message_part="Signature not yet current"),
    denied("SignatureDoesNotMatch", "API", _RENEW),
    denied("IncompleteSignature", "API", _RENEW),
    denied("MissingAuthenticationToken", "API", _RENEW),
    denied("ExpiredToken", "API", _RENEW),
    denied("ExpiredTokenException", "API", _RENEW),
    denied("RequestExpired", "API", _RENEW + ", and check this computer's clock"),
    denied(
        "OptInRequired",
        "API",
        "enable the region for the account, or subscribe to the image in the Marketplace",
        Scope.REGION,
    ),
    denied("PendingVerification", "API", "AWS is verifying the account; this takes hours", Scope.REGION),
    denied("Blocked", "API", "AWS has blocked the account: contact AWS Support"),
)

ERRORS = ErrorTable(TABLE)


@dataclass(frozen=True, slots=True)
class AwsErrorReply:
    """An error that AWS answered."""

    service: str
    region: str
    code: str
    message: str
    retry_after_s: float = 0.0

    def sentence(self, where: str = "") -> str:
        """Return for people: the service, the place, and AWS's message without the part that only AWS can decode.

        A missing permission comes first: AWS names it behind the caller's ARN, where a short line would have cut it.
        """
        message = self.message.split("Encoded authorization failure message", 1)[0]
        text = " ".join(message.split()).rstrip(".")  # a proxy's page, too, is one line
        place = f"{self.region} ({where})" if where else self.region
        lacks = _LACKS.search(text)
        return f"{self.service} in {place} answered {self.code}{f' for {lacks[1]}' if lacks else ''}: {text}"


def is_used(reply: ErrorReply) -> bool:
    """True if the token already had its instance: one that has ended, or one with other parameters."""
    return reply.code in {"IdempotentInstanceTerminated", "IdempotentParameterMismatch"}
