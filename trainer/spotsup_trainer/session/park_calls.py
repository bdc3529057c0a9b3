"""What a program still does before its process is ended."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ParkCall:
    """A call that is given so many seconds."""

    call: Callable[[], object]
    budget_s: float

    def make(self) -> None:
        """Make the call, and wait for its end for `budget_s` at most. Never raises."""
        thread = threading.Thread(target=self._call, name="spotsup-on-park", daemon=True)
        thread.start()
        thread.join(self.budget_s)
        if thread.is_alive():
            print(f"spotsup: on_park() has not ended within {self.budget_s:g} s", file=sys.stderr, flush=True)

    def _call(self) -> None:
        try:
            self.call()
        except BaseException:  # noqa: BLE001  # whatever a logger raises must not keep the round from ending
            traceback.print_exc()
