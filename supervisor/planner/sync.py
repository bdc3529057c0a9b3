"""First half of a decision: bring the records up to what was observed. Passive: it asks for nothing new."""

from __future__ import annotations

from provisioners.base import (
    EndCause,
    Fatal,
    Instance,
    InstanceState,
    Launched,
    LaunchOutcome,
    NoCapacity,
    Quota,
    Scope,
    Throttled,
    Transient,
    Unknown,
)
from supervisor.model import EventKind, JobState, NodeRecord, NodeState, NoticeRecord
from supervisor.planner.actions import BootstrapDone, FindDone, LaunchDone, NodeOutcome, TerminateDone
from supervisor.planner.draft import Draft
from supervisor.planner.world import OffersView

N = NodeState
_GIVEN_UP = (N.LOST, N.FAILED)
_ENDED_BY_ITSELF = (InstanceState.STOPPING, InstanceState.STOPPED, InstanceState.TERMINATED)
FATAL_MEMORY_S = 600.0
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)


def sync_node(draft: Draft, node: NodeRecord) -> None:
    """One node: what came of its actions, then what its cloud says, then what its agent says."""
    for outcome in draft.outcomes.get(node.id, ()):
        node = _from_outcome(draft, node, outcome)
    if node.state in {N.GONE, N.TERMINATING}:
        _confirm_gone(draft, node)
        return
    if node.state not in _GIVEN_UP:
        node = _from_cloud(draft, node)
    if node.state in _GIVEN_UP:
        return
    node = _from_notice(draft, node)
    _from_agent(draft, node)


# -- what came of our actions ------------------------------------------------------------------------------


def _from_outcome(draft: Draft, node: NodeRecord, outcome: NodeOutcome) -> NodeRecord:
    match outcome:
        case LaunchDone() if node.state is N.REQUESTED:
            return _launched(draft, node, outcome.outcome)
        case FindDone() if node.state is N.REQUESTED:
            return _found(draft, node, outcome)
        case BootstrapDone() if node.state is N.BOOTSTRAPPING:
            return _bootstrapped(draft, node, outcome)
        case TerminateDone() if node.state is N.TERMINATING:
            node = _last_words(draft, node, outcome)  # asked for once, also where the cloud refuses the end for now
            if outcome.error:
                return draft.set_node(node, retry_at=draft.now + BACKOFF_S[1], error=outcome.error)
            return draft.set_node(node, retry_at=draft.now + draft.rules.terminate_retry_s)
        case _:
            return node  # an answer that came late: the record has moved on, and listings tell the rest


def _last_words(draft: Draft, node: NodeRecord, outcome: TerminateDone) -> NodeRecord:
    """Why it was never ready, by its own words. The log's last line is most often the reason."""
    if outcome.console:
        draft.add_event(EventKind.CONSOLE_TAIL, f"the console of {node.id} ends with:\n{outcome.console}", node.id)
    lines = outcome.log.strip().splitlines()
    if not lines:
        return node
    draft.add_event(EventKind.LOG_TAIL, f"the log of {node.id} ends with:\n{outcome.log.strip()}", node.id)
    return draft.set_node(node, error=f"{node.error}; the last line of its log is: {lines[-1].strip()}")


def _accept(draft: Draft, node: NodeRecord, instance: Instance) -> NodeRecord:
    return draft.move(
        node,
        N.PENDING,
        f"{instance.id} in {instance.zone}",
        instance_id=instance.id,
        # By our clock, between the intent and now: the cloud's may differ by hours, or say nothing yet.
        launched_at=min(max(instance.launched_at, node.created_at), draft.now),
        launch_unknown=False,
        error="",
    )


def _launched(draft: Draft, node: NodeRecord, outcome: LaunchOutcome) -> NodeRecord:
    match outcome:
        case Launched(instance):
            return _accept(draft, node, instance)
        case NoCapacity() | Quota():
            spare = draft.complete()
            draft.volatile = draft.volatile.remember(node.offer, outcome, draft.now, spare=spare)
            return _refused(draft, node, outcome.message)
        case Throttled():
            return draft.set_node(node, retry_at=draft.now + outcome.retry_after_s, error=outcome.message)
        case Transient():
            if outcome.unknown_code:
                _tell_of_code(draft, node, outcome)
            if node.launch_attempts >= draft.rules.launch_attempts:
                return _refused(draft, node, outcome.message)
            wait_s = BACKOFF_S[min(node.launch_attempts, len(BACKOFF_S) - 1)]
            return draft.set_node(node, retry_at=draft.now + wait_s, error=outcome.message)
        case Fatal():
            return _fatal(draft, node, outcome)
        case Unknown():
            return draft.set_node(node, launch_unknown=True, retry_at=draft.now + 0.5, error=outcome.message)


def _tell_of_code(draft: Draft, node: NodeRecord, outcome: Transient) -> None:
    """Once per code and daemon: the tables of codes grow by what people hear of."""
    draft.volatile, is_new = draft.volatile.with_unknown_code(node.offer.cloud, outcome.unknown_code)
    if is_new:
        text = f"{outcome.message}; it is asked again. Please report the code, so that it gets its row"
        draft.add_event(EventKind.UNKNOWN_CODE, text, node.id, code=outcome.unknown_code)


def _fatal(draft: Draft, node: NodeRecord, outcome: Fatal) -> NodeRecord:
    """A request that cannot work ends a job that never ran; a running one keeps what it has (P4) and asks later."""
    memory = NoCapacity(Scope.GLOBAL, FATAL_MEMORY_S, outcome.message)
    draft.volatile = draft.volatile.remember(node.offer, memory, draft.now, spare=draft.complete())
    node = _refused(draft, node, outcome.message)
    if not any(other.state is not N.GONE or other.has_joined for other in draft.nodes.values()):
        draft.move_job(JobState.FAILED, f"{node.offer.cloud} refuses the request: {outcome.message}")
    return node


def _refused(draft: Draft, node: NodeRecord, message: str) -> NodeRecord:
    draft.add_event(EventKind.LAUNCH_REFUSED, f"{node.offer.zone} did not grant {node.id}: {message}", node.id)
    return draft.move(node, N.GONE, message, error=message, ended_at=draft.now)


def _found(draft: Draft, node: NodeRecord, outcome: FindDone) -> NodeRecord:
    if outcome.instance is not None:
        return _accept(draft, node, outcome.instance)
    if outcome.error:
        return draft.set_node(node, retry_at=draft.now + BACKOFF_S[1], error=outcome.error)
    # Asking again under the same token cannot double it (P2), whether or not the first request is still on its way.
    return draft.set_node(node, launch_unknown=False, retry_at=draft.now)


def _bootstrapped(draft: Draft, node: NodeRecord, outcome: BootstrapDone) -> NodeRecord:
    if not outcome.error:
        return draft.set_node(node, bootstrapped=True, ready_by=draft.now + draft.rules.ready_timeout_s, error="")
    if outcome.unreachable and draft.elapsed_s(node.state_since) < draft.rules.bootstrap_timeout_s:
        return draft.set_node(node, retry_at=draft.now + BACKOFF_S[2], error=outcome.error)
    if outcome.unhealthy:
        _found_sick(draft, node, outcome.error)
    if outcome.foreign:
        draft.add_event(EventKind.FOREIGN_HOST, f"{node.id} is not prepared: {outcome.error}", node.id)
    return fail_bootstrap(draft, node, outcome.error)


def _found_sick(draft: Draft, node: NodeRecord, error: str) -> None:
    """Machines of one type that are unhealthy one after the other are not bought for a while, in any zone, by any
    job."""
    offer, rules = node.offer, draft.rules
    count = draft.volatile.unhealthy_streaks.get((offer.cloud, offer.instance_type), 0) + 1
    if count < rules.max_unhealthy_streak:
        draft.volatile = draft.volatile.with_unhealthy_streak(offer, count)
        return
    draft.volatile = draft.volatile.with_unhealthy_streak(offer, 0)
    text = (
        f"PROTECTED: {count} {offer.cloud} machines of type {offer.instance_type} in a row were at fault; "
        f"none is bought for {rules.unhealthy_memory_s / 60:g} min. The last one: {error.splitlines()[0]}"
    )
    memory = NoCapacity(Scope.TYPE_IN_ZONE, rules.unhealthy_memory_s, text)
    known = draft.volatile.offers.get(draft.job.name, OffersView()).offers
    alike = {(each.zone, each.market): each for each in known if each.instance_type == offer.instance_type}
    for each in (alike | {(offer.zone, offer.market): offer}).values():
        draft.volatile = draft.volatile.remember(each, memory, draft.now, spare=False)
    draft.add_event(EventKind.MACHINE_TYPE_BLOCKED, text, node.id)


def fail_bootstrap(draft: Draft, node: NodeRecord, error: str) -> NodeRecord:
    """The node's set-up failed: its own budget, never the application's (P5). A spare's ends no job that has all."""
    if draft.complete():
        draft.set_job(spare_retry_at=draft.now + draft.rules.spare_retry_s)
    else:
        draft.set_job(bootstrap_failures=draft.job.bootstrap_failures + 1)
    draft.add_event(EventKind.NODE_FAILED, f"bootstrap of {node.id} failed: {error}", node.id)
    return draft.move(node, N.FAILED, error.splitlines()[0] if error else "bootstrap failed", error=error)


# -- what the cloud says -----------------------------------------------------------------------------------


def _from_cloud(draft: Draft, node: NodeRecord) -> NodeRecord:
    instance = draft.instance(node)
    if instance is None:
        return _maybe_vanished(draft, node)
    if node.state is N.REQUESTED:
        node = _accept(draft, node, instance)
    if instance.state in _ENDED_BY_ITSELF:
        return lose(draft, node, _cause(instance))
    if node.state is N.PENDING and instance.state is InstanceState.RUNNING and instance.ssh_host:
        return draft.move(
            node,
            N.BOOTING,
            f"runs at {instance.ssh_host}",
            ssh_host=instance.ssh_host,
            ssh_port=instance.ssh_port,
            private_address=instance.private_address,
            metadata_url=instance.metadata_url,
        )
    if node.state is N.PENDING and draft.elapsed_s(node.state_since) > draft.rules.launch_timeout_s:
        return fail_bootstrap(draft, node, f"{instance.id} did not run within {draft.rules.launch_timeout_s:g} s")
    return node


def _cause(instance: Instance) -> str:
    match instance.end_cause:
        case EndCause.PREEMPTED:
            return f"{instance.id} was preempted"
        case EndCause.USER:
            return f"somebody ended {instance.id}"
        case _:
            return f"{instance.id} is {instance.state} by its cloud's word"


def _maybe_vanished(draft: Draft, node: NodeRecord) -> NodeRecord:
    """Missing from one listing is not a death: two in a row, old enough to be listed, and a silent agent."""
    if not node.instance_id or draft.cloud.missed_listings.get(node.id, 0) < 2:
        return node
    if draft.now - node.launched_at < draft.rules.consistency_s or _heard(draft, node):
        return node
    return lose(draft, node, f"{node.instance_id} is not listed any more")


def lose(draft: Draft, node: NodeRecord, reason: str) -> NodeRecord:
    """The node is gone without having been asked to go."""
    draft.add_event(EventKind.NODE_LOST, f"lost {_called(draft, node)}: {reason}", node.id)
    return draft.move(node, N.LOST, reason, needs_replacement=True)


def _called(draft: Draft, node: NodeRecord) -> str:
    return f"the spare {node.id}" if node.id in draft.view.spares else node.id


def _confirm_gone(draft: Draft, node: NodeRecord) -> None:
    """GONE only by the word of a listing that was asked for after we asked for the end."""
    cloud = draft.cloud
    if node.state is N.GONE or cloud.listed_at <= node.state_since:
        return
    instance = draft.instance(node)
    listed_gone = instance is not None and instance.state is InstanceState.TERMINATED
    unlisted = (
        instance is None
        and cloud.missed_listings.get(node.id, 0) >= 2
        and draft.now - node.launched_at >= draft.rules.consistency_s
    )
    if listed_gone or unlisted or not node.instance_id:
        draft.move(node, N.GONE, "the cloud says that it is gone", ended_at=draft.now)


# -- what the node says ------------------------------------------------------------------------------------


def _from_notice(draft: Draft, node: NodeRecord) -> NodeRecord:
    if node.notice is not None:
        return node
    word = draft.view.notices.get(node.id)
    instance = draft.instance(node)
    if word is not None:
        seen = NoticeRecord(word.deadline, word.seen_at, word.source)
    elif instance is not None and instance.preempt_at is not None:
        seen = NoticeRecord(instance.preempt_at, draft.now, f"{draft.job.spec.placement.cloud} API")
    else:
        return node
    left_s = seen.deadline - draft.now
    draft.add_event(
        EventKind.NOTICE,
        f"{_called(draft, node)} will be taken in {left_s:.0f} s ({seen.source})",
        node.id,
        deadline=seen.deadline,
        seen_at=seen.seen_at,
    )
    return draft.set_node(node, notice=seen, needs_replacement=True)


def _heard(draft: Draft, node: NodeRecord) -> bool:
    """Any sign of life: its agent's lease, its launcher's lease."""
    return node.id in draft.view.agents or node.id in draft.view.members


def _from_agent(draft: Draft, node: NodeRecord) -> None:
    if node.state is N.BOOTSTRAPPING:
        _maybe_ready(draft, node)
    elif node.state in {N.READY, N.MEMBER, N.SUSPECT} and (why := _gave_up(draft, node)):
        lose(draft, node, why)
    elif node.state in {N.READY, N.MEMBER} and not _heard(draft, node):
        text = f"{_called(draft, node)} is silent while its cloud says that it runs"
        draft.add_event(EventKind.NODE_SUSPECT, text, node.id)
        draft.move(node, N.SUSPECT, "no lease of its agent or launcher is left")
    elif node.state is N.SUSPECT:
        _suspect(draft, node)
    else:
        _place(draft, node)


def _maybe_ready(draft: Draft, node: NodeRecord) -> None:
    ended = draft.view.exits.get(node.id)
    if node.id in draft.view.members:
        draft.set_job(bootstrap_failures=0)
        draft.volatile = draft.volatile.with_unhealthy_streak(node.offer, 0)
        draft.move(node, N.READY, "its launcher waits at the rendezvous", bootstrapped=True)
    elif ended is not None and ended.outcome == "failure":
        fail_bootstrap(draft, node, f"its launcher ended with status {ended.exit_code}: {ended.message}")
    elif node.bootstrapped and draft.now > max(node.ready_by, draft.timers_paused_until + draft.rules.ready_timeout_s):
        limit_s = draft.rules.ready_timeout_s
        fail_bootstrap(draft, node, f"its launcher did not reach the rendezvous within {limit_s:g} s")


def _suspect(draft: Draft, node: NodeRecord) -> None:
    if _heard(draft, node):
        after = N.MEMBER if _in_round(draft, node) else N.READY
        draft.move(node, after, "it is heard again")
    elif draft.elapsed_s(node.state_since) >= draft.rules.suspect_s:
        lose(draft, node, f"silent for {draft.rules.suspect_s:g} s")


def _in_round(draft: Draft, node: NodeRecord) -> bool:
    return draft.view.round is not None and node.id in draft.view.round.incarnations


def _place(draft: Draft, node: NodeRecord) -> None:
    if node.state is N.READY and _in_round(draft, node):
        _join(draft, node)
    elif node.state is N.MEMBER and not _in_round(draft, node):
        draft.move(node, N.READY, "the round went on without it")


def _gave_up(draft: Draft, node: NodeRecord) -> str:
    """Why this machine is of no use any more by its agent's own last word; "" where there is none.

    A node that leaves in order is not missed for long where we, or its cloud, told it to. Nobody did here.
    """
    ended = draft.view.exits.get(node.id)
    if ended is None:
        return ""
    if ended.outcome == "failure":
        return f"its launcher ended with status {ended.exit_code}: {ended.message}"
    return "somebody told its agent to stop" if ended.outcome == "left" and node.notice is None else ""


def _join(draft: Draft, node: NodeRecord) -> None:
    assert draft.view.round is not None
    number = draft.view.round.number
    took_over_from = node.took_over_from if node.has_joined else _place_of(draft, node)
    draft.move(node, N.MEMBER, f"in round {number}", has_joined=True, took_over_from=took_over_from)
    if took_over_from and not node.has_joined:
        text = f"{node.id} joined round {number} in place of {took_over_from}"
        draft.add_event(EventKind.REPLACEMENT_JOINED, text, node.id, replaces=took_over_from)


def _place_of(draft: Draft, node: NodeRecord) -> str:
    """Whose place a newcomer takes: of whom it was asked for or, where a spare was quicker, of whoever was lost first.

    Empty where it is one more.
    """
    filled = {other.took_over_from for other in draft.nodes.values()}
    gone = [
        n
        for n in draft.nodes.values()
        if n.has_joined and (n.needs_replacement or n.state is N.SUSPECT) and n.id not in filled
    ]
    vacant = [lost.id for lost in sorted(gone, key=lambda lost: (lost.created_at, lost.id))]
    return node.replaces if node.replaces in vacant else next(iter(vacant), "")
