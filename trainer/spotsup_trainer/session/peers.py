"""The ranks of this round, and the collectives by which they agree. A single process needs no collective."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Peers:
    """Every method but the last two is collective: all ranks must call it, in the same order."""

    rank: int
    world: int
    # A gloo process group, so that agreeing never waits for a GPU; None for a single process.
    group: Any | None

    @classmethod
    def join(cls, environ: Mapping[str, str] = os.environ) -> Peers:
        """The ranks of the default process group, or this process alone.

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
        group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        return cls(dist.get_rank(), dist.get_world_size(), group)

    def another(self) -> Peers:
        """The same ranks with a gloo group of their own, for collectives of another thread."""
        return self if self.group is None else Peers(self.rank, self.world, dist.new_group(backend="gloo"))

    def highest(self, values: Sequence[int]) -> list[int]:
        """For each value, the highest of all ranks."""
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return tensor.tolist()  # type: ignore[no-any-return]  # torch is untyped here

    def total(self, value: float) -> float:
        """The sum of all ranks' values."""
        if self.world == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return float(tensor)

    def from_rank_0(self, value: Any) -> Any:
        """Rank 0's value, on every rank (pickled, but only between processes of one job)."""
        return self.from_rank(0, value)

    def from_rank(self, source: int, value: Any) -> Any:
        """The value of that rank, on every rank, as above."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=source, group=self.group)
        return box[0]

    def gathered(self, value: Any) -> list[Any] | None:
        """All ranks' values in their order, as above, on rank 0; None on the others."""
        if self.world == 1:
            return [value]
        found = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, found, dst=0, group=self.group)
        return found

    def from_all(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank (pickled, as above)."""
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
