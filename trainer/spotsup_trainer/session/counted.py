"""A position for data that has none: what was given is counted, and read again at a resume."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any


class Counted:
    """A loader for `Session.wrap`. `make(epoch)` returns an iterable of the batches of that epoch: the same ones in the
    same order, whenever it is called.

    At a resume, the batches before are read and thrown away: that takes as long as reading them did.
    """

    def __init__(self, make: Callable[[int], Iterable[Any]]) -> None:
        self._make = make
        self._epoch = self._given = 0

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._make(self._epoch))
        deque(islice(batches, self._given), maxlen=0)
        for batch in batches:
            self._given += 1
            yield batch
        self._epoch, self._given = self._epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Go to its beginning, unless it has begun."""
        if epoch != self._epoch:
            self._epoch, self._given = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Epoch, and batches of it that were given."""
        return {"epoch": self._epoch, "batches": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do the reverse."""
        self._epoch, self._given = state["epoch"], state["batches"]
