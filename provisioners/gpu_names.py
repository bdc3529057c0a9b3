"""Names of GPUs: nvidia-smi's, and those of the catalogue and of job files. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SIZE = re.compile(r"(\d+)gb")
_MAKERS = frozenset({"nvidia", "geforce", "tesla", "quadro"})


def is_named(name: str, memory_mib: int, wanted: str) -> bool:
    """True if nvidia-smi's name is that of the catalogue's `wanted`. `memory_mib`: 0 where it is not known.

    `RTXPRO6000` is "NVIDIA RTX PRO 6000 Blackwell Server Edition", `A100-80GB` is "NVIDIA A100-SXM4-80GB".
    """
    tokens = [token for token in _tokens(name) if not _SIZE.fullmatch(token)]
    # Whole words, joined as the catalogue joins them: A10 is no part of "A100", and H200 none of "GH200".
    runs = {"".join(tokens[first:end]) for end in range(len(tokens) + 1) for first in range(end)}
    short = "".join(part for part in _tokens(wanted) if not _SIZE.fullmatch(part))
    if short and short not in runs:
        return False
    for size in filter(None, map(_SIZE.fullmatch, _tokens(wanted))):
        # Firmware and ECC take some of it, and an H100 NVL's 94 GB are 95830 MiB.
        lowest, highest = 0.9 * int(size[1]) * 1000, 1.1 * int(size[1]) * 1024
        if memory_mib and not lowest <= memory_mib <= highest:
            return False
    return True


def name_of(name: str, memory_mib: int, known: Iterable[str]) -> str:
    """Return the most exact of the `known` names that nvidia-smi's has; else its own words without the maker's:
    "NVIDIA GeForce RTX 4090" is RTX4090."""
    fitting = [each for each in known if is_named(name, memory_mib, each)]
    if fitting:
        return max(fitting, key=lambda each: (len(each), each))
    return "".join(token for token in _tokens(name) if token not in _MAKERS and not _SIZE.fullmatch(token)).upper()


def _tokens(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
