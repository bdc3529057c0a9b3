"""The job as a whole: its end, its limits, its state."""

from __future__ import annotations

from supervisor.model import IN_FLIGHT_NODE_STATES, EventKind, JobState, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import is_held, members
from supervisor.planner.sentences import ENDED_AS, node_count, training_count

J, N = JobState, NodeState
_COMING = (*IN_FLIGHT_NODE_STATES, N.READY, N.MEMBER)
_END_EVENTS = {
    J.SUCCEEDED: EventKind.JOB_DONE,
    J.FAILED: EventKind.JOB_FAILED,
    J.CANCELLED: EventKind.JOB_CANCELLED,
}


def drive_end(draft: Draft) -> None:
    """Whether the job has reached an end: a user's command, the program's result, or a limit."""
    if not draft.job.ended:
        end = _end(draft)
        if end is not None:
            draft.move_job(*end)
    if draft.job.ended and not draft.view.record.ended:
        _report_end(draft)


def _end(draft: Draft) -> tuple[JobState, str] | None:
    job, result = draft.job, draft.view.result
    if job.cancel_requested:
        return J.CANCELLED, "a user cancelled it"
    if result is not None and result.outcome == "success":
        return J.SUCCEEDED, "exit code 0"
    if result is not None:
        return J.FAILED, result.message
    if job.bootstrap_failures >= draft.rules.bootstrap_failures:
        last = max((n for n in draft.nodes.values() if n.error), key=lambda n: n.state_since, default=None)
        why = f": {last.error.splitlines()[0]}" if last else ""
        return J.FAILED, f"{job.bootstrap_failures} nodes in a row could not be bootstrapped{why}"
    return _limit(draft)


def _limit(draft: Draft) -> tuple[JobState, str] | None:
    limits = draft.job.spec.limits
    hours = _running_s(draft) / 3600
    if limits.hours is not None and hours >= limits.hours:
        return J.FAILED, f"its limit of {limits.hours:g} h is reached"
    if limits.usd is not None and spent_usd(draft) >= limits.usd:
        return J.FAILED, f"its limit of ${limits.usd:g} is reached"
    return None


def _running_s(draft: Draft) -> float:
    """Seconds since it was submitted, without its pauses."""
    job = draft.job
    paused_s = job.paused_s + (draft.now - job.state_since if job.state is J.PAUSED else 0.0)
    return draft.now - job.submitted_at - paused_s


def spent_usd(draft: Draft) -> float:
    """What the job has cost so far."""
    return draft.job.dropped_nodes_usd + sum(node.usd(draft.now) for node in draft.nodes.values())


def _report_end(draft: Draft) -> None:
    job = draft.job
    took_s = draft.now - job.submitted_at
    text = f"{job.name} {ENDED_AS[job.state]}: {job.reason} (after {took_s:.0f} s, ${spent_usd(draft):.2f})"
    draft.add_event(_END_EVENTS[job.state], text, usd=round(spent_usd(draft), 4))


def drive_state(draft: Draft) -> None:
    """QUEUED … WAITING, from how many nodes train."""
    job, count = draft.job, len(members(draft))
    if job.ended:
        return
    if job.pause_requested_at:
        _pause(draft)
    elif job.state is J.PAUSED:
        draft.set_job(paused_s=job.paused_s + draft.now - job.state_since)
        draft.move_job(J.STARTING, "a user resumed it")
    elif count >= job.desired_nodes:
        _reach(draft, J.RUNNING, f"{node_count(count)} {'trains' if count == 1 else 'train'}")
    elif count >= job.min_nodes:
        _reach(draft, J.DEGRADED, training_count(draft))
    elif job.state in {J.RUNNING, J.DEGRADED}:
        _reach(draft, J.WAITING, f"{node_count(count)} left, {job.min_nodes} needed")
    elif job.state is J.QUEUED and draft.in_states(*IN_FLIGHT_NODE_STATES):
        _reach(draft, J.STARTING, "nodes are requested")
    elif job.state is J.STARTING and _knows_offers(draft) and not draft.in_states(*_COMING):
        _reach(draft, J.WAITING, "no offer has capacity")


def _pause(draft: Draft) -> None:
    if draft.job.state is not J.PAUSED and is_held(draft):
        draft.move_job(J.PAUSED, "a user paused it")
        draft.add_event(EventKind.PAUSED, f"{draft.job.name} is paused, and its machines are released")


def _knows_offers(draft: Draft) -> bool:
    known = draft.volatile.offers.get(draft.job.name)
    return known is not None and known.known


def _reach(draft: Draft, state: JobState, reason: str) -> None:
    if draft.job.state is J.QUEUED and state is not J.STARTING:
        draft.move_job(J.STARTING, "it has nodes already")
    draft.move_job(state, reason)
