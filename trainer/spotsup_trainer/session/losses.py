"""The loss that people see. Reading a tensor from a GPU waits for all its work, so nothing here does."""

from __future__ import annotations

from typing import Any

import torch


class LossReading:
    """The latest loss that has arrived here: with a GPU that of a step or two ago."""

    def __init__(self) -> None:
        self._value: float | None = None
        # On its way from a GPU: where it arrives, and the event after that.
        self._coming: tuple[torch.Tensor, Any] | None = None

    def put(self, loss: Any) -> None:
        """Put a step's loss: a number, a tensor of one, or None if there is none."""
        if not isinstance(loss, torch.Tensor):
            self._value, self._coming = (None if loss is None else float(loss)), None
        elif loss.device.type != "cuda":
            self._value, self._coming = float(loss.detach()), None
        elif self._arrived():
            here = torch.empty((), dtype=loss.dtype, pin_memory=True)
            here.copy_(loss.detach().reshape(()), non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._coming = (here, event)

    @property
    def value(self) -> float | None:
        """None before the first."""
        self._arrived()
        return self._value

    def _arrived(self) -> bool:
        """True if nothing is on its way any more."""
        if self._coming is not None and self._coming[1].query():
            self._value, self._coming = float(self._coming[0]), None
        return self._coming is None
