"""The seeds of a program's random numbers, and the streams that are derived from them."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import NamedTuple

import torch


class Seeds(NamedTuple):
    """Where this process's generators stand."""

    torch: int
    python: int
    # 0: not imported.
    numpy: int


def found() -> Seeds:
    """Return those that the program has set, or its generators' own. Draws from Python's and numpy's."""
    numpy = sys.modules.get("numpy")
    drawn = int(numpy.random.randint(2**31)) if numpy else 0
    return Seeds(torch.initial_seed(), random.getrandbits(64), drawn)


def stream(base: int, step: int, rank: int, purpose: str, seed: int = 0) -> int:
    """Return a seed for one rank and purpose, the same whenever training resumes from the same step."""
    text = f"{base}/{step}/{rank}/{purpose}/{seed}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def begin(seeds: Seeds, base: int, step: int, rank: int) -> None:
    """Seed this rank's generators. Otherwise all ranks would draw the same dropout masks and augmentations, and each
    round those of the round before. The program's own seeds stay in force: it sets them again whenever it starts.
    """
    torch.manual_seed(stream(base, step, rank, "torch"))
    random.seed(stream(base, step, rank, "python", seeds.python))
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(stream(base, step, rank, "numpy", seeds.numpy) % 2**32)
