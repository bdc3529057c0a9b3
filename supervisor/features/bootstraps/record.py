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
