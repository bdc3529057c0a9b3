"""Budgets: how many dollars a month the cluster and each user may spend, and what people were warned of. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from supervisor.billing import Spent

CLUSTER = "cluster"
# Names of what pauses a job, beside the limits of its file.
BUDGET, USER_BUDGET = "budget", "user_budget"


@dataclass(frozen=True, slots=True)
class Budgets:
    """US dollars per month, in UTC; None: any."""

    usd_per_month: float | None = None  # of the cluster
    user_usd_per_month: float | None = None  # of each user
    users: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # of these instead

    @property
    def any(self) -> bool:
        """True if there is one."""
        return self.usd_per_month is not None or self.user_usd_per_month is not None or bool(self.users)

    def of_user(self, user: str) -> float | None:
        """Return a user's budget; that of jobs without an owner is one user's."""
        return self.users.get(user, self.user_usd_per_month)


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """How much of a budget is spent."""

    scope: str  # CLUSTER, or `user NAME`
    month: str
    usd: float
    limit: float

    @property
    def reached(self) -> bool:
        """True if nothing is left."""
        return self.usd >= self.limit

    @property
    def name(self) -> str:
        """Return what it pauses jobs as."""
        return BUDGET if self.scope == CLUSTER else USER_BUDGET

    @property
    def of(self) -> str:
        """Return whose budget it is, for people."""
        return "the cluster" if self.scope == CLUSTER else self.scope.rstrip()

    def reason(self) -> str:
        """Return why jobs are paused, and what to do."""
        key = "usd_per_month" if self.scope == CLUSTER else "user_usd_per_month or users"
        return (
            f"the budget of {self.of} for {self.month} is spent (${self.usd:.2f} of ${self.limit:g}); it goes on when "
            f"the next month begins (UTC), or with a higher budget ({key} in [budget])"
        )


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """What the journal holds of budgets, and of what is spent beside the records of jobs."""

    month: str  # the newest that a leader has seen begin
    warned: tuple[str, ...] = ()  # `SCOPE@LEVEL@LIMIT`, of that month
    deleted: tuple[Spent, ...] = ()  # by jobs that were deleted, in the month of their deletion and later
