"""A job that does nothing but write when it makes each step, and by which process: whether training went on."""

from __future__ import annotations

import itertools
from pathlib import Path

# Rank 0 alone writes: one line per step of the job.
_TRAIN = """\
import os, sys, time
while True:
    if os.environ["RANK"] == "0":
        with open(sys.argv[1], "a") as file:
            file.write(f"{time.time()} {os.getpid()}\\n")
    time.sleep(0.1)
"""


def code_in(folder: Path, nodes: str) -> Path:
    """The file of the job `ticker`, which writes its steps to `folder/steps`. `nodes`: as in a job file."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(_TRAIN)
    (code / "job.yaml").write_text(f"name: ticker\nnodes: {nodes}\nrun: train.py {folder / 'steps'}\n")
    return code / "job.yaml"


def ticks(folder: Path) -> list[tuple[float, int]]:
    """When each step was made, and by which process."""
    file = folder / "steps"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(float(at), int(pid)) for at, pid in (line.split() for line in lines)]


def went_on(folder: Path, since: float = 0.0) -> None:
    """One process made all steps, and none was later than a busy computer makes it."""
    seen = [each for each in ticks(folder) if each[0] >= since]
    assert len({pid for _, pid in seen}) == 1
    assert max(after[0] - before[0] for before, after in itertools.pairwise(seen)) < 30.0
