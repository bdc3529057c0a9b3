"""Session: makes a training script elastic. It resumes, checkpoints, and gives each sample once per epoch.

    session = Session({"model": model, "opt": opt}, every_s=60)      # after init_process_group and DDP(model)
    for batch in session.loader(dataset, global_batch=1024, epochs=3):
        session.backward(loss_of(model(batch)))
        opt.step(); opt.zero_grad()
        session.step()
    session.finish()

Every rank must make the same calls in the same order. Outside a spotsup job it is a plain checkpoint helper.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import DataLoader

from spotsup_trainer.session import agreement, parallel, retention, seeds
from spotsup_trainer.session.agreement import Agreement, Call, Level, Wish
from spotsup_trainer.session.arrangement import arranged, of_session, start_line, when_saved
from spotsup_trainer.session.cadence import Cadence
from spotsup_trainer.session.checkpoint_dir import CheckpointError, Position
from spotsup_trainer.session.course import Course, SessionError
from spotsup_trainer.session.gradients import Gradients
from spotsup_trainer.session.loading import Batches
from spotsup_trainer.session.losses import LossReading
from spotsup_trainer.session.metrics import Metrics
from spotsup_trainer.session.opening import opened
from spotsup_trainer.session.pace import Pace
from spotsup_trainer.session.park_calls import ParkCall
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.positions import Positions
from spotsup_trainer.session.replicas import Replicas
from spotsup_trainer.session.sampler import Part, StepSampler
from spotsup_trainer.session.seeds import Seeds
from spotsup_trainer.session.work import Work
from spotsup_trainer.session.wrapped import Reshard, Wrapped
from spotsup_trainer.timing import SaveTimes
from spotsup_trainer.wire import Progress, RankTimes
from spotsup_trainer.worker_files import WorkerFiles

if TYPE_CHECKING:
    from spotsup_trainer.session.checkpoint import Checkpointer

# The name that a checkpoint has for them.
_POSITIONS = "spotsup_positions"
_WARN_AFTER_S = 60.0
_PROGRESS_EVERY_S = 0.2  # often enough for a person to watch; the agent sends each change to etcd
_SIGN_OF_LIFE_EVERY_S = 20.0  # a machine's dead-man switch waits for at least half an hour


class Session:
    """One round of training on this rank.

    - `state`: name -> module, optimizer, dict (counters, the best result), or any object with `state_dict` and
      `load_state_dict`; of dicts and such objects rank 0's is kept. It is restored on
      construction, from the newest complete checkpoint, by any number of processes; of a job that was submitted with
      --resume-from and has none yet, from the newest of the earlier job.
    - `checkpoints`: a folder that all nodes share, or an address in an object store, such as s3://bucket/prefix; by
      default where the job file says. Without either, no checkpoints.
    - `every_steps`, `every_s`: when to save, in the background (default: every 60 s, or less often where copying
      the state would take more than 2 % of the time).
    - `keep`: how many of the newest checkpoints are kept. `keep_every`: besides, one is made after every so many steps,
      and kept for ever.
    - `mesh`, `data_dims`: for tensor and context parallelism. The DeviceMesh of all ranks, with names, and those of its
      dimensions along which ranks train on different samples, such as ("dp_replicate", "dp_shard"). Ranks that differ
      only along others get the same samples and random numbers. Without them, every rank gets samples of its own.
    - `warn_after_s`: a checkpoint that takes longer is a warning, and a problem in `spotsupctl status` (default: 60 s,
      or twice `every_s`).

    - `rng`: "per-rank": from here on each rank draws its own random numbers, from the seeds that are set now; see
      docs/training/session.md. "keep": they stay as they are.

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
        keep_every: int | None = None,
        warn_after_s: float | None = None,
        park_timeout_s: float = 120.0,
        rng: Literal["per-rank", "keep"] = "per-rank",
        mesh: Any = None,
        data_dims: Sequence[str] | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cadence = Cadence(every_steps, every_s, keep_every)
        if rng not in {"per-rank", "keep"}:
            raise ValueError(f"rng is {rng!r}; it must be 'per-rank' or 'keep'")
        self._rng = rng
        self._park_timeout_s = park_timeout_s
        self._clock = clock
        self._files = WorkerFiles.named_by(environ)
        self._files.moments.called()
        self._peers = Peers.join(environ)
        self._rank, self._world = parallel.data_place(state, mesh, data_dims, self._peers.rank, self._peers.world)
        place = checkpoints or environ.get("SPOTSUP_CHECKPOINT_URL") or environ.get("SPOTSUP_CHECKPOINT_DIR")
        intervals = {"every_steps": every_steps, "every_s": every_s, "keep": keep, "keep_every": keep_every}
        arguments = of_session(state, place, mesh, data_dims, {**intervals, "rng": rng})
        agreement.compare_arguments(self._peers, Call.INIT, 0, arguments)
        self._round = int(environ.get("SPOTSUP_ROUND", "0"))
        self._loss = LossReading()
        self._metrics = Metrics()
        self._gradients = Gradients(state, self._peers)
        self._work = Work(self._gradients.replicas if self._world == self._peers.world else ())
        self._agreement = Agreement(self._peers)
        self._replicas = Replicas(state, self._peers)
        self._first_step_at = self._last_step_at = self._progress_at = 0.0
        self._samples_wanted = 0  # of all epochs of the newest loader; 0: not known
        self._first_step = 0
        self._must_ask = self._described = False
        self._when_saved = when_saved(self._cadence, place)
        self._sign_of_life_at = clock()
        self._pace = Pace()
        self._park_calls: list[ParkCall] = []
        self._trains = False
        self._times_written = SaveTimes()
        self._progress_failed = False
        self._positions = Positions()
        self._checkpoints = opened(
            {**state, _POSITIONS: self._positions},
            place,
            (keep, keep_every),
            warn_after_s or max(_WARN_AFTER_S, 2 * (every_s or 0.0)),
            (self._peers, self._round),
            environ,
        )
        restored = self._checkpoints.restore() if self._checkpoints else None
        program = self._agreed_seeds()
        start = restored or Position(0, rng_seed=program.torch)
        self._course = Course(replace(start, round=self._round, world=self._peers.world))
        # What the round began from may be in memory only: then the first step is written at once.
        unwritten = self._checkpoints is not None and self._checkpoints.unwritten
        self._cadence.start(self.steps_done, clock(), at_once=unwritten)
        if rng == "per-rank":
            seeds.begin(program, start.rng_seed, self.steps_done, self.rank)
        self._files.announce()
        level = self._agree(Call.INIT)
        self._files.moments.restored(self._checkpoints.sources if self._checkpoints else None)
        self._act(level)

    # -- state ------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process among all of the round; with a `mesh`, its place along the data dimensions, which it shares with
        the ranks that get the same samples.
        """
        return self._rank

    @property
    def world(self) -> int:
        """Return the number of processes in this round; with a `mesh`, of ranks along the data dimensions."""
        return self._world

    @property
    def round(self) -> int:
        """Return the rendezvous round, 0 outside a spotsup job."""
        return self._round

    @property
    def steps_done(self) -> int:
        """Completed optimizer steps, over all rounds. Steps that were lost do not count."""
        return self._course.position.step

    @property
    def epoch(self) -> int:
        """Completed epochs, over all rounds."""
        return self._course.position.epoch

    @property
    def weight(self) -> float:
        """Return the factor for this rank's mean loss over the current batch, for a loop that does not call `backward`.

        DDP and FSDP average gradients over the ranks with different samples. With this factor the average is the
        gradient of the mean loss over the whole global batch, although the ranks' parts may differ by a sample, or be
        empty (then it is 0). 1 without a loader.
        """
        return self._course.weight

    @property
    def indices(self) -> list[int]:
        """Return the samples of the current step that this rank trains on, without a repeated one (weight 0)."""
        return self._course.step.counted

    @property
    def loss(self) -> Any:
        """Return the mean of what `backward` got for this rank's samples of the current step, or the last one: a
        tensor, whose value a GPU may still have to compute. None if it got nothing.
        """
        return self._gradients.mean_loss

    @property
    def accumulating(self) -> bool:
        """True if the current step has another micro-batch: then the optimizer has to wait for it."""
        self._must_ask = False
        return not self._course.is_last_piece

    def yielding(self) -> bool:
        """True if this node was asked to checkpoint and park. Cheap, and not collective: other ranks may not know yet.

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
        global_batch: int | None = None,
        batch_sampler: Any = None,
        epochs: int = 1,
        seed: int | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        micro_batch: int | None = None,
        **options: Any,
    ) -> Batches:
        """This rank's part of each step, from where training stopped until `epochs` epochs are complete in total.

        Collective: all arguments that decide about samples have to be alike on all ranks. `micro_batch` may differ
        with DDP, but not with FSDP or a `mesh`, where ranks meet in each forward pass.

        `dataset` has `__len__` and `__getitem__`; `global_batch` samples make one step, over any number of ranks. With
        a `micro_batch`, a rank's part of a step comes in batches of at most that many samples: see `accumulating`.
        Instead of `global_batch`, `seed`, `shuffle` and `drop_last`, a `batch_sampler` can give the samples of each
        step, as lists of indices for all ranks together; the same ones for the same epoch, which its `set_epoch` is
        called with. `options` go to torch's DataLoader (num_workers, collate_fn, pin_memory, ...). For training only:
        use a plain DataLoader for evaluation.

        `dataset` may be a DataLoader, too: its data set and options are used, and its batch size as `micro_batch`.
        Defaults are its own then, else seed=0, shuffle=True, drop_last=False.

        Raises SessionError if arguments differ between ranks, or training resumes within an epoch of other data.
        """
        made = arranged(
            dataset,
            global_batch,
            batch_sampler,
            epochs=epochs,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            micro_batch=micro_batch,
            options=options,
        )
        arguments = made.arguments()
        if self._world != self._peers.world or self._gradients.meets_in_each_pass:
            arguments["micro_batch"] = made.micro_batch
        agreement.compare_arguments(self._peers, Call.LOADER, self.steps_done, arguments)
        self._course.begin(made.order.identity, epochs)
        self._must_ask, self._samples_wanted = made.must_ask, epochs * len(made.dataset)
        position = self._course.position
        loading = seeds.stream(position.rng_seed, position.step, self.rank, "loader")
        made.options.setdefault("generator", torch.Generator().manual_seed(loading))

        def load(sampler: StepSampler) -> Any:
            return DataLoader(made.dataset, batch_sampler=sampler, **made.options)

        part = Part(self.rank, self.world)
        self._describe(made.steps(part), epochs)
        before, asks = self._gradients.before, self._work.begin
        return Batches(self._course, made.order, part, load, before, asks, epochs, made.micro_batch)

    def wrap(
        self,
        loader: Any,
        *,
        epochs: int = 1,
        micro_batches: int = 1,
        shards: int | None = None,
        reshard: Reshard | None = None,
    ) -> Wrapped:
        """This rank's part of each step, from a loader of the program's own with `state_dict` and `load_state_dict`.

        Collective. `loader` gives this rank's batches; each `iter` of it is an epoch. A step has `micro_batches` of
        them: see `accumulating`. The position, of what completed steps have had, is in the checkpoints, and restored
        here: exactly, if there are as many ranks as before. If not, `reshard` turns the states of all loaders of before
        (a list), with this rank and the number of ranks, into one for this rank's loader; without it, the epoch begins
        again.

        With `shards`, `loader` is a function: it makes loader `number` of so many, which have a part of the data each.
        The ranks share them, so it is exact over any number of ranks. A step has a batch of each shard.

        A rank whose loader ends before others repeats a batch with weight 0. Raises TypeError if a loader has no
        state, SessionError if it cannot be saved or restored, or if the epoch was begun with other data.
        """
        arguments = {"shards": shards, "micro_batches": micro_batches, "epochs": epochs}
        agreement.compare_arguments(self._peers, Call.LOADER, self.steps_done, arguments)
        made = Wrapped(
            loader,
            shards,
            part=Part(self.rank, self.world),
            micro_batches=micro_batches,
            reshard=reshard,
            course=self._course,
            positions=self._positions,
            peers=self._peers,
            compare=self._agree_on_batch,
            before=self._gradients.before,
            asks=self._work.begin,
            epochs=epochs,
        )
        self._describe(made.steps(), epochs)
        return made

    def backward(self, loss: torch.Tensor, *, count: Any = None, scaler: Any = None) -> None:
        """Compute gradients, so that over all ranks and micro-batches they are those of the mean loss of the step.

        `loss` is the mean over the batch that the loader has just given, each sample with equal weight. With a `count`
        (a number, or a tensor of one) it is the mean over so many items, each with equal weight: tokens that are not
        padding, or samples of batches of a loader of your own. Collective then. `scaler`: a GradScaler.

        With micro-batches, DDP averages gradients over the ranks only once per step, with the last one. Raises
        SessionError if only some micro-batches of a step have a `count`.
        """
        self._gradients.backward(loss, self._course.weight, count, scaler, last=self._course.is_last_piece)

    def step(self, loss: Any = None) -> None:
        """Report one completed optimizer step. Collective. `loss` (a number or tensor) is for people, by default the
        mean of what `backward` got; rank 0's is shown.

        Returns at once, or begins a checkpoint; or, if any node was asked to yield, checkpoints this very step with all
        ranks, and parks until the launcher ends this process: where a step takes less than a second, one step after the
        ranks have said so, so that none waits for another. Raises SessionError in the middle of a step, or if ranks
        have trained different weights.
        """
        if self._must_ask:
            raise SessionError(
                "the batch size of the DataLoader is that of a micro-batch, and with fewer ranks a step has several: "
                "write `if session.accumulating: continue` after session.backward(), or give session.loader() a "
                "micro_batch as large as global_batch"
            )
        self._work.complete(self._course.samples_here)
        self._course.complete()
        self._gradients.complete()
        self._loss.put(self._gradients.mean_loss if loss is None else loss)
        self._last_step_at = self._clock()
        self._pace.step(self._last_step_at)
        first = self._first_step_at == 0.0
        self._files.moments.step_done(self.steps_done, first=first)
        if first:
            self._first_step_at, self._first_step = self._last_step_at, self.steps_done
            self._trains = True
            if self._checkpoints:
                self._checkpoints.claim()
        level = self._agree_on_step()
        self._replicas.check(self.steps_done)
        self._report(now=first)
        self._act(level)
        self._work.begin()

    def checkpoint_point(self) -> None:
        """Mark a point between two steps where all ranks can checkpoint and park. Collective, like `step`.

        Call it now and then during long work that is not training (evaluation, warm-up), the same number of times on
        every rank: otherwise a notice has to wait for the next step.
        """
        level = self._agree(Call.CHECKPOINT_POINT)
        self._report(now=False)
        self._act(level)

    def save(self) -> bool:
        """Checkpoint the last completed step, and return once that is complete. Collective.

        False, on every rank, if it could not be written: training can go on, and the next one may succeed.
        """
        self._act(self._agree(Call.SAVE))
        if self._checkpoints is None:
            return False
        self._cadence.begun(self.steps_done, self._clock())
        return self._save(self._checkpoints, anew=True)

    def report(self, **values: Any) -> None:
        """Report metrics by name, such as `session.report(accuracy=0.93)`: numbers, or tensors of one. Not collective;
        rank 0's count. Call it after each evaluation: of each name the last value is shown, and compared by sweeps.

        At most 32 names of 64 characters; more raise ValueError. A value that is not finite counts as none.
        """
        self._metrics.put(values)
        self._report(now=True)

    def save_best(self, name: str, value: Any, *, mode: Literal["min", "max"]) -> bool:
        """Checkpoint the last completed step if `value`, of the metric `name`, is better than all before. Collective.

        `mode`: whether lower or higher values are better. `value` is a number, or a tensor of one; rank 0's counts. The
        checkpoint is kept until a better one is complete; load_weights() and spotsup_trainer.session.weights find it by
        `name`. Returns whether it is the best, and complete.
        """
        if mode not in retention.MODES:
            raise ValueError(f"mode is {mode!r}; it must be 'min' or 'max'")
        self._act(self._agree(Call.SAVE))
        if self._checkpoints is None:
            return False
        began = time.monotonic()
        present = self._checkpoints.present(self._report) if self._peers.rank == 0 else None
        value, present = self._peers.from_rank_0((float(value), present))
        if present is None:
            return False
        best = retention.resolved(self._course.position.best, present)
        if not retention.is_better(value, name, mode, best):
            return False
        new = retention.Best(name, value, mode, self.steps_done)
        self._course.know_best(retention.tried(best, new))
        self._cadence.begun(self.steps_done, self._clock())
        left_s = self._checkpoints.timeout_s - (
            time.monotonic() - began
        )  # else others would wait longer than gloo does
        saved = self._save(self._checkpoints, anew=True, timeout_s=left_s)
        self._course.know_best(retention.done(best, new) if saved else retention.failed(best, new))
        return saved

    def on_park(self, call: Callable[[], object], budget_s: float = 5.0) -> None:
        """Call this before the process is ended for a notice or a new round: to send what a logger still holds back.

        On every rank that asks for it, after the last checkpoint, on a thread. After `budget_s` it is not waited for
        any more: so much earlier a node begins to leave. An error is printed.
        """
        self._park_calls.append(ParkCall(call, budget_s))

    def finish(self) -> None:
        """Checkpoint the last step of training. Collective. Raises CheckpointError if that failed."""
        self._agree(Call.FINISH)
        saved = self._checkpoints is None or self._save(self._checkpoints)
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

    def _describe(self, steps: tuple[str, str], epochs: int) -> None:
        """Say once, on rank 0, what was arranged."""
        if self._peers.rank == 0 and not self._described:
            self._described = True
            part, position = Part(self.rank, self.world), self._course.position
            line = start_line(steps, part, self._peers.world, position, epochs, self._when_saved)
            print(f"spotsup: {line}", file=sys.stderr, flush=True)

    def _agree(self, call: Call) -> Level:
        """Return what all ranks do next. Raises SessionError, on every rank, if they are in different calls or
        steps."""
        return self._agreement.at_once(call, self.steps_done, self._wish()).level

    def _agree_on_batch(self, call: Call, batches: Sequence[int]) -> list[int]:
        wish = self._wish()._replace(level=Level.CONTINUE, batches=batches)
        return self._agreement.at_once(call, self.steps_done, wish).batches

    def _agree_on_step(self) -> Level:
        step = self.steps_done
        waits = self._checkpoints is not None and self._cadence.is_due_by_steps(step)
        asks = self._peers.rank == 0 and self._files.rank_times is not None and self._work.asks()
        level = self._agreement.of_step(step, self._wish()._replace(asks=asks), self._work.say, waits=waits)
        said = self._agreement.take_work()
        if said and self._peers.rank == 0:
            times = tuple(each / 1e9 for each in said)
            self._files.write_rank_times(RankTimes(self._round, self._clock(), times[::2], times[1::2]))
        return level

    def _wish(self) -> Wish:
        return Wish(
            Level.YIELD if self._files.yield_wanted() else Level.CHECKPOINT if self._is_due() else Level.CONTINUE,
            busy=self._checkpoints is not None and self._checkpoints.busy,
            digest=self._course.digest,
            step_s=self._pace.usual_step_s,
        )

    def _is_due(self) -> bool:
        """Rank 0 decides on periodic checkpoints, and begins none while one is being written."""
        if self._checkpoints is not None and self._files.save_wanted():
            return self.steps_done != self._cadence.step
        if self._checkpoints is None or self._peers.rank != 0:
            return False
        self._checkpoints.check()
        return not self._checkpoints.busy and self._cadence.is_due(self.steps_done, self._clock())

    def _act(self, level: Level) -> None:
        if level == Level.CHECKPOINT and self._checkpoints:
            began = self._clock()
            self._cadence.begun(self.steps_done, began)
            self._files.save_begun()
            self._positions.collect(self._peers)
            self._checkpoints.begin(self._course.position)
            self._cadence.copied(self._clock() - began)
        elif level == Level.YIELD:
            # if the disk hangs, the launcher ends this process before this call times out
            saved = self._checkpoints is not None and self._save(self._checkpoints)
            self._report(now=True)
            for park_call in self._park_calls:
                park_call.make()
            self._files.park(self.steps_done, saved, self._park_timeout_s)

    def _save(self, checkpoints: Checkpointer, *, anew: bool = False, timeout_s: float | None = None) -> bool:
        self._positions.collect(self._peers)
        return checkpoints.save(self._course.position, timeout_s, meanwhile=self._report, anew=anew)

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
            samples=self._course.position.samples,
            loss=self._loss.value,
            checkpoint_step=self._checkpoints.step if self._checkpoints else 0,
            checkpoint_problem=self._checkpoints.problem() if self._checkpoints else "",
            checkpoint_p50_s=self._checkpoints.took_s(0.5) if self._checkpoints else 0.0,
            checkpoint_p95_s=times.checkpoint_s,
            step_s=times.step_s,
            checkpoint_every_s=self._cadence.in_seconds(self._pace.max_step_s),
            first_step=self._first_step,
            fraction=self._fraction_done(),
            metrics=self._metrics.values,
        )
        problem = self._files.write_progress(progress)
        if problem and not self._progress_failed:
            print(f"spotsup: progress is no longer reported: {problem}", file=sys.stderr, flush=True)
            self._progress_failed = True

    def _fraction_done(self) -> float | None:
        """Return the fraction of all samples that the newest loader is to give; None for a loader of the program's
        own."""
        return min(1.0, self._course.position.samples / self._samples_wanted) if self._samples_wanted else None

    def _times(self) -> SaveTimes:
        """Return what leaving takes. A step's time in two digits: it is written where it changes."""
        checkpoint_s = self._checkpoints.took_s(0.95) if self._checkpoints else 0.0
        budget_s = sum(each.budget_s for each in self._park_calls)
        later_s = self._pace.usual_step_s if self._agreement.is_quick else 0.0
        return SaveTimes(checkpoint_s, float(f"{self._pace.max_step_s + later_s + budget_s:.2g}"))

    def _agreed_seeds(self) -> Seeds:
        """Ranks that share samples must have the same: rank 0's, where the program set none, or another on each."""
        own = seeds.found() if self._rng == "per-rank" else Seeds(torch.initial_seed(), 0, 0)
        return own if self._world == self._peers.world else Seeds(*self._peers.from_rank_0(tuple(own)))
