"""What jobs and nodes have cost so far, by month and purpose. The sums are those of `cost`, always (P13)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from supervisor.billing import EARLIER, Booking, NodeBilling, Purpose, booked, merged
from supervisor.model import JobRecord, NodeRecord, NodeState

BOOTING_NODE_STATES = frozenset({NodeState.REQUESTED, NodeState.PENDING, NodeState.BOOTING, NodeState.BOOTSTRAPPING})


def bookings_of(job: JobRecord, nodes: Iterable[NodeRecord], now: float) -> tuple[Booking, ...]:
    """Return all of a job's bookings as of now."""
    found = list(job.billing.dropped)
    # What was dropped before there were bookings.
    rest = job.billing.dropped_usd - sum(each.usd for each in found)
    if rest > 1e-9:
        found.append(Booking(EARLIER, Purpose.UNKNOWN, 0.0, rest))
    for node in nodes:
        found += bookings_of_node(job, node, now)
    return merged(found)


def bookings_of_node(job: JobRecord, node: NodeRecord, now: float) -> tuple[Booking, ...]:
    """Return a node's bookings as of now."""
    if not node.launched_at:
        return ()
    at = node.ended_at or now
    return booked(begun(node), node.usd(at), at, job.billing.rounds).bookings


def begun(node: NodeRecord) -> NodeBilling:
    """Return the node's billing. Where it has none, it boots, or was there before there were bookings."""
    if node.billing.booked_to:
        return node.billing
    boots = node.state in BOOTING_NODE_STATES and not node.has_joined
    return replace(node.billing, purpose=Purpose.BOOT if boots else Purpose.UNKNOWN, booked_to=node.launched_at)
