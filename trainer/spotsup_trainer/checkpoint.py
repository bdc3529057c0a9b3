"""Checkpoints that all ranks make together: in the background while training goes on, or at once before parking."""

from __future__ import annotations

import contextlib
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spotsup_trainer import snapshot
from spotsup_trainer.checkpoint_dir import Checkpoint, CheckpointDir, CheckpointError, Position, SupersededError
from spotsup_trainer.peers import Peers

_ATTEMPTS_BEFORE_PARKING = 2  # a hiccup of a network file system should not cost steps
_LAST_WORDS_S = 10.0  # how long a process that fails waits for its checkpoint under way


class Checkpointer:
    """The checkpoints of one Session; `restore` comes first.

    `step` is that of the newest complete one, 0 where there is none. Ranks other than 0 may believe in one that rank 0
    could not complete; where it matters they ask rank 0.
    """

    def __init__(self, root: Path, state: snapshot.State, peers: Peers, keep: int) -> None:
        snapshot.check(state)
        self.step = 0
        self._state = state
        self._peers = peers
        self._dir = CheckpointDir(root, uuid.uuid4().hex[:12], keep)
        self._background_peers: Peers | None = None
        self._background: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written in the background."""
        return self._background is not None and self._background.is_alive()

    def restore(self) -> Position | None:
        """Load the newest checkpoint that can be read into the state; None where there is no checkpoint at all.

        Collective. Raises CheckpointError where there are some but none can be read: to begin anew then is for people
        to decide.
        """
        problems: list[str] = []
        candidates = self._whole_checkpoints(problems) if self._peers.rank == 0 else iter(())
        # `_dir` too: its token must be the same on all ranks
        self._dir, candidate = self._peers.from_rank_0((self._dir, next(candidates, None)))
        while candidate is not None:
            checkpoint, position = candidate
            if self._read(checkpoint, problems):
                self.step = position.step
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

    def claim(self) -> None:
        """Training goes on from here: see CheckpointDir.claim. A disk that refuses is a warning."""
        if self._peers.rank != 0:
            return
        try:
            self._dir.claim(self.step)
        except OSError as error:
            self._warn(f"the checkpoint directory {self._dir.root} cannot be written to: {error}")

    def begin(self, position: Position) -> None:
        """Copy the state now, write it in the background. Waits for the one before, if that is still being written.

        Collective. A failure while writing is a warning: training goes on, the next one may succeed.
        """
        self.settle()
        if self._background_peers is None:
            self._background_peers = self._peers.another()
        copied = snapshot.copy_to_cpu(snapshot.capture(self._state))
        # A daemon: a process whose peers are gone must be able to end, though the write waits for them.
        self._background = threading.Thread(
            target=self._write_in_background, args=(copied, position), name="spotsup-checkpoint", daemon=True
        )
        self._background.start()

    def save(self, position: Position) -> bool:
        """Have this very step's checkpoint complete, on return. Collective; False, on every rank, where that failed."""
        self.settle()
        (needed,) = self._peers.highest([self._peers.rank == 0 and self.step != position.step])
        for _ in range(_ATTEMPTS_BEFORE_PARKING):
            if not needed or self._save_once(position):
                self.step = position.step
                return True
        return False

    def settle(self, timeout_s: float | None = None) -> None:
        """Wait for the checkpoint under way, then `check`."""
        if self._background is not None:
            self._background.join(timeout_s)
        self.check()

    def check(self) -> None:
        """Raise what a background write met that is no mere failure to write: SupersededError, or a bug."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def abandon(self) -> None:
        """This process fails: give a checkpoint under way a last, short chance."""
        if self._background is not None:
            self._background.join(_LAST_WORDS_S)

    def _whole_checkpoints(self, problems: list[str]) -> Iterator[tuple[Checkpoint, Position]]:
        """Those of which nothing is missing, the newest first. For rank 0."""
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

    def _save_once(self, position: Position) -> bool:
        captured = snapshot.capture(self._state)
        written, superseded = True, None
        try:
            self._write(captured, position, self._peers)
        except SupersededError as error:
            written, superseded = False, error
        except (CheckpointError, OSError) as error:
            written = False
            self._warn_unwritten(position, error)
        # Only rank 0 knows whether it could complete what all have written; this is also the barrier before parking.
        (failures,) = self._peers.highest([not written])
        if superseded is not None:
            raise superseded
        return not failures

    def _write_in_background(self, copied: dict[str, Any], position: Position) -> None:
        assert self._background_peers is not None
        try:
            self._write(copied, position, self._background_peers)
            self.step = position.step
        # gloo raises RuntimeError where a peer ended: this rank's training finds out by itself
        except (CheckpointError, OSError, RuntimeError) as error:
            if isinstance(error, SupersededError):
                self._failure = error
            else:
                self._warn_unwritten(position, error)
        except BaseException as error:  # noqa: BLE001  # raised again by check(), in the training thread
            self._failure = error

    def _write(self, captured: dict[str, Any], position: Position, peers: Peers) -> None:
        staging = self._dir.staging(position.step)
        try:
            snapshot.write(captured, staging, peers.group)
            if peers.rank == 0:
                if missing := snapshot.incomplete(staging):
                    raise CheckpointError(missing)
                self._dir.complete(position)
        except (CheckpointError, OSError):
            if peers.rank == 0:
                self._dir.discard(position.step)
            raise

    def _warn_unwritten(self, position: Position, error: Exception) -> None:
        self._warn(f"the checkpoint of step {position.step} could not be written to {self._dir.root}: {error}")

    def _warn(self, message: str) -> None:
        if self._peers.rank == 0:
            with contextlib.suppress(OSError):  # what takes stderr may be the same full disk
                print(f"spotsup: {message}", file=sys.stderr, flush=True)
