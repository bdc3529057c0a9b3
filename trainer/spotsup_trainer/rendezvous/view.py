"""What a launcher knows of its job when it decides: the settings, and the job's keys as it sees them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from spotsup_trainer.wire import Done, Hint, Member, Result, Round, RoundMember


@dataclass(frozen=True)
class Rules:
    """A launcher's settings, from its command line."""

    # Both hold unless a hint says otherwise.
    min_nodes: int
    max_nodes: int
    # How many rounds may end by the program's own failure; None for any number. A hint may say otherwise, too.
    app_failures: int | None = None
    # A round has a multiple of so many nodes, unless a hint says otherwise.
    multiple_of: int = 1
    # Without a hint, a round closes once nothing has changed for this long: launchers that start together join it.
    settle_s: float = 0.3
    # The same while a hinted member has not come yet.
    absent_settle_s: float = 1.0


@dataclass(frozen=True)
class View:
    """The job's keys as one launcher sees them. Times are of one monotonic clock."""

    rules: Rules
    # The member keys that exist, by node.
    members: Mapping[str, Member]
    round: Round | None = None
    hint: Hint | None = None
    # Nodes with a tombstone.
    tombstones: frozenset[str] = frozenset()
    result: Result | None = None
    # When any of the above last changed.
    changed_at: float = 0.0
    # After an outage, leases may have ended although their launchers live, and etcd may have lost its data. Until this
    # time a missing key is not a loss, and a missing hint does not mean that there is no daemon.
    grace_until: float = -math.inf
    # When each member appeared, if that was observed.
    since: Mapping[str, float] = field(default_factory=dict)
    # Members without a key that still run in the round, by its store (heartbeat.py): only etcd is out of their reach.
    heard: frozenset[str] = frozenset()
    # By node, in which round its workers last ended well.
    done: Mapping[str, Done] = field(default_factory=dict)


def bounds(view: View) -> tuple[int, int]:
    """Return how many nodes a round has, at least and at most."""
    source = view.hint or view.rules
    return source.min_nodes, source.max_nodes


def multiple_of(view: View) -> int:
    """Return the multiple: a round has a multiple of so many nodes."""
    return max(1, (view.hint or view.rules).multiple_of)


def live(view: View) -> dict[str, Member]:
    """Members whose key exists and who have no tombstone, by node."""
    return {node: member for node, member in view.members.items() if node not in view.tombstones}


def unhealthy(view: View) -> frozenset[str]:
    """Live nodes whose GPUs cannot train, as their own agents found.

    Not believed of more than one node and more than a tenth at once: then it is the check that does not work.
    """
    here = live(view)
    found = frozenset(node for node, member in here.items() if member.unhealthy)
    return found if len(found) <= max(1, len(here) // 10) else frozenset()


def is_in(current: Round, member: Member) -> bool:
    """True if a round has this start of a launcher."""
    return current.incarnations.get(member.node) == member.incarnation


def is_same(one: RoundMember, other: Member | None) -> bool:
    """True if a member of a round is still there, with the same start of its launcher."""
    return other is not None and (one.node, one.incarnation) == (other.node, other.incarnation)


def is_done(view: View, current: Round, one: RoundMember) -> bool:
    """True if all workers of a member of the round have ended well. It may be gone since."""
    said, found = view.done.get(one.node), view.members.get(one.node)
    announced = said is not None and (said.round, said.incarnation) == (current.number, one.incarnation)
    return announced or (found is not None and found.state == "done" and is_same(one, found))


def dispensable(view: View, current: Round) -> frozenset[str]:
    """Return the members that the round goes on without: their workers have ended well, and its store is elsewhere."""
    return frozenset(each.node for each in current.members[1:] if is_done(view, current, each))
