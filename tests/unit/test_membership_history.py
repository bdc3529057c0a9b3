"""Whole histories of a job, in which every launcher acts on a copy of the keys that lags behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.rendezvous.membership import (
    Broken,
    Close,
    Finish,
    Over,
    Stay,
    Yield,
    is_behind,
    next_round,
    standing,
    target,
)
from spotsup_trainer.rendezvous.view import Rules, View
from spotsup_trainer.wire import Hint, Member, MemberState, Result, Round

from tests.unit.members import failure, hint, member

GRACE_S = 15.0
START_S = 2.0


@dataclass(frozen=True)
class Keys:
    """What etcd holds at one revision."""

    members: Mapping[str, Member] = field(default_factory=dict)
    round: Round | None = None
    round_revision: int = 0
    member_revisions: Mapping[str, int] = field(default_factory=dict)
    hint: Hint | None = None
    tombstones: frozenset[str] = frozenset()
    result: Result | None = None
    outages: int = 0


@dataclass
class Launcher:
    """A model of a launcher: what the real one does after each decision, without workers.

    `last`: the last round that it took part in; `current`: the same while its workers run. `key`: what its key should
    hold.
    """

    node: str
    incarnation: str
    seen: int
    changed_at: float
    current: Round | None = None
    last: Round | None = None
    left: bool = False
    key: Member | None = None
    grace_until: float = -math.inf
    since: dict[str, float] = field(default_factory=dict)

    @property
    def last_round(self) -> int:
        return self.last.number if self.last else 0


class Cluster:
    """A history of keys, and launchers that see it up to somewhere."""

    def __init__(self, minimum: int, maximum: int) -> None:
        self.rules = Rules(minimum, maximum, app_failures=2)
        self.history = [Keys()]
        self.launchers: dict[str, Launcher] = {}
        self.started = 0
        self.now = 0.0

    @property
    def keys(self) -> Keys:
        return self.history[-1]

    def write(self, **changes: Any) -> None:
        self.history.append(replace(self.keys, **changes))

    def put(self, launcher: Launcher, state: MemberState, **more: Any) -> None:
        launcher.key = member(launcher.node, state, launcher.last_round, incarnation=launcher.incarnation, **more)
        self.put_again(launcher)

    def put_again(self, launcher: Launcher) -> None:
        assert launcher.key is not None
        revisions = {**self.keys.member_revisions, launcher.node: len(self.history)}
        self.write(members={**self.keys.members, launcher.node: launcher.key}, member_revisions=revisions)

    def drop(self, node: str) -> None:
        members = {n: m for n, m in self.keys.members.items() if n != node}
        revisions = {n: r for n, r in self.keys.member_revisions.items() if n != node}
        self.write(members=members, member_revisions=revisions)

    # -- what happens --------------------------------------------------------------------------------------

    def start(self, node: str) -> None:
        if node in self.launchers or node in self.keys.tombstones:
            return
        self.started += 1
        launcher = Launcher(node, f"{node}{self.started}", len(self.history) - 1, self.now)
        self.launchers[node] = launcher
        self.put(launcher, "waiting")

    def kill(self, node: str) -> None:
        if self.launchers.pop(node, None):
            self.drop(node)

    def bury(self, node: str) -> None:
        self.kill(node)
        self.write(tombstones=self.keys.tombstones | {node})

    def fail(self, node: str) -> None:
        launcher = self.launchers.get(node)
        if launcher and launcher.current:
            number, launcher.current = launcher.current.number, None
            self.put(launcher, "waiting", failure=failure(number))

    def outlive(self, node: str) -> None:
        """Its workers outlive SIGKILL."""
        launcher = self.launchers.get(node)
        if launcher and launcher.current:
            launcher.current = None
            self.put(launcher, "stopping")

    def gone(self, node: str) -> None:
        launcher = self.launchers.get(node)
        if launcher and launcher.key and launcher.key.state == "stopping":
            self.put(launcher, "waiting")

    def leave(self, node: str) -> None:
        launcher = self.launchers.get(node)
        if launcher is None:
            return
        if launcher.current is None:
            self.kill(node)
        else:
            self.put(launcher, "leaving")
            launcher.left = True

    def expire(self, node: str) -> None:
        """Its lease ends while it lives: it was cut off."""
        if node in self.keys.members:
            self.drop(node)

    def forget(self, _node: str) -> None:
        """etcd loses its data."""
        self.history.append(Keys(outages=self.keys.outages + 1))

    def look(self, node: str, lag: int = 0) -> None:
        launcher = self.launchers.get(node)
        if launcher is None:
            return
        newest = max(launcher.seen, len(self.history) - 1 - lag)
        if newest == launcher.seen:
            return
        was, members = self.history[launcher.seen].members, self.history[newest].members
        same = {n for n, m in members.items() if n in was and was[n].incarnation == m.incarnation}
        launcher.since = {n: launcher.since.get(n, self.now) if n in same else self.now for n in members}
        is_back = self.history[newest].outages != self.history[launcher.seen].outages
        launcher.seen, launcher.changed_at = newest, self.now
        if is_back:
            launcher.grace_until = self.now + GRACE_S
        if self.keys.members.get(node) != launcher.key:
            self.put_again(launcher)

    def view(self, launcher: Launcher) -> View:
        keys = self.history[launcher.seen]
        return View(
            self.rules,
            keys.members,
            keys.round,
            keys.hint,
            keys.tombstones,
            keys.result,
            changed_at=launcher.changed_at,
            grace_until=launcher.grace_until,
            since=launcher.since,
            heard=self.heard(launcher.current or keys.round, keys),
        )

    def heard(self, formed: Round | None, keys: Keys) -> frozenset[str]:
        """Those that still run in a round, and whose key is missing: they answer in its store."""
        running = {n for n, each in self.launchers.items() if each.current and formed and each.current == formed}
        return frozenset(running - keys.members.keys())

    def act(self, node: str) -> None:
        launcher = self.launchers.get(node)
        if launcher is None:
            return
        if launcher.last is not None and is_behind(self.view(launcher), launcher.last):
            self._put_back(launcher, launcher.last)
            if launcher.current is None:
                return
        if launcher.current is not None:
            self._act_running(launcher, launcher.current)
        else:
            self._act_waiting(launcher)

    def _put_back(self, launcher: Launcher, last: Round) -> None:
        if self.keys.round_revision == self.history[launcher.seen].round_revision:
            self.write(round=last, round_revision=len(self.history))

    def _act_running(self, launcher: Launcher, current: Round) -> None:
        decision = standing(self.view(launcher), current, launcher.node, self.now)
        if isinstance(decision, Over):
            self.kill(launcher.node)
        elif launcher.left and isinstance(decision, Yield | Stay):
            launcher.current = None
            self.put(launcher, "leaving", parked=True)
            del self.launchers[launcher.node]
        elif isinstance(decision, Broken) and launcher.left:
            self.kill(launcher.node)
        elif isinstance(decision, Broken | Yield):
            launcher.current = None
            self.put(launcher, "waiting", parked=isinstance(decision, Yield))

    def _act_waiting(self, launcher: Launcher) -> None:
        if launcher.key and launcher.key.state == "stopping":
            return
        keys, of = self.history[launcher.seen], self.view(launcher)
        me = (launcher.node, launcher.incarnation)
        found = of.round
        if found and found.number > launcher.last_round and me in {(m.node, m.incarnation) for m in found.members}:
            launcher.current = launcher.last = found
            self.put(launcher, "running")
            return
        decision = next_round(of, self.now, self.now)
        if isinstance(decision, Finish) and self.keys.result is None:
            self.write(result=decision.result)
        if isinstance(decision, Close) and self._guards_hold(keys, decision.round):
            self._check(decision.round)
            self.write(round=decision.round, round_revision=len(self.history))

    def _guards_hold(self, seen: Keys, formed: Round) -> bool:
        return (
            self.keys.result is None
            and self.keys.round_revision == seen.round_revision
            and all(self.keys.member_revisions.get(n) == seen.member_revisions[n] for n in formed.nodes())
        )

    def _check(self, formed: Round) -> None:
        """What must hold whenever a round is written, whatever copy it was decided on."""
        assert formed.number > (self.keys.round.number if self.keys.round else 0)
        assert len(set(formed.nodes())) == len(formed.members)
        for chosen in formed.members:
            launcher = self.launchers[chosen.node]
            assert launcher.incarnation == chosen.incarnation
            assert launcher.current is None, "its workers still run in the last round"

    def settle(self) -> None:
        """Let everything that can happen happen, on current copies."""
        quiet = 0
        for _ in range(60):
            before = len(self.history)
            self.now += 10.0
            for node in list(self.launchers):
                self.look(node)
            for node in list(self.launchers):
                self.look(node)
                self.act(node)
            quiet = quiet + 1 if len(self.history) == before else 0
            if quiet == 2:
                return
        raise AssertionError("no end of it: a storm of rounds")


EVENTS = ("start", "start", "kill", "bury", "fail", "outlive", "gone", "leave", "expire", "forget", "hint")
REACTIONS = ("look", "look", "act", "act", "act")
OPERATIONS = st.lists(
    st.tuples(st.sampled_from((*EVENTS, *REACTIONS)), st.sampled_from("abcde"), st.integers(0, 4)),
    max_size=60,
)


@given(st.integers(1, 3), st.integers(0, 3), OPERATIONS)
def test_whatever_happened_the_living_end_up_together(
    minimum: int, more: int, operations: list[tuple[str, str, int]]
) -> None:
    cluster = Cluster(minimum, minimum + more)
    for operation, node, number in operations:
        cluster.now += 0.5
        if operation == "hint":
            members = "abcde"[number:] + node if node not in "abcde"[number:] else "abcde"[number:]
            spares = "".join(sorted(set("abcde") - set(members)))
            cluster.write(hint=hint(members, minimum, minimum + more, spares=spares))
        elif operation == "look":
            cluster.look(node, lag=number)
        else:
            getattr(cluster, operation)(node)
    cluster.settle()
    keys = cluster.keys
    of = View(cluster.rules, keys.members, keys.round, keys.hint, keys.tombstones, keys.result)
    wanted = [m.node for m in target(of)]
    if keys.result is not None:
        assert all(launcher.current is None for launcher in cluster.launchers.values())
    elif len(wanted) >= minimum:
        assert keys.round is not None
        assert list(keys.round.nodes()) == wanted
        assert all(cluster.launchers[node].current == keys.round for node in wanted)


@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.lists(
        st.tuples(st.sampled_from(["look", "act", "forget", "expire"]), st.sampled_from("abcde"), st.integers(0, 4))
    ),
)
def test_no_member_stops_because_etcd_lost_its_data_or_leases_of_living_members_end(
    minimum: int, count: int, operations: list[tuple[str, str, int]]
) -> None:
    cluster = Cluster(minimum, 5)
    for node in "abcde"[: max(minimum, count)]:
        cluster.start(node)
    cluster.settle()
    formed = cluster.keys.round
    assert formed is not None
    for operation, node, number in [("forget", "a", 0), *operations]:
        cluster.now += 0.5
        if operation == "look":
            cluster.look(node, lag=number)
        else:
            getattr(cluster, operation)(node)
    cluster.settle()
    assert cluster.keys.round == formed
    assert [launcher.current for launcher in cluster.launchers.values()] == [formed] * len(formed.members)


def trained_s(cluster: Cluster, period_s: float, away_s: float, step_s: float = 0.05) -> float:
    """How much of a minute a and b train in, while c comes and goes. Workers take START_S to begin.

    Every `period_s` it is killed and restarts, or is cut off for `away_s`; in both cases without a message.
    """
    flapped_at, stopped_at, trained = 0.0, 0.0, 0.0
    for node in "abc":
        cluster.start(node)
    while cluster.now < 60.0:
        cluster.now += step_s
        if cluster.now >= flapped_at + period_s:
            flapped_at = cluster.now
            if away_s:
                cluster.expire("c")
            else:
                cluster.launchers.pop("c")  # its key stays until the next one writes it
                cluster.start("c")
        away = bool(flapped_at) and cluster.now < flapped_at + away_s
        for node in "ab" if away else "abc":
            cluster.look(node)
            cluster.act(node)
        formed = cluster.keys.round
        if formed is None or any(cluster.launchers[node].current != formed for node in formed.nodes()):
            stopped_at = cluster.now
        elif cluster.now >= stopped_at + START_S:
            trained += step_s
    return trained


@pytest.mark.parametrize("hinted", ["", "abc"])
@pytest.mark.parametrize(("period_s", "away_s"), [(1.0, 0.0), (3.0, 0.0), (7.0, 0.0), (7.0, 3.0), (12.0, 6.0)])
def test_a_node_that_comes_and_goes_makes_the_others_stop_a_few_times_only(
    hinted: str, period_s: float, away_s: float
) -> None:
    cluster = Cluster(1, 3)
    if hinted:
        cluster.write(hint=hint(hinted, 1, 3))
    trained = trained_s(cluster, period_s, away_s)
    assert cluster.keys.round is not None
    assert cluster.keys.round.number <= 9
    assert trained > 38.0
    # and once it has come to rest it is taken back
    cluster.settle()
    assert cluster.keys.round is not None
    assert cluster.keys.round.nodes() == ("a", "b", "c")


@pytest.mark.parametrize("hinted", ["", "abc"])
def test_a_node_that_the_others_need_is_waited_for_until_it_has_come_to_rest(hinted: str) -> None:
    cluster = Cluster(3, 3)
    if hinted:
        cluster.write(hint=hint(hinted, 3, 3))
    trained_s(cluster, 1.0, 0.0)
    assert cluster.keys.round is not None
    assert cluster.keys.round.number <= 4
    cluster.settle()
    assert cluster.keys.round.nodes() == ("a", "b", "c")
    assert cluster.launchers["a"].current == cluster.keys.round


def test_who_is_lost_once_or_twice_is_taken_back_at_once() -> None:
    cluster = Cluster(1, 3)
    for node in "abc":
        cluster.start(node)
    for _lost in range(3):
        for _ in range(4):
            cluster.now += 0.35
            for node in "abc":
                cluster.look(node)
                cluster.act(node)
        assert cluster.keys.round is not None
        assert all(launcher.current == cluster.keys.round for launcher in cluster.launchers.values())
        assert cluster.keys.round.nodes() == ("a", "b", "c")
        cluster.launchers.pop("c")
        cluster.start("c")
