"""The end of what jobs print, kept between two looks: a page that renews itself reads only what is new."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from supervisor.journal.output import Output

MAX_TAILS = 32
# Of each job or node; a chunk has 256 KiB at most, mostly much less.
MAX_TAIL_BYTES = 2 << 20


@dataclass(slots=True)
class _Tail:
    """What is kept of a job or a node."""

    position: int = 0
    chunks: OrderedDict[tuple[str, str], bytes] = field(default_factory=OrderedDict)  # the newest last
    lock: threading.Lock = field(default_factory=threading.Lock)


class Tails:
    """For any thread."""

    def __init__(self, read: Callable[[str, str, int], Output]) -> None:
        """`read`: what a job, or one of its nodes, has printed after a position."""
        self._read = read
        self._tails: OrderedDict[tuple[str, str, str], _Tail] = OrderedDict()
        self._lock = threading.Lock()

    def lines(self, job: str, node: str, task_id: str, max_lines: int) -> list[tuple[str, str]]:
        """Return the last lines, each with its node. Raises what reading raises.

        `task_id`: of the job, so that another one of the same name begins anew.
        """
        key = (job, node, task_id)
        with self._lock:
            tail = self._tails.setdefault(key, _Tail())
            self._tails.move_to_end(key)
            while len(self._tails) > MAX_TAILS:
                self._tails.popitem(last=False)
        with tail.lock:
            self._catch_up(job, node, tail)
            return _lines(tail.chunks, max_lines)

    def _catch_up(self, job: str, node: str, tail: _Tail) -> None:
        more = True
        while more:
            part = self._read(job, node, tail.position)
            for chunk in part.chunks:
                # A chunk is written again while it grows.
                tail.chunks.pop((chunk.node, chunk.number), None)
                tail.chunks[chunk.node, chunk.number] = chunk.data
            size = sum(map(len, tail.chunks.values()))
            while size > MAX_TAIL_BYTES and len(tail.chunks) > 1:
                size -= len(tail.chunks.popitem(last=False)[1])
            more = part.more and part.position > tail.position
            tail.position = part.position


def _lines(chunks: Mapping[tuple[str, str], bytes], max_lines: int) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for (node, _), data in reversed(list(chunks.items())):
        found = [(node, line) for line in data.decode(errors="replace").splitlines()]
        lines = found + lines
        if len(lines) >= max_lines:
            break
    return lines[-max_lines:]
