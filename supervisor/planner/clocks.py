"""Times in the journal that are far ahead: a clock has been set back since, and nothing waits until they have come."""

from __future__ import annotations

from supervisor.planner.draft import Draft

# So far may the clocks of two daemons be apart.
AHEAD_S = 60.0


def clamp_future_times(draft: Draft) -> None:
    """By our clock: nothing is held up by what another clock wrote, no end of a machine, no second try, no spare."""
    now, job = draft.now, draft.job
    latest = now + draft.rules.spare_retry_s
    if max(job.pause_requested_at - now, job.spare_retry_at - latest) > AHEAD_S:
        draft.set_job(
            pause_requested_at=min(job.pause_requested_at, now), spare_retry_at=min(job.spare_retry_at, latest)
        )
    latest = now + draft.rules.ready_timeout_s  # nothing of a node waits longer
    for node in list(draft.nodes.values()):
        if draft.full:
            return
        if (
            max(node.state_since - now, node.launched_at - now, node.retry_at - latest, node.ready_by - latest)
            > AHEAD_S
        ):
            draft.set_node(
                node,
                state_since=min(node.state_since, now),
                launched_at=min(node.launched_at, now),
                retry_at=min(node.retry_at, latest),
                ready_by=min(node.ready_by, latest),
            )
