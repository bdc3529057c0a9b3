"""That a job is to pause, or is paused. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PauseRecord:
    """Who wants a job to pause: a user, a limit, a budget, or a job of a higher priority."""

    at: float = 0.0  # when that was requested; 0 while it is not to be paused
    # The limit (hours, usd, usd_per_month), the budget (budget, user_budget), or "priority"; empty: a user.
    by: str = ""
