"""Chunks of code that a user has uploaded: which of them are kept, and for how long. Pure.

They are what an upload goes on from where it was cut off, and what the next version of the same code need not send.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.model import SCHEMA_VERSION

MAX_CHUNK_BYTES = 512 * 1024
# Of one archive, and kept of one user.
MAX_CHUNKS = 1024
# Of one user: two archives of the largest size.
MAX_USER_BYTES = 64 * 1024 * 1024
# Of all users, as the leader trims them now and then.
MAX_ALL_BYTES = 256 * 1024 * 1024
# A chunk that no upload has named for so long is deleted.
KEPT_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is known of a chunk that is stored."""

    size_bytes: int
    # When an upload named it last.
    named_at: float


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """A user's chunks by SHA-256, in hex."""

    user: str
    chunks: Mapping[str, Chunk] = field(default_factory=dict)
    schema: int = SCHEMA_VERSION

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return sum(each.size_bytes for each in self.chunks.values())

    def without(self, hashes: Collection[str]) -> UploadRecord:
        """The others."""
        return replace(self, chunks={key: each for key, each in self.chunks.items() if key not in hashes})


def named(record: UploadRecord, hashes: Sequence[str], now: float) -> tuple[UploadRecord, list[str]]:
    """An upload names its chunks: those that are there stay for another while, and which are missing, each once."""
    asked = dict.fromkeys(hashes)
    kept = {key: replace(each, named_at=now) if key in asked else each for key, each in record.chunks.items()}
    return replace(record, chunks=kept), [key for key in asked if key not in record.chunks]


def added(record: UploadRecord, sha256: str, size_bytes: int, now: float) -> tuple[UploadRecord, list[str]]:
    """With one more, and what goes for it: those that were named longest ago, where the user has too many."""
    chunks = {key: each for key, each in record.chunks.items() if key != sha256}
    left = sum(each.size_bytes for each in chunks.values()) + size_bytes
    over: list[str] = []
    for key in sorted(chunks, key=lambda key: chunks[key].named_at):
        if left <= MAX_USER_BYTES and len(chunks) - len(over) < MAX_CHUNKS:
            break
        left -= chunks[key].size_bytes
        over.append(key)
    made = replace(record, chunks={**chunks, sha256: Chunk(size_bytes, now)})
    return made.without(over), over


def outdated(records: Sequence[UploadRecord], now: float) -> dict[str, list[str]]:
    """By user: chunks that were not named for long, then those named longest ago, until all users' fit."""
    everything = [(each.named_at, record.user, key, each) for record in records for key, each in record.chunks.items()]
    left = sum(record.size_bytes for record in records)
    over: dict[str, list[str]] = {}
    for at, user, key, chunk in sorted(everything, key=lambda each: each[:3]):
        # One whose time is to come was stored by a clock that was wrong.
        if left > MAX_ALL_BYTES or abs(now - at) > KEPT_S:
            left -= chunk.size_bytes
            over.setdefault(user, []).append(key)
    return over
