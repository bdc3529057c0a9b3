"""Mosaic's streaming and WebDataset through session.wrap, with processes that come and go between their steps."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.launching import BUSY_S
from tests.e2e.ranks import Ranks

PROGRAM = Path(__file__).with_name("own_loaders.py")
# In the first epoch, at its end, in the second one; each time the batch after it had been taken.
ROUNDS = ((2, 3), (3, 6), (1, 8), (2, 13), (4, 10**6))


# The packages' own warnings are not ours to fix.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["mosaic", "webdataset"])
def test_each_sample_comes_once_per_epoch_over_any_number_of_processes(kind: str, tmp_path: Path) -> None:
    for world, stop in ROUNDS:
        arguments = (kind, str(tmp_path), str(stop))
        with Ranks(PROGRAM, tmp_path, world, *arguments, LOCAL_WORLD_SIZE=str(world)) as ranks:
            ranks.end(BUSY_S)
    lines = [json.loads(line) for file in tmp_path.glob("seen.*") for line in file.read_text().splitlines()]
    seen = Counter((epoch, number) for epoch, _, numbers in lines for number in numbers)
    assert seen == {(epoch, number): 1 for epoch in range(2) for number in range(96)}
    orders = [[numbers for of, step, numbers in sorted(lines) if of == epoch] for epoch in range(2)]
    assert orders[0] != orders[1]
    sizes: Counter[int] = Counter()
    for _, step, numbers in lines:
        sizes[step] += len(numbers)
    assert sizes == dict.fromkeys(range(1, 17), 12)
