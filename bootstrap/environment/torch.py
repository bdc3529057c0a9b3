"""Which versions of torch a job may train with."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

# The oldest whose launcher, rendezvous and checkpoints ours are written for: `make test-torch`. torch.sh has it too.
TORCH_MIN = (2, 6)

OLDEST = ".".join(map(str, TORCH_MIN))


def is_supported(version: str) -> bool:
    """True if ours runs with it. What is no version passes: a build of one's own may be called anything."""
    try:
        return Version(version).release >= TORCH_MIN
    except InvalidVersion:
        return True
