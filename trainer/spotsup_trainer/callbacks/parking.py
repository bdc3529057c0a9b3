"""What a framework's callback does at each step, without the framework: agree, have it save, say so, park."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from spotsup_trainer.peers import Peers
from spotsup_trainer.wire import Progress
from spotsup_trainer.worker_files import WorkerFiles

_PROGRESS_EVERY_S = 0.2  # a person sees no more, and the agent sends each change to etcd


class Parking:
    """One round of training on this rank, by a loop that is not ours. Outside a spotsup job it asks for nothing.

    Make it once training begins: after torch.distributed is initialised, before the first step. All ranks make the same
    calls, in the same order. Raises RuntimeError where this is one of several processes and torch.distributed is not
    initialised.
    """

    def __init__(
        self,
        *,
        park_timeout_s: float = 120.0,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._files = WorkerFiles.named_by(environ)
        self._round = int(environ.get("SPOTSUP_ROUND", "0"))
        self._park_timeout_s = park_timeout_s
        self._clock = clock
        self._peers = Peers.join(environ)
        # a rank whose launcher is another one must not leave the others alone in a collective
        (self._active,) = self._peers.highest([self._files.yield_ is not None])
        self._step = self._epoch = self._saved_step = 0
        self._at = self._first_step_at = self._progress_at = 0.0
        self._files.announce()

    @property
    def rank(self) -> int:
        """This process among all of the round."""
        return self._peers.rank

    def step_done(self, step: int, epoch: int = 0) -> bool:
        """`step` optimizer steps are complete. True, on every rank, if all must now save this very step and `park`."""
        self._step, self._epoch, self._at = step, epoch, self._clock()
        first = self._first_step_at == 0.0
        if first:
            self._first_step_at = self._at
        leaving = self._active and self._peers.highest([self._files.yield_wanted()]) == [1]
        self._report(now=first)
        return bool(leaving)

    def saved(self) -> None:
        """A checkpoint of the last step is complete, as far as this rank knows."""
        self._saved_step = self._step

    def all_here(self) -> None:
        """Wait until all ranks are here."""
        self._peers.highest([0])

    def park(self) -> None:
        """Once all ranks are here: tell the launcher, and wait for the end. Does not return."""
        self.all_here()  # rank 0 may still be writing for the others
        self._report(now=True)
        self._files.park(self._step, self._saved_step == self._step, self._park_timeout_s)

    def _report(self, *, now: bool) -> None:
        at = self._clock()
        if self.rank != 0 or (not now and 0 <= at - self._progress_at < _PROGRESS_EVERY_S):
            return
        self._progress_at = at
        self._files.write_progress(
            Progress(
                round=self._round,
                step=self._step,
                at=self._at,
                first_step_at=self._first_step_at,
                epoch=self._epoch,
                checkpoint_step=self._saved_step,
            )
        )
