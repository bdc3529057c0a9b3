"""When which part of a node's output was printed, for `spotsupctl logs --since`. Pure.

Each section is [begin, end, chunk, offset]: what was sent from `begin` to `end` (UNIX seconds of the node's clock) lies
from byte `offset` of a chunk on. The daemon reads it in supervisor/journal/output.py.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection

# A section is as long, unless nothing is printed: fewer would be less exact, more would be written more often.
SECTION_S = 30.0
# The older half is thinned beyond.
MAX_SECTIONS = 128


class LogTimes:
    """The sections of a node's output."""

    def __init__(self, raw: bytes = b"") -> None:
        """`raw`: as an earlier agent on this node has left it; what is no such text is left out."""
        self._sections: list[tuple[float, float, int, int]] = []
        with contextlib.suppress(ValueError, TypeError, OverflowError, RecursionError):
            self._sections = [(float(a), float(b), int(n), int(o)) for a, b, n, o in json.loads(raw or b"[]")]
        # That agent has written no end of its newest section.
        self._sent_at = self._sections[-1][0] + SECTION_S if self._sections else 0.0

    def add(self, at: float, chunk: int, offset: int, kept: Collection[int]) -> bytes | None:
        """Output was sent at a time, which begins there; `kept`: the chunks that are kept.

        Returns what is to be written, None where that has not changed.
        """
        sections, sent_at, self._sent_at = self._sections, self._sent_at, at
        if sections:
            begin, _, number, first = sections[-1]
            sections[-1] = begin, max(begin, sent_at), number, first
            if begin <= at < begin + SECTION_S and number in kept:
                return None
        sections.append((at, at, chunk, offset))
        self._sections = _thinned([each for each in sections if each[2] in kept or each[2] == chunk])
        return json.dumps([[round(a, 1), round(b, 1), n, o] for a, b, n, o in self._sections]).encode()


def _thinned(sections: list[tuple[float, float, int, int]]) -> list[tuple[float, float, int, int]]:
    if len(sections) <= MAX_SECTIONS:
        return sections
    half = MAX_SECTIONS // 2
    pairs = zip(sections[:half:2], sections[1:half:2])
    return [(first[0], second[1], first[2], first[3]) for first, second in pairs] + sections[half:]
