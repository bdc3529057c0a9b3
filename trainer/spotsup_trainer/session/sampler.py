"""Which samples a rank takes at a step: each sample once per epoch, however the world size changes.

An epoch is one fixed order of all samples, made from (seed, epoch) alone. A step takes the next `global_batch` samples
of that order, and the current ranks share them. So the whole state is the epoch and one offset, the same on every rank,
and a checkpoint of them fits any world size. They count completed steps; batches that data loading workers have fetched
ahead do not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

import torch

_MASK_32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Cursor:
    """How far training is: samples with a position below `offset` in the order of `epoch` were trained on."""

    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Plan:
    """The settings that must stay the same for an epoch to be exact."""

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


@dataclass(frozen=True)
class Share:
    """One rank's share of one step, which has the samples from `start` to `stop` in the order of `epoch`."""

    epoch: int
    start: int
    stop: int
    rank: int
    world: int

    @property
    def positions(self) -> range:
        """This rank's positions in the epoch's order; the shares of two ranks differ by one sample at most.

        Never empty, because every rank must take part in DDP's backward: a rank without samples of its own repeats the
        step's first sample, with weight 0.
        """
        mine = range(self.start + self.rank, self.stop, self.world)
        return mine or range(self.start, self.start + 1)

    @property
    def counted(self) -> int:
        """How many of `positions` are this rank's own: all of them, or 0 if it only repeats a sample."""
        return len(range(self.start + self.rank, self.stop, self.world))

    def weight(self, samples: int) -> float:
        """The factor for the mean loss over `samples` of this rank's samples.

        DDP averages gradients over ranks. With this factor (summed over micro-batches, if any) that average is the
        gradient of the mean loss over the step's samples, each with equal weight, as one process would compute it.
        """
        return self.world * samples / (self.stop - self.start) if self.counted else 0.0

    def micro_batches(self, size: int | None) -> list[range]:
        """`positions` in pieces of at most `size`, in order; None: in one piece."""
        mine = self.positions
        step = size or len(mine)
        return [mine[first : first + step] for first in range(0, len(mine), step)]


def next_share(plan: Plan, cursor: Cursor, rank: int, world: int) -> Share:
    """One rank's share of the step that follows `cursor`, in the next epoch if this one is used up."""
    left = plan.length - cursor.offset
    if left < (plan.global_batch if plan.drop_last else 1):
        cursor, left = Cursor(cursor.epoch + 1), plan.length
    return Share(cursor.epoch, cursor.offset, cursor.offset + min(left, plan.global_batch), rank, world)


def after(plan: Plan, share: Share) -> Cursor:
    """The cursor once the step is completed; at the start of the next epoch as soon as this one is used up."""
    left = plan.length - share.stop
    used_up = left < (plan.global_batch if plan.drop_last else 1)
    return Cursor(share.epoch + 1) if used_up else Cursor(share.epoch, share.stop)


def shares(plan: Plan, cursor: Cursor, rank: int, world: int, epochs: int) -> Iterator[Share]:
    """One rank's steps from `cursor` until `epochs` epochs are complete, counted from the very first."""
    while (share := next_share(plan, cursor, rank, world)).epoch < epochs:
        yield share
        cursor = after(plan, share)


def order(plan: Plan, epoch: int, positions: range) -> list[int]:
    """The samples at `positions` of an epoch's order."""
    if not plan.shuffle:
        return list(positions)
    return shuffled(torch.arange(positions.start, positions.stop, positions.step), plan, epoch).tolist()  # type: ignore[no-any-return]  # torch is untyped here


def shuffled(positions: torch.Tensor, plan: Plan, epoch: int) -> torch.Tensor:
    """The samples at `positions` (int64) of the epoch's pseudo-random order.

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
    """A 32-bit hash. Factors below 2**31 keep every product within int64 (github.com/skeeto/hash-prospector)."""
    value = value ^ (value >> 16)
    value = (value * 0x21F0AAAD) & _MASK_32
    value = value ^ (value >> 15)
    value = (value * 0x735A2D97) & _MASK_32
    return value ^ (value >> 15)


class GlobalOffsetSampler:
    """A `batch_sampler` for torch's DataLoader: one list of samples per micro-batch of one rank."""

    def __init__(
        self, plan: Plan, cursor: Cursor, rank: int, world: int, epochs: int, micro_batch: int | None = None
    ) -> None:
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"micro_batch is {micro_batch}; it must be at least 1")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} is not one of {world} ranks")
        self.plan = plan
        self.micro_batch = micro_batch
        self._where = (cursor, rank, world, epochs)

    def shares(self) -> Iterator[Share]:
        """The steps that the iteration covers, in order."""
        return shares(self.plan, *self._where)

    def __iter__(self) -> Iterator[list[int]]:
        for share in self.shares():
            for piece in share.micro_batches(self.micro_batch):
                yield order(self.plan, share.epoch, piece)
