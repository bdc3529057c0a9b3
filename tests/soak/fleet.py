"""Carries out the soak's changes, one by one, as cloud, daemon and agents would, and checks each."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from spotsup_trainer.wire import Round

from provisioners.localcloud import processes
from provisioners.localcloud.processes import Identity
from tests.soak.job import Job, eventually
from tests.soak.nodes import Network, Node, SoakError, Usage
from tests.soak.plan import Change, Cluster, Kind

START_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 60.0
LEAVE_TIMEOUT_S = 30.0
GONE_TIMEOUT_S = 5.0
_RESTART_AFTER_S = 1.0  # the agent's first pause before it starts a launcher again (agent/decisions.py)
_NOTICE_S, _DEADLINE_S, _LEAVE_MARGIN_S = 30.0, 4.0, 2.0
_STEPS_UNDISTURBED = 10
_LAUNCHER_AND_SERVER = 2


# The first victim ends with success.
_STRUCK_ENDS = frozenset(
    {
        *(Kind.FENCED, Kind.NOTICE, Kind.SHRINKS, Kind.LEAVES, Kind.DEADLINE, Kind.LEAVE_AND_LOSS),
        Kind.JOIN_AND_LEAVE,
    }
)


@dataclass(frozen=True, slots=True)
class Done:
    """A change that succeeded. `began_at`, `ended_at`: UNIX seconds; `before`, `after`: rounds."""

    change: Change
    began_at: float
    ended_at: float
    before: int
    after: int


class Fleet:
    """The nodes of one job."""

    def __init__(self, network: Network, job: Job, cluster: Cluster) -> None:
        self.network = network
        self.job = job
        # The nodes that should exist now.
        self.cluster = cluster
        self.done: list[Done] = []
        # The launchers' resources after each change.
        self.usage: dict[str, list[Usage]] = {}
        # When the current change began, UNIX seconds.
        self.change_began_at = math.inf
        self._lost: list[Node] = []
        self._hinted: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    def begin(self) -> None:
        """Form the first round."""
        self._hint(())  # without a hint launchers would form a round by themselves
        for name in self.cluster.members:
            self.network.start(name)
        self.job.waits(*self.cluster.members, timeout_s=START_TIMEOUT_S)
        self._hint(self.cluster.members)
        self.job.settled(self.cluster.members, 0, SETTLE_TIMEOUT_S)

    def carry_out(self, change: Change) -> Done:
        """Returns when the job trains as it should. Raises SoakError if it does not."""
        round_now = self._prepare(change)
        before = round_now.number
        workers = self._workers()
        self.change_began_at = began_at = time.time()
        self._begin(change)
        after = self._settle(change, before)
        ended_at = time.time()
        self._clean_up(change)
        self.cluster = change.after
        self._hint(change.after.members, change.after.spares)
        self._expect_no_more_processes(set() if after == before else workers)
        for name in self._waiting_or_training():
            self.usage.setdefault(name, []).append(self._node(name).usage(after, trains=name in self.cluster.members))
        done = Done(change, began_at, ended_at, before, after)
        self.done.append(done)
        self.change_began_at = math.inf
        return done

    def finish(self, last_step: Callable[[int], None]) -> None:
        """End training, and wait for every launcher's success. `last_step` receives the number of completed steps."""
        number = self._current().number
        last_step(self.job.steps(number))
        for name in self._waiting_or_training():
            self._expect_end(name)
        result = self.job.result()
        if result is None or result.outcome != "success":
            raise SoakError(f"the job's result is {result}")

    def _workers(self) -> set[Identity]:
        return {identity for name in self.cluster.members for identity in self._node(name).workers()}

    # -- before ------------------------------------------------------------------------------------------------

    def _prepare(self, change: Change) -> Round:
        number = self._current().number
        for name in change.fresh:
            self.network.start(name)
        self.job.waits(*change.fresh, timeout_s=START_TIMEOUT_S)
        if change.spares:
            self._hint(self.cluster.members, self.cluster.spares + change.spares)
        self._steps(number, change.steps)
        found = self._current()
        if found.number != number:
            raise SoakError(f"round {number} became round {found.number} without a change")
        return found

    def _steps(self, number: int, more: int) -> None:
        """Wait until a round has made so many more steps."""
        goal = self.job.steps(number) + more
        eventually(f"step {goal} of round {number}", lambda: self.job.steps(number) >= goal, SETTLE_TIMEOUT_S)

    # -- begin -------------------------------------------------------------------------------------------------

    def _begin(self, change: Change) -> None:
        joined = (*self.cluster.members, *change.joined)
        spares = self.cluster.spares + change.spares
        actions: dict[Kind, Callable[[Change], None]] = {
            Kind.WORKER: self._kill_worker,
            Kind.LAUNCHER: self._kill_launcher,
            Kind.SERVER: self._kill_launcher,
            Kind.ALL: self._lose_all,
            Kind.FROZEN: self._freeze_and_thaw,
            Kind.FENCED: self._freeze,
            Kind.LEAVES: self._leave,
            Kind.LEAVE_AND_LOSS: self._leave_and_lose,
            Kind.NOTICE: self._notice,
            Kind.DEADLINE: self._deadline,
            **dict.fromkeys([Kind.LOST, Kind.TWO, Kind.REFORMING, Kind.SPARE_LOST], self._lose_each),
        }
        if change.kind in actions:
            actions[change.kind](change)
        elif change.joined:
            self._hint(joined, spares)
            time.sleep(change.delay_s)
            with_it = {Kind.JOIN_AND_LEAVE: self._leave, Kind.JOIN_AND_WORKER: self._kill_worker}
            with_it.get(change.kind, self._lose_each)(change)
        else:
            self._hint(change.after.members, change.after.spares)

    def _kill_worker(self, change: Change) -> None:
        for identity in self._node(change.victims[0]).workers():
            processes.send(identity, signal.SIGKILL)

    def _kill_launcher(self, change: Change) -> None:
        """Or the fork server, without which the launcher ends."""
        node = self._node(change.victims[0])
        if change.kind is Kind.SERVER:
            node.kill_server()
            eventually(f"the launcher of {node.name} to end", node.has_ended, GONE_TIMEOUT_S)
        node.reap()
        eventually(f"nothing to be left on {node.name}", lambda: not node.processes(), GONE_TIMEOUT_S)
        time.sleep(_RESTART_AFTER_S)
        node.start_again()

    def _lose_each(self, change: Change) -> None:
        for turn, name in enumerate(change.victims):
            time.sleep(change.delay_s if turn else 0.0)
            self._lose(change, name)

    def _lose_all(self, change: Change) -> None:
        for name in (*change.victims, *self.cluster.spares):
            self._lose(change, name)
        self._hint(change.after.members)

    def _lose(self, change: Change, name: str) -> None:
        node = self._node(name)
        self._lost.append(node)
        if change.silent:
            node.signal_all(signal.SIGSTOP)
        else:
            node.kill()
        if change.tombstoned:
            self.job.write_tombstone(name, change.kind)

    def _freeze_and_thaw(self, change: Change) -> None:
        """All of the node, or the launcher alone; its workers then fail, because their peers close the connections."""
        node, before = self._node(change.victims[0]), self._current().number
        freeze = node.signal_launcher if change.silent else node.signal_all
        freeze(signal.SIGSTOP)

        def go_on_without() -> bool:
            found = self._current()
            return found.number > before and node.name not in found.nodes() and bool(self.job.stepping(found.number))

        eventually(f"the others to go on without {node.name}", go_on_without, SETTLE_TIMEOUT_S)
        freeze(signal.SIGCONT)

    def _freeze(self, change: Change) -> None:
        self._node(change.victims[0]).signal_all(signal.SIGSTOP)
        if change.tombstoned:
            self.job.write_tombstone(change.victims[0], change.kind)

    def _leave(self, change: Change) -> None:
        self._node(change.victims[0]).launcher.ask_to_leave()

    def _leave_and_lose(self, change: Change) -> None:
        self._leave(change)
        time.sleep(change.delay_s)
        self._lose(change, change.victims[1])

    def _notice(self, change: Change) -> None:
        self.job.notice(change.victims[0], _NOTICE_S)
        self._hint(change.after.members, change.after.spares)

    def _deadline(self, change: Change) -> None:
        self.job.notice(change.victims[0], _DEADLINE_S)
        time.sleep(_DEADLINE_S - _LEAVE_MARGIN_S)
        self._leave(change)

    # -- after -------------------------------------------------------------------------------------------------

    def _settle(self, change: Change, before: int) -> int:
        """Wait until the job trains again; returns its round."""
        members = change.after.members
        if change.kind is Kind.NEWCOMER_LOST:
            return self._settle_without(change.victims[0], members)
        if change.kind is Kind.SPARE_LOST:
            spare = change.victims[0]
            eventually(f"the loss of {spare} to show", lambda: self._loss_shows(spare), SETTLE_TIMEOUT_S)
            self._steps(before, _STEPS_UNDISTURBED)
            if self._current().number != before:
                raise SoakError(f"the loss of the spare {spare} ended round {before}")
            return before
        return self.job.settled(members, before, SETTLE_TIMEOUT_S).number

    def _settle_without(self, newcomer: str, members: Sequence[str]) -> int:
        """The newcomer may have joined a round or not; the daemon drops it once its loss shows."""
        eventually(f"the loss of {newcomer} to show", lambda: self._loss_shows(newcomer), SETTLE_TIMEOUT_S)
        self._hint(tuple(members), self.cluster.spares)
        while True:
            found = self.job.settled(members, 0, SETTLE_TIMEOUT_S)
            self._steps(found.number, _STEPS_UNDISTURBED)
            if self._current().number == found.number:
                return found.number

    def _loss_shows(self, name: str) -> bool:
        return self.job.member(name) is None or self.job.has_tombstone(name)

    def _clean_up(self, change: Change) -> None:
        """What cloud, daemon and agents do after a change."""
        for node in self._lost:
            node.kill()
            self.job.write_tombstone(node.name, change.kind)
        self._lost.clear()
        victims = change.victims[:1]
        if change.kind is Kind.FENCED:
            self.job.write_tombstone(victims[0], change.kind)
            self._node(victims[0]).signal_all(signal.SIGCONT)
        if change.kind in {Kind.NOTICE, Kind.SHRINKS}:
            self._leave(change)
        if change.kind in _STRUCK_ENDS:
            self._expect_end(victims[0])
        if change.kind is Kind.UNHINTED:
            self.job.waits(*victims, timeout_s=GONE_TIMEOUT_S)

    def _expect_end(self, name: str) -> None:
        """A launcher, and everything that it started, ends with success."""
        node = self._node(name)
        eventually(f"{name} to end", node.has_ended, LEAVE_TIMEOUT_S)
        if node.launcher.exit_code() != 0:
            raise SoakError(f"{name} ended with {node.launcher.exit_code()}")
        eventually(f"nothing to be left on {name}", lambda: not node.processes(), GONE_TIMEOUT_S)

    def _expect_no_more_processes(self, old_workers: Iterable[Identity]) -> None:
        eventually(
            "the workers of the last round to be gone",
            lambda: not any(map(processes.is_alive, old_workers)),
            GONE_TIMEOUT_S,
        )
        for name in self._waiting_or_training():
            wanted = _LAUNCHER_AND_SERVER + (name in self.cluster.members)
            eventually(f"{name} to have {wanted} processes", partial(self._has, name, wanted), GONE_TIMEOUT_S)

    def _has(self, name: str, wanted: int) -> bool:
        return len(self._node(name).processes()) == wanted

    # -- small -------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Node:
        return self.network.nodes[name]

    def _current(self) -> Round:
        found = self.job.round()
        if found is None:
            raise SoakError("the round's key is missing")
        return found

    def _waiting_or_training(self) -> tuple[str, ...]:
        return self.cluster.members + self.cluster.spares + self.cluster.unhinted

    def _hint(self, members: tuple[str, ...], spares: tuple[str, ...] = ()) -> None:
        if (members, spares) != self._hinted:
            self._hinted = (members, spares)
            self.job.hint(members, spares)
