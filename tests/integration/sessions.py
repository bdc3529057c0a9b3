"""Sessions in one process, as the tests make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from spotsup_trainer.session import Session
from torch import nn

TEN = torch.arange(10)
COMPARED = 13  # what ranks tell each other at each call


class Clock:
    """UNIX seconds, set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def session(root: Path | None, **options: Any) -> Session:
    environ = options.pop("environ", {})
    model = nn.Linear(1, 1)
    state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    return Session(state | options.pop("more", {}), checkpoints=root, environ=environ, **options)


def saved_steps(root: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in root.glob("step_*[0-9]"))


def settled(one: Session) -> None:
    assert one._checkpoints is not None
    one._checkpoints.settle()
