"""The sampler in torch's DataLoader."""

from __future__ import annotations

import torch
from spotsup_trainer.session.sampler import Cursor, Part, Plan, StepSampler, steps
from torch.utils.data import DataLoader


def test_loading_ahead_gives_the_batches_of_the_steps_in_their_order() -> None:
    plan = Plan(24, global_batch=6, seed=1)
    expected = list(steps(plan, Cursor(0, 6), Part(1, 2), epochs=1, micro_batch=2))
    sampler = StepSampler()
    sampler.begin(expected)
    loader = DataLoader(torch.arange(24), batch_sampler=sampler, num_workers=1, prefetch_factor=4)
    loaded = [batch.tolist() for batch in loader]
    assert loaded == [samples for step in expected for samples, _ in step.pieces]
    assert [len(batch) for batch in loaded] == [1, 2] * 3
    assert list(sampler.given) == expected
