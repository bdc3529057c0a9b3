"""What a job's nodes have printed, as their agents keep it in etcd: in parts, each from where the one before ended.

A position is a revision of etcd, so that any daemon understands it, also after a restart. A chunk is rewritten while it
grows, and read again then; the reader knows how much of it was printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spotsup_trainer.etcd import KeyValue

# One answer: of the 16 MiB that a job keeps, JSON takes much more in the daemon's memory.
MAX_ANSWER_BYTES = 1 << 20
# As spotsup_trainer.agent.log_times, the rest of which is for nodes: the newest section is as long at most.
SECTION_S = 30.0
_KEY = re.compile(r"([^/]+)/([0-9]{8})")
_TIMES = re.compile(r"([^/]+)/times")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a node's output."""

    node: str
    # Eight digits: a node's chunks follow each other by them.
    number: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Output:
    """A part of a job's output, those chunks first that were written first."""

    chunks: tuple[Chunk, ...]
    # Where the next part begins.
    position: int
    # Whether the next part is there already.
    more: bool


def part_of(found: Iterable[tuple[str, KeyValue]], revision: int) -> Output:
    """Return the first part of `found`: keys below the job's, and what they hold. `revision`: of etcd, when they were
    read.

    At least one revision, else at most MAX_ANSWER_BYTES. Keys that no agent writes are left out.
    """
    known = [(kv.mod_revision, name[1], name[2], kv.value) for key, kv in found if (name := _KEY.fullmatch(key))]
    chunks: list[Chunk] = []
    position, size = 0, 0
    for written, node, number, data in sorted(known):
        size += len(data)
        if size > MAX_ANSWER_BYTES and position not in (0, written):
            return Output(tuple(chunks), position, more=True)
        chunks.append(Chunk(node, number, data))
        position = written
    return Output(tuple(chunks), revision, more=False)


def begins_at(found: Iterable[tuple[str, KeyValue]], since: float) -> dict[str, tuple[str, int]]:
    """Return for each node whose output has times: the first chunk, and how many characters of it were printed, before
    `since`.

    `since`: UNIX seconds. What was printed up to a section earlier may follow. Nodes write times: whatever is no such
    text leaves a node out, so that all of its output counts.
    """
    chunks: dict[str, dict[str, bytes]] = {}
    times: dict[str, bytes] = {}
    for key, kv in found:
        if name := _KEY.fullmatch(key):
            chunks.setdefault(name[1], {})[name[2]] = kv.value
        elif name := _TIMES.fullmatch(key):
            times[name[1]] = kv.value
    begins = {node: _begin(raw, chunks.get(node, {}), since) for node, raw in times.items()}
    return {node: begin for node, begin in begins.items() if begin is not None}


def _begin(raw: bytes, chunks: Mapping[str, bytes], since: float) -> tuple[str, int] | None:
    try:
        sections = [(float(end), f"{int(chunk):08d}", int(offset)) for _, end, chunk, offset in json.loads(raw)]
        last = float(json.loads(raw)[-1][0]) + SECTION_S
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError):
        return None
    ends = [end for end, _, _ in sections[:-1]] + [last]
    for end, (_, chunk, offset) in zip(ends, sections, strict=True):
        if end >= since:
            return chunk, _whole_lines(chunks.get(chunk, b"")[: max(0, offset)])
    newest = max(chunks, default="")
    # Nothing since then: what the agent goes on to write is new.
    return newest, _whole_lines(chunks.get(newest, b""))


def _whole_lines(data: bytes) -> int:
    """Return how many characters of them there are."""
    return data.decode(errors="replace").rfind("\n") + 1
