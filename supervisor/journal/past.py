"""Ended jobs whose names were used again: what is kept of them, and for how many."""

from __future__ import annotations

from dataclasses import replace

from supervisor.billing import merged
from supervisor.features.billing.bookings import bookings_of_node
from supervisor.model import PastRun
from supervisor.planner.world import JobView

KEPT_RUNS = 5  # per name
KEPT_NODES = 20  # per run


def past_run(view: JobView) -> PastRun:
    """Return what is kept of an ended job; the cost of older nodes stays in its sum."""
    nodes = sorted(view.nodes.values(), key=lambda node: (node.created_at, node.id))
    dropped_usd = sum(node.usd(view.record.ended_at) for node in nodes[:-KEPT_NODES])
    ended_at = view.record.ended_at
    dropped = [each for node in nodes[:-KEPT_NODES] for each in bookings_of_node(view.record, node, ended_at)]
    job = replace(
        view.record,
        billing=replace(
            view.record.billing,
            dropped_usd=view.record.billing.dropped_usd + dropped_usd,
            dropped=merged((*view.record.billing.dropped, *dropped)),
        ),
    )
    return PastRun(job, tuple(replace(node, history=()) for node in nodes[-KEPT_NODES:]), view.progress)


def view_of(run: PastRun) -> JobView:
    """Return the run as a job that only reads."""
    return JobView(run.job, 0, {node.id: node for node in run.nodes}, {}, progress=run.progress, past=True)
