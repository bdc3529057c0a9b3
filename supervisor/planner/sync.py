"""First half of a decision: bring a node's record up to what was observed. Passive: it requests nothing new."""

from __future__ import annotations

from dataclasses import replace

from spotsup_trainer.timing import MAX_PREPARE_S

from provisioners.base import EndCause, Instance, InstanceState, Market, Offer, Refusal
from supervisor.events import EventKind
from supervisor.features.silence.rule import ask, in_hold, why_lost
from supervisor.market.ends import is_near, known_end
from supervisor.market.hazard import HOUR_S
from supervisor.model import IN_FLIGHT_NODE_STATES, WAITING_NODE_STATES, NodeRecord, NodeState, NoticeRecord
from supervisor.planner.draft import Draft
from supervisor.planner.outcomes import (
    accept,
    apply_outcome,
    clear_failures,
    count_unhealthy_in_training,
    fail_bootstrap,
    is_unlisted,
    refuse_late,
)
from supervisor.planner.predicates import (
    ENDED_BY_ITSELF,
    in_round,
    is_heard,
    is_past,
    is_preparing,
    leaving_timeout_s,
    vacancies,
    why_doomed,
)
from supervisor.planner.world import CLOCKS_S, MAX_NOTICE_S, Rules

N = NodeState
# A machine with so many GPUs is a whole host, whose start takes longer.
LARGE_GPUS = 8
LARGE_FACTOR = 3.0
MAX_HEALTH_CHARACTERS = 200  # of why GPUs are unhealthy
MIN_DOUBTFUL_FAILURES = 3  # rounds in a row that failed on nodes which are not believed to be unhealthy
_GIVEN_UP = (N.LOST, N.FAILED)


def sync_nodes(draft: Draft) -> None:
    """Sync each node with what is known of it."""
    for node in draft.open_nodes():
        if draft.full:
            break
        sync_node(draft, node)


def sync_node(draft: Draft, node: NodeRecord) -> None:
    """Bring one node up to date: first the outcomes of its actions, then its cloud's listing, then what its agent
    publishes."""
    for outcome in draft.outcomes.get(node.id, ()):
        node = apply_outcome(draft, node, outcome)
    if node.state in {N.GONE, N.TERMINATING}:
        _confirm_gone(draft, node)
        return
    if node.state not in _GIVEN_UP:
        node = _from_cloud(draft, node)
    if node.state in _GIVEN_UP:
        return
    node = _from_notice(draft, node)
    if node.state in WAITING_NODE_STATES:
        return  # its agent is gone, or about to be
    node = _from_health(draft, node)
    _from_agent(draft, node)


# -- from the cloud's listing ------------------------------------------------------------------------------


def _from_cloud(draft: Draft, node: NodeRecord) -> NodeRecord:
    instance = draft.instance(node)
    if instance is None:
        return _maybe_vanished(draft, node)
    if instance.state is InstanceState.UNREADABLE:
        return node  # it exists, and that is all that is known
    if node.state is N.REQUESTED:
        node = accept(draft, node, instance)
    if instance.state in ENDED_BY_ITSELF:
        if instance.end_cause is not EndCause.USER:
            _maybe_refused_late(draft, node, instance.refused)
        if instance.end_cause is EndCause.PREEMPTED and not (node.notice and node.notice.confirmed):
            _count_end(draft, node, preempted=True)
        return lose(draft, node, _cause(instance))
    if node.state is N.PENDING and instance.state is InstanceState.RUNNING and instance.ssh_host:
        return draft.move(
            replace(
                node,
                ssh_host=instance.ssh_host,
                ssh_port=instance.ssh_port,
                private_address=instance.private_address,
                metadata_url=instance.metadata_url,
            ),
            N.BOOTING,
            f"runs at {instance.ssh_host}",
        )
    limit_s = launch_timeout_s(draft.rules, node.offer)
    if node.state is N.PENDING and draft.elapsed_s(node.state_since) > limit_s:
        refuse_late(draft, node)
        text = f"{instance.id} did not run within {limit_s:g} s"
        return fail_bootstrap(draft, node, text, blamed=False)
    return node


def launch_timeout_s(rules: Rules, offer: Offer) -> float:
    """Return how long a machine may be pending. Some clouds need 4 to 10 minutes for one."""
    return rules.launch_timeout_s * (LARGE_FACTOR if offer.gpus >= LARGE_GPUS else 1.0)


def _maybe_refused_late(draft: Draft, node: NodeRecord, refusal: Refusal | None = None) -> None:
    if node.state in IN_FLIGHT_NODE_STATES and not node.bootstrapped:
        refuse_late(draft, node, refusal)


def _cause(instance: Instance) -> str:
    match instance.end_cause:
        case EndCause.PREEMPTED:
            return f"{instance.id} was preempted"
        case EndCause.USER:
            return f"{instance.id} was terminated outside spotsup"
        case _:
            why = f": {instance.end_message}" if instance.end_message else ""
            return f"its cloud lists {instance.id} as {instance.state}{why}"


def _maybe_vanished(draft: Draft, node: NodeRecord) -> NodeRecord:
    """Lost if it is missing and silent."""
    if not node.instance_id or not _is_missing(draft, node) or is_heard(draft, node):
        return node
    _maybe_refused_late(draft, node)
    return lose(draft, node, f"{node.instance_id} is not listed any more")


def _is_missing(draft: Draft, node: NodeRecord) -> bool:
    """True if two listings in a row do not have its machine, both asked when it was old enough to be listed."""
    if (missing := draft.cloud.missing.get(node.id)) is None or draft.doubts_listing or draft.cloud.leaves_out(node):
        return False
    return len(missing.asked_at) == 2 and missing.asked_at[0] - node.launched_at >= draft.rules.consistency_s


def lose(draft: Draft, node: NodeRecord, reason: str) -> NodeRecord:
    """Take note that the node is gone without a request of ours."""
    noticed = {"seen_at": node.notice.seen_at} if node.notice else {}
    draft.add_event(EventKind.NODE_LOST, f"lost {_called(draft, node)}: {reason}", node.id, **noticed)
    return draft.move(replace(node, needs_replacement=True), N.LOST, reason)


def _called(draft: Draft, node: NodeRecord) -> str:
    if node.state in WAITING_NODE_STATES:
        return f"{node.id}, which waited for the next job,"
    return f"the spare {node.id}" if node.id in draft.view.spares else node.id


def _count_end(draft: Draft, node: NodeRecord, *, preempted: bool) -> None:
    """Count what it says of its pool that this machine was taken now, or was not until it was given back."""
    if not node.launched_at:
        return
    until = draft.now if preempted else node.state_since
    hours = (until - node.launched_at) / HOUR_S
    draft.capacity = draft.capacity.with_an_end(node.offer, hours, draft.now, draft.rules.hazard, preempted=preempted)


def _confirm_gone(draft: Draft, node: NodeRecord) -> None:
    """GONE only by a listing that was requested after the terminate call."""
    cloud = draft.cloud
    if node.state is N.GONE or cloud.region_listed_at(node.offer.region) <= node.state_since:
        return
    instance = draft.instance(node)
    listed_gone = instance is not None and instance.state is InstanceState.TERMINATED
    unlisted = instance is None and _is_missing(draft, node)
    if listed_gone or unlisted or not node.instance_id:
        given_up = node.history[-1].before in _GIVEN_UP if node.history else False
        if not given_up and node.notice is None:
            _count_end(draft, node, preempted=False)
        draft.move(replace(node, ended_at=draft.now), N.GONE, "its cloud confirmed the end" if given_up else "released")


# -- from the node's messages ------------------------------------------------------------------------------


def _from_notice(draft: Draft, node: NodeRecord) -> NodeRecord:
    """Take up a notice, of the node or of its cloud, or an end that was known before. The node's own word is believed
    of itself at once; to other jobs only its cloud says something of its pool (9c)."""
    instance = draft.instance(node)
    cloud_says = instance.preempt_at if instance is not None else None
    if node.notice is not None:
        return _confirmed(draft, node, cloud_says)
    published = draft.view.notices.get(node.id)
    # A program may write any deadline in its node's name, and until then it is not ended, but replaced.
    latest = draft.now + draft.rules.max_notice_s.get(node.offer.cloud, MAX_NOTICE_S) + CLOCKS_S
    if published is not None:
        notice = NoticeRecord(min(published.deadline, latest), published.seen_at, published.source)
    elif cloud_says is not None:
        source = f"{draft.job.spec.placement.cloud} API"
        notice = NoticeRecord(min(cloud_says, latest), draft.now, source)
    elif (ends := known_end(node.offer, node.launched_at)) is not None and is_near(node.offer, ends[0], draft.now):
        notice = NoticeRecord(ends[0], draft.now, ends[1])
    else:
        return node
    left_s = notice.deadline - draft.now
    is_taken = node.offer.market is Market.SPOT
    draft.add_event(
        EventKind.NOTICE,
        f"{_called(draft, node)} {'will be preempted' if is_taken else 'ends'} in {left_s:.0f} s ({notice.source})",
        node.id,
        deadline=notice.deadline,
        seen_at=notice.seen_at,
    )
    return _confirmed(draft, draft.set_node(replace(node, notice=notice, needs_replacement=True)), cloud_says)


def _confirmed(draft: Draft, node: NodeRecord, cloud_says: float | None) -> NodeRecord:
    """Count a notice of which the cloud knows, too, once: of its pool, for all jobs."""
    if node.notice is None or node.notice.confirmed or cloud_says is None:
        return node
    _maybe_refused_late(draft, node)
    _count_end(draft, node, preempted=True)
    return draft.set_node(replace(node, notice=replace(node.notice, confirmed=True)))


def _from_health(draft: Draft, node: NodeRecord) -> NodeRecord:
    """Replace a node whose GPUs cannot train: first, where it still trains; at once, where a GPU is gone. Of too
    many at once none is, and an alert is sent."""
    health = draft.view.healths.get(node.id)
    works = node.state in {N.READY, N.MEMBER, N.SUSPECT} and draft.view.result is None
    if not works or node.unhealthy_at:
        return node
    if health is None or health.healthy:
        return draft.set_node(replace(node, unhealthy="")) if node.unhealthy else node
    reason = health.reason.splitlines()[0][:MAX_HEALTH_CHARACTERS] if health.reason else "its agent gives no reason"
    count = draft.unhealthy_at_once
    if count and not _keeps_failing(draft, node):
        if node.unhealthy:
            return node
        if not any(other.unhealthy and not other.unhealthy_at for other in draft.nodes.values()):
            text = (
                f"{count} nodes report unhealthy GPUs at once, so none of them is replaced: look at nvidia-smi on "
                f"{node.id} ({reason}), and drain what is really broken (spotsupctl drain NODE)"
            )
            draft.add_event(EventKind.UNHEALTHY_HELD, text, node.id)
        return draft.set_node(replace(node, unhealthy=reason))
    node = draft.set_node(replace(node, unhealthy=reason, unhealthy_at=draft.now, needs_replacement=True))
    text = f"{_called(draft, node)} has unhealthy GPUs and is replaced: {reason}"
    draft.add_event(EventKind.NODE_UNHEALTHY, text, node.id, xid=health.xid)
    if not count:  # what is hardly believed of one machine says nothing about its type
        count_unhealthy_in_training(draft, node)
    return lose(draft, node, f"a GPU is gone: {reason}") if health.fatal else node


def _keeps_failing(draft: Draft, node: NodeRecord) -> bool:
    """True if round after round ended by failures on nodes with unhealthy GPUs, the last one on this node. Then a node
    of the job is believed every ten minutes, at most three an hour, although many say so: the job might never train
    again.
    """
    current, member = draft.view.round, draft.view.members.get(node.id)
    if current is None or current.doubtful_failures < MIN_DOUBTFUL_FAILURES or member is None:
        return False
    failed = member.failure is not None and member.failure.round >= current.number and member.unhealthy
    rules, believed = draft.rules, [other.unhealthy_at for other in draft.nodes.values()]
    lately = sum(at > draft.now - rules.unhealthy.hold_s for at in believed)
    within_memory = sum(at > draft.now - rules.unhealthy.memory_s for at in believed)
    return bool(failed) and not lately and within_memory < rules.unhealthy.max_streak


def _from_agent(draft: Draft, node: NodeRecord) -> None:
    if draft.view.result is not None:
        return  # its launcher and its agent end now: that is no loss
    if node.state is N.BOOTSTRAPPING:
        _maybe_ready(draft, node)
    elif node.state in {N.READY, N.MEMBER, N.SUSPECT} and (why := _gave_up(draft, node)):
        lose(draft, node, why)
    elif node.state in {N.READY, N.MEMBER} and not is_heard(draft, node):
        text = f"{_called(draft, node)} is silent, and its cloud has not said that it ended"
        draft.add_event(EventKind.NODE_SUSPECT, text, node.id)
        draft.move(node, N.SUSPECT, "the leases of its agent and launcher have expired")
    elif node.state is N.SUSPECT:
        _resolve_suspicion(draft, node)
    elif node.state is N.READY and in_round(draft, node):
        _join(draft, node)
    elif node.state is N.MEMBER and not in_round(draft, node):
        draft.move(node, N.READY, "a round formed without it")


def _maybe_ready(draft: Draft, node: NodeRecord) -> None:
    ended = draft.view.exits.get(node.id)
    if node.id in draft.view.members:
        clear_failures(draft)
        if node.bootstrapped:  # a key alone may be forged, and this is remembered for all jobs
            draft.capacity = draft.capacity.with_a_machine_that_works(node.offer)
        draft.move(replace(node, bootstrapped=True), N.READY, "its launcher waits at the rendezvous")
    elif ended is not None and ended.outcome == "failure":
        fail_bootstrap(draft, node, f"its launcher ended with status {ended.exit_code}: {ended.message}")
    elif node.bootstrapped and draft.now > _ready_by(draft, node):
        limit_s = draft.rules.ready_timeout_s
        if node.offer.cloud in draft.hold.clouds:  # it may not reach etcd, either
            draft.set_node(replace(node, ready_by=draft.now + limit_s))
            return
        text = f"its launcher did not reach the rendezvous within {limit_s:g} s"
        fail_bootstrap(draft, node, text, blamed=not is_unlisted(draft, node))


def _ready_by(draft: Draft, node: NodeRecord) -> float:
    """Return when its launcher must have reached the rendezvous: later where its agent says that it prepares."""
    prepares = is_preparing(draft.view, node.id)
    limit = max(node.ready_by, draft.timers_paused_until + draft.rules.ready_timeout_s)
    return limit + (MAX_PREPARE_S if prepares else 0.0)


def _resolve_suspicion(draft: Draft, node: NodeRecord) -> None:
    if is_heard(draft, node):
        draft.move(node, N.MEMBER if in_round(draft, node) else N.READY, "it is heard again")
    elif is_past(draft, node):
        lose(draft, node, "silent, and the deadline of its notice has passed")
    elif (limit_s := _silent_limit_s(draft, node)) and draft.elapsed_s(node.state_since) >= limit_s:
        lose(draft, node, f"silent for {limit_s:g} s, and {why_doomed(node)}")
    elif not in_hold(draft, node):
        ask(draft, node)
        if why := why_lost(draft, node):
            lose(draft, node, why)


def _silent_limit_s(draft: Draft, node: NodeRecord) -> float:
    """Return how long a node that is to leave may be silent, whatever it answers over SSH, and also among many: as long
    as one that leaves in order, and less where a user wants it gone. 0: no limit; one with a notice has its
    deadline."""
    if node.drain_requested:
        return draft.rules.silence.suspect_s
    leaves = node.unhealthy_at or node.slow.leaves_at or node.left_behind
    return leaving_timeout_s(draft) if leaves else 0.0


def _gave_up(draft: Draft, node: NodeRecord) -> str:
    """Return why this machine is of no use any more, by its launcher's exit message; "" without one.

    A node whose cloud announced a preemption is not lost when it leaves in order.
    """
    ended = draft.view.exits.get(node.id)
    if ended is None:
        return ""
    if ended.outcome == "failure":
        return f"its launcher ended with status {ended.exit_code}: {ended.message}"
    return "its agent was stopped outside spotsup" if ended.outcome == "left" and node.notice is None else ""


def _join(draft: Draft, node: NodeRecord) -> None:
    assert draft.view.round is not None
    number = draft.view.round.number
    place_of = node.took_over_from if node.has_joined else _place_of(draft, node)
    draft.capacity = draft.capacity.with_enough(draft.job.name, node.offer)
    draft.move(replace(node, has_joined=True, took_over_from=place_of), N.MEMBER, f"in round {number}")
    if place_of and not node.has_joined:
        text = f"{node.id} joined round {number} in place of {place_of}"
        draft.add_event(EventKind.REPLACEMENT_JOINED, text, node.id, replaces=place_of)


def _place_of(draft: Draft, node: NodeRecord) -> str:
    """Return whose place a newcomer takes: that of the node it replaces or, where a spare was quicker, of the one that
    was lost first. Empty where it is one more."""
    vacant = [lost.id for lost in vacancies(draft)]
    return node.replaces if node.replaces in vacant else next(iter(vacant), "")
