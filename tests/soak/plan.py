"""The soak's membership changes, drawn at random. Pure: equal seeds draw equal plans.

Each change is over before the next begins, so the plan knows the members after each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

MAX_MEMBERS = 5
_MAX_STEPS = 25
_MAX_DELAY_S = 0.5
_AT_ONCE_S = 0.1
_DECKS = 10_000
_SPARE_AT_HAND = 0.6


class Kind(StrEnum):
    """Kinds of membership changes."""

    WORKER = "a worker is killed"
    LAUNCHER = "a launcher is killed"
    SERVER = "a fork server is killed"
    LOST = "a node is lost"
    TWO = "two nodes are lost at once"
    REFORMING = "a node is lost while others re-form"
    ALL = "all nodes are lost"
    FROZEN = "a node freezes, and comes back"
    FENCED = "a frozen node is given up, then thaws"
    SPARE_LOST = "a spare is lost"
    LEAVES = "a node leaves in order"
    LEAVE_AND_LOSS = "a node leaves, another is lost"
    NOTICE = "a notice; replaced in time"
    DEADLINE = "a notice; not replaced"
    JOINS = "a node joins"
    JOIN_AND_LOSS = "a node joins, another is lost"
    JOIN_AND_LEAVE = "a node joins, another leaves"
    JOIN_AND_WORKER = "a node joins, a worker is killed"
    NEWCOMER_LOST = "a node is lost while it joins"
    GROWS = "scaled up by two"
    SHRINKS = "scaled down by one"
    UNHINTED = "a node leaves the hint, and waits"


_GROWTH = {
    **dict.fromkeys([Kind.JOINS, Kind.JOIN_AND_LOSS, Kind.JOIN_AND_LEAVE, Kind.JOIN_AND_WORKER], 1),
    Kind.NEWCOMER_LOST: 1,
    Kind.GROWS: 2,
}
_LOSS = {
    **dict.fromkeys([Kind.LAUNCHER, Kind.SERVER, Kind.FROZEN, Kind.NOTICE, Kind.LOST, Kind.FENCED, Kind.LEAVES], 1),
    **dict.fromkeys([Kind.DEADLINE, Kind.SHRINKS, Kind.UNHINTED], 1),
    **dict.fromkeys([Kind.TWO, Kind.REFORMING, Kind.LEAVE_AND_LOSS], 2),
}
# A hinted member is lost or leaves, and the hint does not change: a spare takes its place, if one exists.
_SPARE_STEPS_IN = frozenset(
    {
        *(Kind.LOST, Kind.TWO, Kind.REFORMING, Kind.FENCED, Kind.LEAVES, Kind.LEAVE_AND_LOSS, Kind.DEADLINE),
        *(Kind.JOIN_AND_LOSS, Kind.JOIN_AND_LEAVE),
    }
)
# Drawn twice as often, because most kinds take nodes away.
_OFTEN = (Kind.JOINS, Kind.GROWS)
# These may lose no completed step (P9).
ORDERLY = frozenset(
    {
        *(Kind.SPARE_LOST, Kind.LEAVES, Kind.NOTICE, Kind.DEADLINE, Kind.SHRINKS, Kind.UNHINTED),
        *(Kind.JOINS, Kind.GROWS, Kind.JOIN_AND_LEAVE),
    }
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes of the job."""

    # They train, in rank order as far as the plan can know it.
    members: tuple[str, ...]
    # Hinted as spares; they wait.
    spares: tuple[str, ...] = ()
    # Not in the hint; they wait.
    unhinted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One membership change."""

    number: int
    kind: Kind
    # The steps that the round makes before.
    steps: int
    # The nodes to which it happens, in this order, `delay_s` apart.
    victims: tuple[str, ...]
    # Nodes that are started before it, and those among them that are hinted as spares.
    fresh: tuple[str, ...]
    spares: tuple[str, ...]
    # Nodes that are added to the hint.
    joined: tuple[str, ...]
    delay_s: float
    # The provider reports each loss, and the daemon writes a tombstone at once; else the lease has to end.
    tombstoned: bool
    # A lost node closes no connection; of a node that comes back only the launcher freezes.
    silent: bool
    after: Cluster


@dataclass(frozen=True, slots=True)
class Turn:
    """The state from which a change is drawn."""

    rng: random.Random
    cluster: Cluster
    started: int

    def fresh(self, count: int) -> tuple[str, ...]:
        """Unused names."""
        return tuple(f"n{self.started + index + 1}" for index in range(count))

    def members(self, count: int) -> tuple[str, ...]:
        """Random members."""
        return tuple(self.rng.sample(self.cluster.members, count))


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a kind contributes to a Change. Spares take the places of `lost` members."""

    victims: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    delay_s: float = 0.0


def start() -> Cluster:
    """The nodes with which a job starts."""
    return Cluster(("n1", "n2", "n3"))


def draw(seed: int, count: int) -> tuple[Change, ...]:
    """The plan: all kinds in random order, again and again, each as soon as the number of nodes allows."""
    rng = random.Random(seed)
    cluster, started = start(), len(start().members)
    plan: list[Change] = []
    waiting: list[Kind] = []
    for _ in range(_DECKS):
        deck = [*Kind, *_OFTEN]
        rng.shuffle(deck)
        waiting += deck
        while len(plan) < count and (kind := next((k for k in waiting if _is_possible(k, cluster)), None)):
            waiting.remove(kind)
            change = _change(len(plan) + 1, kind, Turn(rng, cluster, started))
            plan.append(change)
            cluster, started = change.after, started + len(change.fresh)
        if len(plan) == count:
            break
    return tuple(plan)


def steady(count: int) -> tuple[Change, ...]:
    """`count` rounds of the same launchers, in turn broken and left in order: shows what launchers accumulate."""
    all_three, two = start(), Cluster(start().members[:2], unhinted=start().members[2:])
    third = two.unhinted
    turns = (
        (Kind.WORKER, all_three.members[:1], (), all_three),
        (Kind.UNHINTED, third, (), two),
        (Kind.WORKER, two.members[1:], (), two),
        (Kind.JOINS, (), third, all_three),
    )
    drawn = (turns[index % len(turns)] for index in range(count))
    return tuple(
        Change(number, kind, 1, victims, (), (), joined, delay_s=0.0, tombstoned=False, silent=False, after=after)
        for number, (kind, victims, joined, after) in enumerate(drawn, start=1)
    )


def _is_possible(kind: Kind, cluster: Cluster) -> bool:
    """At least two members remain: a single one would have nothing to agree on."""
    size = len(cluster.members)
    if kind in _GROWTH:
        return size + _GROWTH[kind] <= MAX_MEMBERS
    if kind is Kind.UNHINTED and cluster.unhinted:
        return False
    return size - _LOSS.get(kind, 0) >= 2


def _change(number: int, kind: Kind, turn: Turn) -> Change:
    drawn = _DRAW[kind](turn)
    cluster, rng = turn.cluster, turn.rng
    fresh, spares = drawn.fresh, drawn.fresh if kind is Kind.SPARE_LOST else ()
    if kind in _SPARE_STEPS_IN and not cluster.spares and rng.random() < _SPARE_AT_HAND:
        spares = turn.fresh(len(fresh) + 1)[len(fresh) :]
        fresh += spares
    return Change(
        number=number,
        kind=kind,
        steps=rng.randint(1, _MAX_STEPS),
        victims=drawn.victims,
        fresh=fresh,
        spares=spares,
        joined=drawn.joined,
        delay_s=round(drawn.delay_s, 3),
        tombstoned=rng.random() < 0.5,
        silent=rng.random() < 0.3,
        after=_after(kind, cluster, drawn, cluster.spares + spares),
    )


def _after(kind: Kind, cluster: Cluster, drawn: Drawn, spares: tuple[str, ...]) -> Cluster:
    staying = tuple(node for node in cluster.members if node not in drawn.lost)
    unhinted = tuple(node for node in cluster.unhinted if node not in drawn.joined)
    if kind is Kind.NEWCOMER_LOST:
        return cluster
    if kind in {Kind.ALL, Kind.SPARE_LOST}:
        return Cluster(staying + drawn.joined, (), unhinted)
    missing = len(drawn.lost) if kind in _SPARE_STEPS_IN else 0
    if kind is Kind.UNHINTED:
        unhinted += drawn.victims
    return Cluster(staying + drawn.joined + spares[:missing], spares[missing:], unhinted)


# -- kinds -------------------------------------------------------------------------------------------------------


def _any_member(turn: Turn) -> Drawn:
    return Drawn(victims=(turn.rng.choice(turn.cluster.members),))


def _one_back(turn: Turn) -> Drawn:
    return Drawn(victims=turn.members(1))


def _one_lost(turn: Turn) -> Drawn:
    victims = turn.members(1)
    return Drawn(victims, lost=victims)


def _two_lost(most_delay_s: float) -> Callable[[Turn], Drawn]:
    def drawn(turn: Turn) -> Drawn:
        victims = turn.members(2)
        return Drawn(victims, lost=victims, delay_s=turn.rng.uniform(0.0, most_delay_s))

    return drawn


def _all_lost(turn: Turn) -> Drawn:
    victims, fresh = turn.cluster.members, turn.fresh(2 - len(turn.cluster.unhinted))
    return Drawn(victims, fresh, lost=victims, joined=turn.cluster.unhinted + fresh)


def _spare_lost(turn: Turn) -> Drawn:
    fresh = () if turn.cluster.spares else turn.fresh(1)
    return Drawn(victims=turn.cluster.spares or fresh, fresh=fresh)


def _replaced(turn: Turn) -> Drawn:
    victims, fresh = turn.members(1), turn.fresh(1)
    return Drawn(victims, fresh, lost=victims, joined=fresh)


def _joins(turn: Turn) -> Drawn:
    """An unhinted node comes back first."""
    fresh = () if turn.cluster.unhinted else turn.fresh(1)
    return Drawn(fresh=fresh, joined=turn.cluster.unhinted[:1] or fresh)


def _join_and_loss(turn: Turn) -> Drawn:
    victims = turn.members(1)
    return replace(_joins(turn), victims=victims, lost=victims, delay_s=turn.rng.uniform(0.0, _MAX_DELAY_S))


def _join_and_worker(turn: Turn) -> Drawn:
    """The victim is a member that trains already."""
    return replace(_join_and_loss(turn), lost=())


def _newcomer_lost(turn: Turn) -> Drawn:
    fresh = turn.fresh(1)
    return Drawn(fresh, fresh, lost=fresh, joined=fresh, delay_s=turn.rng.uniform(0.0, _MAX_DELAY_S))


def _grows(turn: Turn) -> Drawn:
    fresh = turn.fresh(2 - len(turn.cluster.unhinted))
    return Drawn(fresh=fresh, joined=turn.cluster.unhinted + fresh)


_DRAW: dict[Kind, Callable[[Turn], Drawn]] = {
    Kind.WORKER: _any_member,
    Kind.LAUNCHER: _one_back,
    Kind.SERVER: _one_back,
    Kind.LOST: _one_lost,
    Kind.TWO: _two_lost(_AT_ONCE_S),
    Kind.REFORMING: _two_lost(_MAX_DELAY_S),
    Kind.ALL: _all_lost,
    Kind.FROZEN: _one_back,
    Kind.FENCED: _one_lost,
    Kind.SPARE_LOST: _spare_lost,
    Kind.LEAVES: _one_lost,
    Kind.LEAVE_AND_LOSS: _two_lost(_MAX_DELAY_S),
    Kind.NOTICE: _replaced,
    Kind.DEADLINE: _one_lost,
    Kind.JOINS: _joins,
    Kind.JOIN_AND_LOSS: _join_and_loss,
    Kind.JOIN_AND_LEAVE: _join_and_loss,
    Kind.JOIN_AND_WORKER: _join_and_worker,
    Kind.NEWCOMER_LOST: _newcomer_lost,
    Kind.GROWS: _grows,
    Kind.SHRINKS: _one_lost,
    Kind.UNHINTED: _one_lost,
}
