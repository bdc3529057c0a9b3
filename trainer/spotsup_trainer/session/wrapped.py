"""Loaders that a program brings itself. What they give are the Session's steps; where they are is in its checkpoints.

A loader is an iterable with `state_dict` and `load_state_dict`, such as torchdata's StatefulDataLoader. Each `iter` of
it is an epoch. Its position is restored exactly where there are as many loaders as before. Their number is that of the
data-parallel ranks; or, with shards, one that the program chooses, and each rank has its part of them.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spotsup_trainer.session.agreement import Call
from spotsup_trainer.session.batch_size import batch_size
from spotsup_trainer.session.course import Course, SessionError
from spotsup_trainer.session.loading import Loop
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.positions import Positions, Record, Saved, dealt, packed, together, unpacked
from spotsup_trainer.session.sampler import Cursor, Part, Step

# States of all loaders of before, this rank, and the number of ranks -> the state for this rank's loader.
Reshard = Callable[[Sequence[Any], int, int], Any]
_END = object()
_KIND = 3  # of an order of samples: see Position.data_shuffled


class Wrapped(Loop):
    """This rank's part of each step, from where training stopped until all epochs are complete.

    To be used like what `Session.loader` returns. Each batch is one of a loader's; `len` is known if theirs is.
    """

    def __init__(  # noqa: PLR0913  # made by Session.wrap alone
        self,
        loader: Any,
        shards: int | None,
        *,
        part: Part,
        micro_batches: int,
        reshard: Reshard | None,
        course: Course,
        positions: Positions,
        peers: Peers,
        compare: Callable[[Call, Sequence[int]], list[int]],
        before: Callable[[bool, bool], None],
        asks: Callable[[], None],
        epochs: int,
    ) -> None:
        if micro_batches < 1 or (shards is not None and shards < 1):
            raise ValueError(f"micro_batches is {micro_batches}, shards is {shards}; they must be at least 1")
        if shards is not None and reshard is not None:
            raise ValueError("with shards, positions fit any number of ranks: give session.wrap() no reshard")
        if (shards is not None) != (callable(loader) and not hasattr(loader, "__iter__")):
            raise TypeError("session.wrap() takes a loader, or with shards=N a function that makes number 0 to N - 1")
        super().__init__(course, before, asks, epochs)
        self.sharded = shards is not None
        self.count = shards or part.world
        self._part, self._micro_batches, self._peers, self._compare = part, micro_batches, peers, compare
        self._reported = False
        mine = range(part.rank, self.count, part.world) if self.sharded else range(part.rank, part.rank + 1)
        self._sources = [_Source(loader(number) if shards else loader, number, part.rank) for number in mine]
        course.begin(self._identity, epochs)
        # A rank without a loader of its own repeats another one's batches with weight 0.
        self._spare: Any = _END
        self._taken_after = -1
        problem: SessionError | None = None
        again = False
        try:
            again = self._restore(positions.taken_by(self), reshard)
        except SessionError as error:
            problem = error
        together(peers, problem)
        if again:
            course.rewind()

    def steps(self) -> tuple[str, str]:
        """As arrangement.start_line has them."""
        batches = "a batch" if self._micro_batches == 1 else f"{self._micro_batches} batches"
        whose = f"each of {self.count} shards" if self.sharded else "each rank's own loader"
        return f"a step has {batches} of {whose}", "step"

    # -- positions -------------------------------------------------------------------------------------------

    @property
    def _identity(self) -> tuple[int, int, int]:
        return (self.count if self.sharded else 0), 0, _KIND

    def records(self) -> dict[int, Record]:
        """As positions.Source says."""
        interrupted = self._taken_after == self._course.position.step
        return {source.number: source.record(interrupted) for source in self._sources}

    def _restore(self, saved: Saved, reshard: Reshard | None) -> bool:
        """True if the epoch has to begin again, because positions do not fit."""
        for source in self._sources:
            source.set_epoch(self._course.cursor.epoch)
        if not saved.records:
            if self._course.cursor.offset:
                raise SessionError(
                    f"epoch {self._course.cursor.epoch} was begun with another loader, whose position is not known: "
                    "wrap one loader once, and go on with what session.wrap() has returned"
                )
            return False
        records = [saved.records[number] for number in sorted(saved.records)]
        if (saved.count, saved.sharded) == (self.count, self.sharded):
            for source in self._sources:
                source.restore(saved.records[source.number])
            return False
        if not self.sharded and self._sources[0].knows_all:
            self._sources[0].restore(records[0])
        elif not any(record.begun for record in records):
            pass  # between two epochs
        elif reshard is not None:
            states = [unpacked(record.state) if record.state is not None else None for record in records]
            pending = dealt(records, self._part.rank, self._part.world)
            self._sources[0].restore(
                Record(packed("what reshard() returned", self._resharded(reshard, states)), True, False, pending)
            )
        else:
            self._say(
                f"there were {saved.count} ranks with loaders of their own, and there are {self.count} now, so their "
                f"positions do not fit: epoch {self._course.cursor.epoch} begins again, and its samples come a second "
                "time (session.wrap(make, shards=N) is exact over any number of ranks)"
            )
            return True
        return False

    def _resharded(self, reshard: Reshard, states: list[Any]) -> Any:
        try:
            return reshard(states, self._part.rank, self._part.world)
        except Exception as error:
            raise SessionError(f"reshard() failed on rank {self._part.rank}: {error!r}") from error

    # -- batches ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        at = self._course.cursor
        if at.epoch >= self._epochs:
            return 0
        return (self._epochs - at.epoch) * self._batches_per_epoch - at.offset * self._batches_per_step

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of a whole epoch, if all loaders are as long as this rank's. Raises TypeError without a
        length."""
        return -(-self._batches_of_a_loader // self._micro_batches)

    @property
    def _batches_of_a_loader(self) -> int:
        if not self._sources:
            raise TypeError("this rank has no shard, and so no length")
        return max(len(source.loader) for source in self._sources)

    @property
    def _batches_per_step(self) -> int:
        return -(-self.count // self._part.world) * self._micro_batches

    @property
    def _batches_per_epoch(self) -> int:
        if self._batches_per_step == 1:
            return self._batches_of_a_loader
        return self.steps_per_epoch * self._batches_per_step

    def _left_of(self, number: int) -> int:
        at = self._course.cursor
        return self._batches_per_epoch - at.offset * self._batches_per_step if at.epoch <= number else 0

    def _left_early(self) -> None:
        for source in self._sources:
            source.close(left_early=True)
            source.set_epoch(self._course.cursor.epoch)

    def _data(self, epochs: int) -> Iterator[Any]:
        course = self._course
        while course.cursor.epoch < epochs:
            epoch, fresh = course.cursor.epoch, course.cursor.offset == 0
            while True:
                step, batches = self._next_step()
                if step is None:
                    break
                fresh = False
                self._asks()  # until here this rank waited for others
                last = len(batches) - 1
                for piece, batch in enumerate(batches):
                    course.take(self._identity, step, piece)
                    self._before(piece == 0, piece == last)
                    yield batch
            if course.cursor.epoch != epoch:
                return  # the program has left it, and another loop has gone on
            if fresh:
                raise SessionError(
                    f"no rank's loader gave a batch in epoch {epoch}: each iter() of a loader has to begin an epoch"
                )
            course.skip_to(epoch + 1)
            for source in self._sources:
                source.close()
                source.set_epoch(epoch + 1)
        course.leave()

    def _next_step(self) -> tuple[Step | None, list[Any]]:
        """Return the step, and what is trained on in it here; no step at the end of the epoch. Collective."""
        at = self._course.cursor
        self._taken_after = self._course.position.step
        mine = [batch for source in self._sources for batch in source.take(self._micro_batches)]
        sizes = [batch_size(batch) + 1 for batch in mine]
        if mine:
            self._spare = mine[-1]
        largest, smallest = max(sizes, default=0), min(sizes, default=0)
        shown = (len(mine), -len(mine), largest, -smallest, self._spare is _END)
        most, neg_least, largest, neg_smallest, any_lacks = self._compare(Call.BATCH, shown)
        if most == 0:
            return None, []
        if most == -neg_least and largest == -neg_smallest:
            weights, total = [1 / most] * most, self._part.world * most * (largest - 1)
        else:
            if any_lacks:
                self._share_a_batch()
            weights, total = self._weights(sizes, most)
            mine += [self._spare] * (most - len(mine))
        pieces: tuple[tuple[list[int], float], ...] = tuple(([], weight) for weight in weights)
        step = Step(at.epoch, Cursor(at.epoch, at.offset + 1), total, pieces)
        return step, mine

    def _weights(self, sizes: list[int], most: int) -> tuple[list[float], int]:
        """Return the weights of this rank's batches, and the number of samples of all ranks: each sample weighs the
        same, or each batch if the size of any is unknown. Collective."""
        rank, world = self._part
        own = sizes + [0] * (most - len(sizes))
        table = [0] * (rank * most) + own + [0] * ((world - rank - 1) * most)
        found = self._peers.highest(table)
        differs = SessionError(
            f"rank {self._peers.rank} shares its samples with ranks whose loaders gave other batches: loaders of ranks "
            "with the same session.rank have to be alike"
        )
        together(self._peers, differs if found[rank * most : (rank + 1) * most] != own else None)
        self._tell_of_ends(found, most)
        known = [size for size in found if size]
        if min(known) > 1:
            total = sum(size - 1 for size in known)
            return [world * max(0, size - 1) / total for size in own], total
        return [world * (size > 0) / len(known) for size in own], 0

    def _tell_of_ends(self, found: list[int], most: int) -> None:
        short = [str(rank) for rank in range(self._part.world) if not any(found[rank * most : (rank + 1) * most])]
        if short and not self.sharded and not self._reported:
            self._reported = True
            self._say(
                f"the loader of rank {', '.join(short)} has ended in epoch {self._course.cursor.epoch}, and others go "
                "on: until all have ended, it repeats a batch with weight 0"
            )

    def _share_a_batch(self) -> None:
        """Some rank has never had a batch, and gets another one's. Collective."""
        (source,) = self._peers.highest([-1 if self._spare is _END else self._peers.rank])
        content: bytes | str | None = None
        if self._peers.rank == source:
            try:
                content = pickle.dumps(self._spare)
            except Exception as error:  # noqa: BLE001  # an object of the program's may raise anything
                content = f"{error!r}"
        content = self._peers.from_rank(source, content)
        if isinstance(content, str):
            raise SessionError(
                "a rank whose loader has ended has no batch to repeat, and that of another rank cannot be pickled: "
                f"{content}"
            )
        if self._spare is _END:
            self._spare = pickle.loads(content)  # noqa: S301  # of a process of the same job

    def _say(self, message: str) -> None:
        if self._peers.rank == 0:
            print(f"spotsup: {message}", file=sys.stderr, flush=True)


class _Source:
    """One loader."""

    def __init__(self, loader: Any, number: int, rank: int) -> None:
        if not (hasattr(loader, "__iter__") and hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            raise TypeError(
                f"{type(loader).__name__} has no state_dict() and load_state_dict(), so it cannot say where it is: "
                "wrap it in torchdata's StatefulDataLoader, or use session.loader()"
            )
        self.loader, self.number = loader, number
        # Whether its state says what all ranks have had, and is taken by any number of them: Mosaic's.
        mosaic: Any = sys.modules.get("streaming.base.dataloader")
        self.knows_all = mosaic is not None and isinstance(loader, mosaic.StreamingDataLoader)
        self._name = f"the position of rank {rank}'s loader ({type(loader).__name__})"
        self._iterator: Iterator[Any] | None = None
        self._begun = self._ended = False
        # What it goes on with while it has no iterator: what was restored, or its state after the epoch before.
        self._boundary: bytes | None = None
        self._restored_at_boundary = False
        # Given for the step that is under way; and before that, by a process that did not complete it.
        self._given: list[Any] = []
        self._pending: list[Any] = []
        self._before = Record()
        self._checked = False

    def set_epoch(self, epoch: int) -> None:
        """As a loop over epochs calls it, wherever there is one."""
        batches = getattr(self.loader, "batch_sampler", None)
        known = (self.loader, *(getattr(self.loader, name, None) for name in ("dataset", "sampler")), batches)
        seen: list[Any] = []
        for thing in (*known, getattr(batches, "sampler", None)):
            if hasattr(thing, "set_epoch") and not any(thing is other for other in seen):
                seen.append(thing)
                thing.set_epoch(epoch)

    def take(self, count: int) -> list[Any]:
        """Up to so many batches; fewer at the end of the epoch."""
        if self.knows_all:
            self._before = Record(self._boundary if self._iterator is None else self._state(), self._begun)
        given, self._pending = self._pending[:count], self._pending[count:]
        while len(given) < count and (batch := self._next()) is not _END:
            given.append(batch)
        self._given = given
        if self._iterator is not None and not self._checked:
            self._checked = True
            self._state()  # what cannot be saved is an error now, and not at the first checkpoint
        return given

    def _next(self) -> Any:
        if self._ended:
            return _END
        self._begun = True
        fresh = self._iterator is None
        if self._iterator is None:
            self._iterator = iter(self.loader)
        batch = next(self._iterator, _END)
        if batch is _END and fresh and self._restored_at_boundary:
            self._iterator = iter(self.loader)  # that was the empty rest of the epoch before
            batch = next(self._iterator, _END)
        self._restored_at_boundary = False
        if batch is _END:
            self._ended = True
            self._boundary = self._state()
        return batch

    def close(self, *, left_early: bool = False) -> None:
        """Take note that the epoch is over."""
        self._iterator, self._begun, self._ended = None, False, False
        self._given, self._pending = [], []
        if left_early:
            self._boundary = None

    def record(self, interrupted: bool) -> Record:
        """Return where it is; `interrupted`: the step that it gave batches for is not complete."""
        held = [*(self._given if interrupted else ()), *self._pending]
        if self.knows_all and interrupted and self._begun:
            return self._before
        pending = tuple(packed("a batch of a step that was not completed", batch) for batch in held)
        live = self._iterator is not None and not self._ended
        return Record(self._state() if live else self._boundary, self._begun, self._ended, pending)

    def restore(self, record: Record) -> None:
        """Go on where a loader was. Raises SessionError if it cannot."""
        self._begun, self._ended = record.begun, record.ended
        self._boundary, self._restored_at_boundary = record.state, record.ended or not record.begun
        try:
            self._pending = [unpacked(batch) for batch in record.pending]
            if record.state is not None:
                self.loader.load_state_dict(unpacked(record.state))
        except Exception as error:
            raise SessionError(
                f"{self._name} cannot be restored: load_state_dict() raised {error!r}. Give session.wrap() a loader "
                "like the one that the checkpoint was made with, or the job another folder for checkpoints"
            ) from error

    def _state(self) -> bytes:
        try:
            state = self.loader.state_dict()
        except Exception as error:
            raise SessionError(f"{self._name} is unknown: state_dict() raised {error!r}") from error
        if _only_counts(state):
            raise SessionError(
                f"{self._name} is a number of batches only, because its data set has no state_dict(): at a second "
                "resume, torchdata would leave out as many once more. Give the data set's iterator state_dict() and "
                "load_state_dict(), or session.wrap() a Counted instead"
            )
        return packed(self._name, state)


def _only_counts(state: Any) -> bool:
    """True if it is of a StatefulDataLoader over a stream without a state. With torchdata 0.11, a loader that was
    restored from it counts twice what it skips, so the next one leaves out data."""
    if not isinstance(state, dict):
        return False
    fetched = state.get("fetcher_state")
    if isinstance(fetched, dict) and state.get("dataset_state") is fetched.get("dataset_iter_state") is None:
        return True
    return any(map(_only_counts, state.values()))
