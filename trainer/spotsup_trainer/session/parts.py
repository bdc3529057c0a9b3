"""What a snapshot or a checkpoint consists of, and which of it is in the memory of which node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from spotsup_trainer.session.memory import Key, Piece
from spotsup_trainer.session.survivors import Box

if TYPE_CHECKING:
    from torch.distributed.checkpoint import ReadItem


@dataclass
class Parts:
    """The pieces of what is restored, by numbers that are the same on all ranks."""

    keys: list[Key]
    # Of a tensor's piece; () and bytes for an object.
    shapes: list[tuple[int, ...]]
    dtypes: list[torch.dtype]
    # Bytes; of an object in storage not exactly.
    sizes: dict[int, int]
    # The numbers of those in the memory of each node.
    held: list[set[int]]
    # The bytes of those in the memory of this node.
    own: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = {key: number for number, key in enumerate(self.keys)}

    def number(self, key: Key) -> int | None:
        """Return the number of a piece; None if it is not part of this."""
        return self._numbers.get(key)

    def is_object(self, number: int) -> bool:
        """True if a piece is no tensor."""
        return self.keys[number][1] is None

    def box(self, item: ReadItem) -> Box:
        """Return what a rank needs for `item`."""
        offset = item.storage_index.offset
        number = self._numbers[item.storage_index.fqn, None if offset is None else tuple(offset)]
        if self.is_object(number):
            return Box(number, (), ())
        return Box(number, tuple(item.storage_offsets), tuple(item.lengths))

    def region(self, box: Box) -> torch.Tensor:
        """Return a part of a piece in the memory of this node; of an object all of its bytes."""
        raw = self.own[box.piece]
        if self.is_object(box.piece):
            return raw
        return narrowed(raw.view(self.dtypes[box.piece]).view(self.shapes[box.piece]), box.offsets, box.lengths)


def narrowed(tensor: torch.Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
    """Return a view of a part of a tensor."""
    for dimension, (offset, length) in enumerate(zip(offsets, lengths)):
        tensor = tensor.narrow(dimension, offset, length)
    return tensor


def parts_of(metadata: Metadata, sizes: Mapping[Key, int], nodes: int) -> Parts:
    """Return the parts of a checkpoint or snapshot. `sizes`: bytes of objects, as far as they are known."""
    found = Parts([], [], [], {}, [set() for _ in range(nodes)])
    for name in sorted(metadata.state_dict_metadata):
        entry = metadata.state_dict_metadata[name]
        if isinstance(entry, TensorStorageMetadata):
            for chunk in entry.chunks:
                found.keys.append((name, tuple(chunk.offsets)))
                found.shapes.append(tuple(chunk.sizes))
                found.dtypes.append(entry.properties.dtype)
        else:
            found.keys.append((name, None))
            found.shapes.append(())
            found.dtypes.append(torch.uint8)
    found = Parts(found.keys, found.shapes, found.dtypes, {}, found.held)
    for number, key in enumerate(found.keys):
        count = torch.Size(found.shapes[number]).numel()
        found.sizes[number] = sizes.get(key, 0) if key[1] is None else count * found.dtypes[number].itemsize
    return found


def stored_bytes(metadata: Metadata) -> dict[Key, int]:
    """Return what reading each piece from storage takes."""
    return {
        (index.fqn, None if index.offset is None else tuple(index.offset)): int(entry.length)
        for index, entry in (metadata.storage_data or {}).items()
        if isinstance(index, MetadataIndex)
    }


def metadata_of(pieces: Iterable[Piece]) -> Metadata:
    """Return the metadata of a snapshot in memory, as DCP has it for a checkpoint."""
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    seen = set()
    for piece in pieces:
        if piece.key in seen:
            continue
        seen.add(piece.key)
        if piece.offsets is None:
            entries[piece.name] = BytesStorageMetadata()
            continue
        entry = entries.setdefault(
            piece.name,
            TensorStorageMetadata(
                TensorProperties(dtype=getattr(torch, piece.dtype)), torch.Size(piece.whole), chunks=[]
            ),
        )
        entry.chunks.append(ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.lengths)))
    return Metadata(entries)


def bits(numbers: Iterable[int], count: int) -> bytes:
    """Return a set of numbers below `count`, in few bytes."""
    found = bytearray(-(-count // 8))
    for number in numbers:
        found[number // 8] |= 1 << number % 8
    return bytes(found)


def numbers_in(raw: bytes) -> set[int]:
    """Return the reverse of `bits`."""
    return {8 * at + bit for at, value in enumerate(raw) for bit in range(8) if value >> bit & 1}
