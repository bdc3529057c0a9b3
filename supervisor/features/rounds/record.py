"""What a job waits for before its next round, and what people were told of rounds. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundsRecord:
    """What a job waits for before its next round, and what people were told of rounds."""

    gathering_since: float = 0.0  # since when a round change waits for nodes that are nearly ready; 0 while none does
    reported: int = 0  # number of the newest round that has its event
    downtime_reported: int = 0  # number of the newest round of which the downtime before it has its event
