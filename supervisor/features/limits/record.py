"""What a job has used of its limits, and what people were told of that. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LimitsRecord:
    """What a job has used of its limits, and what people were told of that."""

    warned: tuple[str, ...] = ()  # the limits of which it has used so much that people were warned
    trained_s: float = 0.0  # for how long it had enough nodes in a round, without the current stretch
    training_since: float = 0.0  # since when the current stretch lasts; 0 while it does not train
