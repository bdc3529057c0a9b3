"""Whether the workers of a node still give signs of life. Pure, but for what it remembers of one round."""

from __future__ import annotations

from collections.abc import Sequence

from spotsup_trainer.launcher.run_dir import Sign

_LOOK_S = 1.0


class SignsOfLife:
    """Of `ranks` workers, from `now` on. Times are monotonic, in seconds."""

    def __init__(self, ranks: int, now: float) -> None:
        self._ranks = ranks
        # The last ones of all workers, and when they were found.
        self._marks: list[int] = []
        self._alive_at = self._looked_at = now

    def is_due(self, now: float) -> bool:
        """True if to look again; True once a second."""
        if now < self._looked_at + _LOOK_S:
            return False
        self._looked_at = now
        return True

    def silent_since(self, signs: Sequence[Sign], now: float) -> float | None:
        """Since when no worker has given one, for so long that it must hang; 0 while one does. None as long as not
        every worker has given its first one."""
        marks = [sign.mark for sign in signs]
        if marks != self._marks or len(marks) < self._ranks:
            self._marks, self._alive_at = marks, now
        if len(signs) < self._ranks:
            return None
        return self._alive_at if now > self._alive_at + max(sign.hangs_after_s for sign in signs) else 0.0
