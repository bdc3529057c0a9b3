"""What a round restores, from whose memory, and who sends what to whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.session.survivors import (
    Box,
    Choice,
    Copy,
    Lineage,
    Memory,
    Message,
    Stored,
    Transfer,
    choose,
    cut,
    messages,
    schedule,
    slots_for,
)

WHOLE = Copy(snapshot=7, step=30, round=2, part=1, parts=(1,))
HALVES = [Copy(7, 30, 2, part, (1, 2)) for part in (1, 2)]


TRAINED = Lineage(2, 5)


def memory(*copies: Copy, lineage: Lineage | None = TRAINED) -> Memory:
    return Memory(copies, lineage, "1")


# -- the choice --------------------------------------------------------------------------------------------------------


def test_the_newest_whole_snapshot_of_the_last_round_is_restored_from_the_nodes_that_have_it() -> None:
    older = Copy(6, 20, 2, 1, (1,))
    found = choose([memory(older, WHOLE), memory(older), memory(WHOLE)], Stored(20, 6, 2), 2, 3)
    assert found == Choice(7, 30, {1: (0, 2)}, whole=True)


def test_without_memory_it_is_the_newest_checkpoint() -> None:
    assert choose([memory(), memory()], Stored(20, 6, 2), 2, 3) == Choice(6, 20)
    assert choose([memory()], None, 0, 1) is None
    assert choose([], None, 0, 1) is None


def test_memory_is_not_used_where_storage_is_newer_or_another_history_of_the_same_step() -> None:
    assert choose([memory(WHOLE)], Stored(40, 8, 2), 2, 3) == Choice(8, 40)
    assert choose([memory(WHOLE)], Stored(30, 8, 2), 2, 3) == Choice(8, 30)
    assert choose([memory(WHOLE)], Stored(30, 0, 2), 2, 3) == Choice(0, 30), "it does not say which snapshot it is"


def test_parts_that_no_memory_has_come_from_the_checkpoint_of_the_same_snapshot_only() -> None:
    half = memory(HALVES[0])
    assert choose([half], Stored(30, 7, 2), 2, 3) == Choice(7, 30, {1: (0,)}, whole=False)
    assert choose([half], Stored(20, 6, 2), 2, 3) == Choice(6, 20)
    assert choose([half], None, 2, 3) is None
    both = choose([half, memory(HALVES[1])], Stored(20, 6, 2), 2, 3)
    assert both == Choice(7, 30, {1: (0,), 2: (1,)}, whole=True)


@pytest.mark.parametrize(
    ("others", "stored", "owner_round"),
    [
        ([memory(lineage=Lineage(3, 5))], Stored(20, 6, 2), 2),  # a node that trained in a newer round
        ([memory(Copy(9, 25, 3, 1, (1, 2)))], Stored(20, 6, 2), 2),  # a part of a newer round's snapshot
        ([], Stored(20, 6, 3), 2),  # a newer round's checkpoint
        ([], Stored(20, 6, 2), 3),  # a newer round that claimed the storage, and made none
    ],
)
def test_what_a_node_did_alone_after_the_others_had_left_is_not_continued(
    others: list[Memory], stored: Stored, owner_round: int
) -> None:
    assert choose([memory(WHOLE), *others], stored, owner_round, 4) == Choice(6, 20)


def test_what_the_newest_round_began_from_is_continued_if_it_made_no_snapshot() -> None:
    found = choose([memory(WHOLE, lineage=Lineage(3, 7))], Stored(20, 6, 2), 3, 4)
    assert found == Choice(7, 30, {1: (0,)}, whole=True)
    cut_off = memory(replace(WHOLE, snapshot=8, step=99), lineage=Lineage(2, 5))
    assert choose([memory(WHOLE, lineage=Lineage(3, 7)), cut_off], None, 3, 4) == found


def test_memory_of_another_version_a_later_round_or_that_contradicts_itself_is_not_used() -> None:
    stored = Stored(20, 6, 2)
    assert choose([memory(WHOLE), replace(memory(), format="2")], stored, 2, 3) == Choice(6, 20)
    assert choose([memory(WHOLE)], stored, 2, 2) == Choice(6, 20), "rounds were counted anew"
    assert choose([memory(WHOLE), memory(replace(WHOLE, step=31))], stored, 2, 3) == Choice(6, 20)
    assert choose([memory(replace(WHOLE, part=4))], stored, 2, 3) == Choice(6, 20)
    assert choose([memory(WHOLE)], stored, 2, 3, failed={7}) == Choice(6, 20)


@dataclass
class World:
    """Nodes that come, go, are cut off, and are killed at any time, and what is true of the rounds that they form."""

    memories: dict[int, list[Copy]] = field(default_factory=lambda: defaultdict(list))
    lineages: dict[int, Lineage] = field(default_factory=dict)
    stored: list[Stored] = field(default_factory=list)
    owner_round: int = 0
    round: int = 0
    snapshots: int = 0
    # Which round made a snapshot, and what a round began from.
    made_in: dict[int, int] = field(default_factory=dict)
    began_from: dict[int, int] = field(default_factory=dict)

    def history(self, number: int) -> set[int]:
        """The snapshots that a round made, and all that it descends from."""
        found: set[int] = set()
        while number:
            found |= {each for each, made in self.made_in.items() if made == number}
            begun = self.began_from.get(number, 0)
            found.add(begun)
            number = self.made_in.get(begun, 0)
        return found

    def restore(self, nodes: list[int]) -> int:
        """The step that the next round, of `nodes`, begins with."""
        self.round += 1
        memories = [Memory(tuple(self.memories[node]), self.lineages.get(node), "1") for node in nodes]
        newest = max(self.stored, key=lambda each: each.step, default=None)
        found = choose(memories, newest, self.owner_round, self.round)
        rounds = [self.lineages[node].round for node in nodes if node in self.lineages]
        known = max([self.owner_round, newest.round if newest else 0, *rounds])
        if found is None:
            assert newest is None
            self.began_from[self.round] = 0
            return 0
        assert newest is None or found.step >= newest.step, "a complete checkpoint is never given up"
        in_storage = newest is not None and found.snapshot == newest.snapshot
        assert in_storage or found.whole
        if found.whole:
            parts = {copy.part for node in nodes for copy in self.memories[node] if copy.snapshot == found.snapshot}
            (needed,) = {c.parts for node in nodes for c in self.memories[node] if c.snapshot == found.snapshot}
            assert parts == set(needed) == set(found.nodes)
        if not in_storage:
            assert found.snapshot in self.history(known), "what is known to have been trained is not forgotten"
        for part, where in found.nodes.items():
            assert all(any(c.part == part for c in self.memories[nodes[at]]) for at in where)
        self.began_from[self.round] = found.snapshot
        return found.step

    def train(self, nodes: list[int], number: int, step: int, draw: st.DataObject, *, sharded: bool) -> None:
        """A round completes a step, and then perhaps others; it is killed at any time."""
        claims = draw.draw(st.booleans(), "claims storage")
        if claims:
            self.owner_round = max(self.owner_round, number)
        for node in nodes:
            self.lineages[node] = Lineage(number, self.began_from[number])
        for _ in range(draw.draw(st.integers(0, 3), "snapshots")):
            step += draw.draw(st.integers(1, 5), "steps")
            self.snapshots += 1
            self.made_in[self.snapshots] = number
            parts = tuple(range(1, len(nodes) + 1)) if sharded else (1,)
            for at, node in enumerate(nodes):
                if draw.draw(st.integers(0, 4), "killed before its copy is whole"):
                    copy = Copy(self.snapshots, step, number, parts[at % len(parts)], parts)
                    self.memories[node] = [*self.memories[node][-1:], copy]
            if draw.draw(st.booleans(), "complete in storage") and self.owner_round <= number:
                self.owner_round = number
                self.stored = [each for each in self.stored if each.step < step] + [
                    Stored(step, self.snapshots, number)
                ]


@given(st.data())
def test_whatever_happens_a_round_goes_on_from_the_newest_state_of_the_history_that_counts(draw: st.DataObject) -> None:
    world = World()
    for _ in range(draw.draw(st.integers(1, 7), "rounds")):
        nodes = draw.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True), "nodes")
        for node in nodes:
            if draw.draw(st.integers(0, 5), "it is a new machine") == 0:
                world.memories.pop(node, None)
                world.lineages.pop(node, None)
        step = world.restore(nodes)
        number = world.round
        sharded = draw.draw(st.booleans(), "sharded")
        if draw.draw(st.booleans(), "trains"):
            world.train(nodes, number, step, draw, sharded=sharded)
        if len(nodes) == 1 and draw.draw(st.integers(0, 3), "cut off, while others go on") == 0:
            others = [node for node in range(5) if node not in nodes][:2]
            later = world.restore(others)
            world.train(others, world.round, later, draw, sharded=False)
            world.train(nodes, number, step + 1, draw, sharded=False)


# -- transfers ---------------------------------------------------------------------------------------------------------

A, B = Box(0, (0,), (4,)), Box(1, (0, 0), (2, 2))


def test_a_box_crosses_the_network_once_per_node_that_needs_it() -> None:
    transfers = schedule([[], [], [A], [A], [A]], [{0}, set(), set()], [0, 0, 1, 1, 2], {0: 16})
    assert [(each.ranks, each.from_storage) for each in transfers] == [((0, 2, 3, 4), False)]


def test_those_who_have_pieces_share_the_work_and_storage_is_read_by_those_who_need_it() -> None:
    nodes = [0, 1, 2]
    transfers = schedule([[], [], [A, B]], [{0, 1}, {0, 1}, set()], nodes, {0: 16, 1: 16})
    assert [each.ranks for each in transfers] == [(0, 2), (1, 2)]
    stored = schedule([[A, B], [A, B], [A, B]], [set(), set(), set()], nodes, {0: 16, 1: 16})
    assert [(each.ranks[0], each.from_storage) for each in stored] == [(0, True), (1, True)]
    assert [sorted(each.ranks) for each in stored] == [nodes, nodes]


@given(st.data())
def test_every_rank_gets_all_that_it_needs_from_one_that_has_it(draw: st.DataObject) -> None:
    nodes = draw.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    numbers = st.sets(st.integers(0, 5))
    held = [draw.draw(numbers) for _ in range(4)]
    wanted = [[Box(piece, (), ()) for piece in draw.draw(numbers) - held[node]] for node in nodes]
    transfers = schedule(wanted, held, nodes, dict.fromkeys(range(6), 8))
    reached = {(rank, each.box) for each in transfers for rank in each.ranks}
    assert reached >= {(rank, box) for rank, boxes in enumerate(wanted) for box in boxes}
    for each in transfers:
        assert len(set(each.ranks)) == len(each.ranks)
        first = each.ranks[0]
        if each.from_storage:
            assert each.box in wanted[first]
            assert not any(each.box.piece in pieces for node, pieces in enumerate(held) if node in nodes)
        else:
            assert each.box.piece in held[nodes[first]]
        homes = [nodes[rank] for rank in each.ranks]
        assert len([home for home, _ in groupby(homes)]) == len(set(homes))


_SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@given(
    st.lists(st.tuples(_SHAPES, st.permutations(range(3)), st.integers(1, 3), st.sampled_from([1, 4, 8])), max_size=12),
    st.integers(16, 400),
)
def test_what_goes_the_same_way_goes_in_few_messages_of_bounded_size_in_one_order_for_all(
    drawn: list[tuple[tuple[int, ...], list[int], int, int]], limit: int
) -> None:
    transfers = [
        Transfer(Box(number, (0,) * len(lengths), lengths), tuple(ranks[:count]), from_storage=False)
        for number, (lengths, ranks, count, _) in enumerate(drawn)
    ]
    items = [item for *_, item in drawn]

    def sent(some: list[Transfer]) -> list[Message]:
        return list(messages(some, lambda box: (box.lengths, items[box.piece]), limit))

    found = sent(transfers)
    for transfer, item in zip(transfers, items, strict=True):
        blocks = [block for each in found for block in each.blocks if block.transfer == transfer]
        assert [(block.offsets, block.lengths) for block in blocks] == cut(transfer.box.lengths, item, limit)
        assert [block.last for block in blocks] == [False] * (len(blocks) - 1) + [True]
    for each in found:
        assert {block.transfer.ranks for block in each.blocks} == {each.ranks}
        assert each.size_bytes <= limit
        ends = [block.at + block.size_bytes for block in each.blocks]
        assert all(begin.at >= end for begin, end in zip(each.blocks[1:], ends, strict=False))
        assert all(block.at % items[block.transfer.box.piece] == 0 for block in each.blocks)
    assert len(found) == len({each.ranks for each in found}) or sum(each.size_bytes + 16 for each in found) > limit
    for rank in range(3):
        mine = [each for each in transfers if rank in each.ranks]
        assert sent(mine) == [each for each in found if rank in each.ranks]


def test_a_models_small_parts_are_one_message() -> None:
    boxes = [Box(number, (0,), (3,)) for number in range(100)]
    (only,) = messages([Transfer(box, (0, 1), from_storage=False) for box in boxes], lambda box: (box.lengths, 4), 2000)
    assert [block.at for block in only.blocks] == [16 * number for number in range(100)]


@given(st.lists(st.integers(0, 5), max_size=3), st.sampled_from([1, 2, 8]), st.integers(1, 64))
def test_a_box_is_cut_into_blocks_of_bounded_size(lengths: list[int], item: int, limit: int) -> None:
    blocks = cut(lengths, item, limit)
    assert all(prod(sizes) * item <= max(limit, item) for _, sizes in blocks)
    cells = [
        tuple(offset + at for offset, at in zip(offsets, cell, strict=True))
        for offsets, sizes in blocks
        for cell in _cells(sizes)
    ]
    assert sorted(cells) == sorted(_cells(tuple(lengths)))


def _cells(lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for length in lengths:
        found = [(*cell, at) for cell in found for at in range(length)]
    return found


@pytest.mark.parametrize(
    ("needed", "available", "held", "ranks", "slots"),
    [(10, 40, 0, 1, 2), (10, 39, 0, 1, 1), (10, 19, 0, 1, 0), (10, 0, 40, 1, 2), (10, 80, 0, 4, 1), (0, 0, 0, 1, 2)],
)
def test_half_of_the_memory_that_is_left_is_for_others(
    needed: int, available: int, held: int, ranks: int, slots: int
) -> None:
    assert slots_for(needed, available, held, ranks) == slots


@pytest.mark.parametrize(
    ("available", "kept", "slots"),
    [(20, 2, 2), (7, 2, 2), (6, 2, 1), (4, 1, 1), (3, 1, 0), (0, 0, 0), (29, 1, 1), (30, 1, 2)],
)
def test_what_is_kept_stays_until_memory_is_short(available: int, kept: int, slots: int) -> None:
    assert slots_for(10, available, 10 * kept, 1, kept) == slots
