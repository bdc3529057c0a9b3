"""Carries parts of the state between ranks, through the process group: no port is opened, and no rank is trusted that
is not in the round."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from spotsup_trainer.session.parts import Parts, narrowed
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.snapshot import Reading
from spotsup_trainer.session.survivors import Box, Transfer, cut

if TYPE_CHECKING:
    from torch.distributed.checkpoint import ReadItem

# Of one message; that, times MAX_SENDING, is what a rank needs beside the state.
MAX_BLOCK_BYTES = 8 * 1024 * 1024
# Messages that a rank has under way.
MAX_SENDING = 4


class Local(threading.Thread):
    """Copies what is in the memory of this node to where it belongs, while other parts are on their way."""

    def __init__(self, reading: Reading, items: Sequence[ReadItem], parts: Parts) -> None:
        super().__init__(name="spotsup-restore", daemon=True)
        self._reading = reading
        self._items = items
        self._parts = parts
        self._failure: BaseException | None = None
        self.bytes = 0

    def run(self) -> None:
        """On its thread."""
        try:
            for item in self._items:
                box = self._parts.box(item)
                if not self._parts.is_object(box.piece):
                    region = self._parts.region(box)
                    self._reading.destination(item).copy_(region)
                    self.bytes += region.nbytes
        except BaseException as error:  # noqa: BLE001  # raised again by finish()
            self._failure = error

    def finish(self) -> None:
        """Wait for it, and unpickle the objects. Raises what went wrong."""
        self.join()
        if self._failure is not None:
            raise self._failure
        for item in self._items:
            box = self._parts.box(item)
            if self._parts.is_object(box.piece):
                raw = self._parts.region(box)
                self._reading.put_object(item, raw.numpy().tobytes())
                self.bytes += raw.nbytes


class Exchange:
    """Makes `transfers` together with the other ranks.

    `wanted`: what this rank needs of others or of storage. `objects`: those that it has read from storage. `sizes`:
    bytes of each object that is sent.
    """

    def __init__(  # one call
        self,
        peers: Peers,
        parts: Parts,
        reading: Reading,
        wanted: Mapping[Box, ReadItem],
        objects: Mapping[int, bytes],
        sizes: Mapping[int, int],
    ) -> None:
        self._peers = peers
        self._parts = parts
        self._reading = reading
        self._wanted = wanted
        self._objects = objects
        self._sizes = sizes
        self._sending: deque[tuple[Any, torch.Tensor]] = deque()
        # In place of what this rank cannot send, or keep.
        self._scratch = torch.empty(MAX_BLOCK_BYTES, dtype=torch.uint8)
        self._failure: Exception | None = None
        self.received_bytes = 0

    def run(self, transfers: Sequence[Transfer]) -> None:
        """Every rank makes its part in the order of `transfers`, so none waits for one that waits for it. Raises
        RuntimeError if a peer ends. After a fault of its own, a rank sends bytes that mean nothing, for others wait for
        them, and `finish` raises it."""
        for transfer in transfers:
            if self._peers.rank in transfer.ranks and len(transfer.ranks) > 1:
                self._make(transfer)
        while self._sending:
            self._sending.popleft()[0].wait()

    def finish(self) -> None:
        """Raises what went wrong on this rank."""
        if self._failure is not None:
            raise self._failure

    def _make(self, transfer: Transfer) -> None:
        box, ranks = transfer.box, transfer.ranks
        place = ranks.index(self._peers.rank)
        following = ranks[place + 1] if place + 1 < len(ranks) else None
        is_object = self._parts.is_object(box.piece)
        dtype = self._parts.dtypes[box.piece]
        region = self._tried(lambda: self._region(transfer, sends=place == 0))
        lengths = (self._sizes[box.piece],) if is_object else box.lengths
        for offsets, sizes in cut(lengths, dtype.itemsize, MAX_BLOCK_BYTES):
            block = self._tried(lambda: narrowed(region, offsets, sizes))  # noqa: B023  # called at once
            size = math.prod(sizes) * dtype.itemsize
            if place == 0:
                raw = self._tried(lambda: _bytes_of(block.to("cpu", dtype).contiguous()))  # noqa: B023
            else:
                raw = self._receive(block, dtype, size, ranks[place - 1])
            if following is not None:
                self._send(self._scratch[:size] if raw is None else raw, following)
        if place and is_object:
            self._tried(lambda: self._reading.put_object(self._wanted[box], region.numpy().tobytes()))

    def _tried(self, call: Callable[[], Any]) -> Any:
        """What `call` returns; None once anything has failed."""
        if self._failure is None:
            try:
                return call()
            except Exception as error:  # noqa: BLE001  # raised again by finish()
                self._failure = error
        return None

    def _region(self, transfer: Transfer, *, sends: bool) -> torch.Tensor:
        """What is sent, or filled."""
        box = transfer.box
        if sends and not transfer.from_storage:
            return self._parts.region(box)
        if not self._parts.is_object(box.piece):
            return self._reading.destination(self._wanted[box])
        if sends:
            return torch.frombuffer(bytearray(self._objects[box.piece]), dtype=torch.uint8)
        return torch.empty(self._sizes[box.piece], dtype=torch.uint8)

    def _receive(self, block: torch.Tensor | None, dtype: torch.dtype, size: int, sender: int) -> torch.Tensor:
        """The bytes, which are in `block` then."""

        def memory() -> torch.Tensor:
            assert block is not None
            direct = block.device.type == "cpu" and block.dtype == dtype and block.is_contiguous()
            return block if direct else torch.empty(block.shape, dtype=dtype)

        kept = self._tried(memory)
        raw = self._scratch[:size] if kept is None else _bytes_of(kept)
        self._peers.receive(raw, sender)
        if kept is not None and block is not None and kept is not block:
            self._tried(lambda: block.copy_(kept))
        self.received_bytes += raw.nbytes
        return raw

    def _send(self, raw: torch.Tensor, receiver: int) -> None:
        if len(self._sending) >= MAX_SENDING:
            self._sending.popleft()[0].wait()
        self._sending.append((self._peers.send(raw, receiver), raw))


def _bytes_of(block: torch.Tensor) -> torch.Tensor:
    return block.reshape(-1).view(torch.uint8)
