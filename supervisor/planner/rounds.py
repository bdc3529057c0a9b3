"""Who shall be in the round: the hint, tombstones, and make before break."""

from __future__ import annotations

from spotsup_trainer.wire import Hint, Tombstone, encode

from supervisor.model import EventKind, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.fleet import release

N = NodeState
_NEARLY_READY = (N.REQUESTED, N.PENDING, N.BOOTING, N.BOOTSTRAPPING)


def drive_rounds(draft: Draft) -> None:
    """Tell of a new round, bury the lost, and publish who is expected next."""
    _tell_of_round(draft)
    _bury(draft)
    if draft.job.ended or draft.view.result is not None:
        return
    chosen = _choose(draft)
    current = draft.view.hint
    if current is None or _worth_changing(draft, current, chosen):
        _publish(draft, current, chosen)
    elif draft.job.gathering_since and set(chosen) == set(current.members):
        draft.set_job(gathering_since=0.0)
    _retire_doomed(draft)


def _tell_of_round(draft: Draft) -> None:
    current = draft.view.round
    if current is None or current.number <= draft.job.round_seen:
        return
    draft.set_job(round_seen=current.number)
    draft.tell(
        EventKind.ROUND,
        f"round {current.number} formed by {len(current.members)} nodes: {current.reason or 'first'}",
        formed_at=current.formed_at,
        nodes=len(current.members),
        round=current.number,
    )


def _bury(draft: Draft) -> None:
    """A tombstone spares everyone the wait for a lease."""
    for node in draft.in_states(N.LOST, N.TERMINATING):
        if node.taken and node.joined and node.id not in draft.view.tombstones:
            reason = node.history[-1].reason if node.history else "lost"
            draft.say(draft.keys.gone(draft.job.name, node.id), encode(Tombstone(node.id, reason, draft.now)))


# -- the next membership -----------------------------------------------------------------------------------


def _choose(draft: Draft) -> tuple[str, ...]:
    """Healthy nodes first, members before newcomers; doomed ones only while nobody else can take their place."""
    order = draft.view.round.nodes() if draft.view.round else ()
    ranks = {node: rank for rank, node in enumerate(order)}
    usable = draft.in_states(N.READY, N.MEMBER)
    usable.sort(key=lambda node: ranks.get(node.id, len(ranks)))
    healthy = [node.id for node in usable if not node.doomed]
    doomed = [node.id for node in usable if node.id in ranks and node.doomed and not must_leave(draft, node)]
    return tuple((healthy + doomed)[: draft.job.desired_nodes])


def must_leave(draft: Draft, node: NodeRecord) -> bool:
    """Whether a doomed node's time has come: what is left is needed for the checkpoint."""
    return node.notice is not None and draft.now >= node.notice.deadline - draft.rules.leave_margin_s


def _worth_changing(draft: Draft, current: Hint, chosen: tuple[str, ...]) -> bool:
    """Whether to change the round now, or to wait for newcomers that are nearly ready: one pause instead of two."""
    if set(chosen) == set(current.members):
        return (current.min_nodes, current.max_nodes) != (draft.job.min_nodes, draft.job.max_nodes)
    if not current.members and len(chosen) < draft.job.min_nodes:
        return False
    if any(node not in chosen and _cannot_stay(draft, node) for node in current.members):
        return True
    return not _gathering(draft, first=not current.members)


def _cannot_stay(draft: Draft, node_id: str) -> bool:
    """A member that is out of the round already, or must be: there is nothing to gather for."""
    node = draft.nodes.get(node_id)
    return node is None or node.state not in {N.READY, N.MEMBER} or must_leave(draft, node)


def _gathering(draft: Draft, *, first: bool) -> bool:
    """Newcomers are ready, others nearly: wait for them, at most `gather_s` and never past a doomed node's time."""
    # For the first round a request is as good as a machine; later, a cloud without capacity must not hold anyone up.
    nearly = draft.in_states(*(_NEARLY_READY if first else (N.BOOTING, N.BOOTSTRAPPING)))
    if not any(not node.doomed for node in nearly):
        return False
    if not draft.job.gathering_since:
        draft.set_job(gathering_since=draft.now)
    return draft.now - draft.job.gathering_since < draft.rules.gather_s


def _publish(draft: Draft, current: Hint | None, chosen: tuple[str, ...]) -> None:
    if current is None:
        # The first hint is empty: without it launchers would think that no daemon is there, and form by themselves.
        hint = Hint((), draft.job.min_nodes, draft.job.max_nodes, "waiting for nodes")
    else:
        hint = Hint(chosen, draft.job.min_nodes, draft.job.max_nodes, _why(current, chosen))
    draft.say(draft.keys.hint(draft.job.name), encode(hint))
    if draft.job.gathering_since:
        draft.set_job(gathering_since=0.0)


def _why(current: Hint, chosen: tuple[str, ...]) -> str:
    joins = [node for node in chosen if node not in current.members]
    leaves = [node for node in current.members if node not in chosen]
    parts = [f"{', '.join(joins)} join" if joins else "", f"{', '.join(leaves)} leave" if leaves else ""]
    return " and ".join(part for part in parts if part) or "limits changed"


def _retire_doomed(draft: Draft) -> None:
    """A doomed node that the hint does not name any more drains; one that never joined is let go at once."""
    chosen = set(_choose(draft))
    hint = draft.view.hint
    named = set(hint.members) if hint else set()
    for node in draft.in_states(N.PENDING, N.BOOTING, N.BOOTSTRAPPING, N.READY, N.MEMBER):
        if not node.doomed or node.id in chosen:
            continue
        if node.state is not N.MEMBER or node.id not in named:
            release(draft, node, "its provider takes it")
