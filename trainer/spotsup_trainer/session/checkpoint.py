"""Checkpoints that all ranks make together: the state is copied at once, and written while training goes on.

Except for reading at the start, all access to the directory or the object store is on a thread: one that hangs must not
stop training.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from spotsup_trainer.objects.store import StoreError
from spotsup_trainer.session import replicas, snapshot, staging
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Owner, Position, SupersededError
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.places import READ_TRIES, Checkpoint, checkpoints_at, open_place

_MEASURED = 20  # checkpoints: as many as p95 needs to leave one out
_ATTEMPTS = 2  # a transient error of a network file system should not cost steps
_ABANDON_S = 10.0  # how long a failing process waits for a checkpoint that is being written
_TIMEOUT_S = 1500.0  # less than gloo's 30 min, after which the other ranks would fail
_POLL_S = 0.2
_READ_PAUSE_S = 15.0


# What became of reading a checkpoint, on the rank where it went worst.
_READ, _DAMAGED, _AWAY = 0, 1, 2
_T = TypeVar("_T")


class Checkpointer:
    """The checkpoints of one Session. Call `restore` first.

    `step` is that of the newest complete checkpoint, 0 without one. On ranks other than 0 it may be one that rank 0
    could not complete; where it matters they ask rank 0. `round_number`: if two processes claim the same directory, the
    one of the newer round wins. A write that takes longer than `warn_after_s` is a `problem`. `resume_from`: where to
    look while there is none; nothing is written there.
    """

    def __init__(  # noqa: PLR0913  # all but four have a default, and are given by name
        self,
        root: Path | str,
        state: snapshot.State,
        peers: Peers,
        keep: int,
        *,
        round_number: int = 0,
        warn_after_s: float = 60.0,
        resume_from: Sequence[Path | str] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        snapshot.check(state)
        self.step = 0
        self._state = state
        self._peers = peers
        self._dir = open_place(root, Owner(round_number, uuid.uuid4().hex[:12]), keep)
        self._resume_from = tuple(resume_from)
        self._restored_step = 0
        # What was copied last in this round, in short: see `_lacks`.
        self._copied_of: tuple[Position, bytes] | None = None
        self._staging = staging.Staging()
        self._differing = False
        self._writers: Peers | None = None
        self._claiming: threading.Thread | None = None
        self._writing: threading.Thread | None = None
        self._writing_step = 0
        self._began = self._asked_at = 0.0
        self._took_s: deque[float] = deque(maxlen=_MEASURED)
        self._warn_after_s = warn_after_s
        self._clock = clock
        self._sleep = sleep
        self._last_error = self._warned_of = ""
        self._warning = threading.Lock()
        self._failure: BaseException | None = None

    def took_s(self, share: float) -> float:
        """How long at most that share of the last checkpoints took, from the copy to the rename; 0 before the first.

        In milliseconds, rounded up: a checkpoint that was made is never 0.
        """
        return math.ceil(1000 * _quantile(self._took_s, share)) / 1000

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return _is_alive(self._writing)

    def problem(self) -> str:
        """Why checkpoints are not being written now, in one sentence; empty while they are.

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
        timeout_s: float = _TIMEOUT_S,
        meanwhile: Callable[[], object] = lambda: None,
        *,
        anew: bool = False,
    ) -> bool:
        """Complete a checkpoint of this very step before returning. `meanwhile` is called now and then. `anew`: also if
        there seems to be one.

        Collective. False, on every rank, if that failed or timed out on any of them: `problem` says why. A write that
        timed out may still complete later.
        """
        failed = not self._wait([self._writing], timeout_s, meanwhile) or self._failure is not None
        needed, stop = self._peers.highest([self._peers.rank == 0 and (anew or self._lacks(position)), failed])
        for _ in range(_ATTEMPTS):
            if not needed or stop:
                break
            self._start(position)
            failed = not self._wait([self._writing], timeout_s, meanwhile) or self._failure is not None
            # only rank 0 knows whether it could complete what all have written; also the barrier before parking
            needed, stop = self._peers.highest([self.step != position.step, failed])
        self.check()
        return not needed

    def _lacks(self, position: Position) -> bool:
        """Whether the newest checkpoint is not of `position`, or something but tensors has changed since: a program's
        own counters may change between two steps."""
        if self.step != position.step:
            return True
        return self._copied_of is not None and self._copied_of != (position, snapshot.digest(self._state))

    def settle(self) -> None:
        """Wait for all background work, then `check`."""
        self._wait([self._claiming, self._writing], _TIMEOUT_S)
        self.check()

    def check(self) -> None:
        """Raise a background thread's error that is more than a failure to write: SupersededError, or a bug."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def abandon(self) -> None:
        """This process fails: wait for a short while for a checkpoint that is being written."""
        self._wait([self._claiming, self._writing], _ABANDON_S)

    # -- reading -------------------------------------------------------------------------------------------

    def _restore(self) -> Position | None:
        problems: list[str] = []
        candidates = self._whole_checkpoints(problems) if self._peers.rank == 0 else iter(())
        # `_dir` too: its token must be the same on all ranks
        self._dir, candidate = self._peers.from_rank_0((self._dir, next(candidates, None)))
        while candidate is not None:
            checkpoint, position = candidate
            if self._read(checkpoint, problems):
                self.step = self._restored_step = position.step
                if problems:
                    self._warn(f"training goes on from step {position.step}, an older checkpoint")
                return position  # type: ignore[no-any-return]  # it came from another rank
            candidate = self._peers.from_rank_0(next(candidates, None))
        if problems := self._peers.from_rank_0(problems):
            raise CheckpointError(
                f"no checkpoint in {self._dir.root} can be read; repair one, or move them away to start over. "
                + " | ".join(problems)
            )
        if self._resume_from:
            folders = ", ".join(map(str, self._resume_from))
            raise CheckpointError(
                f"there is no complete checkpoint in {folders}: submit the job without --resume-from to start over"
            )
        return None

    def _whole_checkpoints(self, problems: list[str]) -> Iterator[tuple[Checkpoint, Position]]:
        """The checkpoints from which no file is missing, the newest first. For rank 0."""
        with contextlib.suppress(OSError):  # then its owner counts as another process
            self._patiently(self._dir.remember_owner)
        places = (self._dir.root, *self._resume_from)
        found = (self._patiently(partial(checkpoints_at, place)) for place in places)
        for checkpoint in next(filter(None, found), []):
            try:
                if missing := self._patiently(partial(snapshot.incomplete, checkpoint.path)):
                    raise CheckpointError(missing)
                position = self._patiently(checkpoint.position)
            except CheckpointError as error:
                self._pass_over(checkpoint, str(error), problems)
                continue
            yield checkpoint, position

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """What `call` returns. An object store that does not answer is asked again for some minutes: taking an older
        checkpoint, or failing, would cost steps. Raises its last StoreError."""
        for _ in range(READ_TRIES):
            try:
                return call()
            except StoreError as error:
                self._warn(f"{error}; it is tried again")
                self._sleep(_READ_PAUSE_S)
        return call()

    def _read(self, checkpoint: Checkpoint, problems: list[str]) -> bool:
        """Read it on every rank; whether all of them could. Raises CheckpointError if a store did not answer for long:
        then an older checkpoint is no remedy."""
        for tried in range(READ_TRIES):
            if tried:
                self._sleep(_READ_PAUSE_S)
            problem, outcome = self._try_to_read(checkpoint)
            worst, failed_rank = self._peers.highest([outcome, self._peers.rank if problem else -1])
            if worst != _AWAY:
                break
        else:
            raise CheckpointError(problem or f"rank {failed_rank} cannot read {checkpoint.path}: see its output")
        if worst == _DAMAGED:
            self._pass_over(checkpoint, problem or f"rank {failed_rank} cannot read it", problems)
        return worst == _READ

    def _try_to_read(self, checkpoint: Checkpoint) -> tuple[str, int]:
        try:
            snapshot.read(self._state, checkpoint.path)
        except CheckpointError as error:
            return f"rank {self._peers.rank}: {error}", _DAMAGED
        except StoreError as error:
            self._warn(f"{error}; it is tried again", any_rank=True)
            return f"rank {self._peers.rank}: {error}", _AWAY
        return "", _READ

    def _pass_over(self, checkpoint: Checkpoint, problem: str, problems: list[str]) -> None:
        problems.append(f"{checkpoint.path.name}: {problem}")
        self._warn(f"skipping checkpoint {checkpoint.path}: {problem}")

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

    def _copied(self, position: Position) -> dict[str, Any]:
        """This rank's part of the state, as it is now. Collective."""
        captured = snapshot.capture(self._state)
        self._copied_of = (position, snapshot.digest(self._state, captured))
        layout = staging.fingerprint(captured)
        sampled = replicas.sample(self._state, captured) if self._peers.world > 1 else {}
        values = replicas.digest(sampled)
        compared = [layout, -layout, values, -values, self._writers is None]
        layout_max, neg_layout_min, values_max, neg_values_min, unconnected = self._peers.highest(compared)
        if unconnected:
            self._writers = self._peers.another()
        same_everywhere = layout_max == -neg_layout_min
        if not self._differing and not (same_everywhere and values_max == -neg_values_min):
            self._warn_of_difference(sampled)
        return self._staging.copy(
            staging.share(captured, self._peers.rank, self._peers.world) if same_everywhere else captured
        )

    def _warn_of_difference(self, sampled: dict[str, bytes]) -> None:
        """Once, because it costs an exchange, and nothing changes it. Collective."""
        self._differing = True
        differs = replicas.difference(sampled, self._peers.from_rank_0(sampled))
        (rank,) = self._peers.highest([self._peers.rank if differs else -1])
        if rank == self._peers.rank:
            self._warn(
                f"rank {rank} has other values than rank 0 in {differs}, but a checkpoint keeps one copy for all "
                "ranks: let DDP or FSDP keep the ranks alike, make what is cut over ranks DTensors, or leave it out of "
                "the Session's state",
                any_rank=True,
            )

    def _start(self, position: Position) -> None:
        self._asked_at = self._clock()
        self._dir.begin()
        copied = self._copied(position)
        assert self._writers is not None
        if not _is_alive(self._claiming):
            self._began = self._clock()
        self._writing_step = position.step
        self._writing = _thread(self._write_in_background, copied, position, self._writers)
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
            self._dir.claim(self._restored_step)
        except OSError as error:
            self._last_error = f"{self._dir.title} cannot be written to: {error}"
            self.problem()
        except BaseException as error:  # noqa: BLE001  # raised again by check(), in the training thread
            self._failure = error

    def _write_in_background(self, copied: dict[str, Any], position: Position, writers: Peers) -> None:
        if self._claiming is not None:
            self._claiming.join()
        try:
            self._write(copied, position, writers)
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

    def _write(self, copied: dict[str, Any], position: Position, writers: Peers) -> None:
        unfinished = self._dir.staging(position.step)
        try:
            if writers.rank == 0:
                # The disk may be full of files that earlier processes left. A failure here repeats below; raising it
                # now would leave the other ranks waiting for this one.
                with contextlib.suppress(OSError, SupersededError):
                    self._dir.claim(self._restored_step)
            snapshot.write(copied, unfinished, writers.group)
            if writers.rank == 0:
                if missing := snapshot.incomplete(unfinished):
                    raise CheckpointError(missing)
                self._dir.claim(self._restored_step)
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


def _quantile(values: Collection[float], share: float) -> float:
    """The smallest of `values` that is not exceeded by at least `share` of them; 0 if there is none."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else 0.0


def _thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    """A daemon thread: the process must be able to end while the thread waits for lost peers or disks."""
    return threading.Thread(target=target, args=arguments, name="spotsup-checkpoint", daemon=True)


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()
