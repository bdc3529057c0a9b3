"""The launchers of one job: members and rounds by the trainer's own rules. What their ranks make is in `steps`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from spotsup_trainer import wire
from spotsup_trainer.rendezvous import membership
from spotsup_trainer.rendezvous.history import may_restart
from spotsup_trainer.rendezvous.view import Rules, View, dispensable, is_done
from spotsup_trainer.wire import Done, Failure, Hint, Keys, Member, Result, Round, encode

from spotsup_simulator.clock import NEVER
from spotsup_simulator.etcd import SimEtcd
from spotsup_simulator.etcd_clients import NodeClient
from spotsup_simulator.ranks import Ranks
from spotsup_simulator.steps import STEP_TIME_S, Steps
from supervisor.model import JobRecord

# A GPU that throttles makes all ranks wait for its own: their steps take so many times as long.
SLOWED_BY = 4.0
# Workers that train write so often; others have not for so long.
WRITES_EVERY_S, LONG_AGO_S = 1.0, 3600.0
# From a hang until launchers take it for one; until they stop workers that hang; until they end a rank that does not.
HANG_S, HUNG_YIELD_S, FINISH_S = 300.0, 20.0, 120.0
# For how long workers may outlive SIGKILL before their node leaves.
OUTLIVE_S = 60.0
# How long a message takes from one launcher to the others, and they to act on it.
REACTION_S = 0.3
Message = TypeVar("Message")


@lru_cache(maxsize=4096)  # the same messages are read many times
def decode(kind: type[Message], raw: bytes) -> Message | None:
    """As a launcher reads it: a broken message is none."""
    try:
        return wire.decode(kind, raw)
    except wire.WireError:
        return None


class Training:
    """All launchers of a job. A node's launcher runs from `run` until `stop`; its lease ends elsewhere."""

    def __init__(
        self, etcd: SimEtcd, keys: Keys, job: JobRecord, progress_every_s: float, checkpoint_s: float, reaction_s: float
    ) -> None:
        """`progress_every_s`: how often progress is written. `checkpoint_s`: between two periodic checkpoints.
        `reaction_s`: how long a message takes to have its effect."""
        self.task_id = job.task_id
        self.steps = Steps(checkpoint_s)
        self.problem = ""
        # How long a round's workers need to start.
        self.start_s = 0.0
        self._saving_since: float | None = None
        # Which ranks are slow.
        self.ranks = Ranks(SLOWED_BY)
        self.target_steps = 10**9
        # The loss after so many steps; None: the program reports none.
        self.loss_of: Callable[[int], float] | None = None
        # What the program reports by name.
        self.metrics: dict[str, float | None] = {}
        # How often launchers took the steps for hung.
        self.hangs = 0
        self._etcd = etcd
        self._client = NodeClient(etcd, job.name)
        self._keys = keys
        self._job = job.name
        self._rules = Rules(1, 64, job.spec.limits.app_failures)
        self._progress_every_s = progress_every_s
        self._reaction_s = reaction_s
        self._running: set[str] = set()
        # Of those, the ones that etcd is out of reach of: nothing that they write arrives, and they read nothing.
        self._cut: set[str] = set()
        self._last: dict[str, Member] = {}
        self._failed: dict[str, Failure] = {}
        # Nodes whose workers hang: the round makes no step, and their launchers go on.
        self.hanging: set[str] = set()
        self._seen = -1
        self._due: float | None = None
        self._progress_at = 0.0
        self._now = 0.0
        self._restart_hung = job.spec.limits.hang == "restart"
        self._hung_at: float | None = None
        # The node whose rank does not end by itself, and when the others have ended.
        self._endless = ""
        self._done_at: float | None = None

    @property
    def formed(self) -> Round | None:
        """Return the round that formed last."""
        return self.steps.round

    @property
    def round_number(self) -> int:
        """Return the newest round's number."""
        current = self._round()
        return current.number if current else 0

    # -- what happens to nodes -----------------------------------------------------------------------------

    def run(self, node: str) -> None:
        """Run it: its machine is alive, and its launcher holds a member key."""
        if node not in self._running:
            self._running.add(node)
            self._seen = -1
        if node in self._cut:
            self._cut.discard(node)
            self._set(self._last[node])
        if self._keys.member(self._job, node) not in self._etcd.keys and self.result is None:
            # A launcher that was cut off comes back as it was: its lease ended, its process did not.
            self._set(self._last.get(node, Member(node, f"{node}/1", "10.0.0.1", 1, "waiting")))

    def stop(self, node: str) -> None:
        """Stop it: its machine is dead or cut off from everything."""
        if node in self._running:
            self._running.discard(node)
            self._cut.discard(node)
            self._seen = -1

    def cut_off(self, node: str) -> None:
        """Cut its machine off from etcd, not from the other nodes: what runs there goes on."""
        if node in self._last and node not in self._cut:
            self._running.add(node)
            self._cut.add(node)
            self._seen = -1

    def trains(self, node: str) -> bool:
        """True if steps are made there."""
        current = self._round()
        here = current is not None and node in self._running and node in current.nodes() and node not in self._done()
        return here and self.steps.under_way and self._hung_at is None

    def written_s_ago(self, node: str, now: float) -> float:
        """Return when its workers last wrote: what stands still, or hangs, wrote until then."""
        if self.trains(node):
            return WRITES_EVERY_S
        return min(now - (self._hung_at or self.steps.halted_at) + WRITES_EVERY_S, LONG_AGO_S)

    def leave(self, node: str) -> None:
        """Leave the round in order."""
        member = self._states().get(node)
        if member is not None and member.state != "leaving":
            self._set(replace(member, state="leaving", parked=member.state in {"waiting", "done"}))

    def has_left(self, node: str) -> bool:
        """True if it is out of the round, with a checkpoint."""
        states, current = self._states(), self._round()
        member = states.get(node)
        if current is not None and node == current.nodes()[0] and node in self._done():
            # The others checkpoint before the round's store goes with it.
            needed = [states[each] for each in current.nodes() if each in states and each not in self._done()]
            if any(each.state == "running" and each.round == current.number for each in needed):
                return False
        return member is None or (member.state == "leaving" and member.parked)

    def end_ranks(self, node: str, now: float) -> bool:
        """End the ranks of this node well, while others go on; False if none runs there, or it would be the last."""
        member, current = self._members().get(node), self._round()
        working = [each for each in current.nodes() if each not in self._done()] if current else []
        if member is None or current is None or not self.has_workers(node) or working == [node]:
            return False
        done = Done(node, member.incarnation, current.number, now)
        self._client.put(self._keys.done(self._job, node), encode(done))
        self._set(replace(member, state="done"))
        return True

    def fail(self, node: str, now: float, after_s: float = 0.0, unhealthy: str = "") -> bool:
        """Let the user's program fail on this node, so long after its start; False if it does not run there.
        `unhealthy`: because its GPU died, which its agent finds before the launcher reports the failure."""
        member, current = self._members().get(node), self._round()
        if member is None or current is None or not self.has_workers(node):
            return False
        failure = Failure(current.number, 0, 1, "RuntimeError: simulated", now, after_s)
        self._failed[node] = failure
        self.steps.lose(current, now, frozenset([node]))
        stopped = replace(member, state="waiting", parked=False, checkpoints=self.steps.saved)
        self._set(replace(stopped, failure=failure, unhealthy=unhealthy))
        return True

    def has_workers(self, node: str) -> bool:
        """True if its workers run in the current round."""
        member, current = self._members().get(node), self._round()
        if member is None or current is None or node not in self._running - self._cut:
            return False
        return member.state == "running" and member.round == current.number and node in current.nodes()

    def save_in(self, seconds: float) -> None:
        """Checkpoints take so long from now on; it is measured, and reported at once."""
        self.steps.save_in(seconds)
        self._progress_at = min(self._progress_at, self._now)

    def slow(self, node: str, now: float, *, on: bool) -> None:
        """Let a GPU of this node begin to throttle, or end to: all ranks wait for it at each step."""
        self.steps.halt(now)
        self.ranks.set_slow(node, now, on=on)
        self._seen = -1

    def hang(self, now: float) -> None:
        """Hang all ranks in their next step: until `recover`, or until another round forms."""
        if self.steps.under_way and self._hung_at is None:
            self.steps.halt(now)
            self._hung_at, self._progress_at = now, min(self._progress_at, now + HANG_S)

    def recover(self) -> None:
        """Let the ranks go on."""
        if self._hung_at is not None:
            self._hung_at, self._progress_at = None, 0.0
            for node, member in self._last.items():
                if member.stalled_since and member.state == "running":
                    self._change(node, stalled_since=0.0)

    def stop_faults(self) -> None:
        """Let what hangs go on, and nothing be slow."""
        self.recover()
        self.save_in(0.0)
        self.ranks.slow.clear()
        for node in sorted(self._last):
            self.revive(node)

    def outlive(self, node: str, now: float) -> bool:
        """Break the round so that this node's workers outlive SIGKILL; False if none runs there."""
        member, current = self._members().get(node), self._round()
        if member is None or current is None or node not in (self._running - self._cut) & set(current.nodes()):
            return False
        if member.state != "running" or member.round != current.number:
            return False
        self.steps.lose(current, now, frozenset([node]))
        self._set(replace(member, state="stopping", parked=False, problem="workers outlive SIGKILL"))
        return True

    def revive(self, node: str) -> None:
        """They are gone."""
        if node in self._last and self._last[node].state == "stopping":
            self._change(node, state="waiting")

    def etcd_rolled_back(self) -> None:
        """Publish each launcher's state again: etcd may hold an old one, and no result."""
        self._seen, self._due, self._progress_at = -1, None, 0.0
        for node in sorted(self._running & self._last.keys()):
            self._set(self._last[node])

    def _rewrite_round(self, now: float) -> None:
        """If etcd was rolled back behind the running round, its members write it again."""
        formed = self.formed
        if formed is None or not membership.is_behind(self._view(now), formed):
            return
        here = self._running - self._cut
        states = [self._last[node] for node in formed.nodes() if node in here and node in self._last]
        if any(member.state == "running" and member.round == formed.number for member in states):
            self._client.put(self._keys.round(self._job), encode(formed))

    def finish(self, endless: str = "") -> None:
        """Let the program succeed after its next step; a rank of the node `endless` does not end by itself."""
        self.target_steps, self._progress_at, self._endless = 1, 0.0, endless

    def save(self) -> int:
        """Write a checkpoint; returns its step."""
        self.steps.save(self._now)
        return self.steps.checkpoint

    # -- time ----------------------------------------------------------------------------------------------

    def next_at(self) -> float:
        """Return when `step` has something to do."""
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
        here = {node: member for node, member in self._states().items() if node in self._running}
        self._fence(here.values(), current)
        done = self._done()
        running = {n: m for n, m in here.items() if m.state == "running" and m.round == current.number}
        cut = [node for node in running if node in self._cut]  # they cannot see that anything has changed
        standings = {node: membership.standing(view, current, node, now) for node in running if node not in cut}
        if any(isinstance(standing, membership.Over) for standing in standings.values()):
            return
        breaks = [node for node, standing in standings.items() if isinstance(standing, membership.Broken)]
        yields = [node for node, standing in standings.items() if isinstance(standing, membership.Yield)]
        leaving = [n for n in current.nodes() if n in here and here[n].state == "leaving" and not here[n].parked]
        if self._hung_at is not None and (yields or leaving or self._must_restart(view, current, now)):
            self._stop_hung(current, running, [here[node] for node in leaving], now)
            return
        # Workers agree among themselves when to park: one that is asked to is enough.
        if yields or leaving:
            reported_by_peers = running if self._cut.intersection(leaving) else cut
            yields = [*yields, *(node for node in reported_by_peers if node not in yields and node not in leaving)]
        all_leave = bool(yields or leaving) and {*yields, *leaving} == set(current.nodes()) - done
        if self._has_saved(now, all_leave):
            self.steps.save(now)
            self.steps.count_saved(1)
            for node in yields:
                self._set(replace(here[node], state="waiting", parked=True, checkpoints=self.steps.saved))
            for node in leaving:
                self._set(replace(here[node], parked=True))
        if breaks:
            gone = {node for node in current.nodes() if node not in self._running or node not in here}
            stopped = {n for n, m in here.items() if n in current.nodes() and m.state == "waiting" and not m.parked}
            taken = gone | stopped | (view.tombstones & set(current.nodes()))
            self.steps.lose(current, now, frozenset(taken - dispensable(view, current)))
        for node in (*breaks, *(cut if breaks else ())):  # without the others, those that are cut off fail
            self._set(replace(here[node], state="waiting", parked=False, checkpoints=self.steps.saved))
        if breaks:
            for node in leaving:  # no worker is left that could checkpoint
                self._set(replace(here[node], parked=True))
        self._bring_back(view, current, {node: here[node] for node in sorted(done & here.keys() - self._cut)}, now)

    def _bring_back(self, view: View, current: Round, done: dict[str, Member], now: float) -> None:
        """Bring them back: where a round breaks, those whose ranks have ended well run again."""
        for node, member in done.items():
            broken = isinstance(membership.standing(view, current, node, now), membership.Broken)
            if member.state == "done" and broken:
                self._set(replace(member, state="waiting", parked=False))

    def _fence(self, members: Iterable[Member], current: Round) -> None:
        """Fence some of them off: a newer round formed without them."""
        for member in members:
            if member.state == "running" and member.round < current.number:
                self._set(replace(member, state="waiting", parked=False))

    def _stop_hung(self, current: Round, running: dict[str, Member], leaving: list[Member], now: float) -> None:
        """No rank checkpoints."""
        self.steps.lose(current, now, frozenset(), hung=True)
        for member in running.values():
            self._set(replace(member, state="waiting", parked=False))
        for member in leaving:
            self._set(replace(member, parked=True))

    def _must_restart(self, view: View, current: Round, now: float) -> bool:
        """True if launchers form the round anew because its steps hang."""
        assert self._hung_at is not None
        wanted = self._restart_hung and may_restart(current, now) and membership.hangs(view, current)
        return wanted and now >= self._hung_at + HANG_S + HUNG_YIELD_S

    def _has_saved(self, now: float, wanted: bool) -> bool:
        """True if the checkpoint that all ranks were asked for is complete."""
        if not wanted:
            self._saving_since = None
            return False
        self.steps.halt(now)
        self._saving_since = now if self._saving_since is None else self._saving_since
        done_at = self._saving_since + self.steps.saving_s
        if now < done_at:
            self._progress_at = min(self._progress_at, done_at)
            return False
        self._saving_since = None
        return True

    def _form_round(self, now: float) -> None:
        decision = membership.next_round(self._view(now), now, now)
        if isinstance(decision, membership.Finish):
            self._client.put(self._keys.result(self._job), encode(decision.result))
        if not isinstance(decision, membership.Close):
            return
        formed = decision.round
        if not set(formed.nodes()) <= self._running - self._cut:
            return  # a waiting member that is cut off cannot start the round; its lease ends soon
        self.steps.form(formed)
        self._client.put(self._keys.round(self._job), encode(formed))
        self._hung_at, self._done_at = None, None
        members = self._members()
        for node in formed.nodes():
            fresh = Member(node, members[node].incarnation, members[node].addr, 1, "running", formed.number)
            self._set(fresh)

    def _train(self, now: float) -> None:
        current, members = self._round(), self._states()
        needed = [n for n in current.nodes() if n not in self._done()] if current else []
        running = [n for n in needed if n in self._running and n in members]
        all_run = current is not None and len(running) == len(needed) and not self.hanging & set(running)
        if not all_run or not all(members[n].state == "running" for n in running):
            self.steps.halt(now)
            return
        assert current is not None
        if self._hung_at is not None:
            self._show_hang(current, members, now)
            return
        if not self.steps.under_way:
            begins_at = now + self.start_s
            self.steps.begin(now, begins_at, STEP_TIME_S * self.ranks.factor(current.nodes()))
            if now < begins_at <= self._progress_at:
                self._progress_at = begins_at  # its first step is reported at once
        made = self.steps.made(now)
        progress = replace(
            self.steps.progress(current, now),
            checkpoint_problem=self.problem,
            loss=None if self.loss_of is None else self.loss_of(made),
            metrics=self.metrics,
        )
        if current.nodes()[0] not in self._cut and now >= self.steps.since:
            self._client.put(self._keys.progress(self._job), encode(progress))
            self.ranks.say(self._client, self._keys, self._job, current, STEP_TIME_S, now)
        done = made >= self.target_steps and not self._cut.intersection(current.nodes())
        if done and self._endless in current.nodes():
            self._end_but_one(current, members, now)
        elif done:
            self._client.put(self._keys.result(self._job), encode(Result("success", "done", current.number)))

    def _show_hang(self, current: Round, members: dict[str, Member], now: float) -> None:
        """Once it has lasted, launchers say so, and look again when they may stop their workers."""
        assert self._hung_at is not None
        if now < self._hung_at + HANG_S:
            self._progress_at = min(self._progress_at, self._hung_at + HANG_S)
            return
        working = [node for node in current.nodes() if node not in self._done()]
        if not all(members[node].stalled_since for node in working):
            self.hangs += 1
            for node in working:
                self._set(replace(members[node], stalled_since=self._hung_at))
        if now < self._hung_at + HANG_S + HUNG_YIELD_S:
            self._progress_at = min(self._progress_at, self._hung_at + HANG_S + HUNG_YIELD_S)

    def _end_but_one(self, current: Round, members: dict[str, Member], now: float) -> None:
        """End all ranks but one, which its launcher ends."""
        self._done_at = now if self._done_at is None else self._done_at
        if now < self._done_at + FINISH_S:
            self._progress_at = min(self._progress_at, self._done_at + FINISH_S)
            return
        for node in (each for each in current.nodes() if each not in self._done()):
            problem = "local rank 0 had not ended" if node == self._endless else ""
            self._set(replace(members[node], state="done", problem=problem))
        over = membership.standing(self._view(now), current, current.nodes()[0], now)
        assert isinstance(over, membership.Over)
        self._client.put(self._keys.result(self._job), encode(over.result))

    # -- messages ------------------------------------------------------------------------------------------

    def _version(self) -> int:
        return self._etcd.run_versions.get(self._job, 0)

    def _view(self, now: float) -> View:
        prefix, keys = self._keys.tombstone(self._job, ""), self._etcd.run_keys.get(self._job, {})
        hint = keys.get(self._keys.hint(self._job))
        return View(
            rules=self._rules,
            members=self._members(),
            round=self._round(),
            hint=decode(Hint, hint.value) if hint else None,
            tombstones=frozenset(key.removeprefix(prefix) for key in keys if key.startswith(prefix)),
            result=self.result,
            changed_at=now - 5.0,
            heard=frozenset(node for node in self._keyless() if self._is_heard(self._last[node])),
            done=self._said_done(),
        )

    def _said_done(self) -> dict[str, Done]:
        prefix, keys = self._keys.done(self._job, ""), self._etcd.run_keys.get(self._job, {})
        found = [decode(Done, kv.value) for key, kv in keys.items() if key.startswith(prefix)]
        return {done.node: done for done in found if done is not None}

    def _done(self) -> frozenset[str]:
        """Return nodes of the current round whose ranks have ended well."""
        current, said = self._round(), self._said_done()
        if current is None or not said:
            return frozenset()
        view = View(self._rules, self._members(), done=said)
        return frozenset(each.node for each in current.members if is_done(view, current, each))

    @staticmethod
    def _is_heard(member: Member) -> bool:
        """True if the other members still hear it in the round's store: until its workers have stopped."""
        return member.state in {"running", "done"} or (member.state == "leaving" and not member.parked)

    def _set(self, member: Member) -> None:
        self._last[member.node] = member
        if member.node in self._cut:
            self._seen = -1  # it is published once etcd is in reach again
            return
        self._client.put(self._keys.member(self._job, member.node), encode(member))

    def _change(self, node: str, **changes: Any) -> None:
        """Change a launcher's state, and its key if it has one now."""
        self._last[node] = replace(self._last[node], **changes)
        if self._keys.member(self._job, node) in self._etcd.keys:
            self._set(self._last[node])

    def _members(self) -> dict[str, Member]:
        prefix = f"{self._keys.run(self._job)}member/"
        found = [kv for key, kv in sorted(self._etcd.run_keys.get(self._job, {}).items()) if key.startswith(prefix)]
        return {member.node: member for kv in found if (member := decode(Member, kv.value)) is not None}

    def _states(self) -> dict[str, Member]:
        """Return what launchers do, whether or not etcd knows it."""
        return self._members() | {node: self._last[node] for node in (*self._cut, *self._keyless())}

    def _keyless(self) -> list[str]:
        """Launchers that run without a key: etcd is out of their reach, or somebody has ended their leases."""
        keys = self._etcd.run_keys.get(self._job, {})
        return [node for node in self._last if node in self._running and self._keys.member(self._job, node) not in keys]

    def _round(self) -> Round | None:
        found = self._etcd.run_keys.get(self._job, {}).get(self._keys.round(self._job))
        return decode(Round, found.value) if found else None

    @property
    def result(self) -> Result | None:
        """Return the job's end, once it is written."""
        found = self._etcd.run_keys.get(self._job, {}).get(self._keys.result(self._job))
        return decode(Result, found.value) if found else None
