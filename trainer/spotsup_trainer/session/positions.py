"""Where each rank's own loader is, as a checkpoint keeps it. See wrapped.py."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from spotsup_trainer.session.course import SessionError
from spotsup_trainer.session.peers import Peers

# A position is one of the things for which training stops while they are collected.
_LARGE_BYTES = 64 << 20


@dataclass(frozen=True)
class Record:
    """One loader's position between two steps."""

    # What its state_dict() returned, pickled; None at the beginning.
    state: bytes | None = None
    # Whether it has given a batch of the current epoch, and all of them.
    begun: bool = False
    ended: bool = False
    # Batches that it had given, pickled, for a step that was not completed.
    pending: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Saved:
    """All loaders' positions."""

    # Loaders of which each has a part of the data: one per data-parallel rank, or the number that the program says.
    count: int = 0
    sharded: bool = False
    # By the loader's number.
    records: dict[int, Record] = field(default_factory=dict)


class Source(Protocol):
    """The wrapped loaders of this rank."""

    count: int
    sharded: bool

    def records(self) -> dict[int, Record]:
        """Return the records by number. Raises SessionError if one cannot be saved."""
        ...


class Positions:
    """A part of a Session's state: all ranks' records, which are collected before each checkpoint."""

    # Checkpoints of an earlier version have none.
    optional = True

    def __init__(self) -> None:
        self._saved = self._restored = Saved()
        self._source: Source | None = None
        self._large = False

    def state_dict(self) -> dict[str, Any]:
        """Return what was collected or restored last. Plain data: it can be read without this package."""
        records = {number: vars(record) for number, record in sorted(self._saved.records.items())}
        return {"count": self._saved.count, "sharded": self._saved.sharded, "records": records}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do the reverse."""
        records = {number: Record(**record) for number, record in state["records"].items()}
        self._saved = self._restored = Saved(state["count"], state["sharded"], records)

    def taken_by(self, source: Source) -> Saved:
        """Return what was restored, for the first one who asks; from now on, `source` is asked where it is."""
        restored, self._restored, self._source = self._restored, Saved(), source
        return restored

    def collect(self, peers: Peers) -> None:
        """Ask the wrapped loaders where they are, if there are any. Collective.

        Raises SessionError, on every rank, if one cannot tell.
        """
        if self._source is None:
            return
        records: dict[int, Record] = {}
        problem: SessionError | None = None
        try:
            records = self._source.records()
        except SessionError as error:
            problem = error
        together(peers, problem)
        self._warn_if_large(records, peers.rank)
        merged: dict[int, Record] = {}
        for of_rank in reversed(
            peers.gathered(records) or []
        ):  # ranks that share samples have the same: the first counts
            merged |= of_rank
        # The same on all ranks: what is pickled of one is as good as that of another.
        self._saved = peers.from_rank_0(Saved(self._source.count, self._source.sharded, merged))

    def _warn_if_large(self, records: dict[int, Record], rank: int) -> None:
        size = sum(len(each.state or b"") + sum(map(len, each.pending)) for each in records.values())
        if size > _LARGE_BYTES and not self._large:
            self._large = True
            print(
                f"spotsup: the position of rank {rank}'s loader has {size >> 20} MiB, and training stops at each "
                "checkpoint until it has been copied: let its state_dict() say where it is, and not what it has read",
                file=sys.stderr,
                flush=True,
            )


def together(peers: Peers, problem: SessionError | None) -> None:
    """Raise `problem`, and a SessionError on the other ranks. Collective."""
    (failed,) = peers.highest([peers.rank if problem else -1])
    if problem is not None:
        raise problem
    if failed >= 0:
        raise SessionError(f"the loader of rank {failed} failed: see the SessionError in its output")


def packed(what: str, thing: Any) -> bytes:
    """Pickled. Raises SessionError if that is impossible."""
    written = io.BytesIO()
    try:
        torch.save(thing, written)
    except Exception as error:  # an object of the program's may raise anything
        raise SessionError(f"{what} cannot be pickled, and so not be saved in a checkpoint: {error!r}") from error
    return written.getvalue()


def unpacked(pickled: bytes) -> Any:
    """Return the reverse; tensors of another machine's GPU come to this process's one."""

    def here(storage: Any, location: str) -> Any:
        return storage.cuda() if location.startswith("cuda") else storage

    return torch.load(io.BytesIO(pickled), here, weights_only=False)


def dealt(records: Sequence[Record], rank: int, world: int) -> tuple[bytes, ...]:
    """Return the pending batches of all ranks of before, of which this rank takes its part."""
    return tuple(batch for record in records[rank::world] for batch in record.pending)
