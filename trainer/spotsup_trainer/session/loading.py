"""What a rank trains on, as a loop over batches, or as loops over epochs and their batches."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from spotsup_trainer.session.batch_size import common_size
from spotsup_trainer.session.course import Course, SessionError
from spotsup_trainer.session.sampler import Cursor, Order, Part, StepSampler, steps

# Makes a DataLoader of a batch sampler.
Load = Callable[[StepSampler], Any]


class Loop(ABC):
    """One loop over batches, or one per epoch over its batches."""

    def __init__(
        self, course: Course, before: Callable[[bool, bool], None], asks: Callable[[], None], epochs: int
    ) -> None:
        """`before` each micro-batch, and when the program `asks` for one."""
        self._course, self._before, self._asks, self._epochs = course, before, asks, epochs
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        if self._begun and self._course.cursor.epoch >= self._epochs:
            raise self._course.nothing_left(self._epochs)
        self._begun = True
        return self._batches(self._epochs)

    def epochs(self) -> Iterator[Epoch]:
        """Yield the epochs that are not complete, the first perhaps in part.

        If training was interrupted between an epoch's last batch and the next call here, that epoch comes again,
        without a batch: what the program does after each epoch is done at least once, and no step twice.
        """
        course = self._course
        at = course.cursor
        if at.offset == 0 and 0 <= course.position.epochs_closed < min(at.epoch, self._epochs):
            yield Epoch(at.epoch - 1, iter(()), lambda: 0)
        course.close(at.epoch)
        for number in range(at.epoch, self._epochs):
            # Workers of its own for each, as in any loop over epochs: they see what was set on the data set before.
            yield Epoch(number, self._batches(number + 1), partial(self._left_of, number))
            course.close(number + 1)
            if course.cursor.epoch <= number:  # the program left the epoch early
                course.skip_to(number + 1)
                self._left_early()
                self._before(True, True)

    def _batches(self, epochs: int) -> Iterator[Any]:
        self._asks()
        for batch in self._data(epochs):
            yield batch
            self._asks()

    @abstractmethod
    def _data(self, epochs: int) -> Iterator[Any]:
        """Return the batches until so many epochs are complete; tells the course what is trained on."""

    @abstractmethod
    def _left_of(self, number: int) -> int:
        """Batches that are left of that epoch. Raises TypeError if that is unknown."""

    def _left_early(self) -> None:  # noqa: B027  # most need nothing
        """Take note that the program has left an epoch in which there were batches left."""


class Batches(Loop):
    """This rank's part of each step, from where training stopped until all epochs are complete.

        for x, y in batches: ...                        len(batches): how many are left

        for epoch in batches.epochs():
            for x, y in epoch: ...                      len(epoch): how many are left of it
            evaluate(model, epoch.number)

    Each batch is a micro-batch if there is a `micro_batch`, else the whole part of a step.
    """

    def __init__(  # made by Session.loader alone
        self,
        course: Course,
        order: Order,
        part: Part,
        load: Load,
        before: Callable[[bool, bool], None],
        asks: Callable[[], None],
        epochs: int,
        micro_batch: int | None,
    ) -> None:
        super().__init__(course, before, asks, epochs)
        self._order, self._part = order, part
        self._load, self._micro_batch = load, micro_batch
        # The newest DataLoader, for one whose workers stay from epoch to epoch.
        self._loader: Any = None
        self._said = False

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of a whole epoch, for schedules. Raises TypeError if the batch sampler has no length."""
        return self._order.pieces_left(Cursor(), self._part.world, None)

    def __len__(self) -> int:
        at = self._course.cursor
        if at.epoch >= self._epochs:
            return 0
        return self._left(at) + (self._epochs - at.epoch - 1) * self._left(Cursor())

    def _data(self, epochs: int) -> Iterator[Any]:
        """Yield what the DataLoader makes of the micro-batches."""
        if self._loader is None or not self._loader.persistent_workers:
            self._sampler = StepSampler()
            self._loader = self._load(self._sampler)
        self._sampler.begin(steps(self._order, self._course.cursor, self._part, epochs, self._micro_batch))
        loaded, given = iter(self._loader), self._sampler.given
        for first in loaded:
            step = given.popleft()
            last = len(step.pieces) - 1
            for piece in range(last + 1):
                self._course.take(self._order.identity, step, piece)
                self._before(piece == 0, piece == last)
                data = next(loaded) if piece else first
                self._compare_size(data, len(step.pieces[piece][0]))
                yield data
        self._course.leave()

    def _compare_size(self, data: Any, samples: int) -> None:
        """Say once that the program's collate_fn leaves out samples.

        A batch of length 1 may have packed them, and a list of as many tensors has one for each.
        """
        listed = isinstance(data, (list, tuple)) and len(data) == samples
        if not self._said and not listed and 1 < (size := common_size(data)) < samples:
            self._said = True
            print(
                f"spotsup: a batch of {samples} samples has tensors of length {size}: if collate_fn leaves out "
                "samples, give what is left as session.backward(loss, count=...), so that each weighs the same",
                file=sys.stderr,
                flush=True,
            )

    def _left_of(self, number: int) -> int:
        return self._left(self._course.cursor) if self._course.cursor.epoch <= number else 0

    def _left(self, cursor: Cursor) -> int:
        return self._order.pieces_left(cursor, self._part.world, self._micro_batch)


class Epoch:
    """One epoch, or what is left of it. It can be iterated over once."""

    def __init__(self, number: int, batches: Iterator[Any], left: Callable[[], int]) -> None:
        # The first is 0.
        self.number = number
        self._batches = batches
        self._left = left
        self._begun = False

    def __len__(self) -> int:
        return self._left()

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise SessionError(f"epoch {self.number} is iterated over twice: each sample comes once per epoch")
        self._begun = True
        return self._batches
