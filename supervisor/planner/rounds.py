"""Who is to be in the round, and who waits outside: the hint, tombstones, and make before break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from spotsup_trainer.wire import Hint, Tombstone, encode

from supervisor.events import EventKind
from supervisor.model import IN_FLIGHT_NODE_STATES, NodeRecord, NodeState
from supervisor.planner.draft import Draft
from supervisor.planner.predicates import done, in_round, is_kept, may_be_in_round, must_leave, place
from supervisor.planner.release import retire_doomed
from supervisor.planner.sentences import named, node_count

N = NodeState


def drive_rounds(draft: Draft) -> None:
    """Report a new round, write tombstones for lost nodes, and publish who is expected next."""
    _report_round(draft)
    _write_tombstones(draft)
    if draft.job.ended:
        return
    if draft.job.pause.at:
        _hold(draft)
        return
    chosen, current = _choose(draft), draft.view.hint
    if current is None:
        # The first hint is empty: without one, launchers would take the daemon for absent, and form by themselves.
        _publish(draft, _hint(draft, (), "waiting for nodes"))
    elif len(chosen) < draft.job.min_nodes and (leaving := _leaving(draft)):
        # Without them no round forms, so launchers would train on until the machines end. Their own agents may know
        # of no notice: a metadata service that is away tells them nothing.
        why = (
            f"{_verb(leaving, 'leave')}; a checkpoint, then {len(chosen)} of at least {draft.job.min_nodes} nodes wait"
        )
        _publish(draft, replace(_hint(draft, chosen, why), hold=True))
    elif _worth_changing(draft, current, chosen):
        spares = _spares(draft, chosen)
        _publish(draft, _hint(draft, chosen, _why(current, chosen), spares))
        draft.set_part(replace(draft.job.rounds, gathering_since=0.0))
    else:
        # A change among the spares stops no node in the round.
        spares = _spares(draft, current.members)
        if spares != current.spares:
            _publish(draft, replace(current, spares=spares))
        if set(chosen) == set(current.members):
            draft.set_part(replace(draft.job.rounds, gathering_since=0.0))
    retire_doomed(draft, chosen)


def _hold(draft: Draft) -> None:
    """Hold a job that is to pause: all nodes checkpoint together, and no round forms until the hint changes."""
    current = draft.view.hint or _hint(draft, (), "")
    _publish(draft, replace(current, reason="the job is paused", hold=True))


def _leaving(draft: Draft) -> list[str]:
    """Return nodes of the current round whose provider takes them so soon that all should checkpoint now."""
    nodes, ended = draft.in_states(N.MEMBER, N.DRAINING), done(draft)
    nodes = [node for node in nodes if node.id not in ended]
    return [node.id for node in nodes if in_round(draft, node) and must_leave(draft, node)]


def _report_round(draft: Draft) -> None:
    current = draft.view.round
    if current is None or current.number <= draft.job.rounds.reported:
        return
    draft.set_part(replace(draft.job.rounds, reported=current.number))
    draft.add_event(
        EventKind.ROUND,
        f"round {current.number} formed by {node_count(len(current.members))}: {current.reason or 'first'}",
        formed_at=current.formed_at,
        nodes=len(current.members),
        round=current.number,
    )


def _write_tombstones(draft: Draft) -> None:
    """Write tombstones. A tombstone saves a lost node's peers the wait for its lease to expire."""
    for node in draft.in_states(N.LOST, N.TERMINATING):
        if draft.full:
            return
        if node.needs_replacement and node.has_joined and node.id not in draft.view.tombstones:
            reason = node.history[-1].reason if node.history else "lost"
            key = draft.keys.tombstone(draft.job.name, node.id)
            draft.put_key(key, encode(Tombstone(node.id, reason, draft.now)))


# -- the next membership -----------------------------------------------------------------------------------


def _choose(draft: Draft) -> tuple[str, ...]:
    """Healthy nodes first, members before newcomers; doomed members only while no other node can take their place.

    A spare that has stepped in by itself is a member like any other: the node it stands in for comes after it.
    """
    healthy = _healthy(draft)
    ready = [node for node in draft.in_states(N.READY) if not node.ahead]
    members = sorted(draft.in_states(N.MEMBER), key=_rank(draft))
    ended = done(draft)  # none will take their place
    doomed = [node.id for node in members if node.doomed and node.id not in ended and not must_leave(draft, node)]
    with_launcher = set(healthy)
    without_launcher = [node.id for node in ready if not node.doomed and node.id not in with_launcher]
    found = _in_one_place(draft, healthy + doomed + without_launcher, healthy)
    count = min(len(found), draft.job.desired_nodes)
    return tuple(found[: count - count % draft.job.spec.nodes.multiple_of])


def _in_one_place(draft: Draft, nodes: list[str], healthy: list[str]) -> list[str]:
    """Return those of the place that has most of them; of two, the one that has more that stay. The others are
    elsewhere because all nodes of one place are doomed: the job moves once they have to leave, or as many are ready
    (P8). One that has decided to move does so even if it has lost some of the new nodes since, while enough are
    left."""
    places = Counter(place(draft, node) for node in nodes)
    if len(places) <= 1:
        return nodes
    staying = Counter(place(draft, node) for node in healthy)
    desired = draft.job.desired_nodes
    moves = any(draft.nodes[node].left_behind for node in nodes)

    def worth(each: str) -> tuple[bool, int, int]:
        return moves and staying[each] >= draft.job.min_nodes, min(places[each], desired), staying[each]

    chosen = max(places, key=worth)
    return [node for node in nodes if place(draft, node) == chosen]


def _healthy(draft: Draft) -> list[str]:
    """Members by rank, then nodes whose launcher waits, oldest first.

    A ready node's agent alone is not enough: it may be restarting its launcher.
    """
    staying = [node for node in draft.in_states(N.READY, N.MEMBER) if is_kept(node)]
    usable = [node for node in staying if node.state is N.MEMBER or node.id in draft.view.members]
    usable += [node for node in draft.in_states(N.SUSPECT) if may_be_in_round(draft, node)]
    return [node.id for node in sorted(usable, key=_rank(draft))]


def _rank(draft: Draft) -> Callable[[NodeRecord], int]:
    """Return a node's rank in the round. Nodes outside it come last, and a sort leaves them in their order."""
    ranks = {node: rank for rank, node in enumerate(draft.view.round.nodes() if draft.view.round else ())}
    return lambda node: ranks.get(node.id, len(ranks))


def _spares(draft: Draft, members: tuple[str, ...]) -> tuple[str, ...]:
    """Return nodes that wait outside a round of these members; one that has stepped in by itself comes first. Nodes
    that do not make up the next multiple wait as spares do."""
    inside = set(members)
    here = place(draft, members[0]) if members else ""
    outside = [node for node in _healthy(draft) if node not in inside and place(draft, node) == here]
    left_over = min(draft.job.spec.nodes.multiple_of - 1, max(0, draft.job.desired_nodes - len(members)))
    return tuple(outside[: draft.job.spare_nodes + left_over]) if members else ()


def _worth_changing(draft: Draft, current: Hint, chosen: tuple[str, ...]) -> bool:
    """True if to change the round now, or to wait for newcomers that are nearly ready: one pause instead of two."""
    if current.hold:
        return True
    if set(chosen) == set(current.members):
        before = (current.min_nodes, current.max_nodes, current.app_failures)
        return before != (draft.job.min_nodes, draft.job.max_nodes, draft.job.spec.limits.app_failures)
    if not current.members and len(chosen) < draft.job.min_nodes:
        return False
    if any(_cannot_stay(draft, node) for node in current.members):
        return True
    if len(chosen) == draft.job.desired_nodes and set(chosen) <= set(_healthy(draft)):
        return True  # the round is full: nodes that are nearly ready will be spares
    return not _gathering(draft, first=not current.members)


def _cannot_stay(draft: Draft, node_id: str) -> bool:
    """True for a member that is out of the round already, or has to leave it: there is nothing to gather for."""
    node = draft.nodes.get(node_id)
    if node is None:
        return True
    stays = node.state in {N.READY, N.MEMBER} or may_be_in_round(draft, node)
    return not stays or must_leave(draft, node)


def _gathering(draft: Draft, *, first: bool) -> bool:
    """True if to wait for nodes that are nearly ready: for at most `gather_s`, and never past a doomed node's time."""
    # For the first round a request is as good as a machine; later, a cloud without capacity must not delay the round.
    nearly_ready = draft.in_states(*(IN_FLIGHT_NODE_STATES if first else (N.BOOTING, N.BOOTSTRAPPING)))
    if not any(is_kept(node) for node in nearly_ready):
        return False
    if not draft.job.rounds.gathering_since:
        draft.set_part(replace(draft.job.rounds, gathering_since=draft.now))
    return draft.now - draft.job.rounds.gathering_since < draft.rules.gather_s


def _hint(draft: Draft, members: tuple[str, ...], reason: str, spares: tuple[str, ...] = ()) -> Hint:
    job, spec = draft.job, draft.job.spec
    failures, multiple = spec.limits.app_failures, spec.nodes.multiple_of
    return Hint(members, job.min_nodes, job.max_nodes, reason, spares, app_failures=failures, multiple_of=multiple)


def _publish(draft: Draft, hint: Hint) -> None:
    if hint != draft.view.hint:
        draft.put_key(draft.keys.hint(draft.job.name), encode(hint))


def _why(current: Hint, chosen: tuple[str, ...]) -> str:
    joins = [node for node in chosen if node not in current.members]
    leaves = [node for node in current.members if node not in chosen]
    parts = [_verb(joins, "join"), _verb(leaves, "leave")]
    return " and ".join(part for part in parts if part) or ("a user resumed it" if current.hold else "limits changed")


def _verb(nodes: list[str], verb: str) -> str:
    return f"{named(nodes)} {verb}{'s' if len(nodes) == 1 else ''}" if nodes else ""
