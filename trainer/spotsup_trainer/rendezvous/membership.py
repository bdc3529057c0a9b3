"""Which nodes form the next round, and whether a running member may go on. Pure: no I/O, no clock, no randomness.

Every launcher evaluates these functions on its own copy of the job's keys. Copies may lag; safety comes from writing
the round by a compare-and-swap on the copy that the decision was made from, not from here.

`Member.round` is the last round that the member took part in. A member that is `waiting` with the current round's
number has left that round; one with a smaller number has not yet seen that it is in it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Union

from spotsup_trainer.rendezvous import history
from spotsup_trainer.rendezvous.view import (
    View,
    bounds,
    dispensable,
    is_done,
    is_in,
    is_same,
    live,
    multiple_of,
    unhealthy,
)
from spotsup_trainer.wire import Hint, Member, Result, Round, RoundMember

_PROBLEM_CHARS = 400


@dataclass(frozen=True)
class Close:
    """Write this round."""

    round: Round


@dataclass(frozen=True)
class Wait:
    """No round yet. Ask again when a key changes, or at `until`."""

    reason: str
    until: float = math.inf
    # The node that will have rank 0 in the next round, as it looks now; "" if none is known.
    first: str = field(default="", compare=False)


@dataclass(frozen=True)
class Finish:
    """The job is over: write this result."""

    result: Result


@dataclass(frozen=True)
class Stay:
    """Go on in this round."""


@dataclass(frozen=True)
class Yield:
    """Checkpoint together at the next step, then form a new round."""

    reason: str


@dataclass(frozen=True)
class Broken:
    """The round cannot go on: stop the workers, then form a new round."""

    reason: str
    # lost: a member vanished. stopped: a member's workers stopped without a checkpoint. moved: the others formed
    # another round without this node, which must stop writing.
    cause: Literal["lost", "stopped", "moved"]


@dataclass(frozen=True)
class Over:
    """The job has ended, or ends now because every member's program ended well."""

    result: Result


Decision = Union[Close, Wait, Finish]
Standing = Union[Stay, Yield, Broken, Over]


def target(view: View, waiting: Collection[str] = ()) -> tuple[Member, ...]:
    """Return the members that should be in the next round, in rank order, whatever their state now.

    These are the hinted nodes (without a hint, all nodes) that are live and healthy, do not leave and are not in
    `waiting`, and spares for hinted ones that were lost or leave. Survivors of the last round keep their order;
    newcomers follow in the hint's order, else by node id. Never more than the maximum, and the largest multiple of what
    the job asks for. A node whose workers outlive SIGKILL does not stay.
    """
    before = {node: rank for rank, node in enumerate(view.round.nodes())} if view.round else {}
    named = (*view.hint.members, *view.hint.spares) if view.hint else ()
    hinted = {node: index for index, node in enumerate(named)}

    def order(member: Member) -> tuple[bool, int, str]:
        newcomer = member.node not in before
        index = hinted.get(member.node, 0) if newcomer else before[member.node]
        return newcomer, index, member.node

    going = _going(view)
    staying = {node: member for node, member in live(view).items() if node not in going and node not in waiting}
    chosen = list(staying.values()) if view.hint is None else _hinted(view.hint, staying, going, view)
    count = min(len(chosen), bounds(view)[1])
    return tuple(sorted(chosen, key=order)[: count - count % multiple_of(view)])


def _going(view: View) -> set[str]:
    """Live nodes that cannot be in the next round, nor come back to one soon."""
    leaving = {node for node, member in live(view).items() if member.state in {"leaving", "stopping"}}
    return leaving | unhealthy(view)


def _hinted(hint: Hint, staying: Mapping[str, Member], going: Collection[str], view: View) -> list[Member]:
    """Return the hinted members that stay, and a spare for each that the last round lost, or that goes.

    A late newcomer is not replaced by a spare: the round would have to change again when it comes. A spare that has
    stepped in stays, although the round that it joined no longer names the lost member.
    """
    members = [staying[node] for node in hint.members if node in staying]
    before = set(view.round.nodes()) if view.round else set()
    spares = [staying[node] for node in hint.spares if node in staying and node not in hint.members]
    stand_ins = [spare for spare in spares if spare.node in before]
    lost = {node for node in {*hint.members, *hint.spares} & before if node not in staying}
    lost.update(node for node in hint.members if node in going)
    fresh = [spare for spare in spares if spare.node not in before][: len(lost)]
    return members + (stand_ins + fresh)[: len(hint.members) - len(members)]


def next_round(view: View, now: float, formed_at: float) -> Decision:
    """Return whether a round can be formed from `view` at `now`. `formed_at`: `now` in UNIX seconds."""
    backoffs = history.rejoin_backoffs(view, now, formed_at)
    chosen = target(view, backoffs)
    decision = _next_round(view, chosen, backoffs, now, formed_at)
    return replace(decision, first=chosen[0].node) if isinstance(decision, Wait) and chosen else decision


def writer(decision: Decision) -> str:
    """Return the node that writes what is decided first, now or once it can be; "" where none goes first."""
    if isinstance(decision, Close):
        return decision.round.nodes()[0]
    return decision.first if isinstance(decision, Wait) else ""


def _next_round(
    view: View, chosen: tuple[Member, ...], backoffs: Mapping[str, float], now: float, formed_at: float
) -> Decision:
    minimum, maximum = bounds(view)
    if view.result is not None:
        return Wait("the job has ended")
    if held := _why_held(view):
        return Wait(held)
    if len(chosen) < minimum:
        ill = "".join(f"; the GPUs of {node} are unhealthy" for node in sorted(unhealthy(view)))
        until = min(backoffs.values(), default=math.inf)
        return Wait(f"{len(chosen)} of at least {minimum} nodes are here{ill}", until)
    busy = sorted({m.node for m in chosen if not _is_ready(view, m)} | still_stopping(view))
    if busy:
        return Wait(f"{', '.join(busy)} must stop first")
    if now < view.grace_until and (missing := _missing_of_round(view)):
        return Wait(f"{', '.join(missing)} may reconnect after the etcd outage", view.grace_until)
    due = view.changed_at + _settle_s(view, full=len(chosen) == maximum)
    if now < due:
        return Wait("more nodes may join", due)
    if (left_s := history.doubt_left_s(view.round, chosen, formed_at)) > 0:
        return Wait("a node failed that may have unhealthy GPUs", now + left_s)
    return _close(view, chosen, formed_at)


def is_behind(view: View, current: Round) -> bool:
    """True if etcd holds an older round than `current`: it lost its data, or was restored from an older backup.

    Then the running round is right, and is written again; unless the hint names none of its members, because then a
    new job has this name.
    """
    if view.result is not None or (view.round is not None and view.round.number >= current.number):
        return False
    return view.hint is None or not {*view.hint.members, *view.hint.spares}.isdisjoint(current.nodes())


def standing(view: View, current: Round, node: str, now: float) -> Standing:
    """Return whether a member of `current`, whose workers run in it or have ended well, may go on.

    Of `node` itself only its tombstone counts: all members see everything else alike, and come to the same answer.
    """
    if view.result is not None:
        return Over(view.result)
    broken = _broken(view, current, node, now)
    if broken is not None:
        return broken
    states = {member.node: view.members[member.node] for member in current.members if member.node in view.members}
    done = [member.node for member in current.members if is_done(view, current, member)]
    if len(done) == len(current.members):
        problems = "; ".join(f"{name}: {m.problem}" for name, m in states.items() if m.problem)[:_PROBLEM_CHARS]
        return Over(Result("success", "the program ended well on every node", current.number, problems))
    needed = states.keys() - dispensable(view, current)
    going = [
        name
        for name, member in states.items()
        if name in needed and member.state in {"leaving", "waiting", "stopping"} and _left(member, current)
    ]
    if going:
        return Yield(f"{', '.join(going)} leaves")
    if held := _why_held(view):
        return Yield(held)
    return Stay() if done else _welcome(view, current, now)


def has_finished(view: View, current: Round) -> bool:
    """True if all workers of some member of the round have ended well."""
    return any(is_done(view, current, member) for member in current.members)


def gone(view: View, current: Round) -> frozenset[str]:
    """Return the members of a round that are not there any more (no key, a tombstone, or another start of the
    launcher), and that it does not go on without."""
    here = live(view)
    missing = frozenset(member.node for member in current.members if not is_same(member, here.get(member.node)))
    return missing - dispensable(view, current)


def hangs(view: View, current: Round) -> bool:
    """True if the steps of the round hang: no rank of any member gives a sign of life."""
    found = (view.members.get(m.node) for m in current.members)
    return all(m is not None and m.state == "running" and m.stalled_since > 0 for m in found)


def _left(member: Member, current: Round) -> bool:
    return member.state == "leaving" or member.round >= current.number


def _broken(view: View, current: Round, node: str, now: float) -> Broken | None:
    if node in view.tombstones:
        return Broken(f"{node} has a tombstone", "moved")
    newest = view.round
    if newest is not None and newest != current and not is_behind(view, current):
        return Broken(f"round {newest.number} was formed meanwhile", "moved")
    spared = dispensable(view, current)
    for member in current.members:
        if member.node in spared:
            continue
        found = view.members.get(member.node)
        if member.node in view.tombstones:
            return Broken(f"{member.node} is gone", "lost")
        if found is None:
            # A single member goes on without its key until another round is formed.
            if now < view.grace_until or member.node in view.heard or len(current.members) == 1:
                continue
            return Broken(f"{member.node} is lost", "lost")
        if found.incarnation != member.incarnation:
            return Broken(f"the launcher of {member.node} has restarted", "lost")
        if found.state in {"waiting", "stopping"} and found.round >= current.number and not found.parked:
            return Broken(f"{member.node} has stopped: {_why(found)}", "stopped")
    return None


def _why(member: Member) -> str:
    if member.unhealthy:
        return f"its GPUs are unhealthy ({member.unhealthy})"
    return "its program failed" if member.failure else "its round broke"


def _welcome(view: View, current: Round, now: float) -> Standing:
    """Return whether to yield to a different set of members. Running nodes never stop for a node that is not ready
    yet."""
    chosen = target(view, history.rejoin_backoffs(view, now))
    members = {member.node for member in current.members}
    if not members <= view.members.keys() or view.round is None or view.round.number < current.number:
        return Stay()  # in the grace period: they may reconnect, and the round be written again
    newcomers = [member for member in chosen if member.node not in members]
    if {member.node for member in chosen} == members or len(chosen) < bounds(view)[0]:
        return Stay()
    if not all(_is_ready(view, member) for member in newcomers):
        return Stay()
    if view.hint is None and now < max(view.changed_at + view.rules.settle_s, view.grace_until):
        return Stay()
    if newcomers:
        return Yield(f"{', '.join(member.node for member in newcomers)} joins")
    dropped = sorted(members - {member.node for member in chosen})
    return Yield(f"without {', '.join(dropped)}: {view.hint.reason if view.hint else 'fewer nodes allowed'}")


def _why_held(view: View) -> str:
    """Return why the daemon lets no round run or form: the job is paused, or too few nodes are left. "" while it
    does."""
    hint = view.hint
    return (hint.reason or "the daemon holds the job") if hint is not None and hint.hold else ""


def _is_ready(view: View, member: Member) -> bool:
    """True if a member waits for the round after the current one, not for the current one itself."""
    if member.state != "waiting":
        return False
    return view.round is None or member.round >= view.round.number or not is_in(view.round, member)


def still_stopping(view: View) -> set[str]:
    """Members of the last round that still run, whatever they do next: their checkpoint may not be complete yet.

    Bounded by their leases, and by the time that a launcher gives its workers to stop. Members that only etcd cannot
    hear train on for as long as they can.
    """
    if view.round is None:
        return set()
    members = {node: member for node, member in live(view).items() if is_in(view.round, member)}
    stopping = {node for node, m in members.items() if not (_is_ready(view, m) or _is_out(m))}
    return stopping | (view.heard & set(view.round.nodes()) - view.tombstones)


def _is_out(member: Member) -> bool:
    return (member.state == "leaving" and member.parked) or member.state == "stopping"


def _missing_of_round(view: View) -> list[str]:
    members = view.round.nodes() if view.round else ()
    return [node for node in members if node not in view.tombstones and node not in view.members]


def _settle_s(view: View, *, full: bool) -> float:
    if full:
        return 0.0
    if view.hint is None:
        return view.rules.settle_s
    # A missing member of the last round was waited for already: until its lease ended.
    known = view.tombstones | view.members.keys() | set(view.round.nodes() if view.round else ())
    return view.rules.absent_settle_s if set(view.hint.members) - known else 0.0


def _close(view: View, chosen: tuple[Member, ...], formed_at: float) -> Close | Finish:
    last = view.round
    doubtful = history.doubtful_failures(last, chosen)
    failed = history.failed_member(last, chosen, dispensable(view, last)) if last and not doubtful else None
    checkpoints, before = history.progress(last, chosen, failed)
    failures = before + (1 if failed else 0)
    hinted = view.hint.app_failures if view.hint else None
    allowed = view.rules.app_failures if hinted is None else hinted
    if last and failed and allowed is not None and (verdict := history.verdict(last, failed, failures, allowed)):
        return Finish(Result("failure", verdict, last.number))
    number = 1 + max([last.number if last else 0, *(member.round for member in chosen)])
    return Close(
        Round(
            number=number,
            members=tuple(RoundMember(m.node, m.incarnation, m.addr, m.store_port) for m in chosen),
            formed_at=formed_at,
            reason=history.reason(last, chosen, failed=failed is not None),
            app_failures=failures,
            checkpoints=0 if failed else checkpoints,
            last_failure=failed.failure if failed else (last.last_failure if last else None),
            recent_losses=history.losses(view, formed_at),
            recent_hangs=history.hangs(last, chosen, formed_at),
            doubtful_failures=doubtful,
        )
    )
