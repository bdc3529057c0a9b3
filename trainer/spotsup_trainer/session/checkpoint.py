"""Checkpoints that all ranks make together: the state is copied at once, and written while training goes on.

Except for reading at the start, all access to the directory or the object store is on a thread: one that hangs must not
stop training.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import secrets
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from spotsup_trainer.session import snapshot, staging
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Owner, Position, SupersededError
from spotsup_trainer.session.memory import Keeper, Room
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.places import open_place
from spotsup_trainer.session.restoring import Restorer, Sources
from spotsup_trainer.session.retention import Retention
from spotsup_trainer.session.survivors import Copy, Lineage

_MEASURED = 20  # checkpoints: as many as p95 needs to leave one out
_ATTEMPTS = 2  # a transient error of a network file system should not cost steps
_ABANDON_S = 10.0  # how long a failing process waits for a checkpoint that is being written
_AT_EXIT_S = 30.0
_TIMEOUT_S = 1500.0  # less than gloo's 30 min, after which the other ranks would fail
_POLL_S = 0.2


@dataclass(frozen=True)
class _Copied:
    """A copy of this rank's part of the state."""

    position: Position
    # What this rank writes to storage.
    written: dict[str, Any]
    # What it keeps in the memory of its node, and where that is; None: nothing.
    kept: dict[str, Any] | None
    room: Room | None


class Checkpointer:
    """The checkpoints of one Session. Call `restore` first.

    `step` is that of the newest complete checkpoint, 0 without one. On ranks other than 0 it may be one that rank 0
    could not complete; where it matters they ask rank 0. `round_number`: if two processes claim the same directory, the
    one of the newer round wins. A write that takes longer than `warn_after_s` is a `problem`. `resume_from`: where to
    look while there is none; nothing is written there. `keeper`: memory for snapshots that outlives this process.
    `timeout_s`: of `save`.
    """

    def __init__(  # noqa: PLR0913  # all but four have a default, and are given by name
        self,
        root: Path | str,
        state: snapshot.State,
        peers: Peers,
        keep: int,
        *,
        keep_every: int | None = None,
        round_number: int = 0,
        warn_after_s: float = 60.0,
        resume_from: Sequence[Path | str] = (),
        keeper: Keeper | None = None,
        timeout_s: float = _TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        snapshot.check(state)
        self.step = 0
        self._state = state
        self._peers = peers
        self._dir = open_place(root, Owner(round_number, uuid.uuid4().hex[:12]), Retention(keep, keep_every))
        self._resume_from = tuple(resume_from)
        self._restored = Position(0)
        # Of the state that was restored.
        self.sources = Sources()
        self._round = round_number
        self._keeper = keeper
        # What was copied last in this round, in short: see `_lacks`.
        self._copied_of: tuple[Position, bytes] | None = None
        self._staging = staging.Staging()
        self._writers: Peers | None = None
        self._claiming: threading.Thread | None = None
        self._writing: threading.Thread | None = None
        self._writing_step = 0
        self._began = self._asked_at = 0.0
        self._took_s: deque[float] = deque(maxlen=_MEASURED)
        self._warn_after_s = warn_after_s
        self.timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._last_error = self._warned_of = ""
        self._warning = threading.Lock()
        self._failure: BaseException | None = None

    def took_s(self, share: float) -> float:
        """Return how long at most that share of the last checkpoints took, from the copy to the rename; 0 before the
        first.

        In milliseconds, rounded up: a checkpoint that was made is never 0.
        """
        return math.ceil(1000 * _quantile(self._took_s, share)) / 1000

    @property
    def unwritten(self) -> bool:
        """True if the state was restored from memory, and is newer than the newest complete checkpoint."""
        return self._restored.step > self.step

    @property
    def busy(self) -> bool:
        """True if a checkpoint is being written."""
        return _is_alive(self._writing)

    def problem(self) -> str:
        """Return why checkpoints are not being written now, in one sentence; empty while they are.

        A new problem and its end are printed as warnings: call it often. Complete on rank 0 only.
        """
        with self._warning:
            problem = self._late() or self._last_error
            if problem and not self._warned_of:
                self._warn(problem)
            elif self._warned_of and not problem:
                self._warn(f"checkpoints are being written again: that of step {self.step} is complete")
            self._warned_of = problem
        return problem

    def restore(self) -> Position | None:
        """Load the newest readable checkpoint into the state; None if there is no checkpoint.

        Collective. Raises CheckpointError if there are checkpoints but none can be read, or none where it is to resume
        from: only a person should decide to start over then.
        """
        with self._warning_while_slow(f"the checkpoints in {self._dir.root}"):
            return self._restore()

    def claim(self) -> None:
        """Training goes on from here: see CheckpointDir.claim. In the background; a failure is a `problem`."""
        if self._keeper is not None:
            self._keeper.begin_round(Lineage(self._round, self._restored.snapshot))
        if self._peers.rank != 0:
            return
        self._began = self._clock()
        self._claiming = _thread(self._claim_in_background)
        self._claiming.start()

    def begin(self, position: Position) -> None:
        """Copy the state now, and write it in the background. No rank may still be writing one.

        Collective. A failure to write is a `problem`: training goes on, and the next checkpoint may succeed.
        """
        assert not self.busy, "the copy that is being written would be overwritten"
        self.check()
        self._start(position)

    def save(
        self,
        position: Position,
        timeout_s: float | None = None,
        meanwhile: Callable[[], object] = lambda: None,
        *,
        anew: bool = False,
    ) -> bool:
        """Complete a checkpoint of this very step before returning, within `timeout_s`. `meanwhile` is called now and
        then. `anew`: also if there seems to be one.

        Collective. False, on every rank, if that failed or timed out on any of them: `problem` says why. A write that
        timed out may still complete later.
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        failed = not self._wait([self._writing], deadline - time.monotonic(), meanwhile) or self._failure is not None
        needed, stop = self._peers.highest([self._peers.rank == 0 and (anew or self._lacks(position)), failed])
        for _ in range(_ATTEMPTS):
            if not needed or stop:
                break
            self._start(position)
            left_s = deadline - time.monotonic()
            failed = not self._wait([self._writing], left_s, meanwhile) or self._failure is not None
            # only rank 0 knows whether it could complete what all have written; also the barrier before parking
            needed, stop = self._peers.highest([self.step != position.step, failed])
        self.check()
        return not needed

    def present(self, meanwhile: Callable[[], object]) -> set[int] | None:
        """Return the steps of the complete checkpoints, once none is being written; None while storage does not answer.
        For rank 0."""
        found: list[set[int]] = []

        def look(writing: threading.Thread | None) -> None:
            if writing is not None:
                writing.join()
            with contextlib.suppress(OSError, CheckpointError):
                found.append({each.step for each in self._dir.checkpoints()})

        looking = _thread(look, self._writing)
        looking.start()
        if not self._wait([looking], self.timeout_s, meanwhile):
            self._warn(
                f"{self._dir.title} did not answer for {self.timeout_s:g} s: the last step is not compared with the "
                "best checkpoint, nor kept as the best; training goes on"
            )
            return None
        return found[0] if found else None

    def _lacks(self, position: Position) -> bool:
        """True if the newest checkpoint is not of `position`, or something but tensors has changed since: a program's
        own counters may change between two steps."""
        if self.step != position.step:
            return True
        return self._copied_of is not None and self._copied_of != (position, snapshot.digest(self._state))

    def settle(self) -> None:
        """Wait for all background work, then `check`."""
        self._wait([self._claiming, self._writing], self.timeout_s)
        self.check()

    def check(self) -> None:
        """Raise a background thread's error that is more than a failure to write: SupersededError, or a bug."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def abandon(self) -> None:
        """This process fails: wait for a short while for a checkpoint that is being written."""
        self._wait([self._claiming, self._writing], _ABANDON_S)
        if self._writing is not None:
            _unfinished.discard(self._writing)  # it has been waited for

    # -- reading -------------------------------------------------------------------------------------------

    def _restore(self) -> Position | None:
        (unkept,) = self._peers.highest([self._keeper is None])
        if unkept:
            self._keeper = None
        restorer = Restorer(
            *(self._state, self._peers, self._dir, self._resume_from),
            keeper=self._keeper,
            this_round=self._round,
            sleep=self._sleep,
            warn=self._warn,
        )
        restored = restorer.run()
        self._dir = restorer.place
        if restored is None:
            return None
        self.step, self._restored, self.sources = restored.stored_step, restored.position, restored.sources
        if restored.older:
            self._warn(f"training goes on from step {restored.position.step}, an older checkpoint")
        return restored.position

    @contextmanager
    def _warning_while_slow(self, what: str) -> Iterator[None]:
        """Print what this rank waits for, at ever longer intervals, while it does."""
        done = threading.Event()

        def warn() -> None:
            interval_s = self._warn_after_s
            while not done.wait(interval_s):
                interval_s *= 2
                self._warn(
                    f"rank {self._peers.rank} is still reading {what}, and training waits for it: "
                    "it is large, or its file system does not answer",
                    any_rank=True,
                )

        _thread(warn).start()
        try:
            yield
        finally:
            done.set()

    # -- writing -------------------------------------------------------------------------------------------

    def _copied(self, position: Position) -> _Copied:
        """This rank's part of the state, as it is now. Collective."""
        captured = snapshot.capture(self._state)
        opaque = snapshot.digest(self._state, captured)
        self._copied_of = (position, opaque)
        layout = staging.fingerprint(captured)
        others = int.from_bytes(opaque[:7], "big")
        number = secrets.randbits(62) + 1 if self._peers.rank == 0 else 0
        compared = [layout, -layout, others, -others, number, self._writers is None]
        layout_max, neg_layout_min, others_max, neg_others_min, number, unconnected = self._peers.highest(compared)
        if unconnected:
            self._writers = self._peers.another()
        same_everywhere = layout_max == -neg_layout_min
        if others_max != -neg_others_min:
            # what a node has in its memory must be what rank 0 writes
            snapshot.put_opaque(captured, self._peers.from_rank_0(snapshot.opaque(captured)))
        position = replace(position, snapshot=number)
        keeper = self._keeper
        node, nodes = (self._peers.rank, self._peers.world) if keeper is None else (keeper.node, keeper.nodes)

        def to_write(mine: dict[str, Any]) -> dict[str, Any]:
            return staging.share(mine, node, nodes) if same_everywhere else mine

        mine = captured
        if keeper is not None and same_everywhere:
            mine = staging.share(captured, keeper.local_rank, keeper.local_world)
        # Where a node has the memory, its ranks copy all of the state together, and write a share of that.
        room = None if keeper is None else keeper.room(staging.room_for(mine))
        if room is None:
            return _Copied(position, self._staging.copy(to_write(mine)), None, None)
        staged = self._staging.copy(mine, room)
        return _Copied(position, to_write(staged), staged, room)

    def _start(self, position: Position) -> None:
        self._asked_at = self._clock()
        self._dir.begin()
        copied = self._copied(position)
        assert self._writers is not None
        if not _is_alive(self._claiming):
            self._began = self._clock()
        self._writing_step = position.step
        self._writing = _thread(self._write_in_background, copied, self._writers)
        _unfinished.add(self._writing)
        self._writing.start()

    def _wait(
        self, threads: list[threading.Thread | None], timeout_s: float, meanwhile: Callable[[], object] = lambda: None
    ) -> bool:
        """Wait for `threads`, for `timeout_s` at most; whether all have ended."""
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            while thread is not None and thread.is_alive():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                thread.join(min(left_s, _POLL_S))
                meanwhile()
        return True

    def _claim_in_background(self) -> None:
        try:
            self._dir.claim(self._restored.step)
        except OSError as error:
            self._last_error = f"{self._dir.title} cannot be written to: {error}"
            self.problem()
        except BaseException as error:  # noqa: BLE001  # raised again by check(), in the training thread
            self._failure = error

    def _write_in_background(self, copied: _Copied, writers: Peers) -> None:
        if self._claiming is not None:
            self._claiming.join()
        position = copied.position
        try:
            keeping = self._keep(copied, writers)
            try:
                self._write(copied.written, position, writers)
            finally:
                if keeping is not None:
                    keeping.join()  # the next copy may go to the same memory
        except SupersededError as error:
            self._failure = error
        except (CheckpointError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError):
                # gloo: a peer ended, or timed out; its connections are in an unknown state
                self._writers = None
            self._last_error = (
                f"the checkpoint of step {position.step} could not be written to {self._dir.root}: {error}"
            )
            self.problem()
        except BaseException as error:  # noqa: BLE001  # raised again by check(), in the training thread
            self._failure = error
        else:
            self._took_s.append(self._clock() - self._asked_at)
            self.step, self._last_error = position.step, ""

    def _keep(self, copied: _Copied, writers: Peers) -> threading.Thread | None:
        """Begin to make the copy a snapshot in memory, if all ranks have the memory. Collective."""
        keeper = self._keeper
        if keeper is None:
            return None
        part = snapshot.part(copied.kept) if copied.kept is not None else 0
        parts = writers.highest([part if rank == writers.rank else 0 for rank in range(writers.world)])
        if 0 in parts:
            keeper.give_up("another rank could keep none")
            return None
        assert copied.kept is not None
        assert copied.room is not None
        step, number = copied.position.step, copied.position.snapshot
        made = Copy(number, step, self._round, part, tuple(sorted(set(parts))))
        keeping = _thread(keeper.keep, copied.room, snapshot.items(copied.kept), made, copied.position, writers.rank)
        keeping.start()
        return keeping

    def _write(self, written: dict[str, Any], position: Position, writers: Peers) -> None:
        unfinished = self._dir.staging(position.step)
        try:
            if writers.rank == 0:
                # The disk may be full of files that earlier processes left. A failure here repeats below; raising it
                # now would leave the other ranks waiting for this one.
                with contextlib.suppress(OSError, SupersededError):
                    self._dir.claim(self._restored.step)
            snapshot.write(written, unfinished, writers.group)
            if writers.rank == 0:
                if missing := snapshot.incomplete(unfinished):
                    raise CheckpointError(missing)
                self._dir.claim(self._restored.step)
                self._dir.complete(position)
        except (CheckpointError, OSError, RuntimeError):
            if writers.rank == 0:
                self._dir.discard(position.step)
            raise

    def _late(self) -> str:
        busy = self.busy
        if not (busy or _is_alive(self._claiming)) or self._clock() - self._began <= self._warn_after_s:
            return ""
        what = f"the checkpoint of step {self._writing_step}" if busy else "claiming it"
        return (
            f"{self._dir.title} does not answer or is slow: {what} has been under way for "
            f"more than {self._warn_after_s:g} s"
        )

    def _warn(self, message: str, *, any_rank: bool = False) -> None:
        if self._peers.rank == 0 or any_rank:
            with contextlib.suppress(OSError):  # stderr may go to the same full disk
                print(f"spotsup: {message}", file=sys.stderr, flush=True)


_unfinished: WeakSet[threading.Thread] = WeakSet()


@atexit.register
def _finish_at_exit() -> None:
    """Let a checkpoint that is being written come to its end, where a program ends without `finish`.

    It would be lost; and a daemon thread that is in torch's C++ when the interpreter ends aborts the process.
    """
    deadline = time.monotonic() + _AT_EXIT_S
    for thread in list(_unfinished):
        thread.join(max(0.0, deadline - time.monotonic()))


def _quantile(values: Collection[float], share: float) -> float:
    """Return the smallest of `values` that is not exceeded by at least `share` of them; 0 if there is none."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else 0.0


def _thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Return a daemon thread: the process must be able to end while the thread waits for lost peers or disks."""
    return threading.Thread(target=target, args=arguments, name="spotsup-checkpoint", daemon=True)


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()
