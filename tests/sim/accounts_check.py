"""P13: every dollar has a purpose. Purposes add up to what the nodes cost; none has less than nothing."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.billing import MAX_MONTHS, Purpose
from supervisor.features.billing.bookings import bookings_of
from supervisor.model import JobRecord, NodeRecord
from supervisor.planner.world import JobView

# The rounding of sums of a few thousand numbers.
TOLERANCE_USD = 1e-6


class AccountsCheck:
    """Adds up each job whose records have changed: between changes only the open rest grows, by its present purpose."""

    def __init__(self) -> None:
        self._checked: dict[str, tuple[JobRecord, dict[str, NodeRecord]]] = {}

    def check(self, jobs: Iterable[JobView], now: float) -> str:
        """What is wrong with the accounts of a job, or nothing."""
        changed = []
        for view in jobs:
            record, nodes = self._checked.get(view.record.name, (None, {}))
            same = record is view.record and nodes.keys() == view.nodes.keys()
            if not same or any(nodes[name] is not node for name, node in view.nodes.items()):
                changed.append(view)
                self._checked[view.record.name] = view.record, dict(view.nodes)
        return check_accounts(changed, now)


def check_accounts(jobs: Iterable[JobView], now: float) -> str:
    """What is wrong with the accounts of a job, or nothing. Costs are added up here anew, node by node."""
    for view in jobs:
        job = view.record
        cost = job.billing.dropped_usd + sum(node.usd(now) for node in view.nodes.values())
        bookings = bookings_of(job, view.nodes.values(), now)
        total = sum(each.usd for each in bookings)
        if abs(total - cost) > TOLERANCE_USD * max(1.0, cost):
            return f"P13: {job.name} has cost ${cost:.6f}, and its purposes add up to ${total:.6f}: {bookings}"
        if below := [each for each in bookings if each.usd < -TOLERANCE_USD or each.seconds < -TOLERANCE_USD]:
            return f"P13: {job.name} has spent less than nothing: {below}"
        if len(bookings) > MAX_MONTHS * len(Purpose) + len(Purpose):
            return f"P13: {job.name} has {len(bookings)} bookings"
    return ""
