"""Keeping a job's records sound and few: times that are in the future, old records, old messages."""

from __future__ import annotations

from dataclasses import replace

from supervisor.model import NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import vacancies

# So far may the clocks of two daemons be apart.
AHEAD_S = 60.0


def clamp_future_times(draft: Draft) -> None:
    """Bring times that are far ahead back to now: a clock was ahead and has been set back since, and no termination,
    retry or spare waits for a time that only that clock has seen."""
    now, job = draft.now, draft.job
    latest, bootstraps = now + draft.rules.bootstraps.spare_retry_s, now + draft.rules.bootstraps.max_retry_s
    moves = now + draft.rules.moves.max_retry_s
    ahead_s = max(
        job.bootstraps.spare_retry_at - latest, job.bootstraps.retry_at - bootstraps, job.moves.retry_at - moves
    )
    past = (job.pause.at, job.limits.training_since, job.gang.since, job.moves.since)
    if max(ahead_s, *(at - now for at in past), job.places.since - now, job.rounds.gathering_since - now) > AHEAD_S:
        for part in (
            replace(job.rounds, gathering_since=min(job.rounds.gathering_since, now)),
            replace(job.places, since=min(job.places.since, now)),
            replace(job.gang, since=min(job.gang.since, now)),
            replace(job.moves, since=min(job.moves.since, now), retry_at=min(job.moves.retry_at, moves)),
            replace(job.pause, at=min(job.pause.at, now)),
            replace(job.limits, training_since=min(job.limits.training_since, now)),
            replace(
                job.bootstraps,
                spare_retry_at=min(job.bootstraps.spare_retry_at, latest),
                retry_at=min(job.bootstraps.retry_at, bootstraps),
            ),
        ):
            draft.set_part(part)
    if max(job.silence.since, job.silence.reported_at) - now > AHEAD_S:
        since, reported_at = (min(at, now) for at in (job.silence.since, job.silence.reported_at))
        draft.set_part(replace(job.silence, since=since, reported_at=reported_at))
    latest = now + draft.rules.ready_timeout_s  # nothing of a node waits longer
    for node in list(draft.nodes.values()):
        ahead_s = max(
            node.state_since - now,
            node.launched_at - now,
            node.priced_at - now,
            node.unhealthy_at - now,
            node.slow.leaves_at - now,
            node.retry_at - latest,
            node.ready_by - latest,
        )
        if ahead_s > AHEAD_S:
            if draft.full:
                return
            draft.set_node(
                replace(
                    node,
                    state_since=min(node.state_since, now),
                    launched_at=min(node.launched_at, now),
                    priced_at=min(node.priced_at, now),
                    unhealthy_at=min(node.unhealthy_at, now),
                    slow=replace(node.slow, leaves_at=min(node.slow.leaves_at, now)),
                    retry_at=min(node.retry_at, latest),
                    ready_by=min(node.ready_by, latest),
                )
            )


def delete_old(draft: Draft) -> None:
    """Delete the oldest records of nodes that are gone, and the messages of all that are, so that a job that runs for
    weeks on thousands of nodes leaves little in etcd. Those whose GPUs died within the hour are kept: they count among
    those that die at once. Old events are deleted with each commit."""
    for key in draft.view.leftover_messages:  # an agent's last message may come late
        if not draft.full:
            draft.delete_key(key)
    since = draft.now - draft.rules.unhealthy.memory_s
    gone = [node for node in draft.in_states(NodeState.GONE) if node.unhealthy_at <= since]
    if len(gone) <= draft.rules.gone_kept:
        return
    # Where replacements are refused all night, those of what was lost first would go first.
    vacant = {node.id for node in vacancies(draft)[-draft.job.desired_nodes :]}
    gone = [node for node in gone if node.id not in vacant]
    for node in gone[: max(0, len(gone) - draft.rules.gone_kept)]:
        if not draft.full:
            draft.delete_node(node)
