"""Capacity Reservations and Capacity Blocks for ML: what the account has reserved, and until when.

Sources, all of the EC2 guide: "Capacity Blocks for ML" (EC2 begins to terminate machines 30 minutes before a block's
end, and those of P6e-GB200 have to be gone 60 minutes before it; they count towards no quota), "Capacity Reservations"
(they count towards the On-Demand quotas from the day on which they are made; after their end machines run on, and are
billed as On-Demand ones).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provisioners.aws.client import Aws
from provisioners.base import ProvisionerError, UnreachableError
from provisioners.calls import Deadline
from provisioners.listings import asked_of

BLOCK = "capacity-block"  # EC2's name of this type of reservation, and of the market of launches into one
_PAGE = 1000  # EC2's maximum
_PLATFORM = "Linux/UNIX"  # of images that are made from Ubuntu
_ENDS_BEFORE_S = 1800.0
_ULTRASERVER, _ULTRASERVER_ENDS_BEFORE_S = "p6e-", 3600.0
_COMING = ("assessing", "delayed", "payment-pending", "pending", "scheduled")


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation as EC2 describes it."""

    ec2_id: str
    region: str
    zone: str
    instance_type: str
    is_block: bool
    machines: int  # in all, whoever uses them
    state: str
    starts_at: float  # UNIX seconds, 0: not said
    ends_at: float  # after which its machines are ended, or are not within it any more; UNIX seconds, 0: never
    group: str  # the placement group that it was made in, and that its machines have to be in; "" for none
    unfit: str  # why machines of ours do not fit into it; "" if they do

    @property
    def name(self) -> str:
        """Return what an offer calls it: a launch has to know whether it is a block."""
        return f"{BLOCK}/{self.ec2_id}" if self.is_block else self.ec2_id

    @property
    def is_coming(self) -> bool:
        """True if it has not begun yet."""
        return self.state in _COMING

    def why_unusable(self, now: float) -> str:
        """Return why nothing can be launched into it at that time (UNIX seconds), as the end of a sentence; "" if it
        can."""
        if self.is_coming:
            return f"has not begun ({self.state}{f', from {_day(self.starts_at)}' if self.starts_at else ''})"
        if self.state == "expired" or 0 < self.ends_at <= now:
            return "has ended"
        return self.unfit if self.state == "active" else f"is {self.state}"

    def __str__(self) -> str:
        """Return for people: how many of which machines, where, until when."""
        until = f" until {_day(self.ends_at)}" if self.ends_at else ""
        return f"{self.ec2_id} is {self.machines} {self.instance_type} in {self.zone}{until}"


def split_name(name: str) -> tuple[str, str]:
    """(BLOCK or "", EC2's id) of what an offer calls a reservation."""
    kind, _, ec2_id = name.rpartition("/")
    return kind, ec2_id


def read(
    aws: Aws, ids: Sequence[str], regions: Sequence[str], deadline: Deadline
) -> tuple[dict[str, Reservation], Mapping[str, ProvisionerError]]:
    """Return those of these reservations that the regions have, by their ids, and the regions that cannot be reached:
    what is there is not known. Raises the first error of another kind; where no region can be reached, why."""
    # The whole list, which includes what other accounts share with this one: a call that names an id which is not
    # there is refused, and says nothing about the others.
    answers, errors = asked_of(
        regions,
        lambda region: list(
            aws.pages(
                "ec2", region, "describe_capacity_reservations", deadline, "CapacityReservations", MaxResults=_PAGE
            )
        ),
    )
    for error in errors.values():
        if not isinstance(error, UnreachableError):
            raise error
    found = (_read(raw, region) for region, listed in answers.items() for raw in listed)
    return {each.ec2_id: each for each in found if each.ec2_id in ids}, errors


def _read(raw: Mapping[str, Any], region: str) -> Reservation:
    instance_type, is_block = raw.get("InstanceType", ""), raw.get("ReservationType") == BLOCK
    ends_at = _seconds(raw.get("EndDate"))
    if ends_at and is_block:
        ends_at -= _ULTRASERVER_ENDS_BEFORE_S if instance_type.startswith(_ULTRASERVER) else _ENDS_BEFORE_S
    return Reservation(
        ec2_id=raw.get("CapacityReservationId", ""),
        region=region,
        zone=raw.get("AvailabilityZone", ""),
        instance_type=instance_type,
        is_block=is_block,
        machines=raw.get("TotalInstanceCount", 0),
        state=raw.get("State", ""),
        starts_at=_seconds(raw.get("StartDate")),
        ends_at=ends_at,
        group=raw.get("PlacementGroupArn", "").rpartition("/")[2],
        unfit=_unfit(raw),
    )


def _unfit(raw: Mapping[str, Any]) -> str:
    if (platform := raw.get("InstancePlatform", _PLATFORM)) != _PLATFORM:
        return f"is for {platform}, and spotsup's machines are {_PLATFORM}"
    if (tenancy := raw.get("Tenancy", "default")) != "default":
        return f"is of {tenancy} tenancy, and spotsup's machines are of default tenancy"
    if raw.get("Interruptible"):
        return "is interruptible: EC2 may take its machines at any time, which spotsup asks for as spot only"
    return ""


def _seconds(at: Any) -> float:
    return at.timestamp() if isinstance(at, datetime) else 0.0


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
