"""From where a round restores its state: the memory of nodes that survived, or storage. Pure: no I/O, no clock.

A snapshot is a copy of the whole state after one step, made by all ranks of a round together; each keeps its part in
the memory of its node, and the round writes it to storage as a checkpoint. Both have the snapshot's number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod


@dataclass(frozen=True)
class Copy:
    """A part of a snapshot, whole, in the memory of a node."""

    # The snapshot's number, never 0.
    snapshot: int
    step: int
    # The round that made it.
    round: int
    # Ranks with the same part of the state have the same number here; all the different ones make a whole snapshot.
    part: int
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Lineage:
    """The newest round that a node completed a step in, and from which snapshot it began; 0: none that was numbered."""

    round: int
    snapshot: int = 0


@dataclass(frozen=True)
class Memory:
    """What a node has in its memory."""

    copies: tuple[Copy, ...] = ()
    lineage: Lineage | None = None
    # Memory of another format, version or job is not used.
    format: str = ""


@dataclass(frozen=True)
class Stored:
    """A complete checkpoint in storage."""

    step: int
    # The snapshot that it was written from; 0: it does not say.
    snapshot: int
    # The round that wrote it.
    round: int


@dataclass(frozen=True)
class Choice:
    """What to restore."""

    snapshot: int
    step: int
    # The nodes whose memory has each part.
    nodes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    # The memory has all of it: storage is not read. Otherwise the checkpoint is, where memory has no part of it.
    whole: bool = False


def choose(
    memories: Sequence[Memory],
    stored: Stored | None,
    owner_round: int,
    this_round: int,
    failed: Collection[int] = (),
) -> Choice | None:
    """Return what the ranks of `this_round` restore; None: there is nothing.

    `memories`: of each node. `stored`: the newest checkpoint that may be readable, which storage says was last claimed
    by `owner_round`. `failed`: snapshots whose copies in memory turned out to be damaged.

    A snapshot in memory is newer than storage, and used, only if it is one of the history that goes on: made by the
    newest round that is known to have completed a step, or what that round began from. A node that was cut off may
    have trained on alone, in an older round; what it has is not continued.
    """
    usable = len({memory.format for memory in memories}) == 1
    found: defaultdict[int, dict[Copy, list[int]]] = defaultdict(dict)
    for node, memory in enumerate(memories if usable else ()):
        for copy in memory.copies:
            if copy.snapshot and copy.snapshot not in failed and copy.round < this_round:
                found[copy.snapshot].setdefault(copy, []).append(node)
    continued = _continued(memories, stored, owner_round)
    best: Choice | None = None
    for number, copies in found.items():
        nodes: dict[int, tuple[int, ...]] = {copy.part: tuple(where) for copy, where in copies.items()}
        first = next(iter(copies))
        alike = all((copy.step, copy.round, copy.parts) == (first.step, first.round, first.parts) for copy in copies)
        if not alike or not nodes.keys() <= set(first.parts):
            continue
        whole = nodes.keys() == set(first.parts)
        same = stored is not None and stored.snapshot == number and stored.step == first.step
        newer = stored is None or first.step > stored.step
        if same or (whole and newer and continued(number, first.round)):
            choice = Choice(number, first.step, nodes, whole)
            if best is None or (choice.step, choice.snapshot) > (best.step, best.snapshot):
                best = choice
    if best is None and stored is not None:
        return Choice(stored.snapshot, stored.step)
    return best


def _continued(memories: Sequence[Memory], stored: Stored | None, owner_round: int) -> _Continued:
    rounds = [memory.lineage.round for memory in memories if memory.lineage]
    rounds += [copy.round for memory in memories for copy in memory.copies]
    newest = max([owner_round, stored.round if stored else 0, *rounds])
    begun = {memory.lineage.snapshot for memory in memories if memory.lineage and memory.lineage.round == newest}
    return _Continued(newest, frozenset(begun - {0}))


@dataclass(frozen=True)
class _Continued:
    newest_round: int
    began_from: frozenset[int]

    def __call__(self, snapshot: int, made_in: int) -> bool:
        return made_in == self.newest_round or snapshot in self.began_from


# -- who sends what to whom --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A part of one piece of a snapshot."""

    piece: int
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Transfer:
    """`ranks[0]` has a box, or reads it from storage, and sends it to `ranks[1]`, which sends it to the next."""

    box: Box
    ranks: tuple[int, ...]
    from_storage: bool


def schedule(
    wanted: Sequence[Collection[Box]], held: Sequence[Collection[int]], nodes: Sequence[int], sizes: Mapping[int, int]
) -> list[Transfer]:
    """Return all transfers, in the order in which every rank makes its own.

    `wanted`: the boxes that each rank needs and cannot read on its node. `held`: the pieces in the memory of each node.
    `nodes`: that of each rank. `sizes`: bytes of a piece, to share the work out. Each box is read from storage once, by
    a rank that needs it, if no memory has its piece, and crosses the network once per node that needs it.
    """
    ranks: defaultdict[Box, list[int]] = defaultdict(list)
    for rank, boxes in enumerate(wanted):
        for box in boxes:
            ranks[box].append(rank)
    loads = [0] * len(nodes)
    transfers = []
    for box in sorted(ranks, key=lambda box: (box.piece, box.offsets, box.lengths)):
        receivers = sorted(ranks[box], key=lambda rank: (nodes[rank], rank))
        senders = [rank for rank, node in enumerate(nodes) if box.piece in held[node]]
        first = min(senders or receivers, key=lambda rank: (loads[rank], rank))
        loads[first] += sizes[box.piece]
        chain = _near(first, [rank for rank in receivers if rank != first], nodes)
        transfers.append(Transfer(box, (first, *chain), from_storage=not senders))
    return transfers


def _near(first: int, others: list[int], nodes: Sequence[int]) -> list[int]:
    """Return the ranks of the first one's own node first."""
    return sorted(others, key=lambda rank: (nodes[rank] != nodes[first], nodes[rank], rank))


@dataclass(frozen=True)
class Block:
    """A part of a box, which is `size_bytes` of its message from `at` on. `last`: the rest of the box came before."""

    transfer: Transfer
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    at: int
    size_bytes: int
    last: bool


@dataclass(frozen=True)
class Message:
    """Blocks that go the same way, from `ranks[0]` to the others in turn."""

    ranks: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def size_bytes(self) -> int:
        """Return all of it."""
        return self.blocks[-1].at + self.blocks[-1].size_bytes


# Where a block begins in its message: every type of numbers may.
_ALIGNED = 16


def messages(
    transfers: Sequence[Transfer], form: Callable[[Box], tuple[Sequence[int], int]], limit_bytes: int
) -> Iterator[Message]:
    """Yield what `transfers` send, in messages of at most `limit_bytes`, or of one item: models have hundreds of small
    parts.

    `form`: lengths of a box, and bytes of an item. Ranks that leave out the same way, or not, have the others in the
    same order.
    """
    filling: dict[tuple[int, ...], list[Block]] = {}
    for transfer in transfers:
        lengths, item_bytes = form(transfer.box)
        blocks = cut(lengths, item_bytes, limit_bytes)
        for number, (offsets, part) in enumerate(blocks):
            size_bytes = item_bytes * prod(part)
            before = filling.get(transfer.ranks, [])
            at = -(-(before[-1].at + before[-1].size_bytes) // _ALIGNED) * _ALIGNED if before else 0
            if before and at + size_bytes > limit_bytes:
                yield Message(transfer.ranks, tuple(filling.pop(transfer.ranks)))
                at = 0
            last = number + 1 == len(blocks)
            filling.setdefault(transfer.ranks, []).append(Block(transfer, offsets, part, at, size_bytes, last))
    for ranks, rest in filling.items():
        yield Message(ranks, tuple(rest))


def cut(lengths: Sequence[int], item_bytes: int, limit_bytes: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, lengths) of blocks of at most `limit_bytes` (or of one item) that make up a box, in its order."""
    total = item_bytes
    for length in lengths:
        total *= length
    wide = [at for at, length in enumerate(lengths) if length > 1]
    if total <= limit_bytes or not wide:
        return [((0,) * len(lengths), tuple(lengths))] if total else []
    along = wide[0]
    per_row = total // lengths[along]
    rows = max(1, limit_bytes // per_row)
    blocks = []
    for start in range(0, lengths[along], rows):
        size = min(rows, lengths[along] - start)
        part = (*lengths[:along], size, *lengths[along + 1 :])
        for offsets, sizes in cut(part, item_bytes, limit_bytes):
            moved = (*offsets[:along], offsets[along] + start, *offsets[along + 1 :])
            blocks.append((moved, sizes))
    return blocks


# -- how much memory ---------------------------------------------------------------------------------------------

MAX_SHARE = 0.5
# What is kept already is given back later than something new is begun: memory that is free goes up and down.
MAX_KEPT_SHARE = 0.75


def slots_for(needed_bytes: int, available_bytes: int, held_bytes: int, ranks: int, kept: int = 0) -> int:
    """Return how many snapshots of `needed_bytes` one of a node's `ranks` may keep: 2, 1 or 0. With one, there is none
    while it is being replaced.

    `available_bytes` of the machine, beside `held_bytes` that this rank's files have already, among them `kept` that
    are large enough. The rest is for others: the program, data loading, the page cache.
    """
    if needed_bytes <= 0:
        return 2
    mine = available_bytes / ranks + held_bytes
    new, old = int(MAX_SHARE * mine // needed_bytes), int(MAX_KEPT_SHARE * mine // needed_bytes)
    return min(2, max(new, min(kept, old)))
