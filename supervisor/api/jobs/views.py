"""Records as the plain JSON that scripts read. Times in UNIX seconds, money in US dollars."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from spotsup_trainer.objects import url as urls
from spotsup_trainer.wire import Pause

from supervisor.api.jobs.ranks import rank_rows
from supervisor.api.rows import (
    AlternativeRow,
    CostRow,
    DeadlineRow,
    DeletedRow,
    EventRow,
    JobDetail,
    JobRow,
    LimitRow,
    NodeRow,
    PauseRow,
)
from supervisor.billing import Booking, by_purpose, month_of
from supervisor.features.billing.bookings import bookings_of, bookings_of_node
from supervisor.features.budgets.rule import spending
from supervisor.features.deadline.rule import as_text as deadline_in_words
from supervisor.features.deadline.rule import deadline_of
from supervisor.features.limits.rule import USED, spent_usd, trained_s
from supervisor.model import COUNTED_NODE_STATES, Event, JobState, NodeRecord, NodeState
from supervisor.planner.pauses import as_text, pauses_of
from supervisor.planner.predicates import is_preparing
from supervisor.planner.world import JobView
from supervisor.spec_limits import LimitChanges


def job_row(view: JobView, sentence: str, now: float) -> JobRow:
    """Return one job without its nodes."""
    job, progress = view.record, view.progress
    members = sum(node.state is NodeState.MEMBER for node in view.nodes.values())
    return {
        "name": view.name,
        "kind": job.spec.kind,
        "owner": job.owner,
        "priority": job.spec.priority,
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
            "active": len(view.billed),
        },
        "round": view.round.number if view.round else 0,
        "step": progress.step if progress else 0,
        "loss": progress.loss if progress else None,
        "metrics": dict(progress.metrics) if progress else {},
        "checkpoint_step": progress.checkpoint_step if progress else 0,
        "checkpoint_problem": _checkpoint_problem(view),
        "progress_fraction": _progress_fraction(view),
        "done_fraction": _done_fraction(view),
        "progress_text": progress.text if progress else "",
        "progress_round": progress.round if progress else 0,
        "progress_at": progress.at if progress else None,
        "submitted_at": job.submitted_at,
        "starts_at": job.starts_at or None,
        "deadline": _deadline_row(view, now),
        "ended_at": job.ended_at or None,
        "trained_s": round(trained_s(job, now), 1),
        "usd": round(spent_usd(job, view.nodes.values(), now), 4),
        "limits": _limit_rows(view, now),
    }


def _deadline_row(view: JobView, now: float) -> DeadlineRow | None:
    """Return by when it has to have finished, and whether it will; None where it may at any time."""
    job = view.record
    if not job.deadline.finish_by:
        return None
    found = deadline_of(job, view.nodes.values(), view.progress, now)
    return {
        "finish_by": job.deadline.finish_by,
        "work": job.spec.work,
        "left_s": None if found is None else round(found.left_s),
        "slack_s": None if found is None else round(found.slack_s(now)),
        "missed": found is not None and found.is_missed(now),
        "text": deadline_in_words(job, found, now),
    }


def _limit_rows(view: JobView, now: float) -> dict[str, LimitRow]:
    """Return each limit, and how much of it is used."""
    limits, nodes, billed = view.record.spec.limits, tuple(view.nodes.values()), _billed(view)
    used = {name: round(used(view.record, nodes, now), 4) for name, used in USED.items()}
    used["usd_per_hour"] = round(sum(node.offer.usd_per_hour or 0.0 for node in billed), 4)
    used["usd_per_node_hour"] = max((node.offer.usd_per_hour or 0.0 for node in billed), default=0.0)
    used["app_failures"] = view.round.app_failures if view.round else 0
    return {name: {"limit": getattr(limits, name), "used": used[name]} for name in LimitChanges.model_fields}


def _billed(view: JobView) -> list[NodeRecord]:
    return [node for node in view.nodes.values() if node.launched_at and not node.ended_at]


def _progress_fraction(view: JobView) -> float | None:
    """Return how much of a data job is done, as it reported; 1 once it has succeeded. None for training jobs."""
    if view.record.spec.kind != "data":
        return None
    if view.record.state is JobState.SUCCEEDED:
        return 1.0
    return view.progress.fraction if view.progress else None


def _done_fraction(view: JobView) -> float | None:
    """Return the same, and what a training job reports."""
    if view.record.spec.kind == "data":
        return _progress_fraction(view)
    return view.progress.fraction if view.progress else None


def _checkpoint_problem(view: JobView) -> str:
    """Return why its checkpoints are not being written: what the job reports now, or the alert that is still open; else
    ""."""
    reported = view.progress.checkpoint_problem if view.progress else ""
    return "" if view.record.ended else reported or view.record.checkpoints.problem


def job_detail(view: JobView, sentence: str, now: float) -> JobDetail:
    """Return one job with its nodes."""
    return {
        **job_row(view, sentence, now),
        "node_list": node_rows(view, now),
        "ranks": rank_rows(view),
        "pauses": [pause_row(pause) for pause in pauses_of(view)],
        "command": list(view.record.spec.command),
        "resume_from": list(view.record.resume_from),
        "market": view.record.spec.market,
        "cloud": view.record.spec.placement.cloud,
        "prefer": view.record.spec.prefer,
        "alternatives": _alternative_rows(view),
    }


def _alternative_rows(view: JobView) -> list[AlternativeRow]:
    """Return what the job may run on, and how many of its nodes are of each; none where there is only one."""
    present = [node.offer for node in view.nodes.values() if node.state in COUNTED_NODE_STATES]
    return [
        {"name": name, "nodes": sum(offer.alternative == number for offer in present)}
        for number, name in enumerate(view.record.spec.kinds)
    ]


def pause_row(pause: Pause) -> PauseRow:
    """Return one pause of training: seconds, None for what is not known."""
    return {
        "round": pause.round,
        "ended_at": pause.at,
        "pause_s": pause.pause_s,
        "parts": {f"{name}_s": value for name, value in pause.parts().items()},
        "restored_from": {f"{name}_bytes": size for name, size in pause.sources().items()},
        "steps_again": pause.steps_again,
        "text": as_text(pause),
    }


def in_order(nodes: Iterable[NodeRecord]) -> list[NodeRecord]:
    """Return nodes by job and number: n-1, n-2, n-10."""
    return sorted(nodes, key=lambda node: (node.job, _number(node.id), node.id))


def _number(node: str) -> int:
    found = re.search(r"\d+$", node)
    return int(found[0]) if found else 0


def node_rows(view: JobView, now: float, nodes: Sequence[NodeRecord] | None = None) -> list[NodeRow]:
    """Return the nodes of a job, in order; or these of them."""
    ranks = {node: rank for rank, node in enumerate(view.round.nodes() if view.round else ())}
    spares = frozenset(view.spares)
    shown = in_order(view.nodes.values()) if nodes is None else nodes
    return [_node_row(view, node, now, ranks, spares) for node in shown]


def _node_row(view: JobView, node: NodeRecord, now: float, ranks: Mapping[str, int], spares: frozenset[str]) -> NodeRow:
    return {
        "id": node.id,
        "job": view.name,
        "state": node.state,
        "since": node.state_since,
        "spare": node.id in spares,
        "rank": ranks.get(node.id) if node.state is NodeState.MEMBER else None,
        "cloud": node.offer.cloud,
        "zone": node.offer.zone,
        "instance_type": node.offer.instance_type,
        "market": node.offer.market,
        "instance_id": node.instance_id or None,
        "address": node.ssh_host or None,
        "replaces": node.took_over_from or node.replaces or None,
        "notice_deadline": node.notice.deadline if node.notice else None,
        "slow_factor": node.slow.factor if node.slow.at else None,
        "usd": round(node.usd(now), 4),
        "error": node.error or None,
        "reason": _reason(view, node, ranks),
    }


def _reason(view: JobView, node: NodeRecord, ranks: Mapping[str, int]) -> str:
    """Return why it is in its state; while its launcher prepares, what that does, and of a member its round."""
    if node.state is NodeState.MEMBER and view.round is not None and node.id in ranks:
        return f"in round {view.round.number}"
    if node.state is NodeState.BOOTSTRAPPING and is_preparing(view, node.id):
        return view.agents[node.id].preparing
    return node.history[-1].reason if node.history else "asked for"


def deleted_row(view: JobView, now: float) -> DeletedRow:
    """Return what is told of a job that was just deleted."""
    job = view.record
    return {
        "name": job.name,
        "task_id": job.task_id,
        "checkpoints": kept if (kept := job.checkpoint_path).startswith(("/", "~")) or urls.is_url(kept) else "",
        "usd": round(spent_usd(job, view.nodes.values(), now), 4),
        "month_usd": round(sum(each.usd for each in spending(view, month_of(now), now)), 4),
    }


def cost_row(view: JobView, now: float) -> CostRow:
    """Return what a job has cost, and costs now. `nodes_unpriced`: billed at a price that is not known, and not
    counted."""
    job = view.record
    billed = _billed(view)
    nodes = in_order(view.nodes.values())
    bookings = bookings_of(job, nodes, now)
    return {
        "name": view.name,
        "state": job.state,
        "usd": round(spent_usd(job, nodes, now), 4),
        "purposes": _purpose_row(bookings),
        "months": [
            {"month": month, "purposes": _purpose_row([each for each in bookings if each.month == month])}
            for month in sorted({each.month for each in bookings})
        ],
        "usd_per_hour": round(sum(node.offer.usd_per_hour or 0.0 for node in billed), 4),
        "nodes_billed": len(billed),
        "nodes_unpriced": sum(node.offer.usd_per_hour is None for node in billed),
        "limit_usd": job.spec.limits.usd,
        "limit_usd_per_hour": job.spec.limits.usd_per_hour,
        "dropped_nodes_usd": round(job.billing.dropped_usd, 4),
        "owner": job.owner,
        "node_list": [
            {
                "id": node.id,
                "state": node.state,
                "market": node.offer.market,
                "instance_type": node.offer.instance_type,
                "hours": round(((node.ended_at or now) - node.launched_at) / 3600, 4) if node.launched_at else 0.0,
                "usd_per_hour": node.offer.usd_per_hour,
                "usd": round(node.usd(now), 4),
                "purposes": _purpose_row(bookings_of_node(job, node, now)),
            }
            for node in nodes
        ],
    }


def _purpose_row(bookings: Iterable[Booking]) -> dict[str, float]:
    """US dollars by purpose; their sum is the cost."""
    return {str(purpose): round(usd, 6) for purpose, usd in by_purpose(bookings).items()}


def event_row(event: Event) -> EventRow:
    """Return one event."""
    return {
        "id": event.id,
        "at": event.at,
        "job": event.job,
        "kind": event.kind,
        "node": event.node or None,
        "text": event.text,
        "data": dict(event.data),
    }
