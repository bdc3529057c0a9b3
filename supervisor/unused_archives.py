"""Archives of code that users have uploaded and that no job came for yet: which of them are kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Of one user. The largest archive has half of it (supervisor.api.security.gate.MAX_BLOB_BYTES).
MAX_UNUSED_BYTES = 64 * 1024 * 1024
MAX_UNUSED = 100


@dataclass(frozen=True, slots=True)
class Upload:
    """An archive that a user has stored."""

    sha256: str
    size_bytes: int
    # Of etcd, when the user stored it last.
    revision: int


def displaced(stored: Iterable[Upload]) -> list[Upload]:
    """Return what one user has too much, the newest first: those that were stored last are kept."""
    left_bytes, over = MAX_UNUSED_BYTES, []
    for number, each in enumerate(sorted(stored, key=lambda each: each.revision, reverse=True)):
        left_bytes -= each.size_bytes
        if left_bytes < 0 or number >= MAX_UNUSED:
            over.append(each)
    return over
