"""The job as a whole: its end, its state."""

from __future__ import annotations

from supervisor.events import EventKind
from supervisor.features.limits.rule import pause_reason, spent_usd
from supervisor.features.queue.rule import is_held_back
from supervisor.features.silence.rule import may_train
from supervisor.model import IN_FLIGHT_NODE_STATES, JobState, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import has_trained, is_held, part_of_round
from supervisor.planner.sentences import ENDED_AS, lasted, node_count, training_count

J, N = JobState, NodeState
LIMITED = "the operator's limits leave too little: `spotsupctl queue` says more"
_COMING = (*IN_FLIGHT_NODE_STATES, N.READY, N.MEMBER)
_END_EVENTS = {
    J.SUCCEEDED: EventKind.JOB_DONE,
    J.FAILED: EventKind.JOB_FAILED,
    J.CANCELLED: EventKind.JOB_CANCELLED,
}


def drive_end(draft: Draft) -> None:
    """Decide whether the job has reached an end: a user's command, or the program's result."""
    if not draft.job.ended:
        end = _end(draft)
        if end is not None:
            draft.move_job(*end)
    if draft.job.ended and not draft.view.record.ended:
        _report_end(draft)


def _end(draft: Draft) -> tuple[JobState, str] | None:
    job, result = draft.job, draft.view.result
    if job.cancel_requested:
        return J.CANCELLED, job.cancel_reason or "a user cancelled it"
    if result is not None and result.outcome == "success":
        return J.SUCCEEDED, f"exit code 0; {result.problem}" if result.problem else "exit code 0"
    if result is not None:
        return J.FAILED, result.message
    own = job.bootstraps.own_failures >= draft.rules.bootstraps.own_failures
    if (own or job.bootstraps.failures >= draft.rules.bootstraps.failures) and not has_trained(draft):
        last = max((n for n in draft.nodes.values() if n.error), key=lambda n: n.state_since, default=None)
        why = f": {last.error.splitlines()[0]}" if last else ""
        alike = (
            f", the last {job.bootstraps.own_failures} in the same way, by what the job or its image brings"
            if own
            else ""
        )
        return J.FAILED, f"{job.bootstraps.failures} nodes in a row could not be bootstrapped{alike}{why}"
    return None


def _report_end(draft: Draft) -> None:
    job = draft.job
    took_s = draft.now - job.submitted_at
    usd = spent_usd(job, draft.nodes.values(), draft.now)
    text = f"{job.name} {ENDED_AS[job.state]}: {job.reason} (after {lasted(took_s)}, ${usd:.2f})"
    draft.add_event(_END_EVENTS[job.state], text, usd=round(usd, 4))


def drive_state(draft: Draft) -> None:
    """QUEUED … WAITING, from how many nodes train."""
    job, count = draft.job, part_of_round(draft)
    if job.ended:
        return
    if job.pause.at:
        _pause(draft)
    elif job.state is J.PAUSED:
        draft.move_job(J.STARTING, "it was resumed")
    elif count < job.desired_nodes and may_train(draft):
        pass
    elif count >= job.desired_nodes:
        _reach(draft, J.RUNNING, f"{node_count(count)} {'trains' if count == 1 else 'train'}")
    elif count >= job.min_nodes:
        _reach(draft, J.DEGRADED, training_count(draft))
    elif job.state in {J.RUNNING, J.DEGRADED}:
        _reach(draft, J.WAITING, f"{node_count(count)} left, {job.min_nodes} needed")
    elif job.state is J.QUEUED and draft.in_states(*IN_FLIGHT_NODE_STATES):
        _reach(draft, J.STARTING, "nodes are requested")
    elif job.state is J.STARTING and _finds_no_capacity(draft):
        _reach(draft, J.WAITING, LIMITED if is_held_back(draft) else "no offer has capacity")


def _pause(draft: Draft) -> None:
    if draft.job.state is not J.PAUSED and is_held(draft):
        reason = pause_reason(draft)
        draft.move_job(J.PAUSED, reason)
        draft.add_event(EventKind.PAUSED, f"{draft.job.name} is paused, and its machines are released: {reason}")


def _finds_no_capacity(draft: Draft) -> bool:
    known = draft.volatile.offers.get(draft.job.name)
    waits = draft.now < draft.job.bootstraps.retry_at
    return known is not None and known.known and not waits and not draft.in_states(*_COMING)


def _reach(draft: Draft, state: JobState, reason: str) -> None:
    if draft.job.state is J.QUEUED and state is not J.STARTING:
        draft.move_job(J.STARTING, "it has nodes already")
    draft.move_job(state, reason)
