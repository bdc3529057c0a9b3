"""Carries parts of the state between ranks, through the process group: no port is opened, and no rank is trusted that
is not in the round."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from spotsup_trainer.session.parts import Parts, narrowed
from spotsup_trainer.session.peers import Peers
from spotsup_trainer.session.snapshot import Reading
from spotsup_trainer.session.survivors import Block, Box, Message, Transfer, messages

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
        # Of boxes in several blocks, until the last; and objects whose bytes the message under way completes.
        self._regions: dict[Transfer, torch.Tensor] = {}
        self._objects_here: list[tuple[Box, torch.Tensor]] = []
        self.received_bytes = 0

    def run(self, transfers: Sequence[Transfer]) -> None:
        """Run it: every rank makes its part in the order of `transfers`, so none waits for one that waits for it.
        Raises RuntimeError if a peer ends. After a fault of its own, a rank sends bytes that mean nothing, for others
        wait for them, and `finish` raises it."""
        mine = [each for each in transfers if self._peers.rank in each.ranks and len(each.ranks) > 1]
        for message in messages(mine, self._form, MAX_BLOCK_BYTES):
            self._make(message)
        while self._sending:
            self._sending.popleft()[0].wait()

    def finish(self) -> None:
        """Raise what went wrong on this rank."""
        if self._failure is not None:
            raise self._failure

    def _form(self, box: Box) -> tuple[Sequence[int], int]:
        if self._parts.is_object(box.piece):
            return (self._sizes[box.piece],), 1
        return box.lengths, self._parts.dtypes[box.piece].itemsize

    def _make(self, message: Message) -> None:
        place = message.ranks.index(self._peers.rank)
        here = [self._tried(lambda: self._block(block, sends=place == 0)) for block in message.blocks]  # noqa: B023
        if place == 0:
            raw = self._tried(lambda: self._joined(message, here))
        else:
            raw = self._receive(message, here, message.ranks[place - 1])
        if place + 1 < len(message.ranks):
            self._send(self._scratch[: message.size_bytes] if raw is None else raw, message.ranks[place + 1])

    def _tried(self, call: Callable[[], Any]) -> Any:
        """Return what `call` returns; None once anything has failed."""
        if self._failure is None:
            try:
                return call()
            except Exception as error:  # noqa: BLE001  # raised again by finish()
                self._failure = error
        return None

    def _block(self, block: Block, *, sends: bool) -> torch.Tensor:
        """Return what is sent, or filled."""
        transfer = block.transfer
        region = self._regions.pop(transfer, None)
        if region is None:
            region = self._region(transfer, sends=sends)
        if not block.last:
            self._regions[transfer] = region
        elif not sends and self._parts.is_object(transfer.box.piece):
            self._objects_here.append((transfer.box, region))
        return narrowed(region, block.offsets, block.lengths)

    def _region(self, transfer: Transfer, *, sends: bool) -> torch.Tensor:
        box = transfer.box
        if sends and not transfer.from_storage:
            return self._parts.region(box)
        if not self._parts.is_object(box.piece):
            return self._reading.destination(self._wanted[box])
        if sends:
            return torch.frombuffer(bytearray(self._objects[box.piece]), dtype=torch.uint8)
        return torch.empty(self._sizes[box.piece], dtype=torch.uint8)

    def _joined(self, message: Message, here: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the bytes of a message that begins here."""
        if len(here) == 1:
            return self._bytes_of(message.blocks[0], here[0])
        raw = torch.empty(message.size_bytes, dtype=torch.uint8)
        for block, tensor in zip(message.blocks, here):
            raw[block.at : block.at + block.size_bytes] = self._bytes_of(block, tensor)
        return raw

    def _bytes_of(self, block: Block, tensor: torch.Tensor) -> torch.Tensor:
        return _bytes_of(tensor.to("cpu", self._parts.dtypes[block.transfer.box.piece]).contiguous())

    def _receive(self, message: Message, here: Sequence[torch.Tensor], sender: int) -> torch.Tensor:
        """Return the bytes, which are where they belong then."""
        kept = self._tried(lambda: self._memory(message, here))
        raw = self._scratch[: message.size_bytes] if kept is None else kept
        self._peers.receive(raw, sender)
        if kept is not None:
            self._tried(lambda: self._put(message, here, kept))
        self.received_bytes += sum(block.size_bytes for block in message.blocks)
        return raw

    def _memory(self, message: Message, here: Sequence[torch.Tensor]) -> torch.Tensor:
        if self._is_direct(message, here):
            return _bytes_of(here[0])
        return torch.empty(message.size_bytes, dtype=torch.uint8)

    def _is_direct(self, message: Message, here: Sequence[torch.Tensor]) -> bool:
        """True if the bytes of a message are those of the only place that they go to."""
        dtype = self._parts.dtypes[message.blocks[0].transfer.box.piece]
        only = here[0] if len(here) == 1 else None
        return only is not None and only.device.type == "cpu" and only.dtype == dtype and only.is_contiguous()

    def _put(self, message: Message, here: Sequence[torch.Tensor], raw: torch.Tensor) -> None:
        if not self._is_direct(message, here):
            for block, tensor in zip(message.blocks, here):
                dtype = self._parts.dtypes[block.transfer.box.piece]
                tensor.copy_(raw[block.at : block.at + block.size_bytes].view(dtype).view(tensor.shape))
        for box, region in self._objects_here:
            self._reading.put_object(self._wanted[box], region.numpy().tobytes())
        self._objects_here.clear()

    def _send(self, raw: torch.Tensor, receiver: int) -> None:
        if len(self._sending) >= MAX_SENDING:
            self._sending.popleft()[0].wait()
        self._sending.append((self._peers.send(raw, receiver), raw))


def _bytes_of(block: torch.Tensor) -> torch.Tensor:
    return block.reshape(-1).view(torch.uint8)
