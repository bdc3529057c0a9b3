"""What the daemon's log and a job's output say."""

from __future__ import annotations

import itertools
import re
from datetime import datetime

_STEP = re.compile(r"\| step (\d+) restart (\d+) world (\d+) ")


def steps_in(printed: str) -> list[tuple[int, int, int]]:
    """(step, round, world size) of each step in the example's output, as `spotsupctl logs` shows it; in order."""
    # Restarts are counted from 0, and rounds from 1.
    found = {(int(restart) + 1, int(step), int(world)) for step, restart, world in _STEP.findall(printed)}
    return [(step, number, world) for number, step, world in sorted(found)]


def phases(log: str) -> dict[str, float]:
    """When the daemon said so for the first time: UNIX seconds by phase."""
    wanted = {
        "machines are asked for": "kind=launch-requested",
        "machines answer": "nodes are bootstrapping",
        "nodes are ready": "2 nodes are ready",
        "round": "kind=round",
    }
    lines = [line.split(maxsplit=1) for line in log.splitlines() if line[:4].isdigit()]
    found = {name: next((at for at, text in lines if sign in text), "") for name, sign in wanted.items()}
    return {name: datetime.fromisoformat(at).timestamp() for name, at in found.items() if at}


def lost_steps(made: list[tuple[int, int, int]]) -> int:
    """How many steps were made twice. The example prints a step after `session.step`; in that call all ranks park for
    the next round, with a checkpoint: so the last step of a round is not printed, and is made again only if it is lost.
    """
    lost = 0
    for (last, old, _), (first, new, _) in itertools.pairwise(made):
        expected = last + 1 if new == old else last + 2
        assert first <= expected, f"step {expected} of round {new} was not made"
        lost += expected - first
    return lost
