"""How many samples a batch has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def batch_size(batch: Any) -> int:
    """Return the number of samples, where it can be seen: the length of the first tensor that has one; else 0."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    # a list of names, for instance, has none
    return next(filter(None, map(batch_size, parts)), 0)


def common_size(batch: Any) -> int:
    """Return the length of all tensors that a batch consists of; 0 if they differ, or there is none."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else (batch,)
    found = {len(part) for part in parts if isinstance(part, torch.Tensor) and part.dim()}
    return found.pop() if len(found) == 1 else 0
