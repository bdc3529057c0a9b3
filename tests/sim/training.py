"""Launchers of one job, simulated: words and states by the trainer's own pure rules, steps by the clock."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from spotsup_trainer import membership, wire
from spotsup_trainer.etcd import KeyValue
from spotsup_trainer.wire import Hint, Keys, Member, Progress, Result, Round, encode

STEP_TIME_S = 0.5
decode = lru_cache(maxsize=4096)(wire.decode)  # the same words are read in every step


class Words(Protocol):
    """What launchers need of etcd."""

    keys: dict[str, KeyValue]

    def put(self, key: str, value: bytes) -> None: ...

    def delete(self, key: str) -> None: ...


class Training:
    """All launchers of a job at once. A node runs from `run` until `stop`; its lease ends elsewhere."""

    def __init__(self, words: Words, keys: Keys, job: str) -> None:
        self._words = words
        self._keys = keys
        self._job = job
        self._running: set[str] = set()
        self._last: dict[str, Member] = {}
        self._steps = 0
        self._checkpoint = 0
        self._stepped_at = 0.0
        self.lost_steps = 0
        self.problem = ""
        self.target_steps = 10**9

    def run(self, node: str) -> None:
        """Its machine is alive: its launcher holds a member key."""
        self._running.add(node)
        key = self._keys.member(self._job, node)
        if key not in self._words.keys and self._result() is None:
            # One that was cut off comes back as it was: its lease ended, its process did not.
            self._set(self._last.get(node, Member(node, f"{node}/1", "10.0.0.1", 1, "waiting")))

    def stop(self, node: str) -> None:
        """Its machine is dead or cut off: it does nothing any more."""
        self._running.discard(node)

    def save(self) -> int:
        """A checkpoint is written beside training; its step."""
        self._checkpoint = self._steps
        return self._checkpoint

    def step(self, now: float) -> None:
        """Form rounds, break them, and train."""
        if self._result() is not None:
            return
        current = self._round()
        members = self._members()
        here = {node: member for node, member in members.items() if node in self._running}
        if current is not None:
            self._hold(current, here, now)
        self._maybe_close(now)
        self._train(now)

    def _hold(self, current: Round, here: dict[str, Member], now: float) -> None:
        for member in here.values():
            if member.state == "running" and member.round < current.number:
                self._set(replace(member, state="waiting", parked=False))  # fenced: the round moved on without it
        standings = {
            node: membership.standing(self._view(now), current, node, now)
            for node, member in here.items()
            if member.state == "running" and member.round == current.number
        }
        if any(isinstance(standing, membership.Over) for standing in standings.values()):
            return
        breaks = [node for node, standing in standings.items() if isinstance(standing, membership.Broken)]
        yields = [node for node, standing in standings.items() if isinstance(standing, membership.Yield)]
        if yields and set(yields) == set(current.nodes()):
            self._checkpoint = self._steps
            for node in yields:
                self._set(replace(here[node], state="waiting", parked=True))
        for node in breaks:
            self.lost_steps += self._steps - self._checkpoint
            self._steps = self._checkpoint
            self._set(replace(here[node], state="waiting", parked=False))

    def _maybe_close(self, now: float) -> None:
        decision = membership.next_round(self._view(now), now, now)
        if isinstance(decision, membership.Finish):
            self._words.put(self._keys.result(self._job), encode(decision.result))
        if not isinstance(decision, membership.Close):
            return
        formed = decision.round
        if not set(formed.nodes()) <= self._running:
            return  # a member that waits but is cut off cannot take the round up; its lease ends soon
        self._words.put(self._keys.round(self._job), encode(formed))
        members = self._members()
        for node in formed.nodes():
            self._set(replace(members[node], state="running", round=formed.number, parked=False))

    def _train(self, now: float) -> None:
        current, members = self._round(), self._members()
        if current is None or now - self._stepped_at < STEP_TIME_S:
            return
        running = [n for n in current.nodes() if n in self._running and n in members and members[n].state == "running"]
        if len(running) != len(current.nodes()):
            return
        self._stepped_at = now
        self._steps += 1
        progress = Progress(current.number, self._steps, now, now, checkpoint_step=self._checkpoint)
        progress = replace(progress, problem=self.problem)
        self._words.put(self._keys.progress(self._job), encode(progress))
        if self._steps >= self.target_steps:
            self._words.put(self._keys.result(self._job), encode(Result("success", "done", current.number)))

    def _view(self, now: float) -> membership.View:
        prefix = f"{self._keys.run(self._job)}gone/"
        hint = self._words.keys.get(self._keys.hint(self._job))
        return membership.View(
            rules=membership.Rules(1, 64),
            members=self._members(),
            round=self._round(),
            hint=decode(Hint, hint.value) if hint else None,
            gone=frozenset(key.removeprefix(prefix) for key in self._words.keys if key.startswith(prefix)),
            result=self._result(),
            changed_at=now - 5.0,
        )

    def _set(self, member: Member) -> None:
        self._last[member.node] = member
        self._words.put(self._keys.member(self._job, member.node), encode(member))

    def _members(self) -> dict[str, Member]:
        prefix = f"{self._keys.run(self._job)}member/"
        found = [kv for key, kv in self._words.keys.items() if key.startswith(prefix)]
        return {member.node: member for member in (decode(Member, kv.value) for kv in found)}

    def _round(self) -> Round | None:
        found = self._words.keys.get(self._keys.round(self._job))
        return decode(Round, found.value) if found else None

    def _result(self) -> Result | None:
        found = self._words.keys.get(self._keys.result(self._job))
        return decode(Result, found.value) if found else None
