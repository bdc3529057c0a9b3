"""For how long ended jobs are kept."""

from __future__ import annotations

from dataclasses import dataclass

# 15 KB each, without what they printed: 150 MB of the 2 GiB that etcd takes by default, and of each daemon's memory.
MAX_ENDED_JOBS = 10_000


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Ended jobs beyond either number are deleted, the oldest first; 0: any."""

    ended_jobs_days: float = 0.0
    ended_jobs: int = MAX_ENDED_JOBS
