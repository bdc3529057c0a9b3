"""The sampler: each sample once per epoch, whatever the world size does."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spotsup_trainer.session.sampler import Cursor, GlobalOffsetSampler, Plan, Share, after, order, shares, shuffled

PLANS = st.builds(
    Plan, length=st.integers(1, 200), global_batch=st.integers(1, 40), seed=st.integers(0, 5), shuffle=st.booleans()
)
# a round: its world size, how many steps it completes, and how many of them it loses by ending without a notice
ROUNDS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 15), st.integers(0, 5)), max_size=6)


def one_step(plan: Plan, cursor: Cursor, world: int) -> list[Share]:
    """The shares of all ranks in the step after `cursor`."""
    return [next(shares(plan, cursor, rank, world, epochs=10**6)) for rank in range(world)]


def samples_of(plan: Plan, ranks: list[Share]) -> list[int]:
    """The samples that count."""
    return [sample for share in ranks if share.counted for sample in order(plan, share.epoch, share.positions)]


@given(PLANS, ROUNDS, st.integers(1, 9), st.integers(1, 3))
def test_each_sample_once_per_epoch_over_any_rounds_and_losses(
    plan: Plan, rounds: list[tuple[int, int, int]], last_world: int, epochs: int
) -> None:
    steps: list[list[Share]] = []  # the history that the weights have seen
    cursor = Cursor()
    for world, completed, lost in rounds:
        for _ in range(completed):
            if cursor.epoch == epochs:
                break
            steps.append(one_step(plan, cursor, world))
            cursor = after(plan, steps[-1][0])
        del steps[max(0, len(steps) - lost) :]
        cursor = after(plan, steps[-1][0]) if steps else Cursor()
    while cursor.epoch < epochs:
        steps.append(one_step(plan, cursor, last_world))
        cursor = after(plan, steps[-1][0])

    seen = [Counter[int]() for _ in range(epochs)]
    for ranks in steps:
        seen[ranks[0].epoch].update(samples_of(plan, ranks))
    assert seen == [Counter(range(plan.length))] * epochs


@given(PLANS, st.integers(1, 9), st.integers(0, 30))
def test_a_step_has_the_same_samples_for_any_world(plan: Plan, world: int, steps_before: int) -> None:
    cursor = Cursor()
    for share in islice(shares(plan, cursor, 0, 1, epochs=10**6), steps_before):
        cursor = after(plan, share)
    alone = samples_of(plan, one_step(plan, cursor, 1))
    assert sorted(samples_of(plan, one_step(plan, cursor, world))) == sorted(alone)


@given(st.integers(0, 100), st.integers(1, 50), st.integers(1, 12))
def test_shares_of_ranks_differ_by_one_sample_at_most_and_are_never_empty(start: int, size: int, world: int) -> None:
    ranks = [Share(0, start, start + size, rank, world) for rank in range(world)]
    counts = [share.counted for share in ranks]
    assert sum(counts) == size
    assert max(counts) - min(counts) <= 1
    assert all(len(share.positions) == max(1, share.counted) for share in ranks)


@given(st.integers(1, 50), st.integers(1, 12), st.none() | st.integers(1, 9))
def test_weighted_mean_over_ranks_is_the_mean_over_the_global_batch(
    size: int, world: int, micro_batch: int | None
) -> None:
    losses = {position: 1.0 + position * position for position in range(size)}
    averaged = 0.0  # what DDP makes of the ranks' gradients
    for rank in range(world):
        share = Share(0, 0, size, rank, world)
        pieces = share.micro_batches(micro_batch)
        assert [position for piece in pieces for position in piece] == list(share.positions)
        assert micro_batch is None or all(1 <= len(piece) <= micro_batch for piece in pieces)
        for piece in pieces:
            averaged += share.weight(len(piece)) * sum(losses[at] for at in piece) / len(piece) / world
    assert averaged == pytest.approx(sum(losses.values()) / size)


@given(st.integers(1, 5000), st.integers(0, 2**63), st.integers(0, 1000))
def test_the_order_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    plan = Plan(length, global_batch=1, seed=seed)
    assert sorted(order(plan, epoch, range(length))) == list(range(length))


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
    first, second = (order(plan, epoch, range(10_000)) for epoch in (0, 1))
    followers = set(pairwise(first)) & set(pairwise(second))
    assert len(followers) < 10  # 1 expected


def test_the_order_never_changes() -> None:
    """A checkpoint may be resumed with another version of Python, torch or spotsup."""
    assert order(Plan(1000, 1, seed=7), 3, range(8)) == [94, 609, 811, 607, 669, 770, 122, 906]
    assert order(Plan(10**12, 1, seed=7), 0, range(10**11, 10**11 + 3)) == [996702821535, 449459701134, 977788452259]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(order(Plan(100, 1, seed=seed), epoch, range(100))) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_drop_last_leaves_the_smaller_batch_out() -> None:
    plan = Plan(10, global_batch=4, drop_last=True)
    assert [(share.epoch, share.start, share.stop) for share in shares(plan, Cursor(), 0, 1, epochs=2)] == [
        (0, 0, 4),
        (0, 4, 8),
        (1, 0, 4),
        (1, 4, 8),
    ]
    # resumed where fewer are left than a batch, as after the global batch was made larger
    assert next(shares(plan, Cursor(0, 8), 0, 1, epochs=2)).epoch == 1


@pytest.mark.parametrize(
    ("length", "global_batch", "drop_last", "says"),
    [(0, 1, False, "empty"), (5, 0, False, "at least 1"), (5, 6, True, "smaller global_batch")],
)
def test_a_wrong_plan_is_refused(length: int, global_batch: int, drop_last: bool, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Plan(length, global_batch, drop_last=drop_last)


def test_a_wrong_rank_or_micro_batch_is_refused() -> None:
    plan = Plan(5, 1)
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        GlobalOffsetSampler(plan, Cursor(), rank=2, world=2, epochs=1)
    with pytest.raises(ValueError, match="micro_batch is 0"):
        GlobalOffsetSampler(plan, Cursor(), rank=0, world=2, epochs=1, micro_batch=0)
