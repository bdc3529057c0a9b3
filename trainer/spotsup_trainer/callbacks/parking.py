"""The part of a callback that does not depend on the framework: agree on a step, report it, park."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from spotsup_trainer.session.losses import LossReading
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.wire import Progress
from spotsup_trainer.worker_files import WorkerFiles

_PROGRESS_EVERY_S = 0.2  # often enough for a person to watch; the agent sends each change to etcd
_RANK_0_TIMEOUT_S = 300.0  # it may have to import a framework first

_stores: list[Any] = []  # kept: this process may host torch's own store
_calls = itertools.count()


def as_rank_0_sees(found: str) -> str:
    """Rank 0's `found`, on every rank; torch.distributed need not be initialised. Collective.

    A file system may show a file of another machine late (NFS caches listings for up to a minute), and all ranks must
    resume from the same checkpoint. A process that neither torchrun nor spotsup started gets its own `found`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not dist.is_torchelastic_launched():
        return found
    if not _stores:
        store, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=_RANK_0_TIMEOUT_S)))
        _stores.append(store)
    key = f"spotsup/as_rank_0_sees/{next(_calls)}"
    if os.environ["RANK"] == "0":
        _stores[0].set(key, found)
    return str(_stores[0].get(key).decode())


class Parking:
    """One round of training on this rank, by a framework's loop. Outside a spotsup job it is not `active`, and never
    asks to park.

    Make it when training begins, with the number of completed steps: after torch.distributed is initialised, before the
    first step. All ranks make the same calls, in the same order. Raises RuntimeError if this is one of several
    processes and torch.distributed is not initialised, or if another rank has another number of steps.
    """

    def __init__(
        self,
        step: int = 0,
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
        # collective, so that a rank with another launcher cannot leave the others waiting
        active, highest, lowest = self._peers.highest([self._files.yield_ is not None, step, -step])
        if highest != -lowest:
            raise RuntimeError(
                f"rank {self.rank} resumes after step {step}, others after {-lowest} to {highest}: "
                "all must resume from the same checkpoint, in a folder that all machines share"
            )
        self.active = bool(active)
        self._step = self._saved_step = step
        self._epoch = self._samples = 0
        self._loss = LossReading()
        self._at = self._first_step_at = self._progress_at = 0.0
        self._first_step = 0
        self._files.announce()
        self._files.moments.called()

    @property
    def rank(self) -> int:
        """This process's rank in the round."""
        return self._peers.rank

    def step_done(self, step: int, epoch: int = 0, *, loss: Any = None, samples: int = 0) -> bool:
        """Report `step` completed optimizer steps. True, on every rank, if all must save this very step and `park`.

        For people, in status and report: `loss` (a number, or a tensor of one) of this step, and the `samples` that all
        ranks together have trained on since the first step of all. Rank 0's count. A tensor on a GPU is not waited for:
        its value is shown a step or two later. Without a `loss`, the one before stays.
        """
        if loss is not None and self.rank == 0:
            self._loss.put(loss)
        self._samples = samples
        self._step, self._epoch, self._at = step, epoch, self._clock()
        first = self._first_step_at == 0.0
        self._files.moments.step_done(step, first=first)
        if first:
            self._first_step_at, self._first_step = self._at, step
        leaving = self.active and self._peers.highest([self._files.yield_wanted()]) == [1]
        self._report(now=first)
        return leaving

    @property
    def is_saved(self) -> bool:
        """True if the last step is in a checkpoint, as far as this rank knows."""
        return self._saved_step == self._step

    def saved(self) -> None:
        """Report that a checkpoint of the last step is complete, as far as this rank knows."""
        self._saved_step = self._step

    def all_here(self) -> None:
        """Wait until all ranks are here."""
        self._peers.highest([0])

    def park(self) -> None:
        """Once all ranks are here, report to the launcher and wait to be ended. Does not return."""
        self.all_here()  # rank 0 may still be writing
        self._report(now=True)
        self._files.park(self._step, self.is_saved, self._park_timeout_s)

    def ended(self) -> None:
        """Training has ended: report the last step."""
        self._report(now=True)

    def _report(self, *, now: bool) -> None:
        at = self._clock()
        if self.rank != 0 or self._at == 0.0 or (not now and 0 <= at - self._progress_at < _PROGRESS_EVERY_S):
            return
        self._progress_at = at
        self._files.write_progress(
            Progress(
                round=self._round,
                step=self._step,
                at=self._at,
                first_step_at=self._first_step_at,
                epoch=self._epoch,
                samples=self._samples,
                loss=self._loss.value,
                checkpoint_step=self._saved_step,
                first_step=self._first_step,
            )
        )
