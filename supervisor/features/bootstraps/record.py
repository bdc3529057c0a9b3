"""Machines of a job that could not be prepared, in a row. As the journal holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BootstrapsRecord:
    """Machines of a job that could not be prepared, in a row."""

    failures: int = 0  # nodes that were requested together fail as one
    own_failures: int = 0  # how many of the last ones failed alike by what the job or its image brings
    own_failure: str = ""  # how the last one did
    retry_at: float = 0.0  # after such a failure, no node is requested before
    spare_retry_at: float = 0.0  # no spare is requested before


@dataclass(frozen=True, slots=True)
class BootstrapsRules:
    """What follows where machines cannot be prepared."""

    failures: int = 5  # in a row; then people are alerted, and a job that never trained fails
    own_failures: int = 2  # in a row, alike, by what the job or its image brings: then a job that never trained fails
    retry_s: float = 5.0  # after the first of them the next node is requested; twice that after each further
    max_retry_s: float = 600.0  # at most that
    spare_retry_s: float = 600.0  # after a spare whose bootstrap failed, the next one is requested
