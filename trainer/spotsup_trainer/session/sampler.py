"""Which samples a rank takes at a step: each sample once per epoch, however the world size changes.

An epoch is one fixed order of all samples: made from (seed, epoch) alone (`Plan`), or given by the program's own batch
sampler (`OwnBatches`). A step takes the next global batch of that order, and the current ranks share it. So the whole
state is the epoch and one offset, the same on every rank, and a checkpoint of them fits any world size. They count
completed steps; batches that data loading workers have fetched ahead do not matter.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isqrt
from typing import Any, NamedTuple, Protocol

import torch

_MASK_32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Cursor:
    """How far training is: of the order of `epoch`, everything before `offset` was trained on.

    In samples, or in batches where the program gives these itself.
    """

    epoch: int = 0
    offset: int = 0


class Part(NamedTuple):
    """One rank's part of a batch that `world` ranks share."""

    rank: int
    world: int

    def places(self, size: int) -> range:
        """Return the places in a batch of `size` samples that this rank takes; two ranks' differ by one sample at
        most."""
        return range(self.rank, size, self.world)

    def pieces(self, size: int, micro_batch: int | None) -> list[range]:
        """`places` in pieces of at most `micro_batch` samples, which differ by one at most; None: in one piece.

        There are as many on every rank, because with FSDP all ranks take part in each forward pass. So one is empty
        where this rank has fewer samples than another.
        """
        mine, count = self.places(size), piece_count(size, self.world, micro_batch)
        cuts = [at * len(mine) // count for at in range(count + 1)]
        return [mine[first:stop] for first, stop in zip(cuts, cuts[1:])]

    def weight(self, samples: int, size: int) -> float:
        """Return the factor for the mean loss over `samples` of this rank's samples of a batch of `size`.

        DDP and FSDP average gradients over ranks. With this factor (summed over micro-batches, if any) that average is
        the gradient of the mean loss over the batch, each sample with equal weight, as one process would compute it.
        """
        return self.world * samples / size


def piece_count(size: int, world: int, micro_batch: int | None) -> int:
    """Return the number of micro-batches in which each rank trains on its part of `size` samples."""
    return -(-size // (world * micro_batch)) if micro_batch else 1


@dataclass(frozen=True)
class Step:
    """One rank's part of one optimizer step."""

    # Of its samples; and where training is once the step is completed.
    epoch: int
    after: Cursor
    # Samples of all ranks.
    size: int
    # Of each micro-batch: its samples, as indices into the data set, and the factor for their mean loss. A rank that
    # has no sample left repeats one with weight 0, because every rank must take part in `backward`.
    pieces: tuple[tuple[list[int], float], ...]
    # Of the samples of all ranks, where these are the program's own batches: all ranks must have the same.
    digest: int = 0

    @property
    def counted(self) -> list[int]:
        """Return the samples that this rank trains on, without a repeated one."""
        return [sample for samples, weight in self.pieces for sample in samples if weight]


class Batch(NamedTuple):
    """The batch of one step, of all ranks."""

    epoch: int
    after: Cursor
    size: int
    # Its samples at the places of a range.
    samples: Any
    digest: int = 0


class Order(Protocol):
    """The fixed order of each epoch's samples, in global batches."""

    @property
    def identity(self) -> tuple[int, int, int]:
        """Length, seed, and kind of the order: what must stay the same for an epoch to be exact."""
        ...

    def batches(self, cursor: Cursor) -> Iterator[Batch]:
        """Yield the batches from `cursor` on, epoch after epoch, without end."""
        ...

    def pieces_left(self, cursor: Cursor, world: int, micro_batch: int | None) -> int:
        """Micro-batches of a rank from `cursor` to the end of its epoch. Raises TypeError if it has no length."""
        ...


def steps(order: Order, cursor: Cursor, part: Part, epochs: int, micro_batch: int | None) -> Iterator[Step]:
    """Yield a rank's steps from `cursor` until `epochs` epochs are complete, counted from the very first."""
    if cursor.epoch >= epochs:
        return
    for batch in order.batches(cursor):
        if batch.epoch >= epochs:
            return  # of the epoch before less was left than a whole batch
        pieces = tuple(
            (batch.samples(piece), part.weight(len(piece), batch.size)) if piece else (batch.samples(range(1)), 0.0)
            for piece in part.pieces(batch.size, micro_batch)
        )
        yield Step(batch.epoch, batch.after, batch.size, pieces, batch.digest)
        if batch.after.epoch >= epochs:
            return


@dataclass(frozen=True)
class Plan:
    """The order that is made from a seed and the epoch."""

    length: int
    # Samples of one step over all ranks.
    global_batch: int
    seed: int = 0
    # False: the data set's own order.
    shuffle: bool = True
    # Leave out the last, smaller step of an epoch.
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError("the data set is empty")
        if self.global_batch < 1:
            raise ValueError(f"global_batch is {self.global_batch}; it must be at least 1")
        if self.drop_last and self.length < self.global_batch:
            raise ValueError(
                f"drop_last leaves no batch: {self.length} samples are fewer than global_batch, {self.global_batch}; "
                "use a smaller global_batch or keep the last batch"
            )

    @property
    def identity(self) -> tuple[int, int, int]:
        """As Order says."""
        return self.length, self.seed, int(self.shuffle)

    def batches(self, cursor: Cursor) -> Iterator[Batch]:
        """As Order says."""
        while True:
            if self._is_used_up(cursor):
                cursor = Cursor(cursor.epoch + 1)
            start, stop = cursor.offset, min(cursor.offset + self.global_batch, self.length)
            after = Cursor(cursor.epoch, stop)
            if self._is_used_up(after):
                after = Cursor(cursor.epoch + 1)
            samples = partial(self._samples, cursor.epoch, range(start, stop))
            yield Batch(cursor.epoch, after, stop - start, samples)
            cursor = after

    def _samples(self, epoch: int, batch: range, places: range) -> list[int]:
        return ordered(self, epoch, batch[places.start : places.stop : places.step])

    def pieces_left(self, cursor: Cursor, world: int, micro_batch: int | None) -> int:
        """As Order says."""
        whole, rest = divmod(self.length - cursor.offset, self.global_batch)
        last = piece_count(rest, world, micro_batch) if rest and not self.drop_last else 0
        return whole * piece_count(self.global_batch, world, micro_batch) + last

    def _is_used_up(self, cursor: Cursor) -> bool:
        return self.length - cursor.offset < (self.global_batch if self.drop_last else 1)


class OwnBatches:
    """The order of the program's own batch sampler, whose batches are lists of indices for all ranks together.

    It must give the same batches whenever it is iterated over for the same epoch, which `set_epoch` tells it.
    """

    def __init__(self, batch_sampler: Any, length: int) -> None:
        self._batch_sampler = batch_sampler
        batches = len(batch_sampler) if hasattr(batch_sampler, "__len__") else 0
        self.identity = (length, batches, 2)

    def batches(self, cursor: Cursor) -> Iterator[Batch]:
        """As Order says."""
        while True:
            offset = cursor.offset
            following = islice(self._of_epoch(cursor.epoch), offset, None)
            batch = next(following, None)
            if batch is None and offset == 0:
                raise ValueError(f"{type(self._batch_sampler).__name__} gave no batch for epoch {cursor.epoch}")
            while batch is not None:
                offset, upcoming = offset + 1, next(following, None)
                after = Cursor(cursor.epoch, offset) if upcoming is not None else Cursor(cursor.epoch + 1)
                yield Batch(cursor.epoch, after, len(batch), partial(_at, batch), zlib.crc32(repr(batch).encode()))
                batch = upcoming
            cursor = Cursor(cursor.epoch + 1)

    def pieces_left(self, cursor: Cursor, world: int, micro_batch: int | None) -> int:  # noqa: ARG002  # as Order says
        """As Order says."""
        if micro_batch is not None:
            raise TypeError("the batches of a batch_sampler differ in size, and so in micro-batches")
        return max(0, len(self._batch_sampler) - cursor.offset)

    def _of_epoch(self, epoch: int) -> Iterator[list[int]]:
        samplers: list[Any] = [self._batch_sampler, getattr(self._batch_sampler, "sampler", None)]
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        return (list(map(int, batch)) for batch in self._batch_sampler)


def _at(batch: list[int], places: range) -> list[int]:
    return [batch[place] for place in places]


class StepSampler:
    """A `batch_sampler` for torch's DataLoader: a list of samples for each micro-batch of a rank's steps."""

    def __init__(self) -> None:
        self._steps: Iterable[Step] = ()
        # Those that have been given to the DataLoader, which loads ahead.
        self.given: deque[Step] = deque()

    def begin(self, steps: Iterable[Step]) -> None:
        """Let the next iteration go over `steps`."""
        self._steps, self.given = steps, deque()

    def __iter__(self) -> Iterator[list[int]]:
        given = self.given
        for step in self._steps:
            given.append(step)
            for samples, _ in step.pieces:
                yield samples


def ordered(plan: Plan, epoch: int, positions: range) -> list[int]:
    """Return the samples at `positions` of an epoch's order."""
    if not plan.shuffle:
        return list(positions)
    return shuffled(torch.arange(positions.start, positions.stop, positions.step), plan, epoch).tolist()  # type: ignore[no-any-return]  # torch is untyped here


def shuffled(positions: torch.Tensor, plan: Plan, epoch: int) -> torch.Tensor:
    """Return the samples at `positions` (int64) of the epoch's pseudo-random order.

    It is a keyed permutation, computed per position (a Feistel network over a rows x columns grid, hashed by 32-bit
    multiplication), and not a shuffled list: it takes no memory and no time at the start of an epoch, resumes at any
    offset, and is the same for every version of Python and torch.
    """
    rows = isqrt(plan.length - 1) + 1 if plan.length > 1 else 1
    columns = -(-plan.length // rows)
    digest = hashlib.blake2b(f"{plan.seed}/{epoch}".encode(), digest_size=32).digest()
    keys = [int.from_bytes(digest[at : at + 4], "little") for at in range(0, 32, 4)]

    def walk(position: torch.Tensor) -> torch.Tensor:
        row, column = position % rows, position // rows
        for row_key, column_key in zip(keys[::2], keys[1::2]):
            row = (row + _mix(column ^ row_key)) % rows
            column = (column + _mix(row ^ column_key)) % columns
        return column * rows + row

    result = walk(positions)
    # The grid has up to `rows` more cells than there are samples. Walk on from such a cell: because `walk` is a
    # permutation of the cells, each walk ends at a sample of its own.
    while bool((outside := result >= plan.length).any()):
        result[outside] = walk(result[outside])
    return result


def _mix(value: torch.Tensor) -> torch.Tensor:
    """Return a 32-bit hash. Factors below 2**31 keep every product within int64 (github.com/skeeto/hash-prospector)."""
    value = value ^ (value >> 16)
    value = (value * 0x21F0AAAD) & _MASK_32
    value = value ^ (value >> 15)
    value = (value * 0x735A2D97) & _MASK_32
    return value ^ (value >> 15)
