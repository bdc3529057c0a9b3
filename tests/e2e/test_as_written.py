"""Programs as researchers write them, with a Session: in one process, and over a change from two processes to three."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.ranks import Ranks, until_parked
from tests.support.combinations import others_nightly

PROGRAMS = Path(__file__).with_name("as_written.py")
NAMES = ("accumulate", "validate", "two_optimizers", "schedule", "average", "workers", "early", "compiled")


def results(text: str) -> list[str]:
    """What a program says at its end."""
    return [line for line in text.splitlines() if line.startswith(("weights ", "averaged ", "rate "))]


def counted(texts: list[str]) -> Counter[int]:
    """How often each sample was in a completed step."""
    lines = [line for text in texts for line in re.findall(r"^step \d+:(.*)$", text, re.MULTILINE)]
    return Counter(int(number) for line in lines for number in line.split())


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", others_nightly(["workers"], NAMES))
def test_a_program_ends_with_the_same_weights_and_samples_over_a_change(name: str, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    with Ranks(PROGRAMS, alone, 1, name) as ranks:
        expected = ranks.end(180.0)
    before = until_parked(PROGRAMS, together, 2, name, timeout_s=180.0)
    with Ranks(PROGRAMS, together, 3, name) as ranks:
        ended = ranks.end(180.0)
        after = [ranks.output(rank) for rank in range(3)]
    assert results(ended) == results(expected)
    assert results(ended)
    assert counted([*before, *after]) == counted([expected])
