"""Which machines to ask for, to prepare, to let go.

Never more than desired, the spares, and what is being replaced (P3). All are asked for alike, and the first that are
ready train: whatever a cloud does not grant is missing among the spares.
"""

from __future__ import annotations

from provisioners.base import Offer
from supervisor.model import (
    COUNTED_NODE_STATES,
    IN_FLIGHT_NODE_STATES,
    EventKind,
    NodeRecord,
    NodeState,
)
from supervisor.planner.actions import Bootstrap, FetchOffers, Find, Launch, Terminate
from supervisor.planner.draft import Draft
from supervisor.planner.world import OffersView

N = NodeState
_STILL_THERE = COUNTED_NODE_STATES | {N.DRAINING}


def drive_fleet(draft: Draft) -> None:
    """Every node one step on, then more or fewer of them."""
    for node in list(draft.nodes.values()):
        if draft.full:
            return
        _drive(draft, node)
    surplus = len(draft.counted()) - wanted(draft)
    if draft.job.ended:
        for node in draft.in_states(*_STILL_THERE):
            if not draft.full:
                release(draft, node, "the job has ended")
    elif draft.job.pause_requested_at:
        _let_all_go(draft)
    elif surplus > 0:
        _let_go(draft, surplus)
    elif surplus < 0:
        _ask_for(draft, -surplus)


def wanted(draft: Draft) -> int:
    """How many nodes the job shall have now, spares included."""
    return 0 if draft.job.ended or draft.job.pause_requested_at else draft.job.desired_nodes + draft.job.spare_nodes


# -- one node ----------------------------------------------------------------------------------------------


def _drive(draft: Draft, node: NodeRecord) -> None:
    match node.state:
        case N.TERMINATING if draft.now >= node.retry_at:
            _terminate(draft, node)
        case N.LOST | N.FAILED if node.instance_id:
            # Why a machine was never ready is often told only by its console, which goes with it.
            failed = node.state is N.FAILED
            node = draft.move(node, N.TERMINATING, f"make sure that {node.instance_id} is gone")
            _terminate(draft, node, failed=failed)
        case N.FAILED:
            draft.move(node, N.GONE, "nothing was launched", ended_at=draft.now)
        case N.DRAINING if _has_left(draft, node):
            _terminate(draft, draft.move(node, N.TERMINATING, "it has left the round"), in_order=True)
        case _ if not draft.busy(f"node:{node.id}"):
            _drive_birth(draft, node)
        case _:
            pass


def _drive_birth(draft: Draft, node: NodeRecord) -> None:
    match node.state:
        case N.REQUESTED if draft.now >= node.retry_at and not _came_to_nothing(draft, node):
            _drive_request(draft, node)
        case N.BOOTING if not (draft.job.ended or node.doomed):
            node = draft.move(node, N.BOOTSTRAPPING, "bootstrap begins")
            draft.request_action(Bootstrap(node, draft.job))
        case N.BOOTSTRAPPING if not node.bootstrapped and draft.now >= node.retry_at:
            draft.request_action(Bootstrap(node, draft.job))
        case _:
            pass


def _came_to_nothing(draft: Draft, node: NodeRecord) -> bool:
    """The cloud's last answer was no, and nobody wants the node any more. Without an answer it is asked once more, by
    the same token: a machine that came of it is found so."""
    return not wanted(draft) and bool(node.error) and not node.launch_unknown


def _drive_request(draft: Draft, node: NodeRecord) -> None:
    if node.launch_unknown:
        draft.request_action(Find(node))
    else:
        node = draft.set_node(node, launch_attempts=node.launch_attempts + 1)
        draft.request_action(Launch(node))


def _has_left(draft: Draft, node: NodeRecord) -> bool:
    """Out of the round, or out of time: a drain waits for a checkpoint, but not for ever.

    One that a hint still names may be in the next round by the time that it would be ended.
    """
    current, hint = draft.view.round, draft.view.hint
    named = hint is not None and node.id in hint.members
    in_round = named or (current is not None and node.id in current.nodes())
    return not in_round or draft.elapsed_s(node.state_since) > draft.rules.drain_timeout_s


def _terminate(draft: Draft, node: NodeRecord, *, failed: bool = False, in_order: bool = False) -> None:
    """`failed`: it was never ready, and is asked why. `in_order`: it works, and has time to unmount."""
    read_log_of = node if failed and node.bootstrapped else None
    # A machine that its cloud takes has better uses for its last seconds: checkpoints are on the server by then.
    unmounts = in_order and bool(draft.job.spec.shared) and node.notice is None
    unmount_first = (node, draft.job) if unmounts else None
    action = Terminate(node.offer.cloud, node.instance_id, node.id, failed, read_log_of, unmount_first)
    if not draft.busy(action.key):
        draft.set_node(node, retry_at=draft.now + draft.rules.terminate_retry_s)
        draft.request_action(action)


# -- fewer -------------------------------------------------------------------------------------------------


def _let_go(draft: Draft, surplus: int) -> None:
    """First what is not there yet, newest first; then spares; then the members with the highest ranks."""
    order = draft.view.round.nodes() if draft.view.round else ()
    ranks = {node: rank for rank, node in enumerate(order)}

    def usefulness(node: NodeRecord) -> tuple[bool, bool, int]:
        rank = ranks.get(node.id, len(ranks))
        return (node.state not in IN_FLIGHT_NODE_STATES, node.id in ranks, -rank)

    newest_first = sorted(draft.counted(), key=lambda node: (node.created_at, node.id), reverse=True)
    for node in sorted(newest_first, key=usefulness)[:surplus]:
        if not draft.full:
            release(draft, node, "fewer nodes are wanted")


def _let_all_go(draft: Draft) -> None:
    """Its job is paused: once nobody trains any more. Until then all stay, should the user think better of it."""
    if is_held(draft):
        for node in draft.in_states(*_STILL_THERE):
            if not draft.full:
                release(draft, node, "its job is paused")


def is_held(draft: Draft) -> bool:
    """Whether a paused job stands still: every launcher's workers have stopped, or time is up."""
    there = draft.in_states(N.READY, N.MEMBER, N.SUSPECT)
    told = draft.view.hint is not None and draft.view.hint.hold
    late = draft.elapsed_s(draft.job.pause_requested_at) > draft.rules.drain_timeout_s
    return told and (late or all(_has_stopped(draft, node) for node in there))


def _has_stopped(draft: Draft, node: NodeRecord) -> bool:
    """By its launcher's word. Without one it may still train: etcd may have been away for longer than its lease."""
    word, current = draft.view.members.get(node.id), draft.view.round
    if word is None:
        return False
    inside = current is not None and current.incarnations.get(node.id) == word.incarnation
    left_round = current is None or not inside or word.round >= current.number
    return word.state == "done" or word.parked or (word.state == "waiting" and left_round)


def release(draft: Draft, node: NodeRecord, reason: str) -> None:
    """Let one node go, by the way that its state allows."""
    if node.state in {N.READY, N.MEMBER} and not (draft.job.ended or draft.job.pause_requested_at):
        draft.move(node, N.DRAINING, reason)
    elif node.state is N.REQUESTED:
        _withdraw(draft, node, reason)
    else:
        works = node.state in {N.READY, N.MEMBER, N.DRAINING}
        _terminate(draft, draft.move(node, N.TERMINATING, reason), in_order=works)


def _withdraw(draft: Draft, node: NodeRecord, reason: str) -> None:
    """A request without an answer may still become a machine: look before letting go of the record (P1)."""
    if draft.busy(f"node:{node.id}"):
        return
    if node.launch_unknown or node.launch_attempts == 0:
        draft.request_action(Find(node))
    else:
        draft.move(node, N.GONE, reason, ended_at=draft.now)


# -- more --------------------------------------------------------------------------------------------------


def _ask_for(draft: Draft, missing: int) -> None:
    offers = _offers(draft)
    successors = _without_replacement(draft)
    members = draft.job.desired_nodes - len(draft.counted())
    for number in range(missing):
        spare = number >= members
        offer = next((o for o in offers if _allowed(draft, o, spare=spare)), None)
        if offer is None or draft.full or (spare and draft.now < draft.job.spare_retry_at):
            return
        _request(draft, offer, successors.pop(0) if successors else None, spare=spare)


def _request(draft: Draft, offer: Offer, before: NodeRecord | None, *, spare: bool) -> None:
    number = draft.job.next_node
    node_id = f"{draft.job.task_id}-{number}"
    draft.set_job(next_node=number + 1)
    node = NodeRecord(
        id=node_id,
        job=draft.job.name,
        token=node_id,
        offer=offer,
        created_at=draft.now,
        state_since=draft.now,
        replaces=before.id if before else "",
        launch_attempts=1,
    )
    draft.add(node)
    draft.request_action(Launch(node))
    if before is None:
        purpose = ", a spare" if spare else ""
        text = f"asked {offer.zone} for {node_id} ({offer.instance_type}{purpose})"
        draft.add_event(EventKind.LAUNCH_REQUESTED, text, node_id)
        return
    noticed = {"seen_at": before.notice.seen_at} if before.notice else {}
    draft.add_event(
        EventKind.REPLACEMENT_REQUESTED,
        f"asked {offer.zone} for {node_id} in place of {before.id}",
        node_id,
        replaces=before.id,
        **noticed,
    )


def _without_replacement(draft: Draft) -> list[NodeRecord]:
    """Nodes that were taken from the round and in whose place none was asked for, oldest first.

    Where that one came to nothing, another is, unless a spare has filled the place meanwhile.
    """
    filled = {node.took_over_from for node in draft.nodes.values()}
    replaced = {
        node.replaces
        for node in draft.nodes.values()
        if node.state is not N.GONE or node.has_joined or node.replaces in filled
    }
    taken = [n for n in draft.nodes.values() if n.needs_replacement and n.has_joined and n.id not in replaced]
    return sorted(taken, key=lambda node: (node.created_at, node.id))


def _offers(draft: Draft) -> tuple[Offer, ...]:
    """The job's offers, by market and then cheapest first. Asks for them when unknown."""
    spec = draft.job.spec
    known = draft.volatile.offers.get(draft.job.name, OffersView())
    age_s = draft.now - known.asked_at
    stale = not known.known or age_s > draft.rules.offers_s
    if stale and age_s > draft.rules.refused_retry_s:
        draft.request_read(FetchOffers(draft.job.name, spec.placement.cloud, spec.offer_queries))
    return known.offers


def _allowed(draft: Draft, offer: Offer, *, spare: bool) -> bool:
    """Not refused a moment ago, one place per job (P8), and never more money per hour than allowed (P3)."""
    refused = draft.volatile.refused(offer, draft.now, spare=spare) is not None
    return not refused and in_place(draft, offer) and _affordable(draft, offer)


def in_place(draft: Draft, offer: Offer) -> bool:
    """Whether it is where the job's other nodes are."""
    here = [node for node in draft.nodes.values() if node.state in _STILL_THERE]
    if draft.job.spec.placement.spread == "zone":
        return all(node.offer.zone == offer.zone for node in here)
    return all(node.offer.region == offer.region for node in here)


def _affordable(draft: Draft, offer: Offer) -> bool:
    limit = draft.job.spec.limits.usd_per_hour
    if limit is None:
        return True
    billed = sum(node.offer.usd_per_hour or 0.0 for node in draft.nodes.values() if node.state is not N.GONE)
    return offer.usd_per_hour is not None and billed + offer.usd_per_hour <= limit + 1e-9
