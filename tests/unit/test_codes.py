"""Tables of error codes: total, the first row that fits holds, and what is unknown says its name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioners.aws.errors import AwsErrorReply
from provisioners.azure.errors import THROTTLED_S, AzureErrorReply
from provisioners.base import Denied, Fatal, LaunchOutcome, NoCapacity, Quota, Scope, Throttled, Transient, Unknown
from provisioners.codes import Code, ErrorReply, ErrorTable, Kind, denied, find, markdown, outcome
from provisioners.gcp.errors import GcpErrorReply
from provisioners.registry import CLOUDS
from supervisor.planner.sentences import MAX_REASON_CHARACTERS

TABLE = (
    Code("Full", Kind.NO_CAPACITY, "docs", Scope.ZONE, 180),
    Code("Limit", Kind.QUOTA, "docs", Scope.REGION, 600, remedy="ask for more", message_part="family cores"),
    Code("Limit", Kind.FATAL, "docs"),
    Code("Slow", Kind.THROTTLED, "docs", memory_s=5),
    Code("Odd.*", Kind.TRANSIENT, "docs"),
    Code("Half", Kind.UNKNOWN, "docs"),
    Code("Used", Kind.USED, "docs"),
)


def test_each_kind_has_its_outcome() -> None:
    assert outcome(TABLE[0], "Full", "z: full") == NoCapacity(Scope.ZONE, 180, "z: full")
    assert outcome(TABLE[1], "Limit", "r: limit") == Quota(Scope.REGION, 600, "r: limit; ask for more")
    assert outcome(TABLE[3], "Slow", "slow") == Throttled(5, "slow")
    assert outcome(TABLE[4], "Odd.Fault", "odd") == Transient("odd")
    assert outcome(TABLE[2], "Limit", "no") == Fatal("no")
    assert outcome(denied("Old", "docs", "renew it"), "Old", "no") == Denied(Scope.GLOBAL, 60.0, "no; renew it")
    assert isinstance(outcome(TABLE[5], "Half", "half"), Unknown)
    assert isinstance(outcome(TABLE[6], "Used", "used"), Unknown)


def test_the_message_tells_rows_of_one_code_apart() -> None:
    assert find(TABLE, "Limit", "the Family Cores quota") is TABLE[1]
    assert find(TABLE, "Limit", "something else") is TABLE[2]
    assert find(TABLE, "Odd.Fault") is TABLE[4]
    assert find(TABLE, "Odd") is None


@given(name=st.text(), message=st.text())
def test_every_code_has_an_outcome_and_an_unknown_one_is_named(name: str, message: str) -> None:
    row = find(TABLE, name, message)
    found = outcome(row, name, message)
    if row is None:
        assert isinstance(found, Transient)
        assert found.unknown_code == name


def test_the_page_shows_each_code_beside_those_that_come_to_the_same() -> None:
    shown = markdown((*TABLE, Code("Stockout", Kind.NO_CAPACITY, "docs", Scope.ZONE, 180))).splitlines()
    assert "| no capacity | zone | 180 s | `Full`, `Stockout` |" in shown
    assert '| quota | region | 600 s | `Limit` with "family cores" |' in shown
    assert "| fatal |  |  | `Limit` |" in shown


# -- the clouds' tables --------------------------------------------------------------------------------------

ERRORS: dict[str, ErrorTable] = {
    name: import_module(f"provisioners.{name}.errors").ERRORS for name, cloud in CLOUDS.items() if cloud.has_catalog
}


def reply(cloud: str, text: str, retry_after_s: float = 0.0) -> ErrorReply:
    """What a cloud answers to a launch: `code: message`."""
    code, _, message = text.partition(": ")
    match cloud:
        case "aws":
            return AwsErrorReply("EC2", "us-east-1", code, message, retry_after_s)
        case "gcp":
            return GcpErrorReply("us-central1-a", code, message, retry_after_s)
        case _:
            return AzureErrorReply("Azure, asked for a launch,", 409, code, message, retry_after_s)


@pytest.mark.parametrize("cloud", ERRORS)
def test_an_unknown_code_is_transient_and_named(cloud: str) -> None:
    new = ERRORS[cloud].launch_outcome(reply(cloud, "SomethingNew"), "zone-a")
    assert isinstance(new, Transient)
    assert new.unknown_code == "SomethingNew"
    assert not ERRORS[cloud].is_retryable(reply(cloud, "SomethingNew"))


@pytest.mark.parametrize("cloud", ERRORS)
def test_each_row_has_a_source_and_each_temporary_refusal_a_duration(cloud: str) -> None:
    rows = ERRORS[cloud].rows
    for row in rows:
        assert row.source
        if row.kind in {Kind.NO_CAPACITY, Kind.QUOTA}:
            assert row.scope is not None
            assert row.memory_s > 0
    assert len({(row.name, row.message_part) for row in rows}) == len(rows)


@pytest.mark.parametrize("cloud", ERRORS)
def test_no_row_hides_another(cloud: str) -> None:
    rows = ERRORS[cloud].rows
    for number, row in enumerate(rows):
        name = row.name.replace(".*", ".X")
        assert not any(before.fits(name, row.message_part) for before in rows[:number]), row.name


@pytest.mark.parametrize("cloud", ERRORS)
def test_credentials_concern_all_requests_and_a_missing_permission_one_place(cloud: str) -> None:
    for row in ERRORS[cloud].rows:
        if "docs/permissions" in row.remedy or row.remedy.startswith("renew"):
            assert ERRORS[cloud].denial(reply(cloud, f"{row.name}: {row.message_part}")) is row
            assert row.scope is (Scope.GLOBAL if row.remedy.startswith("renew") else Scope.TYPE_IN_ZONE)
            assert row.memory_s == (60.0 if row.remedy.startswith("renew") else 600.0)


FULL = {"scope": Scope.TYPE_IN_ZONE, "memory_s": 180.0}
REGION = {"scope": Scope.REGION, "memory_s": 600.0}
FAMILY = {"scope": Scope.QUOTA, "memory_s": 600.0}
ALL = {"scope": Scope.GLOBAL, "memory_s": 60.0}
HERE = {"scope": Scope.TYPE_IN_ZONE, "memory_s": 600.0}


# Azure's messages: karpenter-provider-azure's test fixtures.
@pytest.mark.parametrize(
    ("cloud", "answer", "kind", "fields", "says"),
    [
        ("aws", "InsufficientInstanceCapacity: none", NoCapacity, FULL, "EC2 in us-east-1 (a, T4) answered Insuff"),
        ("aws", "InsufficientInstanceCapacity: limit of … in this spread placement group", Fatal, {}, ""),
        ("aws", "MaxSpotInstanceCountExceeded", Quota, FAMILY, "Service Quotas"),
        ("aws", "VcpuLimitExceeded", Quota, FAMILY, ""),
        ("aws", "ReservationCapacityExceeded: not sufficient", NoCapacity, FULL, ""),
        ("aws", "InvalidCapacityReservationState.PendingActivation", NoCapacity, FULL, ""),
        ("aws", "InvalidCapacityReservationId.NotFound: not found", NoCapacity, FULL, "put into aws.reservations"),
        ("aws", "AddressLimitExceeded", Quota, REGION, ""),
        ("aws", "RequestLimitExceeded", Throttled, {"retry_after_s": 5.0}, ""),
        ("aws", "Unavailable", Transient, {}, ""),
        ("aws", "InternalError", Unknown, {}, ""),
        ("aws", "InvalidAMIID.NotFound", Fatal, {}, ""),
        ("aws", "InvalidAMIID.Unavailable", Fatal, {}, "aws.image"),
        ("aws", "UnauthorizedOperation", Denied, HERE, "docs/permissions"),
        ("aws", "ExpiredToken", Denied, ALL, "renew"),
        ("aws", "AuthFailure: AWS was not able to validate the provided access credentials", Denied, ALL, "renew"),
        ("aws", "AuthFailure: Not authorized for images: [ami-1]", Fatal, {}, "aws.image"),
        ("aws", "PendingVerification", Denied, {"scope": Scope.REGION}, "verifying"),
        (
            "gcp",
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: so it is",
            NoCapacity,
            {"scope": Scope.TYPE_IN_ZONE, "memory_s": 300.0},
            "Compute Engine (a, T4) answered ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: so it is",
        ),
        ("gcp", "QUOTA_EXCEEDED: Quota 'IN_USE_ADDRESSES' exceeded.", Quota, REGION, "IAM & Admin"),
        ("gcp", "QUOTA_EXCEEDED: Quota 'PREEMPTIBLE_NVIDIA_T4_GPUS' exceeded.", Quota, FAMILY, ""),
        ("gcp", "quotaExceeded: Quota 'A2_CPUS' exceeded.", Quota, FAMILY, ""),
        ("gcp", "quotaExceeded", Quota, {"scope": Scope.REGION}, "IAM & Admin"),
        ("gcp", "QUOTA_EXCEEDED: Quota 'GPUS_ALL_REGIONS' exceeded.", Quota, {"scope": Scope.GLOBAL}, ""),
        ("gcp", "quotaExceeded: Quota 'GPUS_ALL_REGIONS' exceeded.", Quota, {"scope": Scope.GLOBAL}, ""),
        ("gcp", "rateLimitExceeded", Throttled, {}, ""),
        ("gcp", "INTERNAL_ERROR", Transient, {}, ""),
        ("gcp", "backendError", Unknown, {}, ""),
        ("gcp", "HTTP502", Unknown, {}, ""),
        ("gcp", "invalid", Fatal, {}, ""),
        ("gcp", "invalid: Invalid value for 'scheduling.preemptionNoticeDuration'", Fatal, {}, "gcp.notice_s = 0"),
        ("gcp", "notFound", Fatal, {}, ""),
        ("gcp", "notFound: The resource 'zones/z/acceleratorTypes/a' was not found", NoCapacity, {}, ""),
        ("gcp", "forbidden", Denied, HERE, "docs/permissions"),
        ("gcp", "authError", Denied, ALL, "renew"),
        ("azure", "SkuNotAvailable: not in location 'eastus'", NoCapacity, FULL | {"memory_s": 600.0}, "(a, T4)"),
        ("azure", "ZonalAllocationFailed: no capacity", NoCapacity, FULL | {"memory_s": 600.0}, ""),
        (
            "azure",
            "OperationNotAllowed: exceeding LowPriorityCores quota. Current Limit: 3",
            Quota,
            FAMILY,
            "",
        ),
        (
            "azure",
            "OperationNotAllowed: exceeding approved LowPriorityCores quota. Current Limit: 0",
            Quota,
            FAMILY | {"memory_s": 3600.0},
            "",
        ),
        ("azure", "OperationNotAllowed: exceeding approved Total Regional Cores quota. Limit: 9", Quota, REGION, ""),
        ("azure", "QuotaExceeded: exceeding approved standardNCADSA100v4Family Cores quota", Quota, FAMILY, ""),
        ("azure", "OperationNotAllowed: The VM is being deallocated", Fatal, {}, ""),
        ("azure", "TooManyRequests", Throttled, {"retry_after_s": THROTTLED_S}, ""),
        ("azure", "NicReservedForAnotherVm", Throttled, {}, ""),
        ("azure", "RetryableError", Transient, {}, ""),
        ("azure", "InternalServerError", Unknown, {}, ""),
        ("azure", "HTTP 5xx", Unknown, {}, ""),
        ("azure", "AuthorizationFailed", Denied, HERE, "docs/permissions"),
        ("azure", "ExpiredAuthenticationToken", Denied, ALL, "renew"),
        ("azure", "PlatformImageNotFound", Fatal, {}, "azure.image"),
        ("azure", "MissingSubscriptionRegistration", Denied, ALL, "az provider register"),
    ],
)
def test_known_codes_have_their_observed_outcomes(
    cloud: str, answer: str, kind: type[LaunchOutcome], fields: dict[str, Any], says: str
) -> None:
    found = ERRORS[cloud].launch_outcome(reply(cloud, answer), "a, T4")
    assert isinstance(found, kind)
    assert {name: getattr(found, name) for name in fields} == fields
    assert says in getattr(found, "message", "")


def test_a_throttled_call_waits_for_as_long_as_the_cloud_says() -> None:
    throttled = ERRORS["azure"].launch_outcome(reply("azure", "TooManyRequests", retry_after_s=42.0), "a")
    assert isinstance(throttled, Throttled)
    assert throttled.retry_after_s == 42.0


def test_an_encoded_authorization_message_is_left_out() -> None:
    long = "You are not authorized to perform this operation. Encoded authorization failure message: " + "x" * 900
    assert "xxx" not in reply("aws", f"UnauthorizedOperation: {long}").sentence()


def test_a_missing_permission_of_aws_is_named_before_a_short_line_ends() -> None:
    """EC2's own words, by "Troubleshoot access denied error messages" (IAM guide); a status has 160 characters."""
    caller = "arn:aws:sts::123456789012:assumed-role/spotsup-vision-daemon/i-0123456789abcdef0"
    words = "You are not authorized to perform this operation. "
    words += f"User: {caller} is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:…"
    said = reply("aws", f"UnauthorizedOperation: {words}").sentence("us-east-1a, p4d.24xlarge, on-demand")
    assert "answered UnauthorizedOperation for ec2:RunInstances: You are" in said[: MAX_REASON_CHARACTERS - 20]
    page = reply("aws", "403: <html>\n  <title>\n  Forbidden by a proxy</title>").sentence()
    assert page.endswith("answered 403: <html> <title> Forbidden by a proxy</title>")
