"""How long a rank works in a step by itself, without waiting for other ranks: a slow machine needs longer.

A stretch of work begins when the program asks for a batch, or has completed a step, and ends with the last gradient of
its model. Under DDP ranks wait for each other only after that: so one that waits for a slow one is not taken for slow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch

# All ranks are asked so often, once there were so many steps since: a median of fewer says little.
ASK_EVERY_S = 30.0
MIN_STEPS = 3
_KEPT_STEPS = 200
_NS = 1_000_000_000


class Work:
    """The steps of this rank since all ranks were asked last.

    Of `modules` those that are trained count. None where ranks meet within a pass, as with FSDP: all take as long.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at = clock()
        self._since_asked = 0
        # Of each step its stretches, and how many samples were this rank's.
        self._steps: deque[tuple[list[tuple[Any, Any]], int]] = deque(maxlen=_KEPT_STEPS)
        self._stretches: list[tuple[Any, Any]] = []
        self._began: Any = None
        self._ended: Any = None
        self._mark: Callable[[], Any] = clock
        for module in modules:
            # The first parameter is the last one to get its gradient.
            first = next((each for each in module.parameters() if each.requires_grad), None)
            if first is not None:
                self._mark = _event if first.is_cuda else clock
                first.register_post_accumulate_grad_hook(self._has_gradient)

    def begin(self) -> None:
        """Take note that the program asks for a batch."""
        self._end_stretch()
        self._began = self._mark()

    def complete(self, samples: int) -> None:
        """Take note that a step is completed, of so many samples of this rank; 0: not known."""
        self._end_stretch()
        if self._stretches:
            self._steps.append((self._stretches, samples))
            self._since_asked += 1
        self._stretches = []

    def _has_gradient(self, _parameter: torch.Tensor) -> None:
        self._ended = self._mark()

    def _end_stretch(self) -> None:
        if self._began is not None and self._ended is not None:
            self._stretches.append((self._began, self._ended))
        self._began = self._ended = None

    def asks(self) -> bool:
        """True if all ranks are to be asked now."""
        is_due = self._since_asked >= MIN_STEPS and self._clock() - self._asked_at >= ASK_EVERY_S
        if is_due:
            self._asked_at, self._since_asked = self._clock(), 0
        return is_due

    def say(self) -> tuple[int, int]:
        """Return the median of this rank's work in a step, and of that for each sample, in ns; 0: not known."""
        took = [(sum(map(_seconds, stretches)), samples) for stretches, samples in self._steps if _is_over(stretches)]
        self._steps.clear()
        each = [seconds / samples for seconds, samples in took if samples]
        return _ns([seconds for seconds, _ in took]), _ns(each)


def _ns(seconds: list[float]) -> int:
    return round(_NS * median(seconds)) if len(seconds) >= MIN_STEPS else 0


def _event() -> Any:
    """Return a point in what the GPU computes: the program is far ahead of it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _is_over(stretches: list[tuple[Any, Any]]) -> bool:
    """False of what a GPU has not computed yet."""
    return all(isinstance(ended, float) or ended.query() for _, ended in stretches)


def _seconds(stretch: tuple[Any, Any]) -> float:
    began, ended = stretch
    return ended - began if isinstance(ended, float) else began.elapsed_time(ended) / 1000  # type: ignore[no-any-return]
