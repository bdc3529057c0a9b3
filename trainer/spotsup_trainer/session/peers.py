"""The ranks of this round, and the collectives by which they agree. A single process needs no collective."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# A rank that waits longer for others says so, once per call.
LATE_S = 60.0
# gloo's own; the time-outs of checkpoints are shorter.
TIMEOUT_S = 1800.0


class LateError(RuntimeError):
    """Another rank has not come within the time that a collective waits."""


@dataclass(frozen=True)
class Peers:
    """Every method but the last two is collective: all ranks must call it, in the same order."""

    rank: int
    world: int
    # A gloo process group of its own, so that agreeing never waits for a GPU, nor meets a collective of the program's;
    # None for a single process.
    group: Any | None

    @classmethod
    def join(cls, environ: Mapping[str, str] = os.environ) -> Peers:
        """Return the ranks of the default process group, or this process alone.

        Raises RuntimeError if the environment names several processes but there is no process group.
        """
        if not (dist.is_available() and dist.is_initialized()):
            world = int(environ.get("WORLD_SIZE", "1"))
            if world > 1:
                raise RuntimeError(
                    f"this is one of {world} processes, but torch.distributed is not initialised: "
                    "call torch.distributed.init_process_group() before the Session is made"
                )
            return cls(0, 1, None)
        return cls(dist.get_rank(), dist.get_world_size(), _group())

    def another(self) -> Peers:
        """Return the same ranks with another group, for collectives of another thread."""
        return self if self.group is None else Peers(self.rank, self.world, _group())

    def highest(self, values: Sequence[int], where: str = "") -> list[int]:
        """Return for each value, the highest of all ranks.

        `where` this rank is, for a line if others do not come soon. Raises LateError then if they do not come at all.
        """
        return self.begin_highest(values).read(where)

    def begin_highest(self, values: Sequence[int]) -> Reading:
        """Return the same, without waiting for other ranks: `read` what this returns later."""
        if self.world == 1:
            return Reading(self.rank, list(values), None)
        tensor = torch.tensor(values, dtype=torch.int64)
        work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group, async_op=True)
        return Reading(self.rank, tensor, work)

    def total(self, value: float) -> float:
        """Return the sum of all ranks' values."""
        if self.world == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return float(tensor)

    def from_rank_0(self, value: Any) -> Any:
        """Rank 0's value, on every rank (pickled, but only between processes of one job)."""
        return self.from_rank(0, value)

    def from_rank(self, source: int, value: Any) -> Any:
        """Return the value of that rank, on every rank, as above."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=source, group=self.group)
        return box[0]

    def gathered(self, value: Any) -> list[Any] | None:
        """Return all ranks' values in their order, as above, on rank 0; None on the others."""
        if self.world == 1:
            return [value]
        found = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, found, dst=0, group=self.group)
        return found

    def from_all(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on every rank (pickled, as above)."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value, group=self.group)
        return found

    # Not collective: between two ranks.

    def send(self, raw: torch.Tensor, rank: int) -> Any:
        """Begin to send bytes to a rank that calls `receive`. `wait()` for what it returns before changing them."""
        return dist.isend(raw, rank, group=self.group)

    def receive(self, raw: torch.Tensor, rank: int) -> None:
        """Fill `raw` with what a rank sends."""
        dist.recv(raw, rank, group=self.group)


class Reading:
    """What `Peers.begin_highest` has begun."""

    def __init__(self, rank: int, values: Any, work: Any) -> None:
        """`work`: what torch returned for the collective; None for a single process."""
        self._rank, self._values, self._work = rank, values, work

    def read(self, where: str = "") -> list[int]:
        """As `Peers.highest` says."""
        if self._work is None:
            return self._values  # type: ignore[no-any-return]  # a list, then
        self._wait(where)
        return self._values.tolist()  # type: ignore[no-any-return]  # torch is untyped here

    def _wait(self, where: str) -> None:
        message = f"rank {self._rank} is {where}, and has waited {{:g}} s for another rank to make the same call"
        if where:
            with suppress(RuntimeError):  # raised again below, unless it was this time-out
                self._work.wait(timedelta(seconds=LATE_S))
            if not self._work.is_completed():
                print(f"spotsup: {message.format(LATE_S)}", file=sys.stderr, flush=True)
        try:
            self._work.wait()
        except RuntimeError as error:
            if where and "imed out" in str(error):
                raise LateError(message.format(TIMEOUT_S)) from error
            raise


def _group() -> Any:
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=TIMEOUT_S))
