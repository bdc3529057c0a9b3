"""Whole histories of a job, in which every launcher acts on a copy of the keys that lags behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from spotsup_trainer.membership import (
    Broken,
    Close,
    Finish,
    Over,
    Rules,
    Stay,
    View,
    Yield,
    next_round,
    standing,
    target,
)
from spotsup_trainer.wire import Hint, Member, MemberState, Result, Round

from tests.unit.members import failure, hint, member


@dataclass(frozen=True)
class Keys:
    """What etcd holds at one revision."""

    members: Mapping[str, Member] = field(default_factory=dict)
    round: Round | None = None
    round_revision: int = 0
    member_revisions: Mapping[str, int] = field(default_factory=dict)
    hint: Hint | None = None
    gone: frozenset[str] = frozenset()
    result: Result | None = None


@dataclass
class Launcher:
    """A model of a launcher: what the real one does at each word, without workers."""

    node: str
    incarnation: str
    seen: int
    changed_at: float
    current: Round | None = None
    last_round: int = 0
    left: bool = False


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
        word = member(launcher.node, state, launcher.last_round, incarnation=launcher.incarnation, **more)
        revisions = {**self.keys.member_revisions, launcher.node: len(self.history)}
        self.write(members={**self.keys.members, launcher.node: word}, member_revisions=revisions)

    def drop(self, node: str) -> None:
        members = {n: m for n, m in self.keys.members.items() if n != node}
        revisions = {n: r for n, r in self.keys.member_revisions.items() if n != node}
        self.write(members=members, member_revisions=revisions)

    # -- what happens --------------------------------------------------------------------------------------

    def start(self, node: str) -> None:
        if node in self.launchers or node in self.keys.gone:
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
        self.write(gone=self.keys.gone | {node})

    def fail(self, node: str) -> None:
        launcher = self.launchers.get(node)
        if launcher and launcher.current:
            number, launcher.current = launcher.current.number, None
            self.put(launcher, "waiting", failure=failure(number))

    def leave(self, node: str) -> None:
        launcher = self.launchers.get(node)
        if launcher is None:
            return
        if launcher.current is None:
            self.kill(node)
        else:
            self.put(launcher, "leaving")
            launcher.left = True

    def look(self, node: str, lag: int = 0) -> None:
        launcher = self.launchers.get(node)
        if launcher is None:
            return
        newest = max(launcher.seen, len(self.history) - 1 - lag)
        if newest != launcher.seen:
            launcher.seen, launcher.changed_at = newest, self.now

    def view(self, launcher: Launcher) -> View:
        keys = self.history[launcher.seen]
        return View(
            self.rules,
            keys.members,
            keys.round,
            keys.hint,
            keys.gone,
            keys.result,
            changed_at=launcher.changed_at,
        )

    def act(self, node: str) -> None:
        launcher = self.launchers.get(node)
        if launcher is None:
            return
        if launcher.current is not None:
            self._act_running(launcher, launcher.current)
        else:
            self._act_waiting(launcher)

    def _act_running(self, launcher: Launcher, current: Round) -> None:
        word = standing(self.view(launcher), current, launcher.node, self.now)
        if isinstance(word, Over):
            self.kill(launcher.node)
        elif launcher.left and isinstance(word, Yield | Stay):
            launcher.current = None
            self.put(launcher, "leaving", parked=True)
            del self.launchers[launcher.node]
        elif isinstance(word, Broken) and launcher.left:
            self.kill(launcher.node)
        elif isinstance(word, Broken | Yield):
            launcher.current = None
            self.put(launcher, "waiting", parked=isinstance(word, Yield))

    def _act_waiting(self, launcher: Launcher) -> None:
        keys, of = self.history[launcher.seen], self.view(launcher)
        me = (launcher.node, launcher.incarnation)
        found = of.round
        if found and found.number > launcher.last_round and me in {(m.node, m.incarnation) for m in found.members}:
            launcher.current, launcher.last_round = found, found.number
            self.put(launcher, "running")
            return
        decision = next_round(of, self.now, 0.0)
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
        assert formed.number == (self.keys.round.number if self.keys.round else 0) + 1
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
                self.act(node)
            quiet = quiet + 1 if len(self.history) == before else 0
            if quiet == 2:
                return
        raise AssertionError("no end of it: a storm of rounds")


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["start", "start", "kill", "bury", "fail", "leave", "look", "look", "act", "act", "act", "hint"]
        ),
        st.sampled_from("abcde"),
        st.integers(0, 4),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(0, 3), OPERATIONS)
def test_whatever_happened_the_living_end_up_together(
    minimum: int, more: int, operations: list[tuple[str, str, int]]
) -> None:
    cluster = Cluster(minimum, minimum + more)
    for operation, node, number in operations:
        cluster.now += 0.5
        if operation == "hint":
            members = "abcde"[number:] + node if node not in "abcde"[number:] else "abcde"[number:]
            cluster.write(hint=hint(members, minimum, minimum + more))
        elif operation == "look":
            cluster.look(node, lag=number)
        else:
            getattr(cluster, operation)(node)
    cluster.settle()
    keys = cluster.keys
    of = View(cluster.rules, keys.members, keys.round, keys.hint, keys.gone, keys.result)
    wanted = [m.node for m in target(of)]
    if keys.result is not None:
        assert all(launcher.current is None for launcher in cluster.launchers.values())
    elif len(wanted) >= minimum:
        assert keys.round is not None
        assert list(keys.round.nodes()) == wanted
        assert all(cluster.launchers[node].current == keys.round for node in wanted)
