"""Who shall be in the round, and who waits outside: the hint, tombstones, and make before break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
    if draft.job.ended:
        return
    if draft.job.pause_requested_at:
        _hold(draft)
        return
    chosen, current = _choose(draft), draft.view.hint
    if current is None:
        # The first hint is empty: without it launchers would think that no daemon is there, and form by themselves.
        _publish(draft, Hint((), draft.job.min_nodes, draft.job.max_nodes, "waiting for nodes"))
    elif _worth_changing(draft, current, chosen):
        spares = _spares(draft, chosen)
        _publish(draft, Hint(chosen, draft.job.min_nodes, draft.job.max_nodes, _why(current, chosen), spares))
        draft.set_job(gathering_since=0.0)
    else:
        # Who waits outside is no reason for anybody in the round to stop.
        spares = _spares(draft, current.members)
        if spares != current.spares:
            _publish(draft, replace(current, spares=spares))
        if set(chosen) == set(current.members):
            draft.set_job(gathering_since=0.0)
    _retire_doomed(draft, chosen)


def _hold(draft: Draft) -> None:
    """Its job is paused: all checkpoint together, and no round forms until the hint is another one."""
    current = draft.view.hint or Hint((), draft.job.min_nodes, draft.job.max_nodes)
    _publish(draft, replace(current, reason="the job is paused", hold=True))


def _tell_of_round(draft: Draft) -> None:
    current = draft.view.round
    if current is None or current.number <= draft.job.last_reported_round:
        return
    draft.set_job(last_reported_round=current.number)
    draft.add_event(
        EventKind.ROUND,
        f"round {current.number} formed by {len(current.members)} nodes: {current.reason or 'first'}",
        formed_at=current.formed_at,
        nodes=len(current.members),
        round=current.number,
    )


def _bury(draft: Draft) -> None:
    """A tombstone spares everyone the wait for a lease."""
    for node in draft.in_states(N.LOST, N.TERMINATING):
        if draft.full:
            return
        if node.needs_replacement and node.has_joined and node.id not in draft.view.tombstones:
            reason = node.history[-1].reason if node.history else "lost"
            draft.put_key(draft.keys.tombstone(draft.job.name, node.id), encode(Tombstone(node.id, reason, draft.now)))


# -- the next membership -----------------------------------------------------------------------------------


def _choose(draft: Draft) -> tuple[str, ...]:
    """Healthy nodes first, members before newcomers; doomed ones only while nobody else can take their place.

    A spare that has stepped in by itself is a member like any other: whoever it stands in for comes after it.
    """
    healthy = _healthy(draft)
    ready, members = draft.in_states(N.READY), sorted(draft.in_states(N.MEMBER), key=_rank(draft))
    doomed = [node.id for node in members if node.doomed and not must_leave(draft, node)]
    absent = [node.id for node in ready if not node.doomed and node.id not in healthy]
    return tuple((healthy + doomed + absent)[: draft.job.desired_nodes])


def _healthy(draft: Draft) -> list[str]:
    """Members by rank, then nodes whose launcher waits, oldest first.

    An agent alone is not enough: it may be starting its launcher anew.
    """
    found = [node for node in draft.in_states(N.READY, N.MEMBER) if not node.doomed]
    there = [node for node in found if node.state is N.MEMBER or node.id in draft.view.members]
    return [node.id for node in sorted(there, key=_rank(draft))]


def _rank(draft: Draft) -> Callable[[NodeRecord], int]:
    """Where a node is in the round; whoever is not in it comes last, and a sort leaves these in their order."""
    ranks = {node: rank for rank, node in enumerate(draft.view.round.nodes() if draft.view.round else ())}
    return lambda node: ranks.get(node.id, len(ranks))


def _spares(draft: Draft, members: tuple[str, ...]) -> tuple[str, ...]:
    """Who waits outside a round of these; first of all, who has stepped in by itself already."""
    outside = [node for node in _healthy(draft) if node not in members]
    return tuple(outside[: draft.job.spare_nodes]) if members else ()


def must_leave(draft: Draft, node: NodeRecord) -> bool:
    """Whether a doomed node's time has come: what is left is needed for the checkpoint."""
    return node.notice is not None and draft.now >= node.notice.deadline - draft.rules.leave_margin_s


def _worth_changing(draft: Draft, current: Hint, chosen: tuple[str, ...]) -> bool:
    """Whether to change the round now, or to wait for newcomers that are nearly ready: one pause instead of two."""
    if current.hold:
        return True
    if set(chosen) == set(current.members):
        return (current.min_nodes, current.max_nodes) != (draft.job.min_nodes, draft.job.max_nodes)
    if not current.members and len(chosen) < draft.job.min_nodes:
        return False
    if any(_cannot_stay(draft, node) for node in current.members):
        return True
    if len(chosen) == draft.job.desired_nodes and set(chosen) <= set(_healthy(draft)):
        return True  # nobody better will come: what is nearly ready will be spare
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


def _publish(draft: Draft, words: Hint) -> None:
    if words != draft.view.hint:
        draft.put_key(draft.keys.hint(draft.job.name), encode(words))


def _why(current: Hint, chosen: tuple[str, ...]) -> str:
    joins = [node for node in chosen if node not in current.members]
    leaves = [node for node in current.members if node not in chosen]
    parts = [f"{', '.join(joins)} join" if joins else "", f"{', '.join(leaves)} leave" if leaves else ""]
    return " and ".join(part for part in parts if part) or ("a user resumed it" if current.hold else "limits changed")


def _retire_doomed(draft: Draft, chosen: tuple[str, ...]) -> None:
    """A doomed node that the hint does not name any more drains; one that never joined is let go at once."""
    hint = draft.view.hint
    named = {*hint.members, *hint.spares} if hint else set()
    for node in draft.in_states(N.REQUESTED, N.PENDING, N.BOOTING, N.BOOTSTRAPPING, N.READY, N.MEMBER):
        if not node.doomed or node.id in chosen or draft.full:
            continue
        if node.state is not N.MEMBER or node.id not in named:
            release(draft, node, "its provider takes it" if node.notice else "a user drains it")
