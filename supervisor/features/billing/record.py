"""What a job's nodes have cost whose records are deleted, and what cost is booked by. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.billing import NO_ROUNDS, Booking, RoundTimes, Spent


@dataclass(frozen=True, slots=True)
class BillingRecord:
    """What a job's nodes have cost whose records are deleted, and what cost is booked by."""

    dropped_usd: float = 0.0
    dropped: tuple[Booking, ...] = ()  # what that was for
    rounds: RoundTimes = NO_ROUNDS
    earlier: tuple[Spent, ...] = ()  # of earlier jobs of this name, in the month in which it was submitted
