"""The sampler: each sample once per epoch, whatever the world size does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.session.sampler import Cursor, OwnBatches, Part, Plan, Step, ordered, shuffled, steps

PLANS = st.builds(
    Plan, length=st.integers(1, 200), global_batch=st.integers(1, 40), seed=st.integers(0, 5), shuffle=st.booleans()
)
# a round: its world size, how many steps it completes, and how many of them it loses by ending without a notice
ROUNDS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 15), st.integers(0, 5)), max_size=6)
MICRO_BATCHES = st.none() | st.integers(1, 9)
ENDLESS = 10**6


def one_step(order: Plan | OwnBatches, cursor: Cursor, world: int, micro_batch: int | None = None) -> list[Step]:
    """The parts of all ranks in the step after `cursor`."""
    return [next(steps(order, cursor, Part(rank, world), ENDLESS, micro_batch)) for rank in range(world)]


def samples_of(ranks: list[Step]) -> list[int]:
    """The samples that count."""
    return [sample for step in ranks for sample in step.counted]


@given(PLANS, ROUNDS, st.integers(1, 9), st.integers(1, 3), MICRO_BATCHES)
def test_each_sample_once_per_epoch_over_any_rounds_and_losses(
    plan: Plan, rounds: list[tuple[int, int, int]], last_world: int, epochs: int, micro_batch: int | None
) -> None:
    done: list[list[Step]] = []  # the history that the weights have seen
    cursor = Cursor()
    for world, completed, lost in rounds:
        for _ in range(completed):
            if cursor.epoch == epochs:
                break
            done.append(one_step(plan, cursor, world, micro_batch))
            cursor = done[-1][0].after
        del done[max(0, len(done) - lost) :]
        cursor = done[-1][0].after if done else Cursor()
    while cursor.epoch < epochs:
        done.append(one_step(plan, cursor, last_world, micro_batch))
        cursor = done[-1][0].after

    seen = [Counter[int]() for _ in range(epochs)]
    for ranks in done:
        seen[ranks[0].epoch].update(samples_of(ranks))
    assert seen == [Counter(range(plan.length))] * epochs


@given(PLANS, st.integers(1, 9), st.integers(0, 30))
def test_a_step_has_the_same_samples_for_any_world(plan: Plan, world: int, steps_before: int) -> None:
    cursor = Cursor()
    for step in islice(steps(plan, cursor, Part(0, 1), ENDLESS, None), steps_before):
        cursor = step.after
    alone = samples_of(one_step(plan, cursor, 1))
    assert sorted(samples_of(one_step(plan, cursor, world))) == sorted(alone)


@given(st.integers(1, 50), st.integers(1, 12), MICRO_BATCHES)
def test_all_ranks_have_as_many_micro_batches_and_none_is_empty_or_too_large(
    size: int, world: int, micro_batch: int | None
) -> None:
    ranks = one_step(Plan(size, size), Cursor(), world, micro_batch)
    assert len({len(step.pieces) for step in ranks}) == 1  # with FSDP each forward pass needs all ranks
    counts = [len(step.counted) for step in ranks]
    assert sum(counts) == size
    assert max(counts) - min(counts) <= 1
    lengths = [len(samples) for step in ranks for samples, _ in step.pieces]
    assert min(lengths) >= 1
    assert micro_batch is None or max(lengths) <= micro_batch


@given(st.integers(1, 50), st.integers(1, 12), MICRO_BATCHES)
def test_weighted_mean_over_ranks_is_the_mean_over_the_global_batch(
    size: int, world: int, micro_batch: int | None
) -> None:
    losses = {sample: 1.0 + sample * sample for sample in range(size)}
    averaged = 0.0  # what DDP makes of the ranks' gradients
    for step in one_step(Plan(size, size), Cursor(), world, micro_batch):
        for samples, weight in step.pieces:
            averaged += weight * sum(losses[at] for at in samples) / len(samples) / world
    assert averaged == pytest.approx(sum(losses.values()) / size)


@given(PLANS, st.integers(1, 9), st.integers(0, 30), MICRO_BATCHES)
def test_what_is_left_of_an_epoch_is_known(plan: Plan, world: int, before: int, micro_batch: int | None) -> None:
    cursor = Cursor()
    for step in islice(steps(plan, cursor, Part(0, world), 1, None), before):
        cursor = step.after
    if cursor.epoch == 0:
        left = steps(plan, cursor, Part(0, world), 1, micro_batch)
        assert plan.pieces_left(cursor, world, micro_batch) == sum(len(step.pieces) for step in left)


class Buckets:
    """Batches of samples of one kind, in an order that the epoch makes."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[0, 2, 4], [6, 8], [1, 3, 5, 7], [9]]
        yield from batches[self.epoch % 4 :] + batches[: self.epoch % 4]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), max_size=5), MICRO_BATCHES)
def test_batches_of_the_programs_own_are_shared_and_each_sample_comes_once_per_epoch(
    rounds: list[tuple[int, int]], micro_batch: int | None
) -> None:
    order, cursor, seen = OwnBatches(Buckets(), 10), Cursor(), [Counter[int](), Counter[int]()]
    for world, completed in [*rounds, (2, 9)]:
        for _ in range(completed):
            if cursor.epoch < 2:
                ranks = one_step(order, cursor, world, micro_batch)
                seen[ranks[0].epoch].update(samples_of(ranks))
                cursor = ranks[0].after
    assert seen == [Counter(range(10))] * 2


def test_batches_of_the_programs_own_in_their_order_from_any_offset() -> None:
    found = steps(OwnBatches(Buckets(), 10), Cursor(1, 2), Part(0, 1), 3, None)
    assert [(step.epoch, step.counted) for step in found][:3] == [(1, [9]), (1, [0, 2, 4]), (2, [1, 3, 5, 7])]
    assert OwnBatches(Buckets(), 10).pieces_left(Cursor(1, 3), 2, None) == 1
    with pytest.raises(TypeError, match="differ in size"):
        OwnBatches(Buckets(), 10).pieces_left(Cursor(), 2, 3)
    with pytest.raises(ValueError, match="list gave no batch for epoch 0"):
        next(steps(OwnBatches([], 10), Cursor(), Part(0, 1), 1, None))


@given(st.integers(1, 5000), st.integers(0, 2**63), st.integers(0, 1000))
def test_the_order_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    plan = Plan(length, global_batch=1, seed=seed)
    assert sorted(ordered(plan, epoch, range(length))) == list(range(length))


def test_the_order_looks_random() -> None:
    plans = [Plan(50, global_batch=1, seed=seed) for seed in range(2000)]
    at = torch.arange(50)
    orders = torch.stack([shuffled(at, plan, 0) for plan in plans])
    # where sample s comes: uniform over 50 positions, so chi-square with 49 degrees of freedom; its 99.99 % is 93
    for position in (0, 1, 25, 49):
        counts = torch.bincount(orders[:, position], minlength=50).double()
        assert float(((counts - 40) ** 2 / 40).sum()) < 93
    # what follows what: neighbours of one epoch are not neighbours of the next
    plan = Plan(10_000, global_batch=1)
    first, second = (ordered(plan, epoch, range(10_000)) for epoch in (0, 1))
    followers = set(pairwise(first)) & set(pairwise(second))
    assert len(followers) < 10  # 1 expected


def test_the_order_never_changes() -> None:
    """A checkpoint may be resumed with another version of Python, torch or spotsup."""
    assert ordered(Plan(1000, 1, seed=7), 3, range(8)) == [94, 609, 811, 607, 669, 770, 122, 906]
    assert ordered(Plan(10**12, 1, seed=7), 0, range(10**11, 10**11 + 3)) == [996702821535, 449459701134, 977788452259]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(ordered(Plan(100, 1, seed=seed), epoch, range(100))) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_drop_last_leaves_the_smaller_batch_out() -> None:
    plan = Plan(10, global_batch=4, drop_last=True)
    found = steps(plan, Cursor(), Part(0, 1), 2, None)
    assert [(step.epoch, step.size, step.after) for step in found] == [
        (0, 4, Cursor(0, 4)),
        (0, 4, Cursor(1)),
        (1, 4, Cursor(1, 4)),
        (1, 4, Cursor(2)),
    ]
    # resumed where fewer are left than a batch, as after the global batch was made larger
    assert next(steps(plan, Cursor(0, 8), Part(0, 1), 2, None)).epoch == 1


@pytest.mark.parametrize(
    ("length", "global_batch", "drop_last", "says"),
    [(0, 1, False, "empty"), (5, 0, False, "at least 1"), (5, 6, True, "smaller global_batch")],
)
def test_a_wrong_plan_is_refused(length: int, global_batch: int, drop_last: bool, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Plan(length, global_batch, drop_last=drop_last)
