"""Keeping a job's records sound and few: times that are in the future, old records, old messages."""

from __future__ import annotations

from supervisor.model import NodeState
from supervisor.planner.draft import Draft

# So far may the clocks of two daemons be apart.
AHEAD_S = 60.0


def clamp_future_times(draft: Draft) -> None:
    """Bring times that are far ahead back to now: a clock was ahead and has been set back since, and no termination,
    retry or spare waits for a time that only that clock has seen."""
    now, job = draft.now, draft.job
    latest, bootstraps = now + draft.rules.spare_retry_s, now + draft.rules.max_bootstrap_retry_s
    moves = now + draft.rules.max_move_retry_s
    ahead_s = max(job.spare_retry_at - latest, job.bootstrap_retry_at - bootstraps, job.move_retry_at - moves)
    past = (job.pause_requested_at, job.training_since, job.few_since, job.moving_since)
    if max(ahead_s, *(at - now for at in past), job.placed_at - now, job.gathering_since - now) > AHEAD_S:
        draft.set_job(
            gathering_since=min(job.gathering_since, now),
            placed_at=min(job.placed_at, now),
            few_since=min(job.few_since, now),
            moving_since=min(job.moving_since, now),
            move_retry_at=min(job.move_retry_at, moves),
            pause_requested_at=min(job.pause_requested_at, now),
            training_since=min(job.training_since, now),
            spare_retry_at=min(job.spare_retry_at, latest),
            bootstrap_retry_at=min(job.bootstrap_retry_at, bootstraps),
        )
    if max(job.silence_since, job.silence_reported_at) - now > AHEAD_S:
        draft.set_job(silence_since=min(job.silence_since, now), silence_reported_at=min(job.silence_reported_at, now))
    latest = now + draft.rules.ready_timeout_s  # nothing of a node waits longer
    for node in list(draft.nodes.values()):
        ahead_s = max(
            node.state_since - now,
            node.launched_at - now,
            node.priced_at - now,
            node.unhealthy_at - now,
            node.slow_leaves_at - now,
            node.retry_at - latest,
            node.ready_by - latest,
        )
        if ahead_s > AHEAD_S:
            if draft.full:
                return
            draft.set_node(
                node,
                state_since=min(node.state_since, now),
                launched_at=min(node.launched_at, now),
                priced_at=min(node.priced_at, now),
                unhealthy_at=min(node.unhealthy_at, now),
                slow_leaves_at=min(node.slow_leaves_at, now),
                retry_at=min(node.retry_at, latest),
                ready_by=min(node.ready_by, latest),
            )


def delete_old(draft: Draft) -> None:
    """Delete the oldest records of nodes that are gone, and the messages of all that are, so that a job that runs for
    weeks on thousands of nodes leaves little in etcd. Those whose GPUs died within the hour are kept: they count among
    those that die at once. Old events are deleted with each commit."""
    for key in draft.view.leftover_messages:  # an agent's last message may come late
        if not draft.full:
            draft.delete_key(key)
    since = draft.now - draft.rules.unhealthy_memory_s
    gone = [node for node in draft.in_states(NodeState.GONE) if node.unhealthy_at <= since]
    for node in gone[: max(0, len(gone) - draft.rules.gone_kept)]:
        if not draft.full:
            draft.delete_node(node)
