"""The sampler: each sample once per epoch, whatever the world size does."""

from __future__ import annotations

import torch
from spotsup_trainer.session.sampler import Cursor, GlobalOffsetSampler, Plan, order
from torch.utils.data import DataLoader


def test_loading_ahead_does_not_move_the_cursor() -> None:
    plan = Plan(24, global_batch=6, seed=1)
    sampler = GlobalOffsetSampler(plan, Cursor(0, 6), rank=1, world=2, epochs=1, micro_batch=2)
    loader = DataLoader(torch.arange(24), batch_sampler=sampler, num_workers=1, prefetch_factor=4)
    loaded = [batch.tolist() for batch in loader]
    expected = [order(plan, 0, piece) for share in sampler.shares() for piece in share.micro_batches(2)]
    assert loaded == expected
    assert [len(batch) for batch in loaded] == [2, 1] * 3
