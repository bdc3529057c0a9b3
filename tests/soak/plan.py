"""What a soak does to its job: membership changes, drawn at random. Pure: the same seed draws the same plan.

The plan knows who trains after each change, because each is over before the next begins.
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
    """Membership changes, in words for people."""

    WORKER = "a worker is killed"
    LAUNCHER = "a launcher is killed"
    SERVER = "a fork server is killed"
    LOST = "a node is lost"
    TWO = "two nodes are lost at once"
    REFORMING = "a node is lost while others re-form"
    ALL = "all nodes are lost"
    FROZEN = "a node freezes, and comes back"
    FENCED = "a node freezes, is given up, and thaws"
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
    ASIDE = "a node is put aside, and waits"


_GROWTH = {
    **dict.fromkeys([Kind.JOINS, Kind.JOIN_AND_LOSS, Kind.JOIN_AND_LEAVE, Kind.JOIN_AND_WORKER], 1),
    Kind.NEWCOMER_LOST: 1,
    Kind.GROWS: 2,
}
_LOSS = {
    **dict.fromkeys([Kind.LAUNCHER, Kind.SERVER, Kind.FROZEN, Kind.NOTICE, Kind.LOST, Kind.FENCED, Kind.LEAVES], 1),
    **dict.fromkeys([Kind.DEADLINE, Kind.SHRINKS, Kind.ASIDE], 1),
    **dict.fromkeys([Kind.TWO, Kind.REFORMING, Kind.LEAVE_AND_LOSS], 2),
}
# Where a hinted member is lost or leaves, and the hint is not changed: a spare takes its place, if there is one.
_STOOD_IN_FOR = frozenset(
    {
        *(Kind.LOST, Kind.TWO, Kind.REFORMING, Kind.FENCED, Kind.LEAVES, Kind.LEAVE_AND_LOSS, Kind.DEADLINE),
        *(Kind.JOIN_AND_LOSS, Kind.JOIN_AND_LEAVE),
    }
)
# Most kinds take nodes away.
_OFTEN = (Kind.JOINS, Kind.GROWS)
# After these no completed step may have been lost (P9).
ORDERLY = frozenset(
    {
        *(Kind.SPARE_LOST, Kind.LEAVES, Kind.NOTICE, Kind.DEADLINE, Kind.SHRINKS, Kind.ASIDE),
        *(Kind.JOINS, Kind.GROWS, Kind.JOIN_AND_LEAVE),
    }
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Who is there. `members` train, in rank order as far as the plan can know it; `spares` are in the hint and wait;
    `aside` wait outside the hint."""

    members: tuple[str, ...]
    spares: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One membership change.

    It comes once the round has made `steps` steps. `fresh` nodes are started before it, those in `spares` are named as
    such. `joined` come into the hint; `struck`: to whom it happens, in this order, `delay_s` apart. `told`: the daemon
    has the provider's word for each loss, and writes tombstones at once; else the leases have to end. `silent`: a lost
    node only falls silent (no connection is closed), of one that comes back only the launcher freezes. `after`: who is
    there then.
    """

    number: int
    kind: Kind
    steps: int
    struck: tuple[str, ...]
    fresh: tuple[str, ...]
    spares: tuple[str, ...]
    joined: tuple[str, ...]
    delay_s: float
    told: bool
    silent: bool
    after: Cluster


@dataclass(frozen=True, slots=True)
class Turn:
    """What a change is drawn from."""

    rng: random.Random
    cluster: Cluster
    started: int

    def fresh(self, count: int) -> tuple[str, ...]:
        """Names that nobody had before."""
        return tuple(f"n{self.started + index + 1}" for index in range(count))

    def victims(self, count: int) -> tuple[str, ...]:
        """Members to lose."""
        return tuple(self.rng.sample(self.cluster.members, count))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A kind's part of a Change. `lost` members' places are taken by spares."""

    struck: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    delay_s: float = 0.0


def start() -> Cluster:
    """The nodes that a job begins with."""
    return Cluster(("n1", "n2", "n3"))


def draw(seed: int, count: int) -> tuple[Change, ...]:
    """The plan. All kinds come in turn, in random order, each as soon as there are nodes enough, and not too many."""
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
    """`count` rounds of the same launchers, so that what these pile up shows: rounds that break, and rounds that are
    left in order, in turn.
    """
    all_three, two = start(), Cluster(start().members[:2], aside=start().members[2:])
    third = two.aside
    turns = (
        (Kind.WORKER, all_three.members[:1], (), all_three),
        (Kind.ASIDE, third, (), two),
        (Kind.WORKER, two.members[1:], (), two),
        (Kind.JOINS, (), third, all_three),
    )
    drawn = (turns[index % len(turns)] for index in range(count))
    return tuple(
        Change(number, kind, 1, struck, (), (), joined, delay_s=0.0, told=False, silent=False, after=after)
        for number, (kind, struck, joined, after) in enumerate(drawn, start=1)
    )


def _is_possible(kind: Kind, cluster: Cluster) -> bool:
    """Two members are left for as long as it can be helped: one alone has nobody to agree with."""
    size = len(cluster.members)
    if kind in _GROWTH:
        return size + _GROWTH[kind] <= MAX_MEMBERS
    if kind is Kind.ASIDE and cluster.aside:
        return False
    return size - _LOSS.get(kind, 0) >= 2


def _change(number: int, kind: Kind, turn: Turn) -> Change:
    drawn = _DRAW[kind](turn)
    cluster, rng = turn.cluster, turn.rng
    fresh, spares = drawn.fresh, drawn.fresh if kind is Kind.SPARE_LOST else ()
    if kind in _STOOD_IN_FOR and not cluster.spares and rng.random() < _SPARE_AT_HAND:
        spares = turn.fresh(len(fresh) + 1)[len(fresh) :]
        fresh += spares
    return Change(
        number=number,
        kind=kind,
        steps=rng.randint(1, _MAX_STEPS),
        struck=drawn.struck,
        fresh=fresh,
        spares=spares,
        joined=drawn.joined,
        delay_s=round(drawn.delay_s, 3),
        told=rng.random() < 0.5,
        silent=rng.random() < 0.3,
        after=_after(kind, cluster, drawn, cluster.spares + spares),
    )


def _after(kind: Kind, cluster: Cluster, drawn: Drawn, spares: tuple[str, ...]) -> Cluster:
    staying = tuple(node for node in cluster.members if node not in drawn.lost)
    aside = tuple(node for node in cluster.aside if node not in drawn.joined)
    if kind is Kind.NEWCOMER_LOST:
        return cluster
    if kind in {Kind.ALL, Kind.SPARE_LOST}:
        return Cluster(staying + drawn.joined, (), aside)
    missing = len(drawn.lost) if kind in _STOOD_IN_FOR else 0
    if kind is Kind.ASIDE:
        aside += drawn.struck
    return Cluster(staying + drawn.joined + spares[:missing], spares[missing:], aside)


# -- kinds -------------------------------------------------------------------------------------------------------


def _any_member(turn: Turn) -> Drawn:
    return Drawn(struck=(turn.rng.choice(turn.cluster.members),))


def _one_back(turn: Turn) -> Drawn:
    return Drawn(struck=turn.victims(1))


def _one_lost(turn: Turn) -> Drawn:
    struck = turn.victims(1)
    return Drawn(struck, lost=struck)


def _two_lost(most_delay_s: float) -> Callable[[Turn], Drawn]:
    def drawn(turn: Turn) -> Drawn:
        struck = turn.victims(2)
        return Drawn(struck, lost=struck, delay_s=turn.rng.uniform(0.0, most_delay_s))

    return drawn


def _all_lost(turn: Turn) -> Drawn:
    struck, fresh = turn.cluster.members, turn.fresh(2 - len(turn.cluster.aside))
    return Drawn(struck, fresh, lost=struck, joined=turn.cluster.aside + fresh)


def _spare_lost(turn: Turn) -> Drawn:
    fresh = () if turn.cluster.spares else turn.fresh(1)
    return Drawn(struck=turn.cluster.spares or fresh, fresh=fresh)


def _replaced(turn: Turn) -> Drawn:
    struck, fresh = turn.victims(1), turn.fresh(1)
    return Drawn(struck, fresh, lost=struck, joined=fresh)


def _joins(turn: Turn) -> Drawn:
    """Who was put aside comes back first."""
    fresh = () if turn.cluster.aside else turn.fresh(1)
    return Drawn(fresh=fresh, joined=turn.cluster.aside[:1] or fresh)


def _join_and_loss(turn: Turn) -> Drawn:
    struck = turn.victims(1)
    return replace(_joins(turn), struck=struck, lost=struck, delay_s=turn.rng.uniform(0.0, _MAX_DELAY_S))


def _join_and_worker(turn: Turn) -> Drawn:
    """One that trains already."""
    return replace(_join_and_loss(turn), lost=())


def _newcomer_lost(turn: Turn) -> Drawn:
    fresh = turn.fresh(1)
    return Drawn(fresh, fresh, lost=fresh, joined=fresh, delay_s=turn.rng.uniform(0.0, _MAX_DELAY_S))


def _grows(turn: Turn) -> Drawn:
    fresh = turn.fresh(2 - len(turn.cluster.aside))
    return Drawn(fresh=fresh, joined=turn.cluster.aside + fresh)


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
    Kind.ASIDE: _one_lost,
}
