"""Records as the plain JSON that people's scripts read."""

from __future__ import annotations

from typing import Any

from supervisor.model import Event, JobState, NodeRecord, NodeState
from supervisor.planner.world import JobView


def job_row(view: JobView, sentence: str, now: float) -> dict[str, Any]:
    """One job, short. Times in UNIX seconds, money in USD."""
    job, progress = view.record, view.progress
    members = sum(node.state is NodeState.MEMBER for node in view.nodes.values())
    return {
        "name": job.name,
        "kind": job.spec.kind,
        "state": job.state,
        "reason": job.reason,
        "sentence": sentence,
        "task_id": job.task_id,
        "nodes": {
            "min": job.min_nodes,
            "desired": job.desired_nodes,
            "max": job.max_nodes,
            "spares": job.spare_nodes,
            "training": members,
            "spares_ready": len(view.spares),
            "open": sum(node.state is not NodeState.GONE for node in view.nodes.values()),
        },
        "round": view.round.number if view.round else 0,
        "step": progress.step if progress else 0,
        "loss": progress.loss if progress else None,
        "checkpoint_step": progress.checkpoint_step if progress else 0,
        "problem": _problem(view),
        "fraction": _fraction(view),
        "progress_text": progress.text if progress else "",
        "progress_round": progress.round if progress else 0,
        "progress_at": progress.at if progress else None,
        "submitted_at": job.submitted_at,
        "ended_at": job.ended_at or None,
        "usd": round(job.dropped_nodes_usd + sum(node.usd(now) for node in view.nodes.values()), 4),
    }


def _fraction(view: JobView) -> float | None:
    """How much of a data job is done, as it told itself; one that ended well has no more to tell. None of others."""
    if view.record.spec.kind != "data":
        return None
    if view.record.state is JobState.SUCCEEDED:
        return 1.0
    return view.progress.fraction if view.progress else None


def _problem(view: JobView) -> str:
    """Why its checkpoints are not being written: what is said now, or was told and is not over; else empty."""
    said = view.progress.checkpoint_problem if view.progress else ""
    return "" if view.record.ended else said or view.record.checkpoint_problem


def job_detail(view: JobView, sentence: str, now: float) -> dict[str, Any]:
    """One job with its nodes, newest last."""
    nodes = sorted(view.nodes.values(), key=lambda node: (node.created_at, node.id))
    return {
        **job_row(view, sentence, now),
        "node_list": [node_row(view, node, now) for node in nodes],
        "command": list(view.record.spec.command),
        "market": view.record.spec.market,
        "cloud": view.record.spec.placement.cloud,
    }


def node_row(view: JobView, node: NodeRecord, now: float) -> dict[str, Any]:
    """One node of a job."""
    ranks = view.round.nodes() if view.round else ()
    return {
        "id": node.id,
        "job": node.job,
        "state": node.state,
        "since": node.state_since,
        "spare": node.id in view.spares,
        "rank": ranks.index(node.id) if node.id in ranks and node.state is NodeState.MEMBER else None,
        "cloud": node.offer.cloud,
        "zone": node.offer.zone,
        "instance_type": node.offer.instance_type,
        "market": node.offer.market,
        "instance_id": node.instance_id or None,
        "address": node.ssh_host or None,
        "replaces": node.took_over_from or node.replaces or None,
        "notice_deadline": node.notice.deadline if node.notice else None,
        "usd": round(node.usd(now), 4),
        "error": node.error or None,
        "reason": node.history[-1].reason if node.history else "asked for",
    }


def cost_row(view: JobView, now: float) -> dict[str, Any]:
    """What a job has cost, and costs now. Money in USD; `unpriced`: machines that bill at a price nobody told us."""
    job = view.record
    billed = [node for node in view.nodes.values() if node.launched_at and not node.ended_at]
    nodes = sorted(view.nodes.values(), key=lambda node: (node.created_at, node.id))
    return {
        "name": job.name,
        "state": job.state,
        "usd": round(job.dropped_nodes_usd + sum(node.usd(now) for node in nodes), 4),
        "usd_per_hour": round(sum(node.offer.usd_per_hour or 0.0 for node in billed), 4),
        "billed": len(billed),
        "unpriced": sum(node.offer.usd_per_hour is None for node in billed),
        "limit_usd": job.spec.limits.usd,
        "limit_usd_per_hour": job.spec.limits.usd_per_hour,
        "forgotten_usd": round(job.dropped_nodes_usd, 4),
        "node_list": [
            {
                "id": node.id,
                "state": node.state,
                "market": node.offer.market,
                "hours": round(((node.ended_at or now) - node.launched_at) / 3600, 4) if node.launched_at else 0.0,
                "usd_per_hour": node.offer.usd_per_hour,
                "usd": round(node.usd(now), 4),
            }
            for node in nodes
        ],
    }


def event_row(event: Event) -> dict[str, Any]:
    """One event."""
    return {
        "id": event.id,
        "at": event.at,
        "job": event.job,
        "kind": event.kind,
        "node": event.node or None,
        "text": event.text,
        "data": dict(event.data),
    }
