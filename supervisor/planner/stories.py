"""A job's story, from its records: for the first message of its thread in Slack."""

from __future__ import annotations

from supervisor.alerts.stories import Story
from supervisor.model import IN_FLIGHT_NODE_STATES, JobState, NodeRecord, NodeState
from supervisor.planner.pauses import pauses_of
from supervisor.planner.predicates import done_nodes
from supervisor.planner.world import JobView

N = NodeState
_WITH_REASON = frozenset({JobState.QUEUED, JobState.WAITING, JobState.PAUSED, JobState.FAILED})


def story_of(view: JobView, now: float) -> Story:
    """Return how the job is now."""
    job, nodes = view.record, view.nodes.values()
    present = set(view.round.nodes()) if view.round else set()
    working = [node for node in nodes if node.id in present and node.state in {N.READY, N.MEMBER, N.SUSPECT}]
    staying = [node for node in working if not node.doomed]
    leaving = _without_successor(view) if len(staying) < job.desired_nodes else []
    pauses = pauses_of(view)
    return Story(
        job=job.name,
        task_id=job.task_id,
        state=str(job.state),
        nodes=0 if job.ended or job.state is JobState.PAUSED else len(working),
        desired=job.desired_nodes,
        leaving=len(leaving),
        noticed_at=min((_noticed_at(node) for node in leaving), default=0.0),
        replacing=sum(node.state in IN_FLIGHT_NODE_STATES for node in nodes),
        pauses=len(pauses),
        pause_s=pauses[-1].pause_s if pauses else None,
        usd=job.billing.dropped_usd + sum(node.usd(now) for node in nodes),
        reason=job.reason if job.state in _WITH_REASON else "",
    )


def _without_successor(view: JobView) -> list[NodeRecord]:
    """Return nodes that the round loses, or has lost, and whose place no other has taken."""
    taken = {node.took_over_from for node in view.nodes.values()} | done_nodes(view, view.nodes)
    return [
        node
        for node in view.nodes.values()
        if node.has_joined and (node.needs_replacement or node.doomed) and node.id not in taken
    ]


def _noticed_at(node: NodeRecord) -> float:
    return node.notice.seen_at if node.notice else node.state_since
