"""The launchers of one job: members and rounds by the trainer's own rules, steps by the clock.

Steps are computed when they are read, so that hours in which nothing changes cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from spotsup_trainer import wire
from spotsup_trainer.rendezvous import membership
from spotsup_trainer.wire import Failure, Hint, Keys, Member, Progress, Result, Round, encode

from supervisor.model import JobRecord
from supervisor.simulation.clock import NEVER
from supervisor.simulation.etcd import SimEtcd

STEP_TIME_S = 0.5
# How long a message takes from one launcher to the others, and they to act on it.
REACTION_S = 0.3
decode = lru_cache(maxsize=4096)(wire.decode)  # the same messages are read many times


@dataclass(frozen=True)
class Loss:
    """Completed steps that have to be repeated."""

    at: float
    round: Round
    steps: int
    # Members that had stopped or were lost.
    gone: frozenset[str]


class Training:
    """All launchers of a job. A node's launcher runs from `run` until `stop`; its lease ends elsewhere."""

    def __init__(
        self, etcd: SimEtcd, keys: Keys, job: JobRecord, progress_every_s: float, checkpoint_s: float, reaction_s: float
    ) -> None:
        """`progress_every_s`: how often progress is written. `checkpoint_s`: between two periodic checkpoints.
        `reaction_s`: how long a message takes to have its effect."""
        self.task_id = job.task_id
        self.losses: list[Loss] = []
        self.problem = ""
        self.target_steps = 10**9
        self._etcd = etcd
        self._keys = keys
        self._job = job.name
        self._rules = membership.Rules(1, 64, job.spec.limits.app_failures)
        self._progress_every_s = progress_every_s
        self._checkpoint_s = checkpoint_s
        self._reaction_s = reaction_s
        self._running: set[str] = set()
        self._last: dict[str, Member] = {}
        self._failed: dict[str, Failure] = {}
        self._formed: Round | None = None
        self._made = 0
        self._since: float | None = None
        self._checkpoint = 0
        self._checkpoint_at = 0.0
        self._seen = -1
        self._due: float | None = None
        self._progress_at = 0.0
        self._now = 0.0

    @property
    def lost_steps(self) -> int:
        """The steps of all losses."""
        return sum(loss.steps for loss in self.losses)

    # -- what happens to nodes -----------------------------------------------------------------------------

    def run(self, node: str) -> None:
        """Its machine is alive, and its launcher holds a member key."""
        if node not in self._running:
            self._running.add(node)
            self._seen = -1
        if self._keys.member(self._job, node) not in self._etcd.keys and self.result is None:
            # A launcher that was cut off comes back as it was: its lease ended, its process did not.
            self._set(self._last.get(node, Member(node, f"{node}/1", "10.0.0.1", 1, "waiting")))

    def stop(self, node: str) -> None:
        """Its machine is dead or cut off."""
        if node in self._running:
            self._running.discard(node)
            self._seen = -1

    def leave(self, node: str) -> None:
        """Leave the round in order."""
        member = self._members().get(node)
        if member is not None and member.state != "leaving":
            self._set(replace(member, state="leaving", parked=member.state == "waiting"))

    def has_left(self, node: str) -> bool:
        """Whether it is out of the round, with a checkpoint."""
        member = self._members().get(node)
        return member is None or (member.state == "leaving" and member.parked)

    def fail(self, node: str, now: float) -> bool:
        """The user's program fails on this node; False if it does not run there."""
        member, current = self._members().get(node), self._round()
        if member is None or current is None or node not in self._running:
            return False
        if member.state != "running" or member.round != current.number or node not in current.nodes():
            return False
        failure = Failure(current.number, 0, 1, "RuntimeError: simulated", now)
        self._failed[node] = failure
        self._lose(current, now, frozenset([node]))
        self._set(replace(member, state="waiting", parked=False, failure=failure))
        return True

    def etcd_rolled_back(self) -> None:
        """Publish each launcher's state again: etcd may hold an old one, and no result."""
        self._seen, self._due, self._progress_at = -1, None, 0.0
        for node in sorted(self._running & self._last.keys()):
            self._set(self._last[node])

    def _rewrite_round(self, now: float) -> None:
        """If etcd was rolled back behind the running round, its members write it again."""
        formed = self._formed
        if formed is None or not membership.is_behind(self._view(now), formed):
            return
        states = [self._last[node] for node in formed.nodes() if node in self._running and node in self._last]
        if any(member.state == "running" and member.round == formed.number for member in states):
            self._etcd.put(self._keys.round(self._job), encode(formed))

    def finish(self) -> None:
        """The program succeeds after its next step."""
        self.target_steps, self._progress_at = 1, 0.0

    def save(self) -> int:
        """Write a checkpoint; returns its step."""
        self._checkpoint = self._steps(self._now)
        self._checkpoint_at = self._now
        return self._checkpoint

    # -- time ----------------------------------------------------------------------------------------------

    def next_at(self) -> float:
        """When `step` has something to do."""
        if self._seen != self._version():
            return self._now if self._due is None else self._due
        return self._progress_at

    def step(self, now: float) -> None:
        """Form rounds, end them, and train."""
        self._now = now
        version = self._version()
        if version != self._seen and self._due is None:
            self._due = now + self._reaction_s
        if now < self._progress_at and (self._due is None or now < self._due):
            return
        self._seen, self._due = version, None
        if self.result is not None:
            self._progress_at = NEVER
            return
        if now >= self._progress_at:
            self._progress_at = now + self._progress_every_s
        self._rewrite_round(now)
        current = self._round()
        if current is not None:
            self._check_round(current, now)
        self._form_round(now)
        self._train(now)

    def _check_round(self, current: Round, now: float) -> None:
        view = self._view(now)
        here = {node: member for node, member in view.members.items() if node in self._running}
        for member in here.values():
            if member.state == "running" and member.round < current.number:
                self._set(replace(member, state="waiting", parked=False))  # fenced: a newer round formed without it
        running = {n: m for n, m in here.items() if m.state == "running" and m.round == current.number}
        standings = {node: membership.standing(view, current, node, now) for node in running}
        if any(isinstance(standing, membership.Over) for standing in standings.values()):
            return
        breaks = [node for node, standing in standings.items() if isinstance(standing, membership.Broken)]
        yields = [node for node, standing in standings.items() if isinstance(standing, membership.Yield)]
        leaving = [n for n in current.nodes() if n in here and here[n].state == "leaving" and not here[n].parked]
        if (yields or leaving) and {*yields, *leaving} == set(current.nodes()):
            self._checkpoint, self._checkpoint_at = self._steps(now), now
            for node in yields:
                self._set(replace(here[node], state="waiting", parked=True))
            for node in leaving:
                self._set(replace(here[node], parked=True))
        if breaks:
            gone = {node for node in current.nodes() if node not in self._running or node not in here}
            stopped = {n for n, m in here.items() if n in current.nodes() and m.state == "waiting" and not m.parked}
            self._lose(current, now, frozenset(gone | stopped | (view.tombstones & set(current.nodes()))))
        for node in breaks:
            self._set(replace(here[node], state="waiting", parked=False))
        if breaks:
            for node in leaving:  # no worker is left that could checkpoint
                self._set(replace(here[node], parked=True))

    def _lose(self, current: Round, now: float, gone: frozenset[str]) -> None:
        """The round ends without a checkpoint: training goes back to the last one."""
        self._halt(now)
        if self._made > self._checkpoint:
            self.losses.append(Loss(now, current, self._made - self._checkpoint, gone))
        self._made = self._checkpoint

    def _halt(self, now: float) -> None:
        """Stop stepping, and account for the last periodic checkpoint."""
        if self._since is None:
            return
        first = max(self._since, self._checkpoint_at + self._checkpoint_s)
        if now >= first:
            self._checkpoint_at = now - (now - first) % self._checkpoint_s
            self._checkpoint = max(self._checkpoint, self._steps(self._checkpoint_at))
        self._made, self._since = self._steps(now), None

    def _form_round(self, now: float) -> None:
        decision = membership.next_round(self._view(now), now, now)
        if isinstance(decision, membership.Finish):
            self._etcd.put(self._keys.result(self._job), encode(decision.result))
        if not isinstance(decision, membership.Close):
            return
        formed = decision.round
        if not set(formed.nodes()) <= self._running:
            return  # a waiting member that is cut off cannot start the round; its lease ends soon
        self._etcd.put(self._keys.round(self._job), encode(formed))
        self._formed = formed
        members = self._members()
        for node in formed.nodes():
            self._set(replace(members[node], state="running", round=formed.number, parked=False, failure=None))

    def _train(self, now: float) -> None:
        current, members = self._round(), self._members()
        running = [n for n in current.nodes() if n in self._running and n in members] if current else []
        all_run = current is not None and len(running) == len(current.nodes())
        if not all_run or not all(members[n].state == "running" for n in running):
            self._halt(now)
            return
        assert current is not None
        if self._since is None:
            self._since = now
            self._checkpoint_at = self._checkpoint_at or now
            self._made = max(self._made, self._checkpoint)
        steps = self._steps(now)
        progress = Progress(
            current.number, steps, now, now, checkpoint_step=self._checkpoint, checkpoint_problem=self.problem
        )
        self._etcd.put(self._keys.progress(self._job), encode(progress))
        if steps >= self.target_steps:
            self._etcd.put(self._keys.result(self._job), encode(Result("success", "done", current.number)))

    def _steps(self, now: float) -> int:
        if self._since is None:
            return self._made
        return self._made + 1 + int(max(0.0, now - self._since) / STEP_TIME_S)

    # -- messages ------------------------------------------------------------------------------------------

    def _version(self) -> int:
        return self._etcd.run_versions.get(self._job, 0)

    def _view(self, now: float) -> membership.View:
        prefix, keys = f"{self._keys.run(self._job)}tombstone/", self._etcd.run_keys.get(self._job, {})
        hint = keys.get(self._keys.hint(self._job))
        return membership.View(
            rules=self._rules,
            members=self._members(),
            round=self._round(),
            hint=decode(Hint, hint.value) if hint else None,
            tombstones=frozenset(key.removeprefix(prefix) for key in keys if key.startswith(prefix)),
            result=self.result,
            changed_at=now - 5.0,
        )

    def _set(self, member: Member) -> None:
        self._last[member.node] = member
        self._etcd.put(self._keys.member(self._job, member.node), encode(member))

    def _members(self) -> dict[str, Member]:
        prefix = f"{self._keys.run(self._job)}member/"
        found = [kv for key, kv in sorted(self._etcd.run_keys.get(self._job, {}).items()) if key.startswith(prefix)]
        return {member.node: member for member in (decode(Member, kv.value) for kv in found)}

    def _round(self) -> Round | None:
        found = self._etcd.run_keys.get(self._job, {}).get(self._keys.round(self._job))
        return decode(Round, found.value) if found else None

    @property
    def result(self) -> Result | None:
        """The job's end, once it is written."""
        found = self._etcd.run_keys.get(self._job, {}).get(self._keys.result(self._job))
        return decode(Result, found.value) if found else None
