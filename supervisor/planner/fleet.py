"""Which machines to ask for, to prepare, to let go. Never more than desired plus what is being replaced (P3)."""

from __future__ import annotations

from provisioners.base import Offer, OfferQuery
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
# A commit is one etcd transaction of at most 128 operations; a node costs up to three.
MOST_LAUNCHES_AT_ONCE = 16


def counted(draft: Draft) -> list[NodeRecord]:
    """Nodes that the job has or will have: not doomed, not leaving."""
    return [node for node in draft.nodes.values() if node.state in COUNTED_NODE_STATES and not node.doomed]


def drive_fleet(draft: Draft) -> None:
    """Every node one step on, then more or fewer of them."""
    for node in list(draft.nodes.values()):
        _drive(draft, node)
    surplus = len(counted(draft)) - wanted(draft)
    if draft.job.ended:
        for node in draft.in_states(*_STILL_THERE):
            release(draft, node, "the job has ended")
    elif surplus > 0:
        _let_go(draft, surplus)
    elif surplus < 0:
        _ask_for(draft, -surplus)
    _forget_old(draft)


def wanted(draft: Draft) -> int:
    """How many nodes the job shall have now."""
    return 0 if draft.job.ended else draft.job.desired_nodes


# -- one node ----------------------------------------------------------------------------------------------


def _drive(draft: Draft, node: NodeRecord) -> None:
    match node.state:
        case N.TERMINATING if draft.now >= node.retry_at:
            _terminate(draft, node)
        case N.LOST | N.FAILED if node.instance_id:
            _terminate(draft, draft.move(node, N.TERMINATING, f"make sure that {node.instance_id} is gone"))
        case N.FAILED:
            draft.move(node, N.GONE, "nothing was launched", ended_at=draft.now)
        case N.DRAINING if _has_left(draft, node):
            _terminate(draft, draft.move(node, N.TERMINATING, "it has left the round"))
        case _ if not draft.busy(f"node:{node.id}"):
            _drive_birth(draft, node)
        case _:
            pass


def _drive_birth(draft: Draft, node: NodeRecord) -> None:
    match node.state:
        case N.REQUESTED if draft.now >= node.retry_at:
            _drive_request(draft, node)
        case N.BOOTING if not (draft.job.ended or node.doomed):
            node = draft.move(node, N.BOOTSTRAPPING, "bootstrap begins")
            draft.do(Bootstrap(node, draft.job))
        case N.BOOTSTRAPPING if not node.bootstrapped and draft.now >= node.retry_at:
            draft.do(Bootstrap(node, draft.job))
        case _:
            pass


def _drive_request(draft: Draft, node: NodeRecord) -> None:
    if node.unsure:
        draft.do(Find(node))
    else:
        node = draft.set_node(node, launch_attempts=node.launch_attempts + 1)
        draft.do(Launch(node))


def _has_left(draft: Draft, node: NodeRecord) -> bool:
    """Out of the round, or out of time: a drain waits for a checkpoint, but not for ever."""
    current = draft.view.round
    in_round = current is not None and node.id in current.nodes() and draft.view.result is None
    return not in_round or draft.job.ended or draft.now - node.since > draft.rules.drain_timeout_s


def _terminate(draft: Draft, node: NodeRecord) -> None:
    action = Terminate(node.offer.cloud, node.instance_id, node.id)
    if not draft.busy(action.key):
        draft.set_node(node, retry_at=draft.now + draft.rules.terminate_retry_s)
        draft.do(action)


# -- fewer -------------------------------------------------------------------------------------------------


def _let_go(draft: Draft, surplus: int) -> None:
    """First what is not there yet, newest first; then spares; then the members with the highest ranks."""
    order = draft.view.round.nodes() if draft.view.round else ()
    ranks = {node: rank for rank, node in enumerate(order)}

    def usefulness(node: NodeRecord) -> tuple[bool, bool, int, float]:
        rank = ranks.get(node.id, len(ranks))
        return (node.state not in IN_FLIGHT_NODE_STATES, node.id in ranks, -rank, -node.created_at)

    for node in sorted(counted(draft), key=usefulness)[:surplus]:
        release(draft, node, "fewer nodes are wanted")


def release(draft: Draft, node: NodeRecord, reason: str) -> None:
    """Let one node go, by the way that its state allows."""
    if node.state in {N.READY, N.MEMBER} and not draft.job.ended:
        draft.move(node, N.DRAINING, reason)
    elif node.state is N.REQUESTED:
        _withdraw(draft, node, reason)
    else:
        _terminate(draft, draft.move(node, N.TERMINATING, reason))


def _withdraw(draft: Draft, node: NodeRecord, reason: str) -> None:
    """A request without an answer may still become a machine: look before letting go of the record (P1)."""
    if draft.busy(f"node:{node.id}"):
        return
    if node.unsure or node.launch_attempts == 0:
        draft.do(Find(node))
    else:
        draft.move(node, N.GONE, reason, ended_at=draft.now)


# -- more --------------------------------------------------------------------------------------------------


def _ask_for(draft: Draft, missing: int) -> None:
    offers = _offers(draft)
    successors = _without_replacement(draft)
    for _ in range(min(missing, MOST_LAUNCHES_AT_ONCE)):
        offer = next((o for o in offers if _allowed(draft, o)), None)
        if offer is None:
            return
        _request(draft, offer, successors.pop(0) if successors else None)


def _request(draft: Draft, offer: Offer, before: NodeRecord | None) -> None:
    number = draft.job.next_node
    node_id = f"{draft.job.task_id}-{number}"
    draft.set_job(next_node=number + 1)
    node = NodeRecord(
        id=node_id,
        job=draft.job.name,
        token=node_id,
        offer=offer,
        created_at=draft.now,
        since=draft.now,
        replaces=before.id if before else "",
        launch_attempts=1,
    )
    draft.add(node)
    draft.do(Launch(node))
    if before is None:
        draft.tell(EventKind.LAUNCH_REQUESTED, f"asked {offer.zone} for {node_id} ({offer.instance_type})", node_id)
        return
    noticed = {"seen_at": before.notice.seen_at} if before.notice else {}
    draft.tell(
        EventKind.REPLACEMENT_REQUESTED,
        f"asked {offer.zone} for {node_id} in place of {before.id}",
        node_id,
        replaces=before.id,
        **noticed,
    )


def _without_replacement(draft: Draft) -> list[NodeRecord]:
    """Nodes that were taken and that no open or joined node stands in for yet, oldest first."""
    replaced = {n.replaces for n in draft.nodes.values() if n.state is not N.GONE or n.joined}
    taken = [n for n in draft.nodes.values() if n.taken and n.joined and n.id not in replaced]
    return sorted(taken, key=lambda node: (node.created_at, node.id))


def _offers(draft: Draft) -> tuple[Offer, ...]:
    """The job's offers that no refusal speaks against, those where its nodes are first. Asks for them when unknown."""
    spec = draft.job.spec
    known = draft.soft.offers.get(draft.job.name, OffersView())
    if not known.known or draft.now - known.asked_at > draft.rules.offers_s:
        query = OfferQuery(
            gpu=spec.resources.gpu,
            gpus_per_node=spec.resources.gpus_per_node,
            instance_types=spec.resources.instance_types,
            regions=spec.placement.regions,
            zones=spec.placement.zones,
            market=spec.first_market,
        )
        if not known.asked_at or draft.now - known.asked_at > draft.rules.refused_retry_s:
            draft.ask(FetchOffers(draft.job.name, spec.placement.cloud, query))
    return tuple(offer for offer in known.offers if draft.soft.refused(offer, draft.now) is None)


def _allowed(draft: Draft, offer: Offer) -> bool:
    """One place per job (P8), and never more money per hour than allowed (P3)."""
    here = [node for node in draft.nodes.values() if node.state in _STILL_THERE]
    if draft.job.spec.placement.spread == "zone":
        placed = all(node.offer.zone == offer.zone for node in here)
    else:
        placed = all(node.offer.region == offer.region for node in here)
    return placed and _affordable(draft, offer)


def _affordable(draft: Draft, offer: Offer) -> bool:
    limit = draft.job.spec.limits.usd_per_hour
    if limit is None:
        return True
    billed = sum(node.offer.usd_per_hour or 0.0 for node in draft.nodes.values() if node.state is not N.GONE)
    return offer.usd_per_hour is not None and billed + offer.usd_per_hour <= limit + 1e-9


def _forget_old(draft: Draft) -> None:
    gone = draft.in_states(N.GONE)
    for node in gone[: max(0, len(gone) - draft.rules.gone_kept)][:MOST_LAUNCHES_AT_ONCE]:
        draft.forget(node)
