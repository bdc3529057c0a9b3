"""Session: makes a training script elastic. It resumes, checkpoints, and gives each sample once per epoch.

    session = Session({"model": model, "opt": opt}, every_s=60)      # after init_process_group and DDP(model)
    for batch in session.loader(dataset, global_batch=1024, epochs=3):
        loss = session.weight * loss_of(model(batch))
        loss.backward(); opt.step(); opt.zero_grad()
        session.step(loss)
    session.finish()

Every rank must make the same calls in the same order. Outside a spotsup job it is a plain checkpoint helper.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset

from spotsup_trainer.session import parallel, seeds
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Position
from spotsup_trainer.session.pace import Pace
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.sampler import Cursor, GlobalOffsetSampler, Plan, Share, after, order
from spotsup_trainer.session.seeds import Seeds
from spotsup_trainer.timing import SaveTimes
from spotsup_trainer.wire import Progress
from spotsup_trainer.worker_files import WorkerFiles, earlier_places

if TYPE_CHECKING:
    from spotsup_trainer.session.checkpoint import Checkpointer

# What all ranks do next: the highest value that any of them wants.
_CONTINUE, _CHECKPOINT, _YIELD = 0, 1, 2
# Which call a rank is in. Ranks in different calls would wait for each other forever.
_IN_INIT, _IN_STEP, _IN_CHECKPOINT_POINT, _IN_FINISH = 0, 1, 2, 3

_DEFAULT_EVERY_S = 60.0
_WARN_AFTER_S = 60.0
_PROGRESS_EVERY_S = 0.2  # often enough for a person to watch; the agent sends each change to etcd
_SIGN_OF_LIFE_EVERY_S = 20.0  # a machine's dead-man switch waits for at least half an hour


class SessionError(RuntimeError):
    """A Session is used in a wrong way. The message says what to do."""


class MicroBatch(NamedTuple):
    """A piece of a rank's share of one step, for gradient accumulation.

    Multiply the mean loss over `data` by `weight`. Only the backward of the `last` piece must synchronise gradients:
    run the others under DDP's `model.no_sync()`.
    """

    data: Any
    weight: float
    last: bool


class Session:
    """One round of training on this rank.

    - `state`: name -> module, optimizer, or any object with `state_dict` and `load_state_dict`. It is restored on
      construction, from the newest complete checkpoint, by any number of processes; of a job that was submitted with
      --resume-from and has none yet, from the newest of the earlier job.
    - `checkpoints`: a folder that all nodes share, or an address in an object store, such as s3://bucket/prefix; by
      default where the job file says. Without either, no checkpoints.
    - `every_steps`, `every_s`: when to save, in the background (default: every 60 s).
    - `keep`: how many of the newest checkpoints are kept.
    - `mesh`, `data_dims`: for tensor and context parallelism. The DeviceMesh of all ranks, with names, and those of its
      dimensions along which ranks train on different samples, such as ("dp_replicate", "dp_shard"). Ranks that differ
      only along others get the same samples and random numbers. Without them, every rank gets samples of its own.
    - `warn_after_s`: a checkpoint that takes longer is a warning, and a problem in `spotsupctl status` (default: 60 s,
      or twice `every_s`).

    From here on each rank draws its own random numbers, from the seeds that are set now: see docs/training.md.

    Raises CheckpointError if there are checkpoints but none can be read, TypeError if something in `state` cannot be
    saved, RuntimeError if this is one of several processes and torch.distributed is not initialised, SessionError if
    parameters are sharded or replicated over mesh dimensions that are not data-parallel and there is no `mesh`, or if
    `mesh` leaves out ranks, has no names, or lacks one of `data_dims`.
    """

    def __init__(  # noqa: PLR0913 - all but the state have a good default, and are given by name
        self,
        state: Mapping[str, Any],
        *,
        checkpoints: str | os.PathLike[str] | None = None,
        every_steps: int | None = None,
        every_s: float | None = None,
        keep: int = 3,
        warn_after_s: float | None = None,
        park_timeout_s: float = 120.0,
        mesh: Any = None,
        data_dims: Sequence[str] | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if every_steps is None and every_s is None:
            every_s = _DEFAULT_EVERY_S
        if any(interval is not None and interval <= 0 for interval in (every_steps, every_s)):
            raise ValueError(f"every_steps is {every_steps}, every_s is {every_s}; they must be more than 0")
        self._every_steps, self._every_s = every_steps, every_s
        self._park_timeout_s = park_timeout_s
        self._clock = clock
        self._files = WorkerFiles.named_by(environ)
        self._peers = Peers.join(environ)
        self._rank, self._world = self._place(state, mesh, data_dims)
        self._round = int(environ.get("SPOTSUP_ROUND", "0"))
        self._loss: Any = None
        self._first_step_at = self._last_step_at = self._progress_at = 0.0
        self._sign_of_life_at = clock()
        self._pace = Pace()
        self._trains = False
        self._times_written = SaveTimes()
        self._share: Share | None = None
        self._plan: Plan | None = None
        self._progress_failed = False
        self._checkpoints = self._open_checkpoints(
            state,
            checkpoints or environ.get("SPOTSUP_CHECKPOINT_URL") or environ.get("SPOTSUP_CHECKPOINT_DIR"),
            keep,
            warn_after_s or max(_WARN_AFTER_S, 2 * (every_s or 0.0)),
            earlier_places(environ),
        )
        restored = self._checkpoints.restore() if self._checkpoints else None
        program = self._agreed_seeds()
        start = restored or Position(0, rng_seed=program.torch)
        self._position = self._taken = replace(start, round=self._round, world=self._peers.world)
        self._due_from = (self._position.step, clock())
        seeds.begin(program, self._position.rng_seed, self.steps_done, self.rank)
        self._files.announce()
        self._act(self._agree(_IN_INIT))

    # -- state ------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process among all of the round; with a `mesh`, its place along the data dimensions, which it shares with
        the ranks that get the same samples.
        """
        return self._rank

    @property
    def world(self) -> int:
        """The number of processes in this round; with a `mesh`, of ranks along the data dimensions."""
        return self._world

    @property
    def round(self) -> int:
        """The rendezvous round, 0 outside a spotsup job."""
        return self._round

    @property
    def steps_done(self) -> int:
        """Completed optimizer steps, over all rounds. Steps that were lost do not count."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """Completed epochs, over all rounds."""
        return self._position.epoch

    @property
    def weight(self) -> float:
        """The factor for this rank's mean loss over the current batch.

        DDP and FSDP average gradients over the ranks with different samples. With this factor the average is the
        gradient of the mean loss over the whole global batch, although the ranks' shares may differ by a sample, or be
        empty (then it is 0).
        """
        share = self._current_share()
        return share.weight(len(share.positions))

    @property
    def indices(self) -> list[int]:
        """The samples of the current step that this rank trains on, without a repeated one (weight 0)."""
        share = self._current_share()
        assert self._plan is not None
        return order(self._plan, share.epoch, share.positions) if share.counted else []

    def yielding(self) -> bool:
        """Whether this node was asked to checkpoint and park. Cheap, and not collective: other ranks may not know yet.

        Use it to cut short work that only some ranks do, or that is long and not training, so that the next `step` or
        `checkpoint_point` comes soon. Each call shows that this rank does not hang.
        """
        self._show_life()
        return self._files.yield_wanted()

    # -- training ------------------------------------------------------------------------------------------

    def loader(
        self,
        dataset: Any,
        *,
        global_batch: int,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        micro_batch: int | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """This rank's share of each step, from where training stopped until `epochs` epochs are complete in total.

        `dataset` has `__len__` and `__getitem__`; `global_batch` samples make one step, over any number of ranks.
        Yields the batches that the DataLoader collates; with `micro_batch`, lists of `MicroBatch` of at most that many
        samples. `options` go to torch's DataLoader (num_workers, collate_fn, pin_memory, ...). For training only: use a
        plain DataLoader for evaluation.

        Raises SessionError if training resumes within an epoch that had other data.
        """
        indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not indexed or isinstance(dataset, IterableDataset):
            raise TypeError(
                f"{type(dataset).__name__} has no length or no index; session.loader() needs both to resume"
            )
        plan = Plan(len(dataset), global_batch, seed, shuffle, drop_last)
        self._expect_same_data(plan)
        self._plan = plan
        cursor = Cursor(self._position.epoch, self._position.offset)
        sampler = GlobalOffsetSampler(plan, cursor, self.rank, self.world, epochs, micro_batch)
        loading = seeds.stream(self._position.rng_seed, self.steps_done, self.rank, "loader")
        options.setdefault("generator", torch.Generator().manual_seed(loading))
        self._taken = self._position
        return self._batches(sampler, DataLoader(dataset, batch_sampler=sampler, **options))

    def step(self, loss: Any = None) -> None:
        """Report one completed optimizer step. Collective. `loss` (a number or tensor) is for people; rank 0's is
        shown.

        Returns at once, or begins a checkpoint; or, if any node was asked to yield, checkpoints this very step with all
        ranks, and parks until the launcher ends this process.
        """
        self._loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        self._position = replace(self._taken, step=self._position.step + 1)
        self._last_step_at = self._clock()
        self._pace.step(self._last_step_at)
        first = self._first_step_at == 0.0
        if first:
            self._first_step_at = self._last_step_at
            self._trains = True
            if self._checkpoints:
                self._checkpoints.claim()
        level = self._agree(_IN_STEP)
        self._report(now=first)
        self._act(level)

    def checkpoint_point(self) -> None:
        """A point between two steps where all ranks can checkpoint and park. Collective, like `step`.

        Call it now and then during long work that is not training (evaluation, warm-up), the same number of times on
        every rank: otherwise a notice has to wait for the next step.
        """
        level = self._agree(_IN_CHECKPOINT_POINT)
        self._report(now=False)
        self._act(level)

    def finish(self) -> None:
        """Checkpoint the last step of training. Collective. Raises CheckpointError if that failed."""
        self._agree(_IN_FINISH)
        saved = self._checkpoints is None or self._checkpoints.save(self._position, meanwhile=self._report)
        self._trains = False
        self._report(now=True)
        if self._checkpoints is not None and not saved:
            problem = self._checkpoints.problem() or "rank 0 could not complete it"
            raise CheckpointError(f"the last checkpoint is missing: {problem}")

    def __enter__(self) -> Session:  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        elif self._checkpoints:
            self._checkpoints.abandon()

    # -- inside --------------------------------------------------------------------------------------------

    def _place(self, state: Mapping[str, Any], mesh: Any, data_dims: Sequence[str] | None) -> tuple[int, int]:
        """(rank, number of ranks) among those that get different samples. Raises SessionError if that is unclear."""
        if (mesh is None) != (data_dims is None):
            raise SessionError(
                "a mesh and data_dims tell together which ranks get different samples: give both or none"
            )
        if mesh is None or data_dims is None:
            if reason := parallel.refusal(parallel.distributed(state), self._peers.world):
                raise SessionError(reason)
            return self._peers.rank, self._peers.world
        seen, names = parallel.Mesh.of(mesh), (data_dims,) if isinstance(data_dims, str) else tuple(data_dims)
        if reason := parallel.misfit(seen, names, self._peers.world):
            raise SessionError(reason)
        return parallel.place(seen, names)

    def _open_checkpoints(
        self,
        state: Mapping[str, Any],
        place: str | os.PathLike[str] | None,
        keep: int,
        warn_after_s: float,
        resume_from: list[str],
    ) -> Checkpointer | None:
        if place:
            from spotsup_trainer.session.checkpoint import Checkpointer  # a second, for DCP

            return Checkpointer(
                place if isinstance(place, str) else Path(place),
                state,
                self._peers,
                keep,
                round_number=self._round,
                warn_after_s=warn_after_s,
                resume_from=resume_from,
            )
        if self._files.yield_ is not None and self._peers.rank == 0:
            print(
                "spotsup: there is no place for checkpoints: training starts over after every interruption",
                file=sys.stderr,
                flush=True,
            )
        return None

    def _agree(self, call: int) -> int:
        """What all ranks do next. Raises SessionError, on every rank, if they are in different calls or steps."""
        wanted = _YIELD if self._files.yield_wanted() else _CHECKPOINT if self._due() else _CONTINUE
        here = 4 * self.steps_done + call
        busy = self._checkpoints is not None and self._checkpoints.busy
        level, furthest, least, any_busy = self._peers.highest([wanted, here, -here, busy])
        if furthest != -least:
            raise SessionError(
                f"the ranks made different Session calls (this is rank {self._peers.rank}, after step "
                f"{self.steps_done}): call step(), checkpoint_point() and finish() on every rank, the same number of "
                "times"
            )
        # one rank's disk may still hang when the others have given up waiting for theirs
        return _CONTINUE if level == _CHECKPOINT and any_busy else level

    def _due(self) -> bool:
        """Rank 0 decides on periodic checkpoints, and begins none while one is being written."""
        if self._checkpoints is not None and self._files.save_wanted():
            return self.steps_done != self._due_from[0]
        if self._checkpoints is None or self._peers.rank != 0:
            return False
        self._checkpoints.check()
        step, at = self._due_from
        if self._checkpoints.busy or self.steps_done == step:
            return False
        if self._every_steps is not None and self.steps_done - step >= self._every_steps:
            return True
        # a clock that was set back must not delay the next one
        return self._every_s is not None and not 0 <= self._clock() - at < self._every_s

    def _act(self, level: int) -> None:
        if level == _CHECKPOINT and self._checkpoints:
            self._due_from = (self.steps_done, self._clock())
            self._files.save_begun()
            self._checkpoints.begin(self._position)
        elif level == _YIELD:
            # if the disk hangs, the launcher ends this process before this call times out
            saved = self._checkpoints is not None and self._checkpoints.save(self._position, meanwhile=self._report)
            self._report(now=True)
            self._files.park(self.steps_done, saved, self._park_timeout_s)

    def _show_life(self, *, now: bool = False) -> None:
        at = self._clock()
        self._pace.alive(at)
        if now or not 0 <= at - self._sign_of_life_at < _SIGN_OF_LIFE_EVERY_S:
            self._sign_of_life_at = at
            self._files.renew(self._pace.hangs_after_s if self._trains else None)

    def _report(self, *, now: bool = False) -> None:
        at = self._clock()
        self._show_life(now=now)
        times = self._times()
        if times != self._times_written:
            self._times_written = times
            self._files.write_times(times)
        if self._peers.rank != 0 or self._first_step_at == 0.0:
            return
        if not now and 0 <= at - self._progress_at < _PROGRESS_EVERY_S:
            return
        self._progress_at = at
        progress = Progress(
            round=self._round,
            step=self.steps_done,
            at=self._last_step_at,
            first_step_at=self._first_step_at,
            epoch=self.epoch,
            samples=self._position.samples,
            loss=None if self._loss is None else float(self._loss),
            checkpoint_step=self._checkpoints.step if self._checkpoints else 0,
            checkpoint_problem=self._checkpoints.problem() if self._checkpoints else "",
            checkpoint_p50_s=self._checkpoints.took_s(0.5) if self._checkpoints else 0.0,
            checkpoint_p95_s=times.checkpoint_s,
            step_s=times.step_s,
            checkpoint_every_s=self._every_s or (self._every_steps or 0) * times.step_s,
        )
        problem = self._files.write_progress(progress)
        if problem and not self._progress_failed:
            print(f"spotsup: progress is no longer reported: {problem}", file=sys.stderr, flush=True)
            self._progress_failed = True

    def _times(self) -> SaveTimes:
        """What leaving takes. A step's time in two digits: it is written where it changes."""
        checkpoint_s = self._checkpoints.took_s(0.95) if self._checkpoints else 0.0
        return SaveTimes(checkpoint_s, float(f"{self._pace.longest_step_s:.2g}"))

    def _batches(self, sampler: GlobalOffsetSampler, loader: Any) -> Iterator[Any]:
        """The batches of `loader`; remembers which step each belongs to, for `step` to count."""
        plan, parts = sampler.plan, iter(loader)
        for share in sampler.shares():
            pieces = [
                MicroBatch(next(parts), share.weight(len(piece)), piece[-1] == share.positions[-1])
                for piece in share.micro_batches(sampler.micro_batch)
            ]
            cursor = after(plan, share)
            self._share = share
            self._taken = replace(
                self._taken,
                epoch=cursor.epoch,
                offset=cursor.offset,
                samples=self._taken.samples + share.stop - share.start,
                data_length=plan.length,
                data_seed=plan.seed,
                data_shuffled=int(plan.shuffle),
            )
            yield pieces if sampler.micro_batch else pieces[0].data

    def _current_share(self) -> Share:
        if self._share is None:
            raise SessionError("there is no current batch: use weight and indices while iterating session.loader()")
        return self._share

    def _expect_same_data(self, plan: Plan) -> None:
        """Within an epoch, another order would repeat some samples and miss others."""
        at = self._position
        saved = (at.data_length, at.data_seed, bool(at.data_shuffled))
        if at.offset and saved != (plan.length, plan.seed, plan.shuffle):
            raise SessionError(
                f"epoch {at.epoch} was begun with length, seed, shuffle = {saved}, but this loader has "
                f"{(plan.length, plan.seed, plan.shuffle)}: use the same, or another checkpoint directory"
            )

    def _agreed_seeds(self) -> Seeds:
        """Ranks that share samples must have the same: rank 0's, where the program set none, or another on each."""
        own = seeds.found()
        return own if self._world == self._peers.world else Seeds(*self._peers.from_rank_0(tuple(own)))
