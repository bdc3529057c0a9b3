"""What a job's ranks say of how long they work in a step, and since when nodes are slow."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from spotsup_trainer.wire import Keys, RankTimes, Round, encode

from spotsup_simulator.etcd_clients import NodeClient

SAY_EVERY_S = 30.0
# A rank's time differs from another's, and from its own before, by so much at most: noise.
NOISE = 0.2


class Ranks:
    """The ranks of one job, one on each node."""

    def __init__(self, slowed_by: float) -> None:
        self.slow: set[str] = set()
        # When nodes began and ended to be slow.
        self.changes: list[tuple[float, str, bool]] = []
        self._slowed_by = slowed_by
        self._said_at = 0.0

    def set_slow(self, node: str, now: float, *, on: bool) -> None:
        """Let a node begin to be slow, or end to."""
        (self.slow.add if on else self.slow.discard)(node)
        self.changes.append((now, node, on))

    def was_slow(self, node: str, begin: float, end: float) -> bool:
        """True if a node was slow at any time between."""
        on = False
        for at, of_node, begins in self.changes:
            if of_node == node and at <= end:
                on = begins if at <= begin else on or begins
        return on

    def factor(self, nodes: Iterable[str]) -> float:
        """Return how many times as long as usual a step of these nodes takes."""
        return self._slowed_by if self.slow.intersection(nodes) else 1.0

    def say(self, client: NodeClient, keys: Keys, job: str, current: Round, step_s: float, now: float) -> None:
        """Rank 0's agent publishes what all ranks said, now and then. `step_s`: without slow nodes."""
        if now < self._said_at + SAY_EVERY_S:
            return
        self._said_at = now
        times = tuple(
            step_s * self.factor([node]) * (1 + NOISE * crc32(f"{node}{now}".encode()) / 2**32)
            for node in current.nodes()
        )
        client.put(keys.rank_times(job), encode(RankTimes(current.number, now, times, times)))
