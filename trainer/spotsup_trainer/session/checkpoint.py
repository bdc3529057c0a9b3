"""Checkpoints that all ranks make together: copied in an instant, written in the background while training goes on.

Whatever touches the disk, but for reading at the start, does so in a thread: a file system that hangs must not stop
training.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spotsup_trainer.session import snapshot, staging
from spotsup_trainer.session.checkpoint_dir import (
    Checkpoint,
    CheckpointDir,
    CheckpointError,
    Owner,
    Position,
    SupersededError,
)
from spotsup_trainer.session.peers import Peers

_ATTEMPTS = 2  # a hiccup of a network file system should not cost steps
_LAST_WORDS_S = 10.0  # how long a process that fails waits for its checkpoint under way
_PATIENCE_S = 1500.0  # less than the 30 min for which gloo lets other ranks wait for this one
_POLL_S = 0.2


class Checkpointer:
    """The checkpoints of one Session; `restore` comes first.

    `step` is that of the newest complete one, 0 where there is none. Ranks other than 0 may believe in one that rank 0
    could not complete; where it matters they ask rank 0. `round_number`: of two processes that claim the same
    directory, that of the newer round wins. A write that is under way for more than `warn_after_s` is a `problem`.
    """

    def __init__(
        self,
        root: Path,
        state: snapshot.State,
        peers: Peers,
        keep: int,
        *,
        round_number: int = 0,
        warn_after_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        snapshot.check(state)
        self.step = 0
        self._state = state
        self._peers = peers
        self._dir = CheckpointDir(root, Owner(round_number, uuid.uuid4().hex[:12]), keep)
        self._restored_step = 0
        self._staging = staging.Staging()
        self._writers: Peers | None = None
        self._claiming: threading.Thread | None = None
        self._writing: threading.Thread | None = None
        self._writing_step = 0
        self._began = 0.0
        self._warn_after_s = warn_after_s
        self._clock = clock
        self._trouble = self._warned_of = ""
        self._warning = threading.Lock()
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return _is_alive(self._writing)

    def problem(self) -> str:
        """Why checkpoints are not being written just now, in one sentence; empty while all is well.

        The first problem is a warning, and so is its end: call it often. Only rank 0 knows all.
        """
        with self._warning:
            problem = self._late() or self._trouble
            if problem and not self._warned_of:
                self._warn(problem)
            elif self._warned_of and not problem:
                self._warn(f"checkpoints are being written again: that of step {self.step} is complete")
            self._warned_of = problem
        return problem

    def restore(self) -> Position | None:
        """Load the newest checkpoint that can be read into the state; None where there is no checkpoint at all.

        Collective. Raises CheckpointError where there are some but none can be read: to begin anew then is for people
        to decide.
        """
        with self._telling(f"the checkpoints in {self._dir.root}"):
            return self._restore()

    def claim(self) -> None:
        """Training goes on from here: see CheckpointDir.claim. In the background; what refuses is a `problem`."""
        if self._peers.rank != 0:
            return
        self._began = self._clock()
        self._claiming = _thread(self._claim_in_background)
        self._claiming.start()

    def begin(self, position: Position) -> None:
        """Copy the state now, write it in the background. Nothing may be under way on any rank.

        Collective. A failure while writing is a `problem`: training goes on, the next one may succeed.
        """
        assert not self.busy, "the copy that is being written would be overwritten"
        self.check()
        self._start(self._copied(), position)

    def save(
        self, position: Position, patience_s: float = _PATIENCE_S, meanwhile: Callable[[], object] = lambda: None
    ) -> bool:
        """Have this very step's checkpoint complete, on return. `meanwhile` is called now and then.

        Collective. False, on every rank, where that failed, or was not done after `patience_s` on any of them: then
        `problem` says why, and it may still be complete one day.
        """
        hopeless = not self._wait([self._writing], patience_s, meanwhile) or self._failure is not None
        needed, stop = self._peers.highest([self._peers.rank == 0 and self.step != position.step, hopeless])
        for _ in range(_ATTEMPTS):
            if not needed or stop:
                break
            self._start(self._copied(), position)
            hopeless = not self._wait([self._writing], patience_s, meanwhile) or self._failure is not None
            # only rank 0 knows whether it could complete what all have written; also the barrier before parking
            needed, stop = self._peers.highest([self.step != position.step, hopeless])
        self.check()
        return not needed

    def settle(self) -> None:
        """Wait for all that is under way, then `check`."""
        self._wait([self._claiming, self._writing], _PATIENCE_S)
        self.check()

    def check(self) -> None:
        """Raise what a background thread met that is no mere failure to write: SupersededError, or a bug."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def abandon(self) -> None:
        """This process fails: give a checkpoint under way a last, short chance."""
        self._wait([self._claiming, self._writing], _LAST_WORDS_S)

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
                f"no checkpoint in {self._dir.root} can be read; mend one, or move them away to begin anew. "
                + " | ".join(problems)
            )
        return None

    def _whole_checkpoints(self, problems: list[str]) -> Iterator[tuple[Checkpoint, Position]]:
        """Those of which nothing is missing, the newest first. For rank 0."""
        with contextlib.suppress(OSError):  # then its owner counts as none of ours
            self._dir.remember_owner()
        for checkpoint in self._dir.checkpoints():
            try:
                if missing := snapshot.incomplete(checkpoint.path):
                    raise CheckpointError(missing)
                position = checkpoint.position()
            except CheckpointError as error:
                self._pass_over(checkpoint, str(error), problems)
                continue
            yield checkpoint, position

    def _read(self, checkpoint: Checkpoint, problems: list[str]) -> bool:
        """Whether every rank could read it."""
        problem = ""
        try:
            snapshot.read(self._state, checkpoint.path)
        except CheckpointError as error:
            problem = f"rank {self._peers.rank}: {error}"
        (failed_rank,) = self._peers.highest([self._peers.rank if problem else -1])
        if failed_rank >= 0:
            self._pass_over(checkpoint, problem or f"rank {failed_rank} cannot read it", problems)
        return failed_rank < 0

    def _pass_over(self, checkpoint: Checkpoint, problem: str, problems: list[str]) -> None:
        problems.append(f"{checkpoint.path.name}: {problem}")
        self._warn(f"checkpoint {checkpoint.path} is passed over: {problem}")

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Say what this rank waits for, ever less often, for as long as it does."""
        done = threading.Event()

        def tell() -> None:
            waited_s = self._warn_after_s
            while not done.wait(waited_s):
                waited_s *= 2
                self._warn(
                    f"rank {self._peers.rank} is still reading {what}, and training waits for it: "
                    "it is large, or its file system does not answer",
                    any_rank=True,
                )

        _thread(tell).start()
        try:
            yield
        finally:
            done.set()

    # -- writing -------------------------------------------------------------------------------------------

    def _copied(self) -> dict[str, Any]:
        """This rank's part of the state, as it is now. Collective."""
        captured = snapshot.capture(self._state)
        layout = staging.fingerprint(captured)
        most, least, unconnected = self._peers.highest([layout, -layout, self._writers is None])
        if unconnected:
            self._writers = self._peers.another()
        same_everywhere = most == -least
        return self._staging.copy(
            staging.share(captured, self._peers.rank, self._peers.world) if same_everywhere else captured
        )

    def _start(self, copied: dict[str, Any], position: Position) -> None:
        assert self._writers is not None
        if not _is_alive(self._claiming):
            self._began = self._clock()
        self._writing_step = position.step
        self._writing = _thread(self._write_in_background, copied, position, self._writers)
        self._writing.start()

    def _wait(
        self, threads: list[threading.Thread | None], patience_s: float, meanwhile: Callable[[], object] = lambda: None
    ) -> bool:
        """Whether all of `threads` have ended, after `patience_s` at most."""
        deadline = time.monotonic() + patience_s
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
            self._trouble = f"the checkpoint directory {self._dir.root} cannot be written to: {error}"
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
                # gloo: a peer ended, or was away for too long; nobody knows what its connections still carry
                self._writers = None
            self._trouble = f"the checkpoint of step {position.step} could not be written to {self._dir.root}: {error}"
            self.problem()
        except BaseException as error:  # noqa: BLE001  # raised again by check(), in the training thread
            self._failure = error
        else:
            self.step, self._trouble = position.step, ""

    def _write(self, copied: dict[str, Any], position: Position, writers: Peers) -> None:
        unfinished = self._dir.staging(position.step)
        try:
            if writers.rank == 0:
                # The disk may be full of what earlier processes left. If this fails it does so again below; the others
                # must not wait for this rank in vain.
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
            f"the checkpoint directory {self._dir.root} does not answer or is slow: {what} has been under way for "
            f"more than {self._warn_after_s:g} s"
        )

    def _warn(self, message: str, *, any_rank: bool = False) -> None:
        if self._peers.rank == 0 or any_rank:
            with contextlib.suppress(OSError):  # what takes stderr may be the same full disk
                print(f"spotsup: {message}", file=sys.stderr, flush=True)


def _thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    """A daemon: a process whose peers or disks are gone must be able to end, though the thread waits for them."""
    return threading.Thread(target=target, args=arguments, name="spotsup-checkpoint", daemon=True)


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()
