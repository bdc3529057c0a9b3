"""The job as a whole: its end, its limits, its state, and the sentence about it."""

from __future__ import annotations

from supervisor.model import (
    ENDED_JOB_STATES,
    IN_FLIGHT_NODE_STATES,
    EventKind,
    JobState,
    NodeRecord,
    NodeState,
)
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import in_place, is_held, wanted

J, N = JobState, NodeState
_COMING = (*IN_FLIGHT_NODE_STATES, N.READY, N.MEMBER)


def drive_end(draft: Draft) -> None:
    """Whether the job has reached an end: the user's word, the program's, or a limit."""
    if not draft.job.ended:
        end = _end(draft)
        if end is not None:
            draft.move_job(*end)
    if draft.job.ended and not draft.view.record.ended:
        _tell_of_end(draft)


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
    hours = _wanted_s(draft) / 3600
    if limits.hours is not None and hours >= limits.hours:
        return J.FAILED, f"its limit of {limits.hours:g} h is reached"
    if limits.usd is not None and spent_usd(draft) >= limits.usd:
        return J.FAILED, f"its limit of ${limits.usd:g} is reached"
    return None


def _wanted_s(draft: Draft) -> float:
    """For how many seconds its user has wanted it to run: since it was submitted, but for its pauses."""
    job = draft.job
    paused_s = job.paused_s + (draft.now - job.state_since if job.state is J.PAUSED else 0.0)
    return draft.now - job.submitted_at - paused_s


def spent_usd(draft: Draft) -> float:
    """What the job has cost so far."""
    return draft.job.dropped_nodes_usd + sum(node.usd(draft.now) for node in draft.nodes.values())


_ENDS = {
    J.SUCCEEDED: EventKind.JOB_DONE,
    J.FAILED: EventKind.JOB_FAILED,
    J.CANCELLED: EventKind.JOB_CANCELLED,
}


def _tell_of_end(draft: Draft) -> None:
    job = draft.job
    took_s = draft.now - job.submitted_at
    text = f"{job.name} {job.state}: {job.reason} (after {took_s:.0f} s, ${spent_usd(draft):.2f})"
    draft.add_event(_ENDS[job.state], text, usd=round(spent_usd(draft), 4))


def members(draft: Draft) -> list[NodeRecord]:
    """Nodes that train now."""
    return draft.in_states(N.MEMBER)


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
        _reach(draft, J.RUNNING, f"{count} nodes train")
    elif count >= job.min_nodes:
        _reach(draft, J.DEGRADED, f"{count} of {job.desired_nodes} nodes train")
    elif job.state in {J.RUNNING, J.DEGRADED}:
        _reach(draft, J.WAITING, f"{count} nodes are left, {job.min_nodes} are needed")
    elif job.state is J.QUEUED and draft.in_states(*IN_FLIGHT_NODE_STATES):
        _reach(draft, J.STARTING, "nodes are asked for")
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
        draft.move_job(J.STARTING, "nodes are there")
    draft.move_job(state, reason)


# -- the sentence ------------------------------------------------------------------------------------------


def sentence(draft: Draft) -> str:
    """What is done and why, for `spotsupctl status` and the log."""
    job = draft.job
    if job.ended:
        return f"{job.state}: {job.reason}{_releasing(draft)}"
    if job.state is J.PAUSED:
        return f"paused: {job.reason}{_releasing(draft)}"
    if job.pause_requested_at:
        return f"pausing: waiting for a checkpoint of {len(draft.in_states(N.READY, N.MEMBER))} nodes"
    clauses = [_training(draft), _spares(draft), *_replacing(draft), *_arriving(draft), *_missing(draft)]
    return "; ".join(clause for clause in clauses if clause)


def _releasing(draft: Draft) -> str:
    open_nodes = [node for node in draft.nodes.values() if node.state is not N.GONE]
    return f"; releasing {_nodes(len(open_nodes))}" if open_nodes else ""


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _training(draft: Draft) -> str:
    # Without the step: what is done and why stays the same for thousands of them.
    count, current = len(members(draft)), draft.view.round
    if not count or current is None:
        return f"waiting for {_nodes(draft.job.min_nodes)} to begin" if current is None else "no node trains"
    if draft.job.spec.kind == "data":
        return f"the command runs (round {current.number})"
    return f"training on {count} of {draft.job.desired_nodes} nodes (round {current.number})"


def _spares(draft: Draft) -> str:
    have, want = len(draft.view.spares), draft.job.spare_nodes
    if draft.view.round is None or not want:
        return ""
    if not have:
        return "no spare yet"
    return ("1 spare" if want == 1 else f"{want} spares") if have == want else f"{have} of {want} spares"


def _replacing(draft: Draft) -> list[str]:
    clauses = []
    for node in draft.in_states(N.READY, N.MEMBER, N.DRAINING):
        if node.notice is not None:
            left_s = max(0.0, node.notice.deadline - draft.now)
            # Whole tens, so that a sentence is not a new one each second.
            clauses.append(f"{node.id} will be taken in about {round(left_s / 10) * 10} s")
        elif node.state is N.DRAINING:
            clauses.append(f"{node.id} drains")
        elif node.drain_requested:
            clauses.append(f"{node.id} leaves once it is replaced")
    clauses += [f"{node.id} is silent" for node in draft.in_states(N.SUSPECT)]
    return clauses


def _arriving(draft: Draft) -> list[str]:
    clauses = []
    complete = draft.complete()
    for node in draft.in_states(*IN_FLIGHT_NODE_STATES):
        purpose = " as a spare" if complete else f" in place of {node.replaces}" if node.replaces else ""
        trouble = f" ({node.error.splitlines()[0]})" if node.error else ""
        clauses.append(f"{node.id} is {node.state}{purpose}{trouble}")
    return clauses


def _missing(draft: Draft) -> list[str]:
    if len(draft.counted()) >= wanted(draft):
        return []
    spare = draft.complete()
    if spare and draft.now < draft.job.spare_retry_at:
        return ["another spare is asked for later, for the last one could not be bootstrapped"]
    offers = draft.volatile.offers.get(draft.job.name)
    if offers is None or not offers.known:
        return [f"asking {draft.job.spec.placement.cloud} for offers" + (f" ({offers.error})" if offers else "")]
    if not offers.offers:
        return [f"{draft.job.spec.placement.cloud} offers nothing that fits the job's resources and placement"]
    refusals = [draft.volatile.refused(o, draft.now, spare=spare) for o in offers.offers if in_place(draft, o)]
    if refusals and all(refusals):
        first = refusals[0]
        assert first is not None
        return [f"no capacity: {first.message}"]
    return [f"more {'spares' if spare else 'nodes'} are wanted, but limits or the one-zone rule keep them away"]


def settled(draft: Draft) -> bool:
    """Ended, and every machine gone."""
    return draft.job.state in ENDED_JOB_STATES and all(n.state is N.GONE for n in draft.nodes.values())
