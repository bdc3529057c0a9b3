"""A rank's part of the last snapshots, in memory that outlives this process: see snapshot_files.py and survivors.py.

A slot is one file. Its head names what follows, and is written last; so a process that is killed leaves a snapshot that
is whole, or none. Two slots take turns where there is memory for both.

    0        a record: what the snapshot is, and where its table is
    1 MiB    the pieces' bytes, as they lie in the tensors; then the table of pieces
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Union

import torch

from spotsup_trainer import snapshot_files
from spotsup_trainer.session.checkpoint_dir import Position, position_in
from spotsup_trainer.session.survivors import Copy, Lineage, Memory, slots_for
from spotsup_trainer.snapshot_files import SnapshotFiles

_FORMAT = 1
_HEAD_BYTES = 1024 * 1024
_DIGEST_BYTES = 16
_ALIGN = 64
_BLOCK_BYTES = 8192
_SHORTAGES = {errno.ENOMEM, errno.EMFILE, errno.ENFILE}
# On a CPU torch has no type of its own for it.
_SHORT_TEXTS = ("can't allocate memory", "not enough memory", "out of memory")
# What cannot be copied to a slot at once, but only in the background, from a copy.
MAX_LOOSE_BYTES = 256 * 1024 * 1024


class Item(Protocol):
    """A part of the state: see snapshot.Item."""

    @property
    def name(self) -> str:
        """Return its name in a checkpoint."""
        ...

    @property
    def offsets(self) -> tuple[int, ...] | None:
        """Within the whole tensor; None of an object."""
        ...

    @property
    def whole(self) -> tuple[int, ...]:
        """Return the lengths of the whole tensor."""
        ...

    @property
    def data(self) -> torch.Tensor | bytes:
        """Return its content."""
        ...


# What a piece is, wherever it is: its name, and its offsets within the tensor; None of an object.
Key = tuple[str, Union[tuple[int, ...], None]]


class DamagedError(Exception):
    """A snapshot in memory cannot be read. Storage is used instead."""


@dataclass(frozen=True)
class Piece:
    """A tensor, a part of one, or some pickled object of the state, as torch.distributed.checkpoint names it."""

    name: str
    # Of a part of a tensor within the whole; None for an object.
    offsets: tuple[int, ...] | None
    # Of this part, and of the whole tensor; of an object, its bytes.
    lengths: tuple[int, ...]
    whole: tuple[int, ...]
    dtype: str
    # Where its bytes are in the file.
    at: int
    bytes: int
    checksum: str

    @property
    def key(self) -> Key:
        """Return what it is, wherever it is."""
        return self.name, self.offsets


@dataclass(frozen=True)
class Head:
    """What a slot has."""

    copy: Copy
    position: Position
    # The rank that made it.
    rank: int
    table_at: int
    table_bytes: int
    table_digest: str


class Slot:
    """One file, for one writer at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def size(self) -> int:
        """Bytes of its memory."""
        return os.fstat(self._descriptor).st_size

    def head(self) -> Head | None:
        """None: it has no snapshot that is whole."""
        try:
            found = _read_record(self._descriptor)
            if found is None:
                return None
            copy = found["copy"]
            return Head(
                Copy(copy["snapshot"], copy["step"], copy["round"], copy["part"], tuple(copy["parts"])),
                position_in(found["position"], "a snapshot in memory", copy["step"]),
                *(found[name] for name in ("rank", "table_at", "table_bytes", "table_digest")),
            )
        except Exception:  # noqa: BLE001  # anything may be there: then there is no snapshot
            return None

    def table(self, head: Head) -> list[Piece]:
        """Raise DamagedError."""
        raw = os.pread(self._descriptor, head.table_bytes, head.table_at)
        if hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest() != head.table_digest:
            raise DamagedError(f"the table of the snapshot of step {head.copy.step} is damaged")
        return pieces_of(json.loads(raw))

    def withdraw(self) -> None:
        """Withdraw: it has no snapshot from now on."""
        if self.size:
            os.pwrite(self._descriptor, bytes(_DIGEST_BYTES), 0)

    def release(self) -> None:
        """Give its memory back."""
        if self.size:
            self.withdraw()
            os.ftruncate(self._descriptor, 0)

    def reserve(self, data_bytes: int) -> None:
        """Have room for so many bytes of pieces, and a table. Raises OSError."""
        needed = _HEAD_BYTES + data_bytes
        if self.size > 2 * needed:
            os.ftruncate(self._descriptor, needed)
        if self.size < needed:
            os.posix_fallocate(self._descriptor, 0, needed)  # else the kernel kills who writes when there is no memory

    def map(self) -> mmap.mmap:
        """Return all of it."""
        return mmap.mmap(self._descriptor, self.size)

    def publish(
        self, copy: Copy, position: Position, rank: int, pieces: Sequence[Piece], loose: Sequence[bytes]
    ) -> None:
        """Publish: the bytes of the pieces are in place, but for those of `loose`, the last ones: now the snapshot is
        whole. Raises OSError."""
        tail = pieces[len(pieces) - len(loose) :]
        table = json.dumps([asdict(piece) for piece in pieces]).encode()
        end = max((piece.at + piece.bytes for piece in pieces), default=_HEAD_BYTES)
        os.posix_fallocate(self._descriptor, 0, end + len(table))
        for piece, raw in zip(tail, loose):
            _write(self._descriptor, raw, piece.at)
        _write(self._descriptor, table, end)
        digest = hashlib.blake2b(table, digest_size=_DIGEST_BYTES).hexdigest()
        head = Head(copy, position, rank, end, len(table), digest)
        _write_record(self._descriptor, asdict(head))


@dataclass
class Room:
    """Memory for a snapshot: that of a slot, or of this process alone. It is laid out once, and used again."""

    memory: mmap.mmap | None = None
    layout: list[Any] = field(default_factory=list)
    # Copies a state of that layout to it.
    stager: Any = None

    def at(self, tensor: torch.Tensor) -> int | None:
        """Return where in the slot a tensor lies; None: elsewhere."""
        if self.memory is None or not tensor.numel():
            return None
        at = tensor.data_ptr() - torch.frombuffer(self.memory, dtype=torch.uint8, count=1).data_ptr()
        return int(at) if at >= _HEAD_BYTES and at + tensor.nbytes <= len(self.memory) else None


class Keeper:
    """The slots of this rank, and what all ranks of its node have."""

    def __init__(self, files: Sequence[SnapshotFiles], local_rank: int, node: int, nodes: int, job: str) -> None:
        self.local_rank = local_rank
        self.local_world = len(files)
        self.node = node
        self.nodes = nodes
        self._job = job
        self._files = files
        self._own = [Slot(descriptor) for descriptor in files[local_rank].slots]
        self._rooms: dict[int, Room] = {}
        self._target: Slot | None = None
        self._refused = False

    @classmethod
    def named_by(cls, environ: Mapping[str, str], rank: int, world: int) -> Keeper | None:
        """Return the memory that the launcher gives this rank; None without, or where nodes have different numbers of
        workers."""
        files = snapshot_files.named_by(environ)
        try:
            local_rank, local_world = int(environ["LOCAL_RANK"]), int(environ["LOCAL_WORLD_SIZE"])
            node, nodes = int(environ["GROUP_RANK"]), int(environ["GROUP_WORLD_SIZE"])
        except (KeyError, ValueError):
            return None
        if local_world > len(files) or world != nodes * local_world or rank != node * local_world + local_rank:
            return None
        snapshot_files.set_inheritable(environ, inheritable=False)
        return cls(files[:local_world], local_rank, node, nodes, environ.get("SPOTSUP_JOB", ""))

    # -- what is there -------------------------------------------------------------------------------------

    @property
    def format(self) -> str:
        """Return the format: nodes with another one cannot read each other's snapshots."""
        return f"{_FORMAT} {self._job} {self.local_world} {torch.__version__}"

    def offer(self) -> Memory:
        """Return what all ranks of this node have."""
        heads = [head for slot in self._slots() if (head := slot.head())]
        lineages = [found for files in self._files if (found := _lineage(files.lineage))]
        newest = max(lineages, key=lambda lineage: lineage.round, default=None)
        return Memory(tuple(sorted({head.copy for head in heads}, key=str)), newest, self.format)

    def find(self, snapshot: int) -> list[tuple[Slot, Head]]:
        """Return the parts of a snapshot that this node has: one slot of each."""
        found: dict[int, tuple[Slot, Head]] = {}
        for slot in self._slots():
            head = slot.head()
            if head and head.copy.snapshot == snapshot:
                found.setdefault(head.copy.part, (slot, head))
        return [found[part] for part in sorted(found)]

    def begin_round(self, lineage: Lineage) -> None:
        """This rank has completed a step: older rounds are history."""
        with contextlib.suppress(OSError):
            _write_record(self._files[self.local_rank].lineage, asdict(lineage))

    def available_bytes(self) -> int:
        """Return how much memory this machine has to spare."""
        return snapshot_files.available_bytes()

    def _slots(self) -> list[Slot]:
        return [Slot(descriptor) for files in self._files for descriptor in files.slots]

    # -- writing -------------------------------------------------------------------------------------------

    def room(self, data_bytes: int) -> Room | None:
        """Memory for the next snapshot, `data_bytes` from `first_place()` on; None if there is too little, which is
        said once."""
        if self._refused:
            self._release(self._own)  # what `give_up` could not: nothing is read from it any more
            return None
        held = sum(slot.size for slot in self._own)
        needed = _HEAD_BYTES + data_bytes
        kept = sum(slot.size >= needed for slot in self._own)
        fits = slots_for(needed, self.available_bytes(), held, self.local_world, kept)
        self._release(self._own[fits:])
        if fits == 0:
            self._refuse(needed, "the machine has too little memory to spare")
            return None
        at = self._oldest() if fits == len(self._own) else 0
        slot = self._own[at]
        try:
            slot.withdraw()
            slot.reserve(data_bytes)
            room = self._rooms.get(at)
            if room is None or room.memory is None or len(room.memory) != slot.size:
                room = self._rooms[at] = Room(slot.map())
        except (OSError, ValueError) as error:
            self._refuse(needed, str(error))
            self._release(self._own)
            return None
        self._target = slot
        return room

    def keep(self, room: Room, items: Iterable[Item], copy: Copy, position: Position, rank: int) -> None:
        """Make what was copied to the last `room` a snapshot: from now on it is whole. For a thread of its own."""
        assert self._target is not None
        try:
            pieces, loose = _described(room, items)
            self._target.publish(copy, position, rank, pieces, loose)
        except Exception as error:  # noqa: BLE001  # of any kind: training must not stop for it
            self.give_up(repr(error))

    def give_up(self, reason: str) -> None:
        """Keep no more snapshots in this process, and not the one that was to fill the last `room`. The next call of
        `room` gives the memory back: now the copy in it may be on its way to storage."""
        if self._target is not None and not self._refused:
            self._refuse(self._target.size, reason)
            with contextlib.suppress(OSError):
                self._target.withdraw()

    @staticmethod
    def _release(slots: Sequence[Slot]) -> None:
        for slot in slots:
            with contextlib.suppress(OSError):
                slot.release()

    def _oldest(self) -> int:
        """Return the slot to write to: without a snapshot, or with the older one."""
        heads = [slot.head() for slot in self._own]
        ages = [(head.copy.round, head.copy.step) if head else (-1, -1) for head in heads]
        return ages.index(min(ages))

    def _refuse(self, needed: int, reason: str) -> None:
        self._refused = True
        if self.local_rank == 0:
            with contextlib.suppress(OSError):
                print(
                    f"spotsup: no snapshots are kept in this node's memory ({needed / 2**30:.1f} GiB for each of its "
                    f"workers): {reason}. After an interruption the state is read from storage",
                    file=sys.stderr,
                    flush=True,
                )


def _described(room: Room, items: Iterable[Item]) -> tuple[list[Piece], list[bytes]]:
    """Return the pieces of a copy, and the bytes of the last ones, which do not lie in the slot yet."""
    placed, loose = [], []
    for item in items:
        at = None if isinstance(item.data, bytes) else room.at(item.data)
        if at is None:
            loose.append(item)
        else:
            assert isinstance(item.data, torch.Tensor)
            placed.append(_piece(item, at, bytes_at(room.memory, at, item.data.nbytes)))
    end = aligned(max((piece.at + piece.bytes for piece in placed), default=_HEAD_BYTES))
    contents = []
    for item in loose:
        raw = item.data
        if isinstance(raw, torch.Tensor):
            raw = raw.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        contents.append(raw)
        viewed = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
        placed.append(_piece(item, end, viewed))
        end = aligned(end + len(raw))
    if sum(map(len, contents)) > MAX_LOOSE_BYTES:
        raise ValueError("much of the state is neither tensors nor DTensors")
    return placed, contents


def _piece(item: Item, at: int, raw: torch.Tensor) -> Piece:
    if isinstance(item.data, bytes):
        return Piece(item.name, None, (), (), "", at, raw.nbytes, checksum(raw))
    lengths, dtype = tuple(item.data.shape), str(item.data.dtype).removeprefix("torch.")
    return Piece(item.name, item.offsets, lengths, item.whole, dtype, at, raw.nbytes, checksum(raw))


def is_shortage(error: BaseException | None) -> bool:
    """True if memory or file descriptors were short: that says nothing about what was read."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            return True
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _SHORT_TEXTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def aligned(at: int) -> int:
    """Return the next place for a tensor."""
    return -(-at // _ALIGN) * _ALIGN


def first_place() -> int:
    """Return where the first piece is in a slot."""
    return _HEAD_BYTES


def checksum(raw: torch.Tensor) -> str:
    """Return the checksum of bytes, at the speed of the memory: blocks are added up, and their sums hashed. Any single
    change is found."""
    whole = raw.numel() // _BLOCK_BYTES * _BLOCK_BYTES
    hashed = hashlib.blake2b(digest_size=8)
    if whole:
        sums = raw[:whole].view(torch.int64).view(-1, _BLOCK_BYTES // 8).sum(1)
        hashed.update(sums.numpy().tobytes())
    hashed.update(raw[whole:].numpy().tobytes())
    return hashed.hexdigest()


def bytes_at(memory: Any, at: int, size: int) -> torch.Tensor:
    """Return a view of a part of a slot."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=at)


def pieces_of(parsed: Any) -> list[Piece]:
    """Return the reverse of `asdict` and JSON."""
    return [
        Piece(
            **{
                **each,
                "offsets": None if each["offsets"] is None else tuple(each["offsets"]),
                "lengths": tuple(each["lengths"]),
                "whole": tuple(each["whole"]),
            }
        )
        for each in parsed
    ]


def _lineage(descriptor: int) -> Lineage | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = _read_record(descriptor)
        return None if found is None else Lineage(int(found["round"]), int(found["snapshot"]))
    return None


def _write_record(descriptor: int, record: Mapping[str, Any]) -> None:
    """So that a reader finds this one or none, also if this process is killed: the digest comes last."""
    text = json.dumps(record).encode()
    if len(text) + 2 * _DIGEST_BYTES > _HEAD_BYTES:
        raise OSError(f"a record of {len(text)} bytes is too long")
    _write(descriptor, bytes(_DIGEST_BYTES), 0)
    _write(descriptor, len(text).to_bytes(_DIGEST_BYTES, "big") + text, _DIGEST_BYTES)
    _write(descriptor, hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest(), 0)


def _read_record(descriptor: int) -> dict[str, Any] | None:
    raw = os.pread(descriptor, 2 * _DIGEST_BYTES, 0)
    size = int.from_bytes(raw[_DIGEST_BYTES:], "big")
    if len(raw) < 2 * _DIGEST_BYTES or not 0 < size <= _HEAD_BYTES:
        return None
    text = os.pread(descriptor, size, 2 * _DIGEST_BYTES)
    if hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest() != raw[:_DIGEST_BYTES]:
        return None
    found: dict[str, Any] = json.loads(text)
    return found


def _write(descriptor: int, raw: bytes, at: int) -> None:
    view = memoryview(raw)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
