"""What a job's nodes have printed, as their agents keep it in etcd: in parts, each from where the one before ended.

A position is a revision of etcd, so that any daemon understands it, also after a restart. A chunk is rewritten while it
grows, and read again then; the reader knows how much of it was printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from spotsup_trainer.etcd import KeyValue

# One answer: of the 16 MiB that a job keeps, JSON takes much more in the daemon's memory.
MAX_OUTPUT_BYTES = 1 << 20
_KEY = re.compile(r"([^/]+)/([0-9]{8})")


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
    """The first part of `found`: keys below the job's, and what they hold. `revision`: of etcd, when they were read.

    At least one revision, else at most MAX_OUTPUT_BYTES. Keys that no agent writes are left out.
    """
    known = [(kv.mod_revision, name[1], name[2], kv.value) for key, kv in found if (name := _KEY.fullmatch(key))]
    chunks: list[Chunk] = []
    position, size = 0, 0
    for written, node, number, data in sorted(known):
        size += len(data)
        if size > MAX_OUTPUT_BYTES and position not in (0, written):
            return Output(tuple(chunks), position, more=True)
        chunks.append(Chunk(node, number, data))
        position = written
    return Output(tuple(chunks), revision, more=False)
