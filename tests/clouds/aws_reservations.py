"""Capacity Reservations and Capacity Blocks, which moto does not know: what an account has, and launches into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.clouds.aws_instances import Record
from tests.clouds.aws_wire import Call, FakeAwsError, ec2_answer
from tests.clouds.base import Answer

BLOCK = "capacity-block"
_TARGET = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
# terraform-aws-ec2-instance#404
_OTHER_MARKET = "The market type (purchasing) option is not valid. Choose a different market type and try again"
# terraform-provider-aws#35745
_FULL = "The requested reservation does not have sufficient compatible and available capacity for this request."


def target(call: Call) -> str:
    """The reservation that a launch names; empty for none."""
    return call.form.get(_TARGET, "")


class Reservations:
    """An account's, in all regions, and what others share with it. `page`: how many an answer has."""

    def __init__(self) -> None:
        self.page = 100
        self._listed: dict[str, dict[str, Any]] = {}
        self.handlers: dict[str, Callable[[Call], Answer]] = {"DescribeCapacityReservations": self._describe}

    def add(
        self, name: str, zone: str, machines: int, *, hours: float = 0.0, block: bool = False, **more: Any
    ) -> datetime | None:
        """One of g4dn.xlarge that has begun, and ends after `hours`; returns when. `more`: as boto3 has it."""
        now = datetime.now(UTC).replace(microsecond=0)
        ends_at = now + timedelta(hours=hours) if hours else None
        self._listed[name] = {
            "CapacityReservationId": name,
            "AvailabilityZone": zone,
            "InstanceType": "g4dn.xlarge",
            "InstancePlatform": "Linux/UNIX",
            "Tenancy": "default",
            "TotalInstanceCount": machines,
            "State": "active",
            "StartDate": now - timedelta(days=1),
            "EndDate": ends_at,
            "EndDateType": "limited" if hours else "unlimited",
            "InstanceMatchCriteria": "targeted",
            "ReservationType": BLOCK if block else "default",
            **more,
        }
        return ends_at

    def check(self, call: Call, zone: str, alive: Iterable[Record]) -> None:
        """Raises FakeAwsError where a launch does not fit into the reservation that it names."""
        name, market = target(call), call.form.get("InstanceMarketOptions.MarketType", "")
        if not name:
            if market == BLOCK:
                raise FakeAwsError("InvalidParameterValue", _OTHER_MARKET)
            return
        found = self._listed.get(name)
        if found is None or _region(found) != call.region:
            # terraform-provider-aws#36716
            raise FakeAwsError(
                "InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{name}' was not found"
            )
        if market != (BLOCK if found["ReservationType"] == BLOCK else ""):
            raise FakeAwsError("InvalidParameterValue", _OTHER_MARKET)
        if found["State"] != "active":
            # The API's reference has this code, and no text.
            code = "InvalidCapacityReservationState.PendingActivation"
            raise FakeAwsError(code, f"The capacity reservation '{name}' is {found['State']}.")
        used = sum(each.reservation == name for each in alive)
        fits = (found["AvailabilityZone"], found["InstanceType"]) == (zone, call.form["InstanceType"])
        if not fits or used >= found["TotalInstanceCount"]:
            raise FakeAwsError("ReservationCapacityExceeded", _FULL)

    def _describe(self, call: Call) -> Answer:
        here = [each for each in self._listed.values() if _region(each) == call.region]
        first, page = int(call.form.get("NextToken") or 0), min(self.page, int(call.form.get("MaxResults") or 1000))
        token = str(first + page) if len(here) > first + page else None
        result = {"CapacityReservations": here[first : first + page], "NextToken": token}
        return ec2_answer("DescribeCapacityReservations", result)


def _region(raw: dict[str, Any]) -> str:
    return str(raw["AvailabilityZone"][:-1])
